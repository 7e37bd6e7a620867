"""Parts of a load: a cap, a limit that changes and cancelled requests, divided among processes."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from fakes.scripted_server import target_of
from loadgen.base.errors import UsageError
from loadgen.engines.engines import UNKNOWN
from loadgen.features.shards.shard_sender import check_divisible
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import ConcurrencySteps
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run.firing import PlanPart, TransportOptions, make_job
from loadgen.run.stop_rules import StopRules
from loadgen.settings.shard_settings import Share
from loadgen.transport.sending.job import Job

TARGET = target_of("127.0.0.1", 9)


def planned(**keys: object) -> Plan:
    load = {"input_len": 8, "output_len": 3, "num_prompts": 40, "max_concurrency": 12, **keys}
    return plan.make(profile.build(load), ModelTarget(UNKNOWN, "m"), Seed(7, chosen=True))


def jobs(made: Plan, processes: int) -> list[Job]:
    """What each of some processes is to send."""
    options = TransportOptions(TARGET)
    parts = (PlanPart(Share(number, processes)) for number in range(processes))
    return [make_job(made, replace(options, part=part), StopRules()) for part in parts]


@loop_over("processes", [1, 3, 5])
def test_processes_have_a_changing_limit_together(processes: int) -> None:
    steps = ConcurrencySteps(np.array([0, 10], np.int64), np.array([4, 12], np.int64))
    made = jobs(replace(planned(), concurrency=steps), processes)
    for elapsed_ns, limit in ((0, 4), (10, 12)):
        parts = [job.concurrency_steps.limit(elapsed_ns) for job in made if job.concurrency_steps]
        assert sum(parts) == limit
    assert [job.most_slots for job in made] == [
        min(40, Share(n, processes).count_slots(12)) for n in range(processes)
    ]


def test_every_process_cancels_by_the_same_draw() -> None:
    made = planned(cancel_rate="30%", cancel_after="2s")
    every = [job.cancellations for job in jobs(made, 3)]
    assert made.cancellations is not None
    assert all(each is made.cancellations for each in every)
    assert 0 < made.cancellations.count < 40


def test_another_cancellation_is_another_plan() -> None:
    keys: tuple[dict[str, object], ...] = (
        {},
        {"cancel_rate": "30%", "cancel_after": "2s"},
        {"cancel_rate": "30%", "cancel_after": "2tok"},
    )
    assert len({planned(**each).digest() for each in keys}) == len(keys)


def test_more_shards_than_the_cap_has_places_are_refused() -> None:
    with pytest.raises(UsageError, match="3 shards of --prefill-concurrency 2: some would have no slot"):
        check_divisible(planned(prefill_concurrency=2), Share(0, 3))

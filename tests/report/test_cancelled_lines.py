"""Cancel lines: how many were cancelled, how late, and what the server's counters show of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import made_runs
from loadgen.base.structs import replace
from loadgen.figures.metrics import compute_metrics
from loadgen.plan.plan import draw_cancellations
from loadgen.plan.request_sources import RandomStream
from loadgen.records.record import Records
from loadgen.report.run_directory import Result
from loadgen.report.shape_figures import describe_cancelled
from loadgen.server.server_counters import ServerWindow
from loadgen.settings.load_settings import CancelPoint
from loadgen.transport.failure import USER_CANCELLED

MS = 1_000_000
REQUESTS = 40
UNUSED: Any = None  # how the report is to be


def cancelled(after: str, counted: dict[str, int] | None = None) -> Result:
    """A run in which every chosen request but the first was cancelled, 100 ms after it was sent."""
    made = made_runs.run(requests=REQUESTS)
    workload = made.facts.profile.model_copy(update={"cancel_rate": "25%", "cancel_after": after})
    stream = RandomStream(made.facts.seed, workload.name, made.facts.repeat)
    chosen = np.flatnonzero(draw_cancellations(0.25, CancelPoint(after_ns=1), stream, REQUESTS).chosen)
    records = made_runs.answers(REQUESTS, 16, 4, 1.0, 0)
    for index in chosen[1:]:
        record = records[index]
        record.failure = USER_CANCELLED
        record.arrival_ns, record.tokens = record.arrival_ns[:2], record.tokens[:2]
        due_ns = int(record.arrival_ns[-1]) if after.endswith("tok") else record.sent_ns + 100 * MS
        record.end_ns = due_ns + MS // 2
    window = ServerWindow(names="vllm", requests=counted) if counted else None
    facts = replace(made.facts, profile=workload, window=window)
    return Result(facts, Records.from_records(records))


@pytest.mark.parametrize("after", ["100ms", "2tok"])
def test_those_cancelled_are_counted_of_those_planned(after: str) -> None:
    run = cancelled(after)
    count, point = run.metrics.cancelled, run.facts.profile.cancel_point
    assert count > 4
    assert [*describe_cancelled(run, UNUSED)] == [
        f"cancelled as planned: {count} of {count + 1} (25 % of the requests) after {point}, "
        "0.50 ms late on average",
        "not cancelled: 1 of these ended before, or failed",
        f"figures are of the {REQUESTS - count} requests that were answered in full",
    ]


def test_cancelled_requests_are_neither_successes_nor_failures() -> None:
    run = cancelled("100ms")
    metrics = run.metrics
    assert (metrics.failed, metrics.failures, run.records.failed) == (0, {}, [])
    assert metrics.completed == metrics.e2el.n == REQUESTS - metrics.cancelled


def test_goodput_is_a_share_of_those_not_cancelled() -> None:
    run = cancelled("100ms")
    metrics = compute_metrics(run.records, replace(run.facts.ask(), goodput_limits={"e2el": 1e9}))
    assert metrics.slo_attainment == 1.0


@pytest.mark.parametrize(
    ("aborted", "finished", "words"),
    [
        (8, 0, "the server counts 8 aborted requests"),
        (0, 0, "the server counts no abort, and finished none of the"),
        (0, 3, None),  # the doubt `no-abort` has it
    ],
)
def test_the_servers_own_count_is_next_to_it(aborted: int, finished: int, words: str | None) -> None:
    completed = cancelled("100ms").metrics.completed
    run = cancelled("100ms", {"length": completed + finished} | ({"abort": aborted} if aborted else {}))
    lines = [*describe_cancelled(run, UNUSED)][3:]
    assert [words in line for line in lines if words] == ([True] if words else [])
    assert len(lines) == (words is not None)


def test_a_run_that_cancels_none_has_no_line() -> None:
    assert [*describe_cancelled(made_runs.run(), UNUSED)] == []

"""A run's facts: their rows, how they are stored and masked, and what follows from them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from builders import made_cases as made
from builders.loops import loop_over, loop_over_named
from loadgen.base.secrecy import Secrets
from loadgen.base.structs import replace
from loadgen.engines.refusals import AdaptedField
from loadgen.facts.run_facts import (
    Client,
    ClockReading,
    FactLine,
    Facts,
    Join,
    Launched,
    SensorSummary,
    Server,
    ShardFacts,
    list_annotations,
    mask_texts,
)
from loadgen.features.roofline import estimate
from loadgen.features.roofline.roofline_settings import Flags
from loadgen.report import report
from loadgen.settings.validation import ServerSettings

SIMULATED = Server(url="http://127.0.0.1:1/v1/completions", engine="vLLM", model="m", simulated="instant")
SENSED = SensorSummary(duration_s=1, period_s=1, samples=1, cpu_ms_per_sample=1, gpus=("GPU 0", "GPU 1"))
HOLDING = SENSED.model_copy(update={"server_gpus": ("GPU 0", "GPU 1")})
WITH_EXPORTED = SENSED.model_copy(update={"server_gpus": ("GPU 0",)})
GPU = {"gpu": "8 × NVIDIA H100"}


def launched(*words: str, tensor_parallel: int | None = 4) -> Launched:
    settings = ServerSettings(tensor_parallel=tensor_parallel)
    command = ["vllm", "serve", "m", *words]
    return Launched(how="vllm", command=command, environment={}, settings=settings, ready_s=1, owned="pid")


@loop_over_named(
    ("facts", "count"),
    {
        "not known": ({}, 0),
        "as given": ({"gpus": 8}, 8),
        "as given, first of all": ({"gpus": 8, "sensed": HOLDING, "launched": launched()}, 8),
        "as given, of a simulation": ({"gpus": 8, "server": SIMULATED}, 8),
        "a simulation has none": ({"sensed": HOLDING, "server": SIMULATED}, 0),
        "where the server's memory is": ({"sensed": HOLDING}, 2),
        "where its memory is, next to those of --power-url": ({"sensed": WITH_EXPORTED}, 1),
        "some of this machine's": ({"sensed": SENSED}, 0),
        "as started": ({"launched": launched(), "environment": GPU}, 4),
        "started without a GPU": ({"launched": launched()}, 0),
        "started without a number": ({"launched": launched(tensor_parallel=None), "environment": GPU}, 0),
        "started as several": ({"launched": launched("--data-parallel-size", "2"), "environment": GPU}, 0),
        "started as several, shortly": ({"launched": launched("-dp=2"), "environment": GPU}, 0),
    },
)
def test_the_gpus_are_those_that_are_known_to_serve(facts: dict[str, Any], count: int) -> None:
    of = made.run(**facts).facts
    assert of.gpu_count == count
    assert estimate.add_ceiling(of, Flags()).ask().gpus == count


def shard(number: int, of: int, requests: int | None = None) -> ShardFacts:
    before = ClockReading(boot="b", offset_ns=0)
    return ShardFacts(number=number, of=of, version="1", requests=requests, before=before)


CLOSED = {"num_prompts": 10, "max_concurrency": 4}
OPEN = {"num_prompts": 10, "request_rate": 8.0, "max_concurrency": 5}


@loop_over_named(
    ("keys", "part", "own"),
    {
        "closed, all of it": (CLOSED, None, (10, 4, 4, math.inf, True)),
        "closed, the only shard": (CLOSED, shard(0, 1, 10), (10, 4, 4, math.inf, True)),
        "closed, the first": (CLOSED, shard(0, 3, 4), (4, 2, 2, math.inf, False)),
        "closed, the last": (CLOSED, shard(2, 3, 3), (3, 1, 1, math.inf, False)),
        "closed, as many as it sent": (CLOSED, shard(2, 3), (10, 1, 1, math.inf, False)),
        "open, with a limit": (OPEN, shard(1, 4, 3), (3, 1, None, 2.0, False)),
        "open, at once": (
            {"num_prompts": 10, "max_concurrency": None},
            shard(1, 4, 3),
            (3, None, None, math.inf, False),
        ),
        "none of the plan": (CLOSED, shard(3, 4, 0), (0, 1, 1, math.inf, False)),
    },
)
def test_what_was_asked_of_a_shard_is_its_own_part(
    keys: dict[str, Any], part: ShardFacts | None, own: tuple[int, int | None, int | None, float, bool]
) -> None:
    facts = made.run(None, keys, requests=10, shard=part).facts
    asked = (facts.own_requests, facts.max_concurrency, facts.held_concurrency, facts.planned_rate_per_s)
    assert (*asked, facts.whole_load) == own
    assert (facts.block().max_concurrency, facts.block().request_rate_per_s) == (own[1], own[3])


@loop_over(
    ("key", "value"),
    [
        ("number", -1),
        ("of", 0),
        ("of", 10**400),
        ("requests", -1),
        ("start_at_ns", 2**63),
        ("before", {"boot": "b", "offset_ns": 2**63}),
        ("before", {"boot": "b", "offset_ns": 0, "error_ns": -(2**63)}),
    ],
)
def test_a_stored_shard_that_cannot_be_is_refused(key: str, value: object) -> None:
    stored = made.run(shard=shard(1, 2, 3)).facts.json()
    assert Facts.read_stored(stored).shard == shard(1, 2, 3)
    stored["shard"] |= {key: value}
    with pytest.raises(ValueError, match="shard: "):
        Facts.read_stored(stored)


def test_every_fact_is_joined_and_its_line_has_a_section() -> None:
    for kind in (Facts, Client):
        assert set(list_annotations(kind, Join)) == set(kind.__struct_fields__)
    sections = {line.section for line in list_annotations(Facts, FactLine).values()}
    assert sections <= {section.name for section in report.SECTIONS}


def test_what_is_masked_are_the_texts_of_facts_alone() -> None:
    facts = made.run(
        environment={"gpu": "a secret-1"}, notes=("a secret-1",), session_turns=(1, 2),
        turn_places=((1, "row 2"),), launched=launched("--api-key secret-1"),
        adapted=(AdaptedField(name="f", why="secret-1"),),
    ).facts  # fmt: skip
    secrets = Secrets.collect({"authorization": "secret-1-and-more"}) | Secrets(("secret-1",), ("secret-1",))
    masked = mask_texts(facts, secrets.mask)
    assert "secret-1" not in masked.encode().decode()
    assert type(masked.launched) is Launched
    assert replace(masked, environment={}, notes=(), launched=None, adapted=()) == (
        replace(facts, environment={}, notes=(), launched=None, adapted=())
    )

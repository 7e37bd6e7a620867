"""Saturation rule on virtual time: hopeless loads end, healthy ones do not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from builders.loops import loop_over
from builders.virtual_engine import open_loop
from loadgen import cli
from loadgen.report.run_directory import RESULT
from loadgen.run.stop_rules import LEAST, SaturationRule
from loadgen_servers.engine.scheduler import Limits, Scheduler
from loadgen_servers.engine.step_times import FittedTiming, Timing, UnsteadyTiming

LENGTHS: dict[str, Callable[[np.random.Generator, int], list[tuple[int, int]]]] = {
    "equal": lambda rng, n: [(512, 64)] * n,
    "varied": lambda rng, n: [(int(rng.integers(100, 1500)), int(rng.integers(8, 128))) for _ in range(n)],
    "chunked prefill": lambda rng, n: [(6000, 8)] * n,
    "long outputs": lambda rng, n: [(256, 400)] * n,
}
STEADY = FittedTiming(overhead_ms=10, weights_ms=10, compute_us=20, sequence_us=100)
COLD = UnsteadyTiming(FittedTiming(overhead_ms=5, weights_ms=10, compute_us=20, sequence_us=50), 400.0, 10)


SERVED = [("small", "equal"), ("small", "varied"), ("cold", "varied"), ("small", "chunked prefill")]
ENGINES: dict[str, tuple[Limits, Timing]] = {
    "small": (Limits(8, 512, 1 << 20), STEADY),
    "cold": (Limits(32, 2048, 1 << 20), COLD),
    "wide": (Limits(256, 8192, 1 << 20), STEADY),
}


@cache
def capacity_per_s(engine: str, lengths: str) -> float:
    """Requests per second of an engine with enough to do: two of the four waves of its widest batch."""
    requests = LENGTHS[lengths](np.random.default_rng(1), 1024)
    ends_ns = sorted(
        s.last_ns for s in open_loop(Scheduler(*ENGINES[engine]), [0] * 1024, requests).sequences
    )
    return 512 * 1e9 / (ends_ns[767] - ends_ns[255])


def stopped_s(
    engine: str, lengths: str, rate_per_s: float, burstiness: float, span_s: float, seed: int
) -> float | None:
    """When an open loop that sends over so many seconds is ended; None: it is not.

    Gaps between requests are of a gamma distribution; infinite burstiness makes them equal.
    """
    rng, n = np.random.default_rng(seed), int(rate_per_s * span_s) + 1
    gaps_s = np.full(n, 1.0) if math.isinf(burstiness) else rng.gamma(burstiness, 1 / burstiness, n)
    sent_ns = (np.cumsum(gaps_s) / rate_per_s * 1e9).astype(np.int64)
    ran = open_loop(Scheduler(*ENGINES[engine]), sent_ns.tolist(), LENGTHS[lengths](rng, n)).sequences
    place = {int(at): index for index, at in enumerate(sent_ns)}
    begun = [(place[s.arrived_ns], s.arrived_ns, s.first_ns) for s in ran]
    end_ns = [s.last_ns for s in ran]
    rule, ended = SaturationRule(rate_per_s), 0
    for quarter in range(1, int(4 * span_s)):
        now_ns = quarter * 250_000_000
        before, ended = ended, int(np.searchsorted(end_ns, now_ns, "right"))
        rule.note_several(begun[before:ended])
        sent = int(np.searchsorted(sent_ns, now_ns, "right"))
        if rule.reason(now_ns / 1e9, sent - ended):
            return now_ns / 1e9
    return None


@pytest.mark.parametrize(("engine", "lengths"), SERVED)
@loop_over("burstiness", [math.inf, 1.0, 0.5])
@loop_over("times", [1.5, 2.0, 5.0])
def test_a_hopeless_load_ends_within_30_s(engine: str, lengths: str, times: float, burstiness: float) -> None:
    rate_per_s = times * capacity_per_s(engine, lengths)
    assert stopped_s(engine, lengths, rate_per_s, burstiness, 30.0, seed=3) is not None


@loop_over("seed", range(4))
@loop_over("burstiness", [1.0, 0.5])
def test_a_load_of_1_3_times_the_capacity_ends_within_30_s(burstiness: float, seed: int) -> None:
    """With 29 requests/s; with a few, the requests of 30 s may by chance be no more than it can do."""
    rate_per_s = 1.3 * capacity_per_s("cold", "varied")
    assert stopped_s("cold", "varied", rate_per_s, burstiness, 30.0, seed) is not None


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 11), marks=pytest.mark.long)])
@pytest.mark.parametrize(("engine", "lengths"), [*SERVED, ("wide", "long outputs")])
@loop_over("burstiness", [1.0, 0.5])
@loop_over("times", [0.5, 0.9])
def test_no_healthy_load_is_ended(
    engine: str, lengths: str, times: float, burstiness: float, seeds: range
) -> None:
    rate_per_s = times * capacity_per_s(engine, lengths)
    ended = [stopped_s(engine, lengths, rate_per_s, burstiness, 60.0, seed) for seed in seeds]
    assert ended == [None] * len(seeds)


def test_the_reason_names_what_rose() -> None:
    rule = SaturationRule(10.0)
    for index in range(100):
        rule.reason(index / 10 + 0.05, index)
        rule.note_several([(index, index * 100_000_000, index * 200_000_000 + 50_000_000)])
    assert rule.reason(20.0, 100) == (
        "TTFT rose from 3.70 to 9.60 s and requests in flight from 36 to 100; "
        "first tokens came at 50 % of the rate of 10 requests/s"
    )


def test_of_many_requests_an_even_part_is_kept() -> None:
    rule = SaturationRule(1000.0)
    rule.note_several((index, index * 1_000_000, index * 2_000_000) for index in range(100_000))
    assert len(rule._begun) <= 2048
    assert rule.reason(0.0, 0) == ""
    rule.reason(40.0, 10)
    assert "at 50 % of the rate" in rule.reason(200.0, 50_000)


@pytest.mark.whole
def test_a_run_that_the_engine_cannot_keep_up_with_is_ended(tmp_path: Path) -> None:
    """Four times what the engine can do: it ends long before the minute that was planned."""
    words = ["bench", "--quiet", "--preset", "jetson-thor/qwen3-8b-bf16", "--run-dir", str(tmp_path)]
    words += ["--input-len", "256", "--output-len", "8", "--request-rate", "40", "--duration", "60"]
    assert cli.main([*words, "--stop-when-saturated"]) == 1
    (path,) = tmp_path.glob(f"*/{RESULT}")
    result = json.loads(path.read_text())
    assert result["loadgen"]["saturated"] is True
    assert result["loadgen"]["stop_rule"].startswith("--stop-when-saturated: TTFT rose from ")
    assert result["completed"] >= LEAST

"""Arrival: offsets start at 0, never decrease, and are the process they are named after."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.arrays import Float64, Int64
from loadgen.base.errors import UsageError
from loadgen.plan.arrival import (
    Arrival,
    ArrivalProcess,
    RequestRamp,
    ScheduledArrival,
    draw_offsets_ns,
    make_process,
)
from loadgen.plan.profile import build
from loadgen.settings.load_schedule import RampEnds

TABLES = read_tables("arrival")

MS = 1_000_000


@loop_over(("rate", "burstiness", "flag"), TABLES["refused"])
def test_what_is_no_process_is_refused_by_flag(rate: float | str, burstiness: float | str, flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag} "):
        Arrival(float(rate), float(burstiness))


def test_a_rate_whose_schedule_overflows_is_refused() -> None:
    with pytest.raises(UsageError, match="more than a century"):
        Arrival(1e-9, math.inf).offsets_ns(10, np.random.default_rng(0))


def test_constant_offsets_do_not_accumulate_rounding() -> None:
    offsets = Arrival(3.0, math.inf).offsets_ns(1_000_001, np.random.default_rng(0))
    assert offsets[:4].tolist() == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert offsets[-1] == 333_333_333_333_333


@pytest.mark.parametrize(
    ("process", "variation"),
    [
        (Arrival(50.0), 1.0),
        (Arrival(50.0, 0.25), 2.0),
        (Arrival(50.0, 4.0), 0.5),
        (Arrival(50.0, math.inf), 0.0),
    ],
)
def test_gaps_have_the_mean_and_the_variation_of_the_process(process: Arrival, variation: float) -> None:
    gaps = np.diff(process.offsets_ns(200_001, np.random.default_rng(2)))
    assert gaps.mean() == pytest.approx(20 * MS, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.02)  # gamma: 1 / sqrt(shape)


def draw_as_vllm(n: int, rate: float, burstiness: float, seed: int) -> Float64:
    """When vLLM 0.32 sends, in seconds: `get_request` of vllm/benchmarks/serve.py, without a ramp."""
    rng, sums = np.random.RandomState(seed), [0.0]
    for _ in range(n):
        gap = 1 / rate if burstiness == math.inf else rng.gamma(burstiness, 1 / (rate * burstiness))
        sums.append(sums[-1] + gap)
    return np.array(sums[1:]) * (n / rate / sums[-1])


@loop_over(
    ("n", "rate", "burstiness"),
    [
        (1, 8.0, 1.0), (2, 0.01, 1.0), (80, 8.0, 1.0), (80, 8.0, 0.25), (80, 8.0, 4.0), (80, 8.0, math.inf),
        (1000, 50.0, 1.0), (1000, 0.5, 0.1), (200, 1e6, 1.0), (3, 1e9, 1.0),
    ],
)  # fmt: skip
def test_exact_offsets_are_those_of_vllm(n: int, rate: float, burstiness: float) -> None:
    for seed in range(40):
        rng: Any = np.random.RandomState(seed)  # whose draws are vLLM's
        offsets = Arrival(rate, burstiness, exact=True).offsets_ns(n, rng)
        np.testing.assert_allclose(offsets, draw_as_vllm(n, rate, burstiness, seed) * 1e9, atol=1)
        assert offsets[-1] == round(n / rate * 1e9)


def test_exact_offsets_have_no_scale_where_every_gap_is_nothing() -> None:
    assert Arrival(8.0, exact=True).offsets_ns(0, np.random.default_rng(0)).tolist() == []
    assert not Arrival(8.0, 1e-9, exact=True).offsets_ns(5, np.random.default_rng(0)).any()


def test_the_gaps_are_the_ones_the_generator_gave() -> None:
    gaps = np.random.default_rng(3).exponential(0.1, 4)
    offsets = Arrival(10.0).offsets_ns(5, np.random.default_rng(3))
    assert offsets.tolist() == [0, *np.rint(np.cumsum(gaps) * 1e9).astype(np.int64).tolist()]


@loop_over("process", [Arrival(100.0, math.inf), Arrival(100.0), Arrival(100.0, 0.1), Arrival(100.0, 8.0)])
@loop_over("duration_ms", [1, 100, 2500, 60_000])
def test_a_shorter_duration_has_the_first_offsets_of_a_longer(process: Arrival, duration_ms: int) -> None:
    whole = process.offsets_ns(20_000, np.random.default_rng(4))
    found = draw_offsets_ns(duration_ms * MS, 1_000_000, process, lambda: np.random.default_rng(4))
    assert found.tolist() == whole[whole < duration_ms * MS].tolist()
    few = draw_offsets_ns(duration_ms * MS, 7, process, lambda: np.random.default_rng(4))
    assert few.tolist() == found[:7].tolist()


def test_a_duration_does_not_end_on_the_request_that_is_due_with_it() -> None:
    found = draw_offsets_ns(300 * MS, 100, Arrival(10.0, math.inf), lambda: np.random.default_rng(0))
    assert found.tolist() == [0, 100 * MS, 200 * MS]


NS = 1_000_000_000


def offsets_of(n: int = 10_000, seed: int = 7, **keys: Any) -> Int64:
    """The schedule of a profile, of n requests at most."""
    profile = build(keys)
    process = make_process(profile, n)
    if not profile.duration_ns:
        return process.offsets_ns(n, np.random.default_rng(seed))
    return draw_offsets_ns(profile.duration_ns, n, process, lambda: np.random.default_rng(seed))


def counted(offsets_ns: Int64, *edges_s: float) -> list[int]:
    """How many are due between each two times."""
    counts: list[int] = np.histogram(offsets_ns / NS, edges_s)[0].tolist()
    return counts


def test_constant_arrivals_are_exactly_as_many_as_each_stage_has() -> None:
    offsets_ns = offsets_of(schedule="rate 2 for 60s, 0 for 5s, 8 for 120s", burstiness=math.inf)
    assert counted(offsets_ns, 0, 60, 65, 185) == [120, 0, 960]
    assert np.diff(offsets_ns)[125:].tolist() == [NS // 8] * (len(offsets_ns) - 126)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_has_vllms_rate_at_each_index(strategy: str) -> None:
    ends = RampEnds(2.0, 20.0, strategy == "exponential")
    expected = [vllm_rate(strategy, 2.0, 20.0, index, 50) for index in range(50)]
    np.testing.assert_allclose(ends.compute_rates_per_s(50), expected)
    offsets_ns = RequestRamp(ends, 50, math.inf).offsets_ns(50, np.random.default_rng(0))
    np.testing.assert_allclose(np.diff(offsets_ns) / NS, 1 / np.array(expected[1:]), atol=1e-8)


def vllm_rate(strategy: str, begin: float, end: float, index: int, count: int) -> float:
    """The rate at a request, from the definition in vLLM's documentation of --ramp-up-strategy."""
    progress = index / max(count - 1, 1)
    if strategy == "linear":
        return begin + (end - begin) * progress
    return begin * math.pow(end / begin, progress)


def test_a_linear_ramp_may_begin_at_zero() -> None:
    keys: dict[str, Any] = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 0.0, "ramp_up_end_rps": 3.0}
    offsets_ns = offsets_of(4, burstiness=math.inf, num_prompts=4, **keys)
    assert (offsets_ns / NS).round(6).tolist() == [0.0, 1.0, 1.5, 1.833333]


@pytest.mark.parametrize(
    ("keys", "expected_s"),
    [
        ({}, [0, 0, 0, 10, 10, 10, 20]),
        ({"request_rate": 0.25}, [0, 0, 0, 0, 4, 8, 10]),
        ({"schedule": "rate 0 for 5s, 1 for 10s"}, [0, 0, 0, 5, 6, 7, 8]),
    ],
)
def test_bursts_come_on_top_of_a_rate_or_alone(keys: dict[str, Any], expected_s: list[int]) -> None:
    offsets_ns = offsets_of(7, bursts="3 every 10s", burstiness=math.inf, **keys)
    assert (offsets_ns / NS).tolist() == expected_s


SHAPES: list[dict[str, Any]] = [
    {"schedule": "rate 2 for 60s, 8 for 120s, 8 to 1 over 60s exponentially"},
    {"bursts": "5 every 3s", "request_rate": 4.0},
    {"bursts": "5 every 3s", "schedule": "rate 0 to 9 over 200s"},
]


@loop_over("keys", SHAPES)
@loop_over("burstiness", [math.inf, 1.0, 0.25])
def test_a_longer_plan_begins_with_the_shorter(keys: dict[str, Any], burstiness: float) -> None:
    process: ArrivalProcess = make_process(build({**keys, "burstiness": burstiness}), 1000)
    long_ns, short_ns = (process.offsets_ns(n, np.random.default_rng(3)) for n in (1000, 100))
    assert long_ns[:100].tolist() == short_ns.tolist()
    assert (np.diff(long_ns) >= 0).all()


def test_a_schedule_of_one_stage_has_arrivals_own_process() -> None:
    for keys, exact in (({}, True), ({"exact_rate": False}, False), ({"duration": 9.0}, False)):
        assert make_process(build({"request_rate": 3.0, **keys}), 10) == Arrival(3.0, exact=exact)
    assert isinstance(make_process(build({"schedule": "rate 3 for 9s"}), 10), ScheduledArrival)

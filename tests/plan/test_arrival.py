"""Arrival: offsets start at 0, never decrease, and are the process they are named after."""

from __future__ import annotations

import math

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.plan.arrival import Arrival, cut_offsets_ns

MS = 1_000_000


def every_kind(rate_per_s: float) -> list[Arrival]:
    """Constant, Poisson, in bursts, and more even."""
    return [Arrival(rate_per_s, burstiness) for burstiness in (math.inf, 1.0, 0.25, 4.0)]


@loop_over(
    ("rate", "burstiness", "flag"),
    [
        (0.0, 1.0, "--request-rate"),
        (-1.0, 1.0, "--request-rate"),
        (-math.inf, 1.0, "--request-rate"),
        (math.nan, 1.0, "--request-rate"),
        (0.0, math.inf, "--request-rate"),
        (math.nan, 0.5, "--request-rate"),
        (1.0, 0.0, "--burstiness"),
        (1.0, -2.0, "--burstiness"),
        (1.0, -math.inf, "--burstiness"),
        (1.0, math.nan, "--burstiness"),
        (math.inf, math.nan, "--burstiness"),
    ],
)
def test_what_is_no_process_is_refused_by_flag(rate: float, burstiness: float, flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag} "):
        Arrival(rate, burstiness)


def test_a_rate_whose_schedule_overflows_is_refused() -> None:
    with pytest.raises(UsageError, match="more than a century"):
        Arrival(1e-9, math.inf).offsets_ns(10, np.random.default_rng(0))


def test_constant_offsets_do_not_accumulate_rounding() -> None:
    offsets = Arrival(3.0, math.inf).offsets_ns(1_000_001, np.random.default_rng(0))
    assert offsets[:4].tolist() == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert offsets[-1] == 333_333_333_333_333


@loop_over(
    "process",
    [Arrival(math.inf), Arrival(10.0, math.inf), Arrival(10.0), Arrival(10.0, 0.5), Arrival(10.0, 4.0)],
)
@loop_over("n", [0, 1, 2, 1000])
def test_offsets_are_int64_start_at_zero_and_never_decrease(process: Arrival, n: int) -> None:
    offsets = process.offsets_ns(n, np.random.default_rng(1))
    assert offsets.dtype == np.int64
    assert len(offsets) == n
    assert offsets[:1].tolist() == [0][:n]
    assert bool((np.diff(offsets) >= 0).all())


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


def test_the_last_offset_is_not_stretched_to_n_over_rate() -> None:
    ends = {int(Arrival(10.0).offsets_ns(100, np.random.default_rng(seed))[-1]) for seed in range(20)}
    assert len(ends) == 20
    assert 10_000 * MS not in ends


def test_the_gaps_are_the_ones_the_generator_gave() -> None:
    gaps = np.random.default_rng(3).exponential(0.1, 4)
    offsets = Arrival(10.0).offsets_ns(5, np.random.default_rng(3))
    assert offsets.tolist() == [0, *np.rint(np.cumsum(gaps) * 1e9).astype(np.int64).tolist()]


@loop_over("process", [Arrival(100.0, math.inf), Arrival(100.0), Arrival(100.0, 0.1), Arrival(100.0, 8.0)])
@loop_over("duration_ms", [1, 100, 2500, 60_000])
def test_a_shorter_duration_has_the_first_offsets_of_a_longer(process: Arrival, duration_ms: int) -> None:
    whole = process.offsets_ns(20_000, np.random.default_rng(4))
    found = cut_offsets_ns(duration_ms * MS, 1_000_000, process, lambda: np.random.default_rng(4))
    assert found.tolist() == whole[whole < duration_ms * MS].tolist()
    few = cut_offsets_ns(duration_ms * MS, 7, process, lambda: np.random.default_rng(4))
    assert few.tolist() == found[:7].tolist()


def test_a_duration_does_not_end_on_the_request_that_is_due_with_it() -> None:
    found = cut_offsets_ns(300 * MS, 100, Arrival(10.0, math.inf), lambda: np.random.default_rng(0))
    assert found.tolist() == [0, 100 * MS, 200 * MS]

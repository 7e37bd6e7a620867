"""Arrival scales: indices of dispersion have the values of processes with a closed form."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.figures.workloads import (
    SCALES_NS,
    ArrivalFigures,
    count_arrivals,
    measure_arrivals,
)

RATE_PER_S, REQUESTS = 20.0, 200_000


def measure(times_ns: Int64) -> ArrivalFigures:
    found = measure_arrivals(times_ns)
    assert found is not None
    return found


def draw_poisson(requests: int = REQUESTS) -> Int64:
    gaps_s = np.random.default_rng(5).exponential(1 / RATE_PER_S, requests)
    return np.cumsum(gaps_s * SECOND_NS).astype(np.int64)


def test_a_poisson_process_has_an_index_of_1_at_all_scales() -> None:
    found = measure(draw_poisson())
    assert [scale.window for scale in found.scales] == ["1 ms", "10 ms", "100 ms", "1 s", "10 s", "1 min"]
    for scale in found.scales:
        assert abs(scale.index - 1) < 5 * (2 / (scale.windows - 1)) ** 0.5, scale.window
    assert found.gap_cv == pytest.approx(1, abs=0.01)
    assert found.rate_per_s == pytest.approx(RATE_PER_S, rel=0.01)


@pytest.mark.parametrize("together", [2, 7])
def test_batches_at_poisson_times_have_their_size_as_index(together: int) -> None:
    for scale in measure(np.repeat(draw_poisson(), together)).scales:
        assert scale.index == pytest.approx(together, rel=5 * (2 / (scale.windows - 1)) ** 0.5)


def test_even_gaps_have_an_index_of_0_over_their_multiples() -> None:
    found = measure(np.arange(4001, dtype=np.int64) * SECOND_NS // 10)
    assert {scale.window: scale.index for scale in found.scales} == pytest.approx(
        {"100 ms": 0, "1 s": 0, "10 s": 0}
    )
    assert (found.gap_cv, found.grid_s, found.instants) == (0, 0.1, 4001)


def test_a_rate_that_changes_shows_at_its_scale_alone() -> None:
    """A minute at 30/s, a minute at 10/s: over w seconds within a minute 1 + w × 10² / 20."""
    rng = np.random.default_rng(3)
    counts = rng.poisson(np.tile([1800, 600], 400))
    parts = [minute * 60 + np.sort(rng.random(count)) * 60 for minute, count in enumerate(counts.tolist())]
    found = measure((np.concatenate(parts) * SECOND_NS).astype(np.int64))
    assert found.find_index("10 ms") == pytest.approx(1.05, abs=0.02)
    assert found.find_index("1 s") == pytest.approx(6, rel=0.05)
    assert found.find_index("10 s") == pytest.approx(51, rel=0.05)


@pytest.mark.parametrize(
    ("times_ns", "rate", "scales"),
    [([0, 0, 0], None, 0), ([0, SECOND_NS], 1.0, 2), ([5, 5 + 30 * MS_NS], 1000 / 30, 1)],
    ids=["at once", "two", "thirty windows"],
)
def test_few_requests_have_few_figures(times_ns: list[int], rate: float | None, scales: int) -> None:
    found = measure(np.array(times_ns, np.int64))
    assert (found.rate_per_s, len(found.scales)) == (rate, scales)


@pytest.mark.parametrize("times_ns", [[], [7]])
def test_fewer_than_two_requests_have_no_arrivals(times_ns: list[int]) -> None:
    assert measure_arrivals(np.array(times_ns, np.int64)) is None


def test_windows_below_the_grid_are_left_out() -> None:
    found = measure(np.repeat(np.arange(500, dtype=np.int64) * 3 * SECOND_NS, 4))
    assert (found.grid_s, [scale.window for scale in found.scales]) == (3.0, ["10 s"])
    assert set(SCALES_NS) > {scale.window for scale in found.scales}


def test_arrivals_over_time_add_up_to_all() -> None:
    times_ns = draw_poisson(1000)
    begins_s, rates = count_arrivals(times_ns, 40)
    assert (rates * (begins_s[1] - begins_s[0])).sum() == pytest.approx(1000)
    assert [len(column) for column in count_arrivals(times_ns[:1], 40)] == [0, 0]

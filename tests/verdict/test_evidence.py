"""The statistics behind the verdict, against values worked out by hand or found in tables."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from builders.loops import loop_over
from builders.required import require
from loadgen.verdict.evidence import (
    Trend,
    least_samples,
    overlap_mean,
    percent,
    sum_overlapping,
    wave_medians,
)


@loop_over(
    ("percentile", "point", "bound"),
    [(50, 2, 7), (90, 10, 44), (95, 20, 90), (99, 100, 459), (99.9, 1000, 4603), (1, 100, 459), (100, 1, 1)],
)
def test_a_percentile_needs_so_many_samples(percentile: float, point: int, bound: int) -> None:
    assert least_samples(percentile) == (point, bound)


def test_a_rising_series_has_the_trend_that_kendall_gives_it() -> None:
    # n = 10, S = 45, Var S = 125, z = 44 / √125 = 3.935: two-sided p = 8.3e-5; slope 1, median 14.5.
    found = require(Trend.fit(np.arange(10.0, 20.0)))
    assert found.n == 10
    assert found.probability == pytest.approx(8.30e-5, rel=1e-2)
    assert found.change == pytest.approx(9 / 14.5)


def test_one_outlier_neither_makes_a_trend_nor_a_slope() -> None:
    found = require(Trend.fit([10.0] * 11 + [1000.0]))
    assert found.probability > 0.3
    assert found.change == 0


@pytest.mark.parametrize("values", [[], [1.0] * 7, [0.0] * 20], ids=["none", "too few", "nothing above 0"])
def test_what_is_too_short_or_nothing_has_no_trend(values: list[float]) -> None:
    assert Trend.fit(values) is None


def test_a_constant_has_no_trend() -> None:
    assert Trend.fit([5.0] * 20) == Trend(20, 1.0, 0.0)


def test_noise_rarely_looks_like_a_trend() -> None:
    rng = np.random.default_rng(3)
    found = [Trend.fit(10 + rng.normal(size=12)) for _ in range(1000)]
    assert sum(one is not None and one.probability < 0.01 for one in found) < 20


def test_little_s_law_counts_only_what_lies_inside() -> None:
    begin, end = np.array([0, 10, 30]), np.array([20, 40, 50])
    assert overlap_mean(begin, end, (10, 30)) == (10 + 20 + 0) / 20
    assert overlap_mean(begin, end, (0, 50)) == (20 + 30 + 20) / 50


def test_awaited_agrees_with_looking_at_every_pair() -> None:
    rng = np.random.default_rng(5)
    begin = rng.integers(0, 1000, 60)
    end, weight = begin + rng.integers(1, 200, 60), rng.integers(1, 9, 60)
    pairs = (begin[:, None] < end[None, :]) & (begin[None, :] < end[:, None])
    assert sum_overlapping(begin, end, weight).tolist() == (pairs * weight[None, :]).sum(axis=1).tolist()


def test_waves_are_medians_of_whole_ones() -> None:
    assert wave_medians(np.array([1.0, 2.0, 9.0, 4.0, 5.0, 6.0, 100.0]), 3).tolist() == [2.0, 5.0]
    assert wave_medians(np.zeros(0), 3).tolist() == []


def test_shares_read_as_percent() -> None:
    shares = [0.01, 0.05, 0.872, 0.0012, 1.0]
    assert [percent(share) for share in shares] == ["1 %", "5 %", "87.2 %", "0.12 %", "100 %"]
    assert all(percent(a) != percent(b) for a, b in pairwise(shares))

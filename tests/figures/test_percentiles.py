"""Percentiles have bounds that hold."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.figures.distribution import (
    count_allowed_over,
    find_least_passing,
    find_lower_place,
    find_upper_index,
)


@loop_over(
    ("over", "percentile", "within"), [(0, 99, 459), (0, 90, 44), (1, 99, 661), (0, 50, 7), (0, 99.9, 4603)]
)
def test_the_least_samples_that_pass_are_those_of_loadgen(over: int, percentile: float, within: int) -> None:
    assert find_least_passing(over, percentile) == within


@loop_over(
    ("n", "percentile", "index"),
    [
        (10_000, 99, 9923),
        (662, 99, 661),
        (661, 99, 660),
        (459, 99, 458),
        (458, 99, None),
        (44, 90, 43),
        (43, 90, None),
        (0, 99, None),
        (10_000, 0, None),
        (10_000, 100, None),
        (100_000_000, 99, 99_002_315),
    ],
)
def test_the_bound_is_this_sample_in_order(n: int, percentile: float, index: int | None) -> None:
    assert find_upper_index(n, percentile) == index


def exact_allowed(n: int, chance: float, alpha: float = 0.01) -> int:
    total = 0.0
    for k in range(n + 1):
        total += comb(n, k) * chance**k * (1 - chance) ** (n - k)
        if total > alpha:
            return k - 1
    return n


@loop_over("percentile", [1, 10, 50, 90, 95, 99])
def test_sums_of_the_tail_are_those_of_the_plain_formula(percentile: float) -> None:
    sizes = (1, 2, 5, 43, 44, 90, 300, 459, 900)
    assert [count_allowed_over(n, percentile) for n in sizes] == [
        exact_allowed(n, 1 - percentile / 100) for n in sizes
    ]


def test_least_samples_and_allowed_ones_are_one_rule() -> None:
    for over in (0, 1, 2, 10, 77, 1000):
        n = find_least_passing(over, 99) + over
        assert (count_allowed_over(n - 1, 99), count_allowed_over(n, 99)) == (over - 1, over)


@pytest.mark.parametrize("n", [459, 700, 2000])
def test_a_percentile_lies_below_its_bound_in_99_of_100_runs(n: int) -> None:
    samples = np.sort(np.random.default_rng(7).exponential(size=(4000, n)), axis=1)
    truth, index = -np.log(0.01), find_upper_index(n, 99)
    assert index is not None
    assert (samples[:, index] >= truth).mean() >= 0.99 - 3 * (0.0099 / 4000) ** 0.5


@pytest.mark.parametrize(("n", "percentile", "index"), [(10_000, 1, 76), (44, 10, 0), (43, 10, None)])
def test_a_lower_bound_mirrors_the_upper_one(n: int, percentile: float, index: int | None) -> None:
    assert find_lower_place(n, n, percentile) == index


def test_a_percentile_lies_above_its_lower_bound_in_99_of_100_runs() -> None:
    samples = np.sort(np.random.default_rng(8).exponential(size=(4000, 700)), axis=1)
    index = find_lower_place(700, 700, 99)
    assert index is not None
    assert (samples[:, index] <= -np.log(0.01)).mean() >= 0.99 - 3 * (0.0099 / 4000) ** 0.5

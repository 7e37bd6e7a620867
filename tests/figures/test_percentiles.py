"""Percentiles equal numpy's, and cost no import that it would."""

from __future__ import annotations

import subprocess
import sys
from math import comb

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.figures.distribution import (
    compute_medians,
    compute_percentiles,
    count_allowed_over,
    find_least_passing,
    find_lower_place,
    find_upper_index,
)

WANTED = (0, 0.1, 1, 25, 33.3, 50, 75, 90, 99, 99.9, 100)


@loop_over("n", [1, 2, 3, 7, 100, 1001])
@loop_over("kind", ["int64", "float64", "equal", "far apart"])
def test_percentiles_are_numpys_to_the_last_digit(n: int, kind: str) -> None:
    random = np.random.default_rng(n)
    values = {
        "int64": random.integers(0, 10**10, n),
        "float64": random.exponential(1e7, n),
        "equal": np.full(n, 3.1),
        "far apart": random.choice(np.array([0.0, 1e-9, 1e18]), n),
    }[kind]
    assert compute_percentiles(values.copy(), WANTED) == np.percentile(values, WANTED).tolist()
    assert float(compute_medians(values)) == float(np.median(values))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_medians_are_along_the_last_axis(size: int) -> None:
    values = np.random.default_rng(size).exponential(1.0, (4, size))
    assert compute_medians(values).tolist() == np.median(values, axis=1).tolist()


@pytest.mark.whole
def test_a_run_does_not_pay_for_masked_arrays() -> None:
    code = (
        "import sys, numpy as np\n"
        "from loadgen.figures.distribution import Distribution\n"
        "from loadgen.figures.distribution import compute_medians\n"
        "Distribution.from_ns(np.arange(10), (99.0,)); compute_medians(np.arange(3))\n"
        "sys.exit('numpy.ma' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


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

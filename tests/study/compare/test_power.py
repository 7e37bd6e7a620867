"""Power: sizes of samples as R and Cohen's tables have them, and plans checked by integration instead."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from builders.loops import loop_over
from loadgen.study.compare.statistics import (
    MOST_UNITS,
    POWER,
    compute_power,
    compute_separation,
    estimate_more_units,
)

INF = math.inf


def integrated(distance: float, freedom: int, tail: float, *, equivalence: bool = False) -> float:
    """The power of a t test, over the distribution of the estimated error: no noncentral t in it.

    Of equivalence: the truth is no difference, and the margin lies `distance` standard errors off.
    """
    bar = stats.t.isf(tail, freedom)

    def given(error: float) -> float:
        if equivalence:
            found = max(0.0, 1 - 2 * stats.norm.sf(distance - bar * error))
        else:
            found = stats.norm.sf(bar * error - distance)
        return float(found * stats.chi.pdf(error * math.sqrt(freedom), freedom) * math.sqrt(freedom))

    most = distance / bar if equivalence else INF  # beyond it no estimate is small enough
    return float(integrate.quad(given, 0, most, limit=200)[0])


def test_power_is_that_of_rs_own_example() -> None:
    """power.t.test(n = 20, delta = 1): two samples, 5 % two-sided, power 0.8689528."""
    assert float(compute_power(1 / math.sqrt(2 / 20), 38, 0.025)) == pytest.approx(0.8689528, abs=5e-8)


@loop_over(
    ("effect", "n", "pairs"),
    [
        (0.2, 199, True),
        (0.5, 34, True),
        (0.8, 15, True),
        (0.2, 394, False),
        (0.5, 64, False),
        (0.8, 26, False),
    ],
)
def test_eighty_percent_begins_where_the_tables_have_it(effect: float, n: int, pairs: bool) -> None:
    """Cohen's small, medium and large effect at 5 % two-sided."""
    sides, degrees = (1, n - 1) if pairs else (2, 2 * n - 2)
    enough = compute_power(effect * math.sqrt(n / sides), degrees, 0.025)
    one_less = compute_power(effect * math.sqrt((n - 1) / sides), degrees - sides, 0.025)
    assert one_less < POWER <= enough


@pytest.mark.parametrize(
    ("distance", "freedom", "tail"),
    [(3.0, 4, 0.025), (6.0, 4, 0.0028), (2.0, 30, 0.0083), (3.3, 999, 0.0083)],
)
def test_power_is_its_integral(distance: float, freedom: int, tail: float) -> None:
    assert float(compute_power(distance, freedom, tail)) == pytest.approx(
        integrated(distance, freedom, tail), abs=1e-7
    )


@loop_over("freedom", [1, 2, 4, 50, 999])
@loop_over("tail", [0.025, 0.0083, 0.0009])
def test_a_difference_far_beyond_what_is_needed_is_found(freedom: int, tail: float) -> None:
    found = compute_power(np.geomspace(1, 1e9, 400), freedom, tail)
    assert not np.isnan(found).any()
    assert (np.diff(found) >= -1e-6).all()  # scipy 1.11 dips by 1e-7
    assert found[-1] > 0.99


def test_the_separation_has_the_power_that_is_wanted() -> None:
    freedom = np.array([1.0, 4.0, 7.3, 200.0])
    for wanted in (0.5, 0.8, 0.95):
        found = compute_separation(freedom, 0.0083, wanted)
        assert compute_power(found, freedom, 0.0083) == pytest.approx(wanted, abs=1e-5)
    large = stats.norm.isf(0.025) + stats.norm.isf(0.2)
    assert float(compute_separation(1e7, 0.025)) == pytest.approx(large, abs=1e-5)


@pytest.mark.parametrize(
    ("spread", "tails"), [(0.03, (0.025, 0.05)), (0.05, (0.0083, 0.0167)), (0.01, (0.0009, 0.0019))]
)
def test_the_runs_asked_for_are_just_enough_for_either_answer(
    spread: float, tails: tuple[float, float]
) -> None:
    limit, units = math.log1p(0.02), 5
    n = units + int(estimate_more_units(spread / math.sqrt(units), units - 1, units, limit, tails))

    def powers(n: int) -> tuple[float, float]:
        distance = limit / (spread / math.sqrt(n))
        return integrated(distance, n - 1, tails[0]), integrated(distance, n - 1, tails[1], equivalence=True)

    assert min(powers(n)) >= POWER
    assert min(powers(n - 1)) < POWER + 0.01  # equivalence is planned by a bound that is nearly exact


@loop_over(
    ("spread", "units", "floor", "more"),
    [
        (1e-5, 5, 0.0, 1.0),  # what is undecided takes one more at least
        (0.2, 5, 0.0, INF),  # over a thousand
        (0.03, 5, 0.01, INF),  # digits that no number of runs makes finer
        (0.03, MOST_UNITS, 0.0, INF),
        (0.03, MOST_UNITS + 5, 0.0, INF),
    ],
)
def test_the_ends_of_what_is_asked_for(spread: float, units: int, floor: float, more: float) -> None:
    found = estimate_more_units(
        spread / math.sqrt(units), units - 1, units, math.log1p(0.02), (0.0083, 0.0167), floor
    )
    assert float(found) == more

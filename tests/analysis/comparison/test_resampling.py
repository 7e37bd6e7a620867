"""Resampling: every assignment counted by hand, and nothing said where it could say nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from loadgen.analysis.comparison.resampling import beside, bootstrap, least_p, permutation

PAIRS = [0.031, -0.012, 0.044, 0.027, -0.003, 0.038, 0.019]
OTHERS = [0.011, 0.024, -0.018, 0.002, 0.007]


def enumerated_signs(pairs: list[float]) -> float:
    means = [np.dot(signs, pairs) for signs in itertools.product((1, -1), repeat=len(pairs))]
    return float(np.mean(np.abs(means) >= abs(sum(pairs)) * (1 - 1e-12)))


def enumerated_divisions(row: list[float], baseline: list[float]) -> float:
    """Twice the smaller tail, as two-sided is meant where the sides are not as many."""
    together, n = np.array([*row, *baseline]), len(row)
    chosen = [list(places) for places in itertools.combinations(range(len(together)), n)]
    means = np.array([together[places].mean() - np.delete(together, places).mean() for places in chosen])
    seen = np.mean(row) - np.mean(baseline)
    return float(min(1, 2 * min((means >= seen - 1e-12).mean(), (means <= seen + 1e-12).mean())))


@pytest.mark.parametrize(
    ("row", "baseline", "paired", "p"),
    [
        (5, 5, True, 0.0625),
        (6, 6, True, 0.03125),
        (3, 3, False, 0.1),
        (4, 4, False, 1 / 35),
        (3, 5, False, 1 / 28),
        (1, 1, True, 1.0),
        (1, 1, False, 1.0),
    ],
)
def test_the_least_p_of_so_many_units(row: int, baseline: int, paired: bool, p: float) -> None:
    assert least_p(row, baseline, paired=paired) == p


@pytest.mark.parametrize("pairs", [PAIRS, [abs(pair) for pair in PAIRS], PAIRS[:6]])
def test_signs_are_counted_exactly(pairs: list[float]) -> None:
    assert permutation((np.array(pairs),)) == enumerated_signs(pairs)


def test_all_signs_alike_have_the_least_p() -> None:
    assert permutation((np.arange(1.0, 11.0),)) == least_p(10, 10, paired=True) == 2 / 1024


@pytest.mark.parametrize(("row", "baseline"), [(PAIRS, OTHERS), (PAIRS[:4], OTHERS[:4]), (OTHERS[:3], PAIRS)])
def test_divisions_are_counted_exactly(row: list[float], baseline: list[float]) -> None:
    assert permutation((np.array(row), np.array(baseline))) == pytest.approx(
        enumerated_divisions(row, baseline)
    )


def test_too_many_signs_to_count_are_drawn_the_same_each_time() -> None:
    many = np.random.default_rng(3).normal(0.4, 1, 40)
    found = permutation((many,))
    assert permutation((many,)) == found
    assert found == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.008)  # three errors of 9999 draws


@pytest.mark.parametrize("paired", [True, False])
def test_the_bootstrap_interval_holds_the_estimate_and_turns_round_with_the_sides(paired: bool) -> None:
    row, baseline = np.exp(PAIRS[:6]), np.ones(6) * np.exp([*OTHERS, 0.003])
    found = beside(row.tolist(), baseline.tolist(), paired=paired, alpha=0.05)
    other = beside(baseline.tolist(), row.tolist(), paired=paired, alpha=0.05)
    ratio = math.exp(float(np.mean(np.log(row) - np.log(baseline))))
    assert found["bootstrap_low"] < ratio < found["bootstrap_high"]
    assert other["permutation_p"] == pytest.approx(found["permutation_p"])
    if paired:
        turned = (1 / found["bootstrap_high"], 1 / found["bootstrap_low"])
        assert (other["bootstrap_low"], other["bootstrap_high"]) == pytest.approx(turned)


def test_the_bootstrap_of_many_is_students_interval() -> None:
    many = np.random.default_rng(3).normal(0.0, 0.02, 400)
    reach = 1.966 * many.std(ddof=1) / 20
    low, high = bootstrap((many,), 0.05)
    assert (math.log(low), math.log(high)) == pytest.approx(
        (many.mean() - reach, many.mean() + reach), abs=1e-4
    )


@pytest.mark.parametrize(
    ("row", "baseline", "paired", "alpha", "said"),
    [
        (5, 5, True, 0.05, False),
        (6, 6, True, 0.05, True),
        (6, 6, True, 0.03, False),
        (3, 3, False, 0.05, False),
        (4, 4, False, 0.05, True),
    ],
)
def test_nothing_is_said_where_it_could_not_reach_alpha(
    row: int, baseline: int, paired: bool, alpha: float, said: bool
) -> None:
    found = beside([1 + 0.1 * at for at in range(row)], [2.0] * baseline, paired=paired, alpha=alpha)
    assert bool(found) == said


def test_runs_without_a_spread_have_nothing_to_resample() -> None:
    assert beside([2.0] * 8, [1.0] * 8, paired=True, alpha=0.05) == {}
    assert beside([2.0] * 8, [1.0] * 8, paired=False, alpha=0.05) == {}

"""Gate verdicts: tables of given runs and of runs in turn, held against scipy's own tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.study.gate.gate_verdict import GateOutcome, GatePlan, GateRow, GateSeries, judge_gate

BASE = (1001.37, 1013.94, 995.21, 1004.48, 1009.63)
GIVEN = GatePlan()
NOISE = (1.002, 0.998, 1.001, 0.999, 1.0005)


def make_series(
    factor: float, *, noise: tuple[float, ...] = NOISE, paired: bool = True, up: bool = True, name: str = "a"
) -> GateSeries:
    new = tuple(base * factor * one for base, one in zip(BASE, noise, strict=True))
    return GateSeries(name, "load", new, BASE, paired, up, 0.03)


def judge_one(series: GateSeries, plan: GatePlan = GIVEN) -> GateRow:
    return judge_gate([series], plan).rows[0]


@loop_over(
    ("factor", "up", "outcome"),
    [
        (1.0, True, GateOutcome.NOT_SLOWER),
        (1.0, False, GateOutcome.NOT_SLOWER),
        (1.2, True, GateOutcome.NOT_SLOWER),
        (1.2, False, GateOutcome.SLOWER),
        (0.8, True, GateOutcome.SLOWER),
        (0.8, False, GateOutcome.NOT_SLOWER),
        (0.97, True, GateOutcome.UNDECIDED),
        (1.03, False, GateOutcome.UNDECIDED),
    ],
)
@loop_over("sequential", [False, True])
def test_one_margin_decides_in_the_direction_of_the_figure(
    factor: float, up: bool, outcome: GateOutcome, sequential: bool
) -> None:
    row = judge_one(make_series(factor, up=up), GatePlan(sequential=sequential))
    assert row.outcome == outcome
    assert row.low < row.ratio < row.high
    assert (row.low > 1.03, row.high < 1.03) == (
        outcome == GateOutcome.SLOWER,
        outcome == GateOutcome.NOT_SLOWER,
    )


@pytest.mark.parametrize("paired", [True, False])
def test_given_runs_are_scipys_one_sided_tests_at_a_third_of_alpha(paired: bool) -> None:
    row = judge_one(make_series(0.98, paired=paired))
    slowdown, limit = np.log(BASE) - np.log(row.series.new), math.log(1.03)
    if paired:
        theirs = stats.ttest_1samp(slowdown, limit, alternative="greater")
        interval = stats.ttest_1samp(slowdown, 0).confidence_interval(1 - 0.1 / 3)
    else:
        sides = np.log(BASE), np.log(row.series.new) + limit
        theirs = stats.ttest_ind(*sides, equal_var=False, alternative="greater")
        interval = stats.ttest_ind(np.log(BASE), np.log(row.series.new), equal_var=False).confidence_interval(
            1 - 0.1 / 3
        )
    assert row.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (row.low, row.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)), rel=1e-9)
    assert (row.needed, row.level, row.pairs) == pytest.approx((0.05 / 3, 0.9, 5))


def test_one_slower_row_is_enough_and_all_must_not_be() -> None:
    fine, slow, near = make_series(1.0), make_series(0.8), make_series(0.97)
    for series, outcome in (
        ([fine, fine], GateOutcome.NOT_SLOWER),
        ([fine, slow], GateOutcome.SLOWER),
        ([near, slow], GateOutcome.SLOWER),
        ([fine, near], GateOutcome.UNDECIDED),
    ):
        assert judge_gate(series, GatePlan()).outcome == outcome


def test_what_cannot_be_tested_is_undecided_and_says_why() -> None:
    one = GateSeries("a", "load", (1.0,), (1.0,), True, True, 0.03)
    verdict = judge_gate([make_series(1.0), one], GatePlan())
    assert verdict.outcome == GateOutcome.UNDECIDED
    assert "at least two runs" in verdict.rows[1].why
    two = GateSeries("a", "load", (1.0, 1.1), (1.0, 1.1), True, True, 0.03)
    assert judge_one(two, GatePlan(sequential=True)).why == "the first look is after 3 pairs"


@loop_over(("alpha", "most"), [(0.0, 9), (0.5, 9), (0.05, 2)])
def test_a_plan_that_cannot_be_is_refused(alpha: float, most: int) -> None:
    with pytest.raises(UsageError):
        GatePlan(alpha=alpha, max_pairs=most)

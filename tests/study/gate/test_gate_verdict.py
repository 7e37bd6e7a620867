"""Gate verdicts: tables of given runs and of runs in turn, held against scipy's own tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from benchmarks import gating
from benchmarks.gating import Case, run_gates
from benchmarks.simulated.populations import Made, Population, gated
from builders.loops import loop_over, read_tables
from loadgen.base.arrays import Bool
from loadgen.base.errors import UsageError
from loadgen.study.gate import gate_verdict
from loadgen.study.gate.gate_record import make_gate_metric
from loadgen.study.gate.gate_verdict import (
    ALPHA,
    MARGIN,
    GateOutcome,
    GatePlan,
    GateRow,
    GateSeries,
    find_levels,
    find_look_levels,
    judge_gate,
    spend_alpha,
)

TABLES = read_tables("gate_verdict")
BASE = (1001.37, 1013.94, 995.21, 1004.48, 1009.63)
GIVEN, SEQUENTIAL = GatePlan(), GatePlan(sequential=True)
NOISE = (1.002, 0.998, 1.001, 0.999, 1.0005)
SPREAD = (1.03, 0.97, 1.02, 0.98, 1.004)


def series_of(
    new: tuple[float, ...], base: tuple[float, ...], paired: bool = True, up: bool = True, name: str = "a"
) -> GateSeries:
    return GateSeries(make_gate_metric(name, name, up), "load", new, base, paired)


def make_series(
    factor: float, *, noise: tuple[float, ...] = NOISE, paired: bool = True, up: bool = True, name: str = "a"
) -> GateSeries:
    new = tuple(base * factor * one for base, one in zip(BASE, noise, strict=True))
    return series_of(new, BASE, paired, up, name)


def judge_one(series: GateSeries, plan: GatePlan = GIVEN) -> GateRow:
    return judge_gate([series], plan).rows[0]


@loop_over(("factor", "up", "outcome"), TABLES["outcomes"])
@loop_over("sequential", [False, True])
def test_one_margin_decides_in_the_direction_of_the_figure(
    factor: float, up: bool, outcome: str, sequential: bool
) -> None:
    row = judge_one(make_series(factor, up=up), GatePlan(sequential=sequential))
    assert row.outcome == outcome
    assert row.low < row.ratio < row.high
    assert (row.low > 1.03) == (outcome == GateOutcome.SLOWER)
    assert (row.high < 1.03) == (outcome == GateOutcome.NOT_SLOWER)


@pytest.mark.parametrize("paired", [True, False])
def test_given_runs_are_scipys_one_sided_tests_at_a_third_of_alpha(paired: bool) -> None:
    row = judge_one(make_series(0.98, paired=paired))
    slowdown, limit = np.log(BASE) - np.log(row.series.new), math.log(1.03)
    if paired:
        theirs = stats.ttest_1samp(slowdown, limit, alternative="greater")
        spread = stats.ttest_1samp(slowdown, 0)
    else:
        base, new = np.log(BASE), np.log(row.series.new)
        theirs = stats.ttest_ind(base, new + limit, equal_var=False, alternative="greater")
        spread = stats.ttest_ind(base, new, equal_var=False)
    interval = spread.confidence_interval(1 - 0.1 / 3)
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
    one = series_of((1.0,), (1.0,))
    verdict = judge_gate([make_series(1.0), one], GatePlan())
    assert verdict.outcome == GateOutcome.UNDECIDED
    assert "a verdict needs repeats" in verdict.rows[1].why
    two = series_of((1.0, 1.1), (1.0, 1.1))
    assert judge_one(two, GatePlan(sequential=True)).why == "the first look is after 3 pairs"


@loop_over("paired", [True, False])
def test_two_given_runs_decide_nothing_and_a_third_does(paired: bool) -> None:
    new, base = (500.0, 501.0, 500.5), (1000.0, 1001.0, 1000.5)  # twice as slow, run after run
    rows = [judge_one(series_of(new[:runs], base[:runs], paired), GatePlan()) for runs in (2, 3)]
    assert [row.outcome for row in rows] == [GateOutcome.UNDECIDED, GateOutcome.SLOWER]
    assert [row.why for row in rows] == ["fewer than 3 runs a side decide nothing", ""]
    assert rows[0].low > 1.9
    assert (rows[0].more_pairs, rows[1].more_pairs) == (1, None)


def test_a_plan_or_a_series_that_cannot_be_is_refused() -> None:
    for alpha, most in ((0.0, 9), (0.5, 9), (0.05, 2)):
        with pytest.raises(UsageError):
            GatePlan(alpha=alpha, max_pairs=most)
    four = GatePlan(max_pairs=4, sequential=True)
    unpaired = make_series(1.0, paired=False)
    for series, plan in (([], GIVEN), ([unpaired], SEQUENTIAL), ([make_series(1.0)], four)):
        with pytest.raises(ValueError, match="gate needs"):
            judge_gate(series, plan)


def test_pairs_after_a_decision_change_nothing() -> None:
    slow = make_series(0.8)
    new, base = (*slow.new, 2000.0, 2000.0), (*slow.base, 1000.0, 1000.0)
    more = series_of(new, base)
    first, later = (judge_gate([one], GatePlan(sequential=True)) for one in (slow, more))
    assert (first.outcome, first.pairs) == (later.outcome, later.pairs) == (GateOutcome.SLOWER, 3)
    assert first.rows[0].p == later.rows[0].p
    assert judge_gate([more], GatePlan()).outcome == GateOutcome.UNDECIDED


def test_a_row_that_is_decided_waits_for_the_others() -> None:
    fine, noisy = make_series(1.0), make_series(1.0, noise=(1.04, 0.97, 1.03, 0.98, 1.01), name="b")
    verdict = judge_gate([fine, noisy], SEQUENTIAL)
    first, second = [(row.outcome, row.pairs) for row in verdict.rows]
    assert (first, second) == ((GateOutcome.NOT_SLOWER, 3), (GateOutcome.UNDECIDED, 5))
    assert (verdict.outcome, verdict.pairs) == (GateOutcome.UNDECIDED, 5)
    assert verdict.more_pairs == verdict.rows[1].more_pairs


def test_slower_is_held_over_the_rows_by_holm() -> None:
    fine, slow = make_series(1.0), make_series(0.962)
    p = judge_one(slow).p
    alone, among = (judge_gate([slow, *[fine] * others], GatePlan(alpha=2 * 3 * p)) for others in (1, 2))
    assert alone.rows[0].outcome == GateOutcome.SLOWER
    assert alone.rows[0].needed == pytest.approx(p)
    assert among.rows[0].outcome == GateOutcome.UNDECIDED
    clear = judge_gate([slow, make_series(0.5), fine], GatePlan(alpha=2 * 3 * p))
    assert [row.outcome == GateOutcome.SLOWER for row in clear.rows] == [True, True, False]


@loop_over(("factor", "paired", "sequential", "rows", "numbers", "more"), TABLES["computed"])
def test_what_a_gate_computes_is_to_the_digit(
    factor: float, paired: bool, sequential: bool, rows: int, numbers: list[float], more: list[int | None],
) -> None:  # fmt: skip
    series = [make_series(factor, noise=SPREAD, paired=paired, name=name) for name in "abc"[:rows]]
    row = judge_gate(series, GatePlan(max_pairs=12, sequential=sequential)).rows[0]
    found = [row.ratio, row.low, row.high, row.level, row.p, row.needed]
    assert found == pytest.approx(numbers, rel=1e-5)
    assert [row.more_pairs, row.most_pairs] == more


@loop_over(("made", "more"), [(0, 3), (1, 2), (2, 1)])
def test_a_gate_that_has_not_looked_asks_for_the_first_look(made: int, more: int) -> None:
    row = judge_one(series_of((1.0,) * made, (1.0,) * made), SEQUENTIAL)
    assert (row.outcome, row.more_pairs, row.pairs) == (GateOutcome.UNDECIDED, more, made)


def test_a_slowdown_next_to_the_margin_names_no_number() -> None:
    new, base = (tuple(side) * 6 for side in ((971.0, 970.5, 971.5, 970.8, 971.2), (1000.13,) * 5))
    row = judge_one(series_of(new, base), GatePlan(sequential=True))
    assert (row.outcome, row.more_pairs) == (GateOutcome.UNDECIDED, None)


@loop_over(("figure", "outcome"), [(1001.37, GateOutcome.NOT_SLOWER), (1.0, GateOutcome.UNDECIDED)])
def test_runs_that_are_alike_have_the_error_of_clocks_and_digits(figure: float, outcome: GateOutcome) -> None:
    row = judge_one(series_of((figure,) * 3, (figure,) * 3), SEQUENTIAL)
    assert (row.outcome, row.ratio) == (outcome, 1.0)
    assert row.low < 1 < row.high


@pytest.mark.parametrize("sequential", [False, True])
def test_a_row_without_a_test_counts_in_the_family(sequential: bool) -> None:
    plan, slow = GatePlan(sequential=sequential), make_series(0.8)
    without = series_of((), (), name="b")
    alone, verdict = judge_one(slow, plan), judge_gate([slow, without], plan)
    assert verdict.outcome == GateOutcome.SLOWER
    assert verdict.rows[0].needed < alone.needed
    assert verdict.rows[0].level == pytest.approx(0.925)


def spend_as_obrien_fleming(alpha: float, shares: Any) -> Any:
    return 2 * special.ndtr(special.ndtri(alpha / 2) / np.sqrt(shares))


def spend_as_pocock(alpha: float, shares: Any) -> Any:
    return alpha * np.log1p((np.e - 1) * shares)


@pytest.mark.long
@pytest.mark.parametrize(
    ("spend", "published"),
    [
        (spend_as_obrien_fleming, [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
        (spend_as_pocock, [2.4380, 2.4268, 2.4101, 2.3966, 2.3859]),
    ],
)
def test_many_pairs_have_the_published_boundaries(
    spend: Callable[[float, Any], Any], published: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of R's ldbounds and gsDesign: Lan and DeMets, known variance, five looks, one-sided 0.025."""
    monkeypatch.setattr(gate_verdict, "_CELLS", 160)
    shares = np.arange(1, 6) / 5
    levels = find_levels(spend(0.025, shares), (300 * shares).astype(int).tolist())
    # 300 pairs are not yet a known variance.
    assert -special.ndtri(levels) == pytest.approx(published, abs=0.005)


def test_alpha_is_spent_by_the_power_of_the_share() -> None:
    assert spend_alpha(0.05, [0.25, 1.0]) == pytest.approx([0.00625, 0.05])
    levels = [0.011482, 0.00970855, 0.012101, 0.0154477, 0.0195632, 0.0240082]
    assert find_look_levels(0.05, 8) == pytest.approx(levels, rel=1e-5)
    # A smaller alpha has smaller levels at every look, as Holm over rows needs (Maurer and Bretz 2013).
    assert (np.diff([find_look_levels(0.05 / rows, 12) for rows in (4, 2, 1)], axis=0) > 0).all()


def test_a_look_that_spends_nothing_never_rejects() -> None:
    assert find_levels([0.01, 0.01, 0.05], [3, 4, 5])[1] == 0
    assert find_levels([0.01, 0.05], [3, 5]) == find_levels([0.01, 0.01, 0.05], [3, 4, 5])[::2]


GATES = 2_000
PLAIN = Made("", 0.02)
POPULATIONS = [PLAIN, Made("", 0.02, drift=0.05), Made("", 0.02, "t3"), Made("", 0.02, "hiccups"), *gated()]


def assert_at_most(limit: float, hits: Bool) -> None:
    """The share is not shown to be above the limit: one binomial test in a thousand would."""
    assert stats.binomtest(int(hits.sum()), hits.size, limit, alternative="greater").pvalue > 1e-3


@pytest.mark.long
@loop_over(
    ("population", "rows", "most"),
    [(each, 1, 40) for each in POPULATIONS] + [(PLAIN, rows, most) for rows in (1, 4) for most in (3, 6, 25)],
)
def test_alpha_holds_for_runs_of_every_kind(population: Population, rows: int, most: int) -> None:
    plan = GatePlan(max_pairs=most, sequential=True)
    for truth in (0.0, MARGIN):
        seen = run_gates(Case(population, truth, rows, plan), GATES)
        assert_at_most(ALPHA, seen.slower)
        assert not (seen.slower & seen.not_slower).any()
        if truth and population is PLAIN:
            assert_at_most(ALPHA, seen.not_slower)


@pytest.mark.long
@loop_over("spread", [0.005, 0.01, 0.02, 0.025])
def test_five_percent_slower_is_found_in_nine_gates_of_ten(spread: float) -> None:
    seen = run_gates(Case(Made("", spread), gating.SLOWER), GATES)
    assert seen.slower.mean() > gating.FOUND
    alike = run_gates(Case(Made("", spread), 0.0), GATES)
    assert alike.not_slower.mean() > gating.FOUND
    assert np.median(alike.pairs) < 16


@pytest.mark.long
def test_the_page_has_every_section() -> None:
    for section in gating.SECTIONS:
        lines = section(20)
        assert lines[0].startswith("## ")
        assert any(line.startswith("| ") for line in lines)

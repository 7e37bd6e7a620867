"""Statistics: verdicts by the t interval, held against scipy's own tests, and what is refused."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from scipy import stats

from builders.loops import loop_over
from loadgen.study.compare.model import Decision, Effect
from loadgen.study.compare.statistics import (
    CLOCK_ERROR,
    LOOKS,
    average_starts,
    compute_separation,
    estimate_more_runs,
    estimate_ratio,
    judge_effect,
    judge_family,
    judge_rows,
)

BASELINE = [1001.37, 1013.94, 995.21, 1004.48, 1009.63]
FASTER = [1043.81, 1050.02, 1038.55, 1049.17, 1041.29]
NOISY = [1071.63, 951.18, 1102.94, 1012.35, 989.77]
NEAR = [1002.11, 1012.43, 996.02, 1005.39, 1008.41]


def told(
    row: list[float], baseline: list[float] = BASELINE, *, paired: bool = True, up: bool | None = True
) -> Effect:
    return judge_effect(row, baseline, paired=paired, higher_is_faster=up, margin=0.02, alpha=0.05)


@pytest.mark.parametrize("row", [FASTER, NOISY, NEAR])
def test_pairs_are_scipys_paired_t_test_of_logarithms(row: list[float]) -> None:
    found, theirs = told(row), stats.ttest_rel(np.log(row), np.log(BASELINE))
    interval = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx(np.exp([interval.low, interval.high]), rel=1e-12)
    assert found.ratio == pytest.approx(stats.gmean(row) / stats.gmean(BASELINE), rel=1e-12)
    assert (found.units, found.paired) == (5, True)


@pytest.mark.parametrize("row", [FASTER, NOISY[:3], [*NEAR, 1010.58]])
def test_two_samples_are_scipys_welch_test_of_logarithms(row: list[float]) -> None:
    found = told(row, paired=False)
    theirs = stats.ttest_ind(np.log(row), np.log(BASELINE), equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert found.freedom == pytest.approx(theirs.df, rel=1e-12)
    assert (found.low, found.high) == pytest.approx(np.exp([interval.low, interval.high]), rel=1e-12)
    assert (found.units, found.paired) == (min(len(row), 5), False)


@loop_over("row", [FASTER, NOISY, NEAR])
@loop_over("paired", [True, False])
def test_equivalence_is_the_larger_of_scipys_two_one_sided_tests(row: list[float], paired: bool) -> None:
    logs, others, bound = np.log(row), np.log(BASELINE), math.log(1.02)
    test: Any = (
        stats.ttest_rel if paired else (lambda a, b, **more: stats.ttest_ind(a, b, equal_var=False, **more))
    )
    below = test(logs, others - bound, alternative="greater").pvalue
    above = test(logs, others + bound, alternative="less").pvalue
    assert told(row, paired=paired).p_equivalent == pytest.approx(max(below, above), rel=1e-9)


@loop_over("scale", [0.97, 0.985, 1.0, 1.012, 1.03])
@loop_over("alpha", [0.01, 0.05, 0.2])
def test_equivalent_is_where_the_interval_lies_within_the_margin(scale: float, alpha: float) -> None:
    row = [scale * value for value in NEAR]
    per_look = 2 * alpha / LOOKS  # the interval of a test at alpha / LOOKS on each side
    wide = judge_effect(row, BASELINE, paired=True, higher_is_faster=True, margin=0.02, alpha=per_look)
    found = judge_effect(row, BASELINE, paired=True, higher_is_faster=True, margin=0.02, alpha=alpha)
    assert (found.call is Decision.EQUIVALENT) == (wide.low >= 1 / 1.02 and wide.high <= 1.02)


@loop_over(
    ("row", "higher_is_faster", "call"),
    [
        (FASTER, True, Decision.FASTER),
        (FASTER, False, Decision.SLOWER),
        (NEAR, True, Decision.EQUIVALENT),
        (NEAR, False, Decision.EQUIVALENT),
        (NOISY, True, Decision.UNDECIDED),
        (FASTER, None, Decision.NONE),
    ],
)
def test_the_verdict(row: list[float], higher_is_faster: bool | None, call: Decision) -> None:
    found = told(row, up=higher_is_faster)
    assert (found.call, found.why) == (call, "")
    assert math.isnan(found.detectable) == (call is not Decision.UNDECIDED)
    assert (found.more_runs is None) == (call is not Decision.UNDECIDED)


def test_a_small_difference_that_is_certain_is_still_equivalent() -> None:
    found = told([1.01 * value for value in NEAR])
    assert found.p_adjusted < 0.05
    assert found.call is Decision.EQUIVALENT


def test_exchanging_row_and_baseline_turns_the_verdict_round() -> None:
    one, other = told(FASTER), told(BASELINE, FASTER)
    assert (one.call, other.call) == (Decision.FASTER, Decision.SLOWER)
    assert (other.ratio, other.low, other.high) == pytest.approx((1 / one.ratio, 1 / one.high, 1 / one.low))
    assert (other.p, other.p_equivalent) == pytest.approx((one.p, one.p_equivalent))


@loop_over(
    ("row", "baseline", "ratio", "why"),
    [
        ([103.0], [100.0], 1.03, "one run a side has no spread: a verdict needs at least two runs"),
        ([103.0], BASELINE, 0.1025, "one run on one side has no spread: a verdict needs at least two runs"),
        ([0.0, 1.0], [1.0, 1.0], None, "a figure of 0 has no ratio"),
        ([1.0, 1.0], [1.0, -2.0], None, "a figure of -2 has no ratio"),
        ([math.nan, 1.0], [1.0, 1.0], None, "a figure of nan has no ratio"),
        ([math.inf, 1.0], [1.0, 1.0], None, "a figure of inf has no ratio"),
        ([], [1.0, 1.0], None, "one side has no run with this figure"),
        ([], [], None, "no run has this figure"),
    ],
)
def test_what_cannot_be_judged_says_why(
    row: list[float], baseline: list[float], ratio: float | None, why: str
) -> None:
    found = told(row, baseline, paired=False)
    assert (found.call, found.why) == (Decision.NONE, why)
    assert math.isnan(found.p)
    assert math.isnan(found.ratio) if ratio is None else found.ratio == pytest.approx(ratio, rel=1e-3)


def test_values_that_are_not_as_many_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="2 values cannot be paired with 5"):
        told([1.0, 2.0])


def test_without_scipy_there_is_a_ratio_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    found = told(FASTER)
    assert (found.call, found.why) == (
        Decision.NONE,
        "a verdict needs scipy: in the clone, .venv/bin/pip install '.[compare]'",
    )
    assert found.ratio == pytest.approx(1.0395, abs=1e-4)
    assert judge_rows([found], 0.02, 0.05) == [found]


@pytest.mark.parametrize(
    ("row", "baseline", "floor"),
    [
        ([2384.61, 2384.61], [2384.61, 2384.61], CLOCK_ERROR),  # 0.01 of 2384.61 is less than clocks differ
        ([8.88, 8.88], [8.90, 8.90], math.hypot(0.01 / 8.88, 0.01 / 8.90) / math.sqrt(12)),
        ([8.0, 8.0], [9.0, 9.0], math.hypot(0.01 / 8, 0.01 / 9) / math.sqrt(12)),
        ([8.881234567, 8.881234567], [8.9012345678, 8.9012345678], CLOCK_ERROR),
    ],
)
def test_identical_runs_have_the_error_of_digits_or_clocks(
    row: list[float], baseline: list[float], floor: float
) -> None:
    found = told(row, baseline)
    assert (found.error, found.floor) == pytest.approx((floor, floor))
    assert 0 < found.p <= 1
    assert (
        found.why
        == "the runs agree to within the precision of digits and clocks, which is used as their spread"
    )
    assert found.p == pytest.approx(2 * stats.t.sf(abs(math.log(row[0] / baseline[0])) / floor, 1), rel=1e-6)


def test_holm_judges_a_row_more_strictly_beside_others() -> None:
    rows = [told(FASTER), told(NOISY), told(NEAR), told([103.0], [100.0])]
    judged = judge_rows(rows, 0.02, 0.05)
    assert [one.call for one in judged] == [
        Decision.FASTER,
        Decision.UNDECIDED,
        Decision.EQUIVALENT,
        Decision.NONE,
    ]
    assert judged[0].p_adjusted == pytest.approx(LOOKS * 3 * judged[0].p)  # three rows have a test
    assert judged[2].p_equivalent_adjusted == pytest.approx(LOOKS * 3 * judged[2].p_equivalent)
    assert judged[3] == rows[3]
    assert repr(judge_rows(judged, 0.02, 0.05)) == repr(
        judged
    )  # nan equals itself in no dataclass of Python 3.13


def test_an_interval_without_1_may_not_be_enough_and_says_why() -> None:
    row = [1.02 * value for value in (1023.37, 1009.94, 1007.21, 983.48, 1021.63)]
    found = told(row)
    assert found.low > 1
    assert (found.call, found.p < 0.05 < found.p_adjusted) == (Decision.UNDECIDED, True)
    assert (
        found.why == "the interval excludes 1, but not after correction for other rows and repeated analyses"
    )


def test_an_undecided_rows_detectable_change_is_at_its_level() -> None:
    judged = judge_rows([told(FASTER), told(NOISY)], 0.02, 0.05)[1]
    level = 0.05 / LOOKS  # the other row being decided, this one stands alone
    assert judged.detectable == pytest.approx(
        math.expm1(float(compute_separation(4, level / 2)) * judged.error)
    )


def test_more_runs_do_not_follow_the_effect() -> None:
    asked = {told([scale * value for value in NOISY]).more_runs for scale in (1.0, 1.02, 0.97)}
    assert len(asked) == 1
    assert next(iter(asked)) in range(100, 996)


def test_more_than_a_thousand_runs_are_nobodys_advice() -> None:
    found = told([1.5 * NOISY[0], *NOISY[1:]])
    assert (found.call, found.more_runs) == (Decision.UNDECIDED, None)


def test_starts_are_one_unit_each_by_geometric_mean() -> None:
    assert average_starts([[2.0, 8.0], [5.0], []]) == pytest.approx([4.0, 5.0])
    assert math.isnan(average_starts([[1.0, 0.0]])[0])


@pytest.mark.parametrize("paired", [True, False])
def test_campaigns_at_once_are_judged_as_one_by_one(paired: bool) -> None:
    figures = np.random.default_rng(7).lognormal(sigma=0.02, size=(40, 4, 5))
    figures[:, 1] *= 1.04
    found = estimate_ratio(figures[:, 1:], figures[:, :1], paired=paired)
    rows = judge_family(found, 0.02, 0.05)
    more = estimate_more_runs(found, 5, rows=3, margin=0.02, alpha=0.05)
    said = np.select([rows.equivalent, rows.differs & (found.log_ratio > 0), rows.differs], [0, 1, 2], 3)
    calls = [Decision.EQUIVALENT, Decision.FASTER, Decision.SLOWER, Decision.UNDECIDED]
    for campaign, arms in enumerate(figures.tolist()):
        one = [told(row, arms[0], paired=paired) for row in arms[1:]]
        judged = judge_rows(one, 0.02, 0.05)
        assert [each.call for each in judged] == [calls[at] for at in said[campaign]]
        assert [each.p_adjusted for each in judged] == pytest.approx(rows.p[campaign], rel=1e-9)
        asked = [each.more_runs for each in judged if each.call is Decision.UNDECIDED]
        assert asked == more[campaign][said[campaign] == 3].tolist()
    assert {call for call in calls if (said == calls.index(call)).any()} >= {
        Decision.FASTER,
        Decision.UNDECIDED,
    }

"""Statistics: verdicts by the t interval, held against scipy's own tests, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from math import exp
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import integrate, stats

from benchmarks.simulated.drifts import (
    DRIFTS,
    count_decided,
    gate_blocks,
    order_in_blocks,
)
from builders.comparison_samples import cells, run, runs
from builders.loops import loop_over, read_tables
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions, Decision, Effect
from loadgen.study.compare.statistics import (
    ADVICE,
    CLOCK_ERROR,
    LOOKS,
    MOST_UNITS,
    POWER,
    UNTIMED,
    Family,
    UnitOrder,
    Units,
    adjust_by_holm,
    average_starts,
    compute_power,
    compute_separation,
    estimate_in_blocks,
    estimate_more_units,
    find_order,
    judge_rows,
    pair_units,
)
from loadgen.study.gate.gate_record import make_gate_metric
from loadgen.study.gate.gate_sides import GateSides, list_remarks, make_series
from loadgen.study.gate.gate_verdict import GateOutcome, GatePlan, judge_gate
from loadgen.study.run_summary import Reported

TABLES = read_tables("statistics")
BASELINE = [1001.37, 1013.94, 995.21, 1004.48, 1009.63]
FASTER = [1043.81, 1050.02, 1038.55, 1049.17, 1041.29]
NOISY = [1071.63, 951.18, 1102.94, 1012.35, 989.77]
NEAR = [1002.11, 1012.43, 996.02, 1005.39, 1008.41]
WELCH: Any = partial(stats.ttest_ind, equal_var=False)


def told(
    row: list[float], baseline: list[float] = BASELINE, *, paired: bool = True, up: bool | None = True
) -> Effect:
    return Units(row, baseline, paired).judge(up, 0.02, 0.05)


@loop_over(
    ("row", "paired"),
    [
        *((row, True) for row in (FASTER, NOISY, NEAR)),
        *((row, False) for row in (FASTER, NOISY, NEAR, NOISY[:3], [*NEAR, 1010.58])),
    ],
)
def test_a_verdict_is_by_scipys_tests_of_logarithms(row: list[float], paired: bool) -> None:
    """Pairs by the paired t test, two samples by Welch's, likeness by the larger of two one-sided tests."""
    found, test = told(row, paired=paired), stats.ttest_rel if paired else WELCH
    logs, others, bound = np.log(row), np.log(BASELINE), math.log(1.02)
    theirs = test(logs, others)
    interval = theirs.confidence_interval(0.95)
    assert (found.p, found.freedom) == pytest.approx((theirs.pvalue, theirs.df), rel=1e-9)
    assert (found.low, found.high) == pytest.approx(np.exp([interval.low, interval.high]), rel=1e-12)
    assert found.ratio == pytest.approx(stats.gmean(row) / stats.gmean(BASELINE), rel=1e-12)
    assert (found.units, found.paired) == (min(len(row), 5), paired)
    below = test(logs, others - bound, alternative="greater").pvalue
    above = test(logs, others + bound, alternative="less").pvalue
    assert found.p_equivalent == pytest.approx(max(below, above), rel=1e-9)


@loop_over(("name", "scale", "up", "call"), TABLES["verdicts"])
def test_the_verdict(name: str, scale: float, up: bool | None, call: str) -> None:
    """A difference of 1 % is certain, and too small to matter."""
    row = {"FASTER": FASTER, "NEAR": NEAR, "NOISY": NOISY}[name]
    found = told([scale * value for value in row], up=up)
    assert (found.call, found.why) == (call, "")
    assert math.isnan(found.detectable) == (call != Decision.UNDECIDED)
    assert (found.more_runs is None) == (call != Decision.UNDECIDED)


@loop_over(
    ("row", "baseline", "ratio", "why"),
    [
        ([103.0], [100.0], 1.03, "one run a side has no spread: a verdict needs repeats"),
        ([103.0], BASELINE, 0.1025, "one run on one side has no spread: a verdict needs repeats"),
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
    with pytest.raises(ValueError, match="2 values cannot be paired with 5"):
        told([1.0, 2.0])


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


def test_more_runs_do_not_follow_the_effect_and_are_a_thousand_at_most() -> None:
    (asked,) = {told([scale * value for value in NOISY]).more_runs for scale in (1.0, 1.02, 0.97)}
    assert asked in range(100, 996)
    found = told([1.5 * NOISY[0], *NOISY[1:]])
    assert (found.call, found.more_runs) == (Decision.UNDECIDED, None)


def test_starts_are_one_unit_each_by_geometric_mean() -> None:
    assert average_starts([[2.0, 8.0], [5.0], []]) == pytest.approx([4.0, 5.0])
    assert math.isnan(average_starts([[1.0, 0.0]])[0])


NAN = math.nan


@loop_over(
    ("p", "adjusted"),
    [
        # Holm 1979 as R's p.adjust(p, "holm") has it.
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.5, 0.6, 0.9], [1.0, 1.0, 1.0]),
        ([0.02], [0.02]),
        ([0.02, 0.02], [0.04, 0.04]),
        ([0.04, NAN, 0.01], [0.04, NAN, 0.02]),
        ([NAN, NAN], [NAN, NAN]),
    ],
)
def test_holms_examples(p: list[float], adjusted: list[float]) -> None:
    assert adjust_by_holm(np.array(p)).tolist() == pytest.approx(adjusted, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("p", "p_equivalent", "said"),
    [
        ([0.01, 0.03, 0.5], [1.0, 0.01, 1.0], ["differs", "equivalent", "undecided"]),
        ([0.05, 0.0500001], [0.05000001, 1.0], ["differs", "undecided"]),
        ([1.0, NAN], [0.05, NAN], ["equivalent", ""]),
    ],
)
def test_each_row_is_one_of_three_or_was_not_tested(
    p: list[float], p_equivalent: list[float], said: list[str]
) -> None:
    rows = Family(np.array(p), np.array(p_equivalent), 0.05)
    words = ("differs", "equivalent", "undecided")
    found = ["".join(word for word in words if getattr(rows, word)[at]) for at in range(len(p))]
    assert found == said


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


@loop_over(
    ("distance", "freedom", "tail"),
    [(3.0, 4, 0.025), (6.0, 4, 0.0028), (2.0, 30, 0.0083), (3.3, 999, 0.0083)],
)
def test_power_is_its_integral(distance: float, freedom: int, tail: float) -> None:
    """And that of R's own example, power.t.test(n = 20, delta = 1)."""
    assert float(compute_power(1 / math.sqrt(2 / 20), 38, 0.025)) == pytest.approx(0.8689528, abs=5e-8)
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


NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
SPEED = make_gate_metric("tok/s", "output_throughput", True)


def at(minutes: Sequence[int], reported: Sequence[Reported]) -> list[Reported]:
    return [
        replace(each, started=NOON + timedelta(minutes=minute))
        for minute, each in zip(minutes, reported, strict=True)
    ]


def drifting(first: int, name: str, **told: Any) -> list[Reported]:
    """Eight runs of one server, that slow by 0.5 % a run from the run `first` on."""
    noise = np.random.default_rng(first).normal(0, 0.002, 8)
    speeds = [100 * exp(-0.005 * (first + place) + noise[place]) for place in range(8)]
    return at(range(first, first + 8), [run(name, speed, **told) for speed in speeds])


@loop_over(("row", "baseline", "in_blocks"), TABLES["orders"])
def test_sides_are_in_blocks_if_one_is_mostly_before_the_other(
    row: tuple[float, ...], baseline: tuple[float, ...], in_blocks: bool
) -> None:
    assert UnitOrder(row, baseline).in_blocks is in_blocks


def test_the_order_is_that_of_the_times_and_unknown_without_one() -> None:
    row, baseline = at([5, 1], runs("B", [1.0, 2.0])), at([3, 9], runs("A", [1.0, 2.0]))
    assert find_order([row[:1], row[1:]], [baseline]) == UnitOrder((1.0, 0.0), (2.0,))
    assert find_order([row], [[replace(baseline[0], started=None)]]) is None


def test_a_trend_alone_is_no_difference() -> None:
    order = order_in_blocks(4)
    row, baseline = ([exp(0.01 * place) for place in side] for side in (order.row, order.baseline))
    found = estimate_in_blocks(row, baseline, order)
    assert (found.log_ratio, found.error, found.freedom) == pytest.approx((0, CLOCK_ERROR, 5), abs=1e-9)
    assert exp(estimate_in_blocks([2 * value for value in row], baseline, order).log_ratio) == pytest.approx(
        2
    )


def test_a_machine_that_drifts_makes_no_side_slower() -> None:
    (table,) = compare_runs([*drifting(0, "A"), *drifting(8, "B")], ComparisonOptions())
    effect = table.lines[1].effects["output_throughput"]
    assert effect.call in (Decision.EQUIVALENT, Decision.UNDECIDED)
    assert effect.ratio == pytest.approx(1, abs=0.01)
    assert effect.more_runs is None
    (remark,) = [text for text in table.remarks if text.startswith("B: ")]
    assert "all runs were measured after those of A" in remark
    assert remark.endswith(ADVICE)


def test_a_gate_of_blocks_says_so_and_asks_for_turns() -> None:
    sides = GateSides("load", tuple(drifting(8, "B")), tuple(drifting(0, "A")))
    verdict = judge_gate(make_series(sides, [SPEED]), GatePlan())
    assert verdict.outcome is not GateOutcome.SLOWER
    assert any("measured after those of base" in remark for remark in list_remarks([sides]))
    new, base = runs("A", [100.0, 104.0, 97.0]), runs("A", [103.0, 95.0, 101.0])
    noisy = GateSides("load", tuple(at([0, 1, 2], new)), tuple(at([3, 4, 5], base)))
    row = judge_gate(make_series(noisy, [SPEED]), GatePlan()).rows[0]
    assert (row.outcome, row.more_pairs) == (GateOutcome.UNDECIDED, None)
    assert row.why.endswith(ADVICE)


def test_runs_that_took_turns_are_judged_as_ever() -> None:
    own, other = [100.0, 102.0, 99.0, 101.0], [110.0, 113.0, 108.0, 112.0]
    row, baseline = at([1, 3, 5, 7], runs("B", other)), at([0, 2, 4, 6], runs("A", own))
    (table,) = compare_runs([*baseline, *row], ComparisonOptions())
    (plain,) = compare_runs([*runs("A", own), *runs("B", other)], ComparisonOptions())
    assert table.lines[1].effects == plain.lines[1].effects
    assert not any("measured" in remark for remark in table.remarks)


def test_runs_without_times_are_judged_as_ever_and_it_is_said() -> None:
    (table,) = compare_runs([*runs("A", [1.0, 1.1]), *runs("B", [1.0, 1.1])], ComparisonOptions())
    assert UNTIMED in table.remarks
    (one,) = compare_runs([*runs("A", [1.0]), *runs("B", [1.0])], ComparisonOptions())
    assert UNTIMED not in one.remarks
    (campaign,) = compare_runs([*cells("A", [1.0, 1.1]), *cells("B", [1.0, 1.1])], ComparisonOptions())
    assert UNTIMED not in campaign.remarks


def test_pairs_of_blocks_are_no_pairs() -> None:
    row, baseline = at([3, 4, 5], runs("B", [1.0, 1.1, 1.2])), at([0, 1, 2], runs("A", [1.0, 1.1, 1.2]))
    units = pair_units(row, baseline, lambda run: run.figure("output_throughput"))
    assert (units.paired, units.order) == (False, order_in_blocks(3))
    in_turn = at([1, 3, 5], row)
    assert pair_units(in_turn, at([0, 2, 4], baseline), lambda run: 1.0).paired


@loop_over("drift", sorted(DRIFTS))
def test_blocks_of_one_server_are_rarely_called_different(drift: str) -> None:
    for size in (3, 5, 8):
        # At 7 % more than 8 of 50 are called so once in 150.
        assert 50 * count_decided(DRIFTS[drift], size, 1.0, 50) <= 8
        random = np.random.default_rng(size)
        called = [gate_blocks(DRIFTS[drift], size, 1.03, random) for _ in range(50)]
        assert called.count(GateOutcome.SLOWER) <= 8
        assert called.count(GateOutcome.NOT_SLOWER) <= 8


@loop_over(("drift", "size", "least"), [("none", 8, 0.8), ("1 % a run", 8, 0.8), ("none", 5, 0.5)])
def test_a_tenth_is_still_found_in_blocks(drift: str, size: int, least: float) -> None:
    assert count_decided(DRIFTS[drift], size, 1.1, 60) >= least

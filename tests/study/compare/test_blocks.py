"""Blocks: what is said of runs that were measured one side after the other, and how often it is false."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import exp
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulated.drifts import (
    DRIFTS,
    compare_blocks,
    count_decided,
    draw_sides,
    gate_blocks,
    order_in_blocks,
)
from builders.comparison_samples import cells, run, runs
from builders.loops import loop_over
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions, Decision
from loadgen.study.compare.statistics import (
    ADVICE,
    UNTIMED,
    UnitOrder,
    find_order,
    fit_in_blocks,
    judge_effect,
    pair_units,
)
from loadgen.study.gate.gate_record import GateMetric
from loadgen.study.gate.gate_sides import GateSides, list_remarks, make_series
from loadgen.study.gate.gate_verdict import GateOutcome, GatePlan, judge_gate
from loadgen.study.run_summary import Reported

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
SPEED = GateMetric("tok/s", "output_throughput", True)


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


@loop_over(
    ("row", "baseline", "in_blocks"),
    [
        ((4, 5, 6, 7), (0, 1, 2, 3), True),
        ((0, 1, 2, 3), (4, 5, 6, 7), True),
        ((3, 5, 6, 7), (0, 1, 2, 4), True),
        ((1, 3, 5, 7), (0, 2, 4, 6), False),
        ((1, 2, 5, 6), (0, 3, 4, 7), False),
        ((2, 3, 6, 7), (0, 1, 4, 5), False),
        ((1, 3), (0, 2), False),
        ((2, 3), (0, 1), True),
        ((1,), (0,), False),
        ((5, 6, 7), (0, 1, 2, 3, 4), True),
    ],
)
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
    assert fit_in_blocks(row, baseline, order) == pytest.approx((0, 0, 5), abs=1e-9)
    ratio, *_ = fit_in_blocks([2 * value for value in row], baseline, order)
    assert exp(ratio) == pytest.approx(2)


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


def test_without_the_order_a_drift_is_a_difference() -> None:
    random = np.random.default_rng(1)
    baseline, row = draw_sides(DRIFTS["1 % a run"], 8, 1.0, random)
    told = {"paired": False, "higher_is_faster": False, "margin": 0.02, "alpha": 0.05}
    assert judge_effect(row.tolist(), baseline.tolist(), **told).call is Decision.SLOWER  # type: ignore[arg-type]
    assert compare_blocks(DRIFTS["1 % a run"], 8, 1.0, random).call is not Decision.SLOWER

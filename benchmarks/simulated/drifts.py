"""Drifts: figures of runs in the order they were made, on machines that change while they are."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from loadgen.base.arrays import Float64
from loadgen.study.compare.model import Decision, Effect
from loadgen.study.compare.statistics import UnitOrder, Units
from loadgen.study.gate.gate_record import make_gate_metric
from loadgen.study.gate.gate_verdict import GateOutcome, GatePlan, GateSeries, judge_gate

SPREAD = 0.02  # of a run
Draw = Callable[[np.random.Generator, int], Float64]  # logarithms of so many runs
_LATENCY = make_gate_metric("", "", higher_is_faster=False)


def _trend(a_run: float) -> Draw:
    return lambda random, n: SPREAD * random.standard_normal(n) + a_run * np.arange(n)


def _autoregressive(slope: float) -> Draw:
    def draw(random: np.random.Generator, n: int) -> Float64:
        steps = SPREAD * random.standard_normal(n)
        for at in range(1, n):
            steps[at] = slope * steps[at - 1] + math.sqrt(1 - slope**2) * steps[at]
        return steps

    return draw


DRIFTS: dict[str, Draw] = {
    "none": _trend(0.0),
    "0.2 % a run": _trend(0.002),
    "0.5 % a run": _trend(0.005),
    "1 % a run": _trend(0.01),
    "AR(0.5)": _autoregressive(0.5),
    "AR(0.8)": _autoregressive(0.8),
    "AR(0.9)": _autoregressive(0.9),
    "random walk": lambda random, n: SPREAD * random.standard_normal(n).cumsum(),
}


def draw_sides(draw: Draw, runs: int, times: float, random: np.random.Generator) -> tuple[Float64, Float64]:
    """Draw the figures of a baseline's runs, and of a row's that follow and are so many times as large."""
    figures = np.exp(draw(random, 2 * runs))
    return figures[:runs], figures[runs:] * times


def order_in_blocks(runs: int) -> UnitOrder:
    """The order of a row's runs that all follow the baseline's."""
    return UnitOrder(tuple(range(runs, 2 * runs)), tuple(range(runs)))


def compare_blocks(draw: Draw, runs: int, times: float, random: np.random.Generator) -> Effect:
    """Judge a row against a baseline as `compare` does."""
    baseline, row = draw_sides(draw, runs, times, random)
    units = Units(row.tolist(), baseline.tolist(), False, order=order_in_blocks(runs))
    return units.judge(False, 0.02, 0.05)


def gate_blocks(draw: Draw, runs: int, times: float, random: np.random.Generator) -> GateOutcome:
    """Judge a new side against a base as `gate` does given runs."""
    baseline, row = draw_sides(draw, runs, times, random)
    sides, order = (tuple(row.tolist()), tuple(baseline.tolist())), order_in_blocks(runs)
    series = GateSeries(_LATENCY, "", *sides, paired=False, order=order)
    return judge_gate([series], GatePlan()).outcome


def count_decided(draw: Draw, runs: int, times: float, campaigns: int) -> float:
    """The share of comparisons that call the row faster or slower."""
    random = np.random.default_rng([campaigns, runs])
    calls = [compare_blocks(draw, runs, times, random).call for _ in range(campaigns)]
    return sum(call in (Decision.FASTER, Decision.SLOWER) for call in calls) / campaigns

"""Answer: what the runs of a search say of the highest load that meets the objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loadgen.figures.knee import knee
from loadgen.figures.objectives import Standing
from loadgen.report.limit_record import LimitEstimate, LimitRun, SearchEnd
from loadgen.report.sweep_record import LoadAxis
from loadgen.study.series.limit.edge import EdgeFit
from loadgen.study.series.limit.search import below_all, edges, limiting, narrow
from loadgen.study.series.limit.trial import SearchSettings, Trial, above


def estimate(settings: SearchSettings, trials: Sequence[Trial]) -> LimitEstimate | None:
    """The limit and its interval; a side that is not known is None, and None if no run says anything."""
    edge = limiting(settings, trials)
    # Where a server ended or failed its requests no share says how far above the edge that was.
    counted = any(trial.beyond and not trial.invalid for trial in trials)
    if edge is not None and (counted or narrow(settings, edge)):
        low, high = (_known(load, settings.axis) for load in _ends(settings, trials, edge))
        return LimitEstimate(value=_known(edge.load, settings.axis), low=low, high=high)
    passing, failing = highest_passing(settings, trials), lowest_failing(settings, trials)
    return None if passing is failing is None else LimitEstimate(value=None, low=passing, high=failing)


def _ends(settings: SearchSettings, trials: Sequence[Trial], edge: EdgeFit) -> tuple[float, float]:
    """The interval; over concurrency an end that the likelihood leaves open is one that single runs show.

    Up to the lower one every run passed, or else none was above the limit; beyond the upper one all were.
    """
    low, high = edge.low, edge.high
    if settings.axis == "concurrency":
        counted = [trial for trial in trials if not trial.disturbed]
        if math.isnan(low):
            low = below_all(counted, lambda trial: not trial.passed)
        if math.isnan(low):
            low = below_all(counted, lambda trial: trial.beyond)
        if math.isnan(high):
            last = max(trial.load for trial in counted if not trial.beyond)
            high = min((trial.load - 1 for trial in counted if trial.load > last), default=math.nan)
    return min(low, edge.load), max(high, edge.load)  # NaN stays


def highest_passing(settings: SearchSettings, trials: Sequence[Trial]) -> float | None:
    """The highest load that passed a run and is not, by all runs together, above the limit."""
    edge = limiting(settings, trials)
    most = math.inf if edge is None or math.isnan(edge.high) else edge.high
    return max((trial.load for trial in trials if trial.passed and trial.load <= most), default=None)


def lowest_failing(settings: SearchSettings, trials: Sequence[Trial]) -> float | None:
    """The lowest load above that at which a run is shown to fail."""
    passing = highest_passing(settings, trials) or 0.0
    failed = [trial.load for trial in trials if trial.standing is Standing.FAILS]
    return min((load for load in failed if load > passing), default=None)


def binding(settings: SearchSettings, trials: Sequence[Trial]) -> int | None:
    """Which objective has the lowest edge, by its place; None while none is known."""
    # A server that ended shows of no objective that it is the limit.
    telling = [trial for trial in trials if trial.usable or (trial.saturated and not trial.invalid)]
    shown = {at for trial in telling for at, each in enumerate(trial.objectives) if above(each)}
    known = [
        (edge.load, at) for at, edge in enumerate(edges(settings, trials)) if edge is not None and at in shown
    ]
    if not known:
        failing = [trial for trial in telling if trial.beyond and trial.objectives]
        nearest = min(failing, key=lambda trial: trial.load, default=None)
        return None if nearest is None else _most_over(nearest)
    lowest = min(known)
    ties = [at for load, at in known if load <= lowest[0] * (1 + 1e-6)]
    if len(ties) == 1:
        return ties[0]
    return _most_over(max(telling, key=lambda trial: trial.load))


def answer(settings: SearchSettings, runs: Sequence[LimitRun], trials: Sequence[Trial]) -> dict[str, Any]:
    """The fields of a record that follow from its runs alone."""
    passing, at = highest_passing(settings, trials), binding(settings, trials)
    there = [run for run in runs if run.passed and run.load == passing and run.goodput_per_s is not None]
    return {
        "limit": estimate(settings, trials),
        "highest_passing": passing,
        "lowest_failing": lowest_failing(settings, trials),
        "bound_by": "" if at is None else str(settings.objectives[at]),
        "goodput_per_s": there[-1].goodput_per_s if there else None,
        "knee": _knee(runs),
    }


def reached(end: SearchEnd) -> bool:
    """Whether this end answers what was asked, be it only that a bound of the search is the limit."""
    return end in ("within", "everything-passes", "nothing-passes", "client-limited")


def _most_over(trial: Trial) -> int:
    """The objective whose percentile is the greatest multiple of its limit."""
    excess = [each.value_ms / each.objective.limit_ms for each in trial.objectives]
    return max(range(len(excess)), key=lambda at: -math.inf if math.isnan(excess[at]) else excess[at])


def _knee(runs: Sequence[LimitRun]) -> LimitEstimate | None:
    """Where P99 E2EL over load bends to a steeper line."""
    timed = [(run.load, run.p99_e2el_ms) for run in runs if run.p99_e2el_ms and not run.disturbed]
    bend = knee([load for load, _ in timed], [latency_ms for _, latency_ms in timed], rises=True)
    return None if bend is None else LimitEstimate(value=bend.load, low=bend.low, high=bend.high)


def _known(load: float, axis: LoadAxis) -> float | None:
    if math.isnan(load):
        return None
    if axis == "rate":
        return load
    return float(math.floor(load)) if load >= 1 else None  # below one request in flight there is no load

"""Limit answer: what the runs of a search say of the highest load, what bounds it, and its power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loadgen.figures.figure_table import SELECTABLE
from loadgen.figures.objectives import Objective, Standing
from loadgen.report.run_directory import Result
from loadgen.server.server_counters import ServerWindow
from loadgen.study.knee import find_knee
from loadgen.study.limit_record import Bottleneck, LimitEstimate, LimitRun, SearchEnd
from loadgen.study.repeats import Mean
from loadgen.study.series.limit import search
from loadgen.study.series.limit.edge import EdgeFit
from loadgen.study.series.limit.search import SearchSettings, Trial
from loadgen.study.sweep_record import LoadAxis


def estimate_limit(settings: SearchSettings, trials: Sequence[Trial]) -> LimitEstimate | None:
    """Estimate the limit and its interval by the lowest edge; concurrencies are rounded down.

    Without a usable edge the value is None, and the interval reaches from the highest passing load to the
    lowest failing one. A side that is not known is None; None is returned if neither is.
    """
    edge = search.find_limiting_edge(settings, trials)
    # Where a server ended or failed its requests no share says how far above the edge that was.
    counted = any(trial.beyond and not trial.invalid for trial in trials)
    if edge is not None and (counted or search.is_narrow(settings, edge)):
        low, high = (_round_known(load, settings.axis) for load in _find_ends(settings, trials, edge))
        return LimitEstimate(value=_round_known(edge.load, settings.axis), low=low, high=high)
    passing, failing = find_highest_passing(settings, trials), find_lowest_failing(settings, trials)
    return None if passing is failing is None else LimitEstimate(value=None, low=passing, high=failing)


def _find_ends(settings: SearchSettings, trials: Sequence[Trial], edge: EdgeFit) -> tuple[float, float]:
    """Return the edge's interval; over concurrency single runs give an end that is NaN in the edge.

    The lower one is the load up to which all runs passed, else none was above the limit; the upper is one
    below the load from which all were. An end stays NaN if no run gives it.
    """
    low, high = edge.low, edge.high
    if settings.axis == "concurrency":
        counted = [trial for trial in trials if not trial.disturbed]
        if math.isnan(low):
            low = search.find_load_below(counted, lambda trial: not trial.passed)
        if math.isnan(low):
            low = search.find_load_below(counted, lambda trial: trial.beyond)
        if math.isnan(high):
            last = max(trial.load for trial in counted if not trial.beyond)
            high = min((trial.load - 1 for trial in counted if trial.load > last), default=math.nan)
    return min(low, edge.load), max(high, edge.load)  # NaN stays


def find_highest_passing(settings: SearchSettings, trials: Sequence[Trial]) -> float | None:
    """Find the highest load, up to the upper end of the edge, at which a run passed; None without one."""
    edge = search.find_limiting_edge(settings, trials)
    most = math.inf if edge is None or math.isnan(edge.high) else edge.high
    return max((trial.load for trial in trials if trial.passed and trial.load <= most), default=None)


def find_lowest_failing(settings: SearchSettings, trials: Sequence[Trial]) -> float | None:
    """Find the lowest load above the highest passing one at which a run failed; None without one."""
    passing = find_highest_passing(settings, trials) or 0.0
    failed = [trial.load for trial in trials if trial.standing is Standing.FAILS]
    return min((load for load in failed if load > passing), default=None)


def find_binding(settings: SearchSettings, trials: Sequence[Trial]) -> int | None:
    """Return the index of the objective with the lowest edge among those that a run exceeded.

    Of a tie, or without an edge, it is the one that exceeds its limit most, in the run of the highest load or
    of the lowest one above the limit. None if no run exceeded any.
    """
    # A server that ended shows of no objective that it is the limit.
    telling = [trial for trial in trials if trial.usable or (trial.saturated and not trial.invalid)]
    shown = {at for trial in telling for at, each in enumerate(trial.objectives) if search.is_above(each)}
    known = [
        (edge.load, at)
        for at, edge in enumerate(search.fit_edges(settings, trials))
        if edge is not None and at in shown
    ]
    if not known:
        failing = [trial for trial in telling if trial.beyond and trial.objectives]
        nearest = min(failing, key=lambda trial: trial.load, default=None)
        return None if nearest is None else _find_most_over(nearest)
    lowest = min(known)
    ties = [at for load, at in known if load <= lowest[0] * (1 + 1e-6)]
    if len(ties) == 1:
        return ties[0]
    return _find_most_over(max(telling, key=lambda trial: trial.load))


def make_answer(
    settings: SearchSettings, runs: Sequence[LimitRun], trials: Sequence[Trial]
) -> dict[str, Any]:
    """Return the fields of a search's record that follow from its runs.

    These are limit, highest passing and lowest failing load, the objective that binds (""), the goodput of
    the last run at the highest passing load, the knee of P99 E2EL over load, power near the limit and the
    limit per kW; None for what is not known.
    """
    passing, at = find_highest_passing(settings, trials), find_binding(settings, trials)
    # Where P99 E2EL over load bends to a steeper line.
    timed = [(run.load, run.p99_e2el_ms) for run in runs if run.p99_e2el_ms and not run.disturbed]
    bend = find_knee([load for load, _ in timed], [latency_ms for _, latency_ms in timed], rises=True)
    there = [run for run in runs if run.passed and run.load == passing and run.goodput_per_s is not None]
    limit = estimate_limit(settings, trials)
    return {
        "limit": limit,
        "highest_passing": passing,
        "lowest_failing": find_lowest_failing(settings, trials),
        "bound_by": "" if at is None else str(settings.objectives[at]),
        "goodput_per_s": there[-1].goodput_per_s if there else None,
        "knee": None if bend is None else LimitEstimate(value=bend.load, low=bend.low, high=bend.high),
        **measure_efficiency(runs, limit),
    }


# Ends that answer what was asked, be it only that a bound of the search is the limit.
ANSWERS: tuple[SearchEnd, ...] = ("within", "everything-passes", "nothing-passes", "client-limited")


def _find_most_over(trial: Trial) -> int:
    """Return the index of the objective that a trial exceeds by most, as a multiple of its limit."""
    excess = [each.objective.measure_excess(each.value) for each in trial.objectives]
    return max(range(len(excess)), key=lambda at: -math.inf if math.isnan(excess[at]) else excess[at])


def _round_known(load: float, axis: LoadAxis) -> float | None:
    """Return a load, of concurrency rounded down; None if it is NaN, or below one request."""
    if math.isnan(load):
        return None
    if axis == "rate":
        return load
    return float(math.floor(load)) if load >= 1 else None  # below one request in flight there is no load


_FULL = 0.95  # of the KV cache
_NO_QUEUE_TIME = "the server reports no queue time"


def find_bottleneck(run: Result, objective: Objective) -> tuple[Bottleneck, str]:
    """Return the cause of a run's limit and its figures in words, "unknown" if its counters show none.

    It is the first of: a KV cache that was 95 % full or more, or preemptions; decoding, if the objective is
    of tokens' times; the longest phase of the mean latency, if the time in the queue is known; requests that
    waited. Counters with an error, or that were reset in between, show nothing.
    """
    known = run.facts.window
    window = known if known is not None and known.is_known else None
    if window is not None:
        usage, preempted = window.peak("kv_cache_usage"), window.preemptions or 0
        if preempted or (usage is not None and usage >= _FULL):
            full = "" if usage is None else f"KV cache {100 * usage:.0f} % full at most, "
            return "kv-cache", f"{full}{preempted} preemptions"
    tpot_ms = run.metrics.tpot.mean_ms
    if SELECTABLE[objective.metric].phase == "token" and not math.isnan(tpot_ms):
        busy = run.metrics.mean_concurrency
        return "decode", f"mean TPOT {tpot_ms:.4g} ms with {busy:.3g} requests in flight"
    if window is not None and (longest := _find_longest_phase(run, objective, window)) is not None:
        return longest
    waiting = None if window is None else window.peak("waiting")
    return ("queue", f"{waiting:.0f} requests waiting at most") if waiting else ("unknown", _NO_QUEUE_TIME)


def _find_longest_phase(
    run: Result, objective: Objective, window: ServerWindow
) -> tuple[Bottleneck, str] | None:
    """Find the longest part of the mean latency: queue, prefill (TTFT without the queue), or decode.

    Decode counts only if the objective is not of TTFT. None if a part is not known, as the queue's: it is 0
    if no request waited.
    """
    ttft_ms = run.metrics.ttft.mean_ms
    if window.queue is not None and window.queue.count:
        queue_ms = window.queue.mean_ms
    elif window.peak("waiting") == 0:
        queue_ms = 0.0
    else:
        return None
    phases_ms: dict[Bottleneck, float] = {"queue": queue_ms, "prefill": max(ttft_ms - queue_ms, 0.0)}
    name, whole_ms = "TTFT", ttft_ms
    if SELECTABLE[objective.metric].phase != "first":
        name, whole_ms = "E2EL", run.metrics.e2el.mean_ms
        phases_ms["decode"] = whole_ms - ttft_ms
    if not all(map(math.isfinite, phases_ms.values())):
        return None
    parts = ", ".join(f"{part_ms:.4g} {phase}" for phase, part_ms in phases_ms.items())
    return max(phases_ms, key=lambda phase: phases_ms[phase]), f"mean {name} {whole_ms:.4g} ms: {parts}"


def measure_headroom(run: Result) -> dict[str, object]:
    """Measure how many times a run's load the client could have measured: by its self-test, else its CPU.

    Returns fields of the record: `headroom`, None if not known, and `headroom_at_least`, where the self-test
    did not find the capacity.
    """
    client, calibration = run.facts.client, run.facts.calibration
    if calibration is not None and run.metrics.messages_per_s > 0:
        times: float | None = calibration.headroom(run.metrics.messages_per_s, client.workers)
        return {"headroom": times, "headroom_at_least": not calibration.capacity_bounded}
    times = client.wall_s / client.busiest_s if client.busy_cores > 0 else None
    return {"headroom": times, "headroom_at_least": False}


_NEAR = 1.25  # times the limit, or a part of it: power hardly changes between such loads
_KW = 1e3  # watts


def measure_efficiency(runs: Sequence[LimitRun], limit: LimitEstimate | None) -> dict[str, Any]:
    """Return the fields of a record that power gives: mean watts near the limit, and the limit per kW.

    Both are None without a limit, or where power was not measured near it.
    """
    if limit is None or (power_w := estimate_power(runs, limit)) is None:
        return {"power_w": None, "per_kw": None}
    return {"power_w": power_w, "per_kw": divide_by_power(limit, power_w)}


def estimate_power(runs: Sequence[LimitRun], limit: LimitEstimate) -> LimitEstimate | None:
    """Estimate the mean watts at a limit by the runs within 25 % of it, with Student's 95 % interval.

    The mean is geometric. Left out are runs that were disturbed or ended before their time; one run has no
    interval. None if none has power.
    """
    if limit.value is None:
        return None
    near = math.log(_NEAR)
    whole = (run for run in runs if not (run.disturbed or run.saturated or run.cut))
    watts = [
        run.power_w for run in whole if run.power_w and abs(math.log(run.load / limit.value)) <= near + 1e-9
    ]
    if not watts:
        return None
    log_w = Mean.average(list(map(math.log, watts)))
    if math.isnan(log_w.half):
        return LimitEstimate(value=watts[0], low=None, high=None)
    return LimitEstimate(value=math.exp(log_w.mean), low=math.exp(log_w.low), high=math.exp(log_w.high))


def divide_by_power(limit: LimitEstimate, power_w: LimitEstimate) -> LimitEstimate | None:
    """Divide a limit by kilowatts; distances to the ends are added as squares, on a logarithmic scale.

    The two errors are independent. An end that either does not know is None; None without a limit.
    """
    if limit.value is None or power_w.value is None:
        return None
    value = _KW * limit.value / power_w.value
    low = _measure_distance(limit.value, limit.low), _measure_distance(power_w.value, power_w.high)
    high = _measure_distance(limit.value, limit.high), _measure_distance(power_w.value, power_w.low)
    down, up = math.hypot(*low), math.hypot(*high)
    return LimitEstimate(
        value=value,
        low=None if math.isnan(down) else value * math.exp(-down),
        high=None if math.isnan(up) else value * math.exp(up),
    )


def _measure_distance(value: float, end: float | None) -> float:
    """Return |log(end ÷ value)|; NaN without an end."""
    return math.nan if not end else abs(math.log(end / value))

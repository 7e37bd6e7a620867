"""Limit lines: a search for the highest load in words: its answer, and a table of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadgen.base.table import Column, Table, render_text_table
from loadgen.base.text import clean_line, format_count, wrap_text
from loadgen.figures.objectives import Standing
from loadgen.report.limit_record import (
    Bottleneck,
    LimitEstimate,
    LimitRecord,
    LimitRun,
    ObjectiveFigures,
    SearchEnd,
)
from loadgen.report.load_table import SIMULATION
from loadgen.report.sweep_record import LoadAxis

UNITS: Mapping[LoadAxis, str] = {"concurrency": "at a time", "rate": "requests/s"}
_LONG_S = 120.0  # from there on a time is in minutes
_TITLES: Mapping[LoadAxis, str] = {"concurrency": "concurrency", "rate": "requests/s"}
_ENDS: Mapping[SearchEnd, str] = {
    "within": "the interval is as narrow as asked",
    "budget": "the budget is spent",
    "most-runs": "no more runs were allowed",
    "nothing-passes": "no load is shown to meet the objectives",
    "everything-passes": "the highest load that was allowed meets the objectives",
    "client-limited": "runs stayed disturbed: the client or its machine, not the server, was the limit",
    "interrupted": "interrupted, with what is known so far",
    "server-died": "the server ended, with what is known so far",
}
_BOTTLENECKS: Mapping[Bottleneck, str] = {
    "queue": "the evidence points to waiting in the server's queue",
    "prefill": "the evidence points to prefill",
    "decode": "the evidence points to decode",
    "kv-cache": "the evidence points to the KV cache",
    "client": "the evidence points to the client or its machine, not the server",
    "unknown": "no evidence of what the bottleneck is",
}


def lines(record: LimitRecord) -> list[str]:
    """The answer in at most 80 columns, its first line the limit with its interval."""
    return [line for part in parts(record) for line in wrap_text(part)]


def headline(record: LimitRecord) -> str:
    """The limit with its interval, or what is known of it."""
    known = _known(record)
    if not known:
        return "limit: unknown"
    sure = _interval(record.limit) if record.limit is not None and record.limit.value is not None else ""
    return f"limit: {known} {UNITS[record.axis]}{sure}"


def load(value: float) -> str:
    """A load in three digits, all of a whole one."""
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(record: LimitRecord) -> Table:
    """A row a run, by load: each objective's percentile and bound, the verdict, and what the run shows."""
    shown = [objective for objective in record.objectives if any(_of(run, objective) for run in record.runs)]
    columns = [Column("number", "run"), Column("load", _TITLES[record.axis])]
    for objective in shown:
        columns += [Column(objective, f"{figure(objective)} ms"), Column(f"{objective}, bound", "≤ at 99 %")]
    columns += [Column("goodput", "goodput req/s")] * any(
        run.goodput_per_s is not None for run in record.runs
    )
    columns += [
        Column("verdict", "verdict"),
        Column("outcome", "objectives" if len(shown) > 1 else "objective"),
    ]
    keys = [column.key for column in columns]
    runs = sorted(record.runs, key=lambda run: (run.load, run.number))
    body = tuple(tuple(cells[key] for key in keys) for cells in (_cells(run, shown) for run in runs))
    return Table(tuple(columns), body)


def text(record: LimitRecord) -> str:
    """The answer, and below it the runs, in 80 columns; each ends with a line feed."""
    answer = "".join(f"{line}\n" for line in lines(record))
    return f"{answer}\n{render_text_table(table(record))}" if record.runs else answer


def figure(objective: str) -> str:
    """The percentile that an objective is of, without its limit: ttft p99."""
    return objective.partition(" < ")[0]


def latency(value_ms: float) -> str:
    """Milliseconds in four digits, all of those before the point."""
    return f"{value_ms:.4g}" if abs(value_ms) < 1e4 else f"{value_ms:.0f}"


def outcome(run: LimitRun) -> str:
    """What a run shows of the objectives, and why it is not that they are met."""
    return f"{run.standing}: {run.reason}" if run.reason else str(run.standing)


def parts(record: LimitRecord) -> list[str]:
    """The answer, a sentence an entry, its first the limit with its interval."""
    return [clean_line(part) for part in _parts(record)]


def _parts(record: LimitRecord) -> Iterator[str]:
    yield headline(record)
    yield f"for {', '.join(record.objectives)}"
    edges = {Standing.MEETS: record.highest_passing, Standing.FAILS: record.lowest_failing}
    known = [f"{word} at {load(value)}" for word, value in edges.items() if value is not None]
    if record.highest_passing is None and (open_at := _not_shown(record)):
        known.append(f"{Standing.NOT_SHOWN} at {', '.join(map(load, open_at))}")
    minutes = sum(run.duration_s for run in record.runs) / 60
    yield ", ".join([*known, f"{format_count(len(record.runs), 'run')} in {minutes:.1f} min"])
    if record.ended is not None:
        asked = f" (± {100 * record.within:g} %)" if record.ended == "within" else ""
        yield f"ended: {_short_of(record) or _ENDS[record.ended]}{asked}"
    yield from _doubted(record)
    yield from _cause(record)
    if record.goodput_per_s is not None and record.highest_passing is not None:
        yield f"goodput at {load(record.highest_passing)}: {record.goodput_per_s:.4g} requests/s"
    if record.headroom is not None:
        least = "at least " if record.headroom_at_least else ""
        yield f"client: could have measured {least}{record.headroom:.3g} × that load"
    if record.knee is not None and record.knee.value is not None:
        yield f"knee: the curve bends at {load(record.knee.value)}{_interval(record.knee)}"
    yield from (f"note: {note}" for note in record.notes)
    if record.simulated:
        yield SIMULATION


def _short_of(record: LimitRecord) -> str:
    """What the next run needs and what the budget has left for it; "" where it was not the budget."""
    if record.ended != "budget" or record.budget_s is None or record.next_run_s is None:
        return ""
    left_s = record.budget_s - sum(run.took_s for run in record.runs)
    if left_s <= 0:
        return ""
    return f"the next run needs about {_time(record.next_run_s)}, {_time(left_s)} of the budget are left"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _LONG_S else f"{seconds / 60:.1f} min"


def _not_shown(record: LimitRecord) -> list[float]:
    """The loads of which no run shows whether they meet the objectives, in order."""
    shown = {run.load for run in record.runs if run.standing is not Standing.NOT_SHOWN}
    return sorted({run.load for run in record.runs} - shown)


def _doubted(record: LimitRecord) -> Iterator[str]:
    """How many runs are not VALID, and of which doubts."""
    doubted = [run for run in record.runs if run.doubts]
    if not doubted:
        return
    codes = dict.fromkeys(code for run in doubted for code in run.doubts)
    parts = (f"{code} ({_numbered(doubted, code)})" for code in codes)
    levels = " or ".join(dict.fromkeys(run.verdict for run in doubted))
    yield f"{len(doubted)} of {format_count(len(record.runs), 'run')} {levels}: {', '.join(parts)}"


def _numbered(runs: list[LimitRun], code: str) -> str:
    numbers = [str(run.number) for run in runs if code in run.doubts]
    return f"{'run' if len(numbers) == 1 else 'runs'} {', '.join(numbers)}"


def _known(record: LimitRecord) -> str:
    """The limit, else the side on which it is; "" if nothing is known."""
    if record.limit is not None and record.limit.value is not None:
        return load(record.limit.value)
    if record.highest_passing is not None:
        return f"at least {load(record.highest_passing)}"
    return "" if record.lowest_failing is None else f"below {load(record.lowest_failing)}"


def _interval(estimate: LimitEstimate | None) -> str:
    if estimate is None or (estimate.low is None and estimate.high is None):
        return ""
    confidence = f"{100 * estimate.confidence:g} %"
    if estimate.low is None or estimate.high is None:
        known = estimate.low if estimate.high is None else estimate.high
        return f" ({confidence}: {'at least' if estimate.high is None else 'at most'} {load(known or 0.0)})"
    return f" ({confidence}: {load(estimate.low)} to {load(estimate.high)})"


def _cause(record: LimitRecord) -> Iterator[str]:
    """Which objective failed first, and what the evidence points to."""
    if record.bound_by:
        yield f"bound by {record.bound_by}"
    if record.bottleneck is not None:
        evidence = f": {record.evidence}" if record.evidence else ""
        yield f"{_BOTTLENECKS[record.bottleneck]}{evidence}"


def _of(run: LimitRun, objective: str) -> ObjectiveFigures | None:
    return next((figures for figures in run.objectives if figures.objective == objective), None)


def _cells(run: LimitRun, objectives: list[str]) -> dict[str, str]:
    cells = {"number": f"{run.number}", "load": load(run.load), "verdict": run.verdict or "-"}
    cells["outcome"] = clean_line(outcome(run))
    cells["goodput"] = "-" if run.goodput_per_s is None else f"{run.goodput_per_s:.4g}"
    for objective in objectives:
        figures = _of(run, objective)
        value, bound = (None, None) if figures is None else (figures.value_ms, figures.bound_ms)
        cells[objective] = "-" if value is None else latency(value)
        cells[f"{objective}, bound"] = "-" if bound is None else latency(bound)
    return cells

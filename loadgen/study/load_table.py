"""Load table: several loads in one table, a row each, and the load at which a latency's curve bends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from loadgen.base.arrays import Bool, Float64
from loadgen.base.intervals import t_quantile
from loadgen.base.passages import Passage
from loadgen.base.tables import Column, Number, Table, make_table
from loadgen.base.text import count_decimals
from loadgen.figures.figure_table import COMMON, LATENCIES
from loadgen.figures.metrics import DECODING, PREFILL, Figures, list_throughputs
from loadgen.figures.objectives import Standing, join_standings
from loadgen.report.load_identity import Load, identify_measured_load
from loadgen.report.run_directory import Result
from loadgen.study import repeats
from loadgen.study.repeats import Mean
from loadgen.verdict.verdict import Level

UNNAMED = "Several loads"  # the title where the rows have nothing in common
SIMULATED = "SIMULATED"
SIMULATION = f"{SIMULATED}: the embedded engine answered with a preset's timing; no model ran"
_LEVELS = [level.value for level in Level]
_LOAD = "load"  # the column of profiles' names
_DIP = 0.85  # of the throughput at a lower load and at a higher one
_SIGNIFICANT = 4  # digits in text; HTML, CSV and JSON have all


def mark_simulated(name: str, simulated: bool) -> str:
    """Return a row's name, with a mark if the embedded engine answered and no model ran."""
    return f"{name} ({SIMULATED})" if simulated else name


class LoadRow(msgspec.Struct, frozen=True):
    """A row of a load table: one model under one load, and its figures over one or more runs."""

    name: str
    load: Load = Load()
    figures: Mapping[str, Mean] = {}  # under vLLM's keys
    runs: int = 1
    verdict: str = ""  # VALID, SUSPECT or INVALID: the gravest of its runs; "": not judged
    standing: Standing | None = None  # what its runs show of the objectives of --slo; None: there are none
    saturated: bool = False  # a run was ended early, since the server fell further and further behind
    simulated: bool = False

    @property
    def shown_name(self) -> str:
        """The name, with a mark if no model ran."""
        return mark_simulated(self.name, self.simulated)

    @property
    def judged(self) -> str:
        """The cell of the verdict's column: the verdict of its runs, or saturated ("INVALID, saturated")."""
        if not self.saturated:
            return self.verdict
        invalid = f"{Level.INVALID.value}, " if self.verdict == Level.INVALID.value else ""
        return f"{invalid}{SATURATED}"


_RANKS = {"median": "P50", "p99": "P99"}  # in titles; a mean has its unit
# The titles of columns that show a figure, by its key.
FIGURES = {
    "request_throughput": "req/s",
    "request_goodput": "goodput req/s",
    "output_throughput": "tok/s",
    **{
        figure.statistic(word): f"{figure.label} {_RANKS.get(word, figure.unit)}"
        for figure in LATENCIES
        for word in figure.by_load
    },
    "failed": "failed",
    "speed_tok_s": "speed tok/s",
    PREFILL: "prefill tok/s",
    DECODING: "decode tok/s",
}
# Left out one by one where a terminal has no room.
_SPARED = ("median_ttft_ms", "request_throughput", "mean_e2el_ms", "p99_ttft_ms", PREFILL, DECODING)
_SPREAD = ("output_throughput",)  # what has room for its interval on a terminal


class LoadFact(NamedTuple):
    """A column that shows a setting: its titles, the first for a terminal, its cell, and if always shown."""

    title: str
    label: str
    cell: Callable[[LoadRow], str]
    always: bool = False  # where any row has it


FACTS = (
    LoadFact(_LOAD, _LOAD, lambda row: row.load.name),
    LoadFact("in / out", "tokens in / out", lambda row: row.load.length_words),
    LoadFact("requests", "requests", lambda row: row.load.count_words),
    LoadFact("duration", "duration", lambda row: row.load.duration_words),
    LoadFact("spread", "spread", lambda row: row.load.shape),
    LoadFact("conc.", "concurrency", lambda row: str(row.load.max_concurrency or "none"), True),
    LoadFact("asked req/s", "requests/s asked", lambda row: _format_rate(row.load.request_rate_per_s)),
    LoadFact("runs", "runs", lambda row: str(row.runs)),
)


def describe_common(rows: Sequence[LoadRow]) -> str:
    """Describe the settings that all rows share: lengths, requests, spread; "" if none."""
    first = rows[0]
    common = {fact.title for fact in FACTS if len({fact.cell(row) for row in rows}) == 1}
    parts = [words for title, words in first.load.words.items() if title in common]
    if first.runs > 1 and "runs" in common:
        parts.append(f"{first.runs} runs each")
    return ": ".join(filter(None, (first.load.name if _LOAD in common else "", ", ".join(parts))))


def make_load_table(rows: Sequence[LoadRow]) -> Table:
    """Make a table of rows with a section per model.

    Its columns are the settings in which rows differ, and concurrency, but no name that rows repeat; and the
    figures that any row has, failed requests only if some failed.
    """
    limited = any(row.load.max_concurrency is not None for row in rows)
    repeated = all(row.load.name and row.load.name in row.name for row in rows)
    columns: list[tuple[Column, Callable[[LoadRow], str]]] = [
        (Column("model", "model"), lambda row: row.shown_name)
    ]
    for fact in FACTS:
        differs = len({fact.cell(row) for row in rows}) > 1 or (fact.always and limited)
        if differs and not (repeated and fact.title == _LOAD):
            columns.append((Column(fact.label, fact.label, short=fact.title), fact.cell))
    for key, title in FIGURES.items():
        means = [row.figures[key].mean for row in rows if key in row.figures]
        known = [mean for mean in means if math.isfinite(mean)]
        if any(known) if key == "failed" else known:
            decimals = count_decimals(min(map(abs, known)), _SIGNIFICANT, 2)
            columns.append((Column(key, title), partial(_format_figure, key, decimals)))
    if any(row.standing for row in rows):
        columns.append((Column("slo", "slo"), lambda row: row.standing or ""))
    if any(row.judged for row in rows):
        columns.append((Column("verdict", "verdict"), lambda row: row.judged))
    body = ([cell(row) or "-" for _, cell in columns] for row in rows)
    return make_table((column for column, _ in columns), body, 1, spare=_SPARED)


def make_load_passage(rows: Sequence[LoadRow], notes: Sequence[str] = ()) -> Passage:
    """Make the passage of a load table: what its rows share as the title, below it legend, dips and notes."""
    title, remarks = describe_common(rows) or UNNAMED, (*list_legend(rows), *find_dips(rows), *notes)
    return Passage(title, "loads", "Loads", table=make_load_table(rows), style="loads", remarks=remarks)


def find_dips(rows: Sequence[LoadRow]) -> list[str]:
    """Describe where throughput falls by over 15 % and rises again with more load, which cannot explain it.

    Rows of one model and load are compared that differ in it alone, none of them ended early; several at one
    load count as their mean.
    """
    curves: dict[object, dict[tuple[float, float], list[tuple[float, LoadRow]]]] = {}
    for row in rows:
        figure = row.figures.get("output_throughput")
        if figure is not None and math.isfinite(figure.mean) and not row.saturated:
            curve = curves.setdefault((row.name, row.load.series), {})
            curve.setdefault(row.load.pressure, []).append((figure.mean, row))
    lines = []
    for curve in curves.values():
        loads = [curve[load] for load in sorted(curve)]
        means = [math.fsum(tokens_per_s for tokens_per_s, _ in own) / len(own) for own in loads]
        for place, tokens_per_s in enumerate(means[1:-1], 1):
            before, after = max(means[:place]), max(means[place + 1 :])
            if tokens_per_s < _DIP * min(before, after):
                where = loads[place][0][1].load.pressure_words
                lines.append(
                    f"throughput falls at {where} ({before:.0f} → {tokens_per_s:.0f} tok/s) and rises again "
                    f"({after:.0f}): something else took the machine, or the load was not held: measure again"
                )
    return lines


def list_legend(rows: Sequence[LoadRow]) -> list[str]:
    """List the meanings of the marks in the table."""
    lines = ["± half of the mean's 95 % confidence interval"] * any(row.runs > 1 for row in rows)
    spreads = [row.figures[key] for row in rows for key in _SPREAD if key in row.figures]
    if any(repeats.is_vague(each.mean, each.half) for each in spreads):
        lines.append(repeats.VAGUE_LEGEND)
    lines += [SATURATED_LEGEND] * any(row.saturated for row in rows)
    if simulated := list(dict.fromkeys(row.name for row in rows if row.simulated)):
        names = [] if all(row.simulated for row in rows) else [", ".join(simulated)]
        lines.append(": ".join([*names, SIMULATION]))
    return lines


def make_load_row(run: Result) -> LoadRow:
    """Make the table row of a single run."""
    facts = run.facts
    figures = list_throughputs(run.metrics)
    for each in COMMON:
        figures |= each.statistics(asdict(getattr(run.metrics, each.field)))
    measured = {key: figures.get(key) for key in FIGURES}
    shown = saturated_figures(run) if facts.saturated else measured
    return LoadRow(
        name=facts.label or facts.server.model,
        load=identify_measured_load(run),
        figures={key: Mean(float(value)) for key, value in shown.items() if value is not None},
        verdict=run.verdict.level.value,
        standing=judge_standing(run),
        saturated=facts.saturated,
        simulated=bool(facts.server.simulated),
    )


def judge_standing(run: Result) -> Standing | None:
    """Return the worst standing of a run's objectives, FAILS if it was saturated; None if it has none."""
    if not (shown := run.objectives):
        return None
    return Standing.FAILS if run.facts.saturated else join_standings(each.standing for each in shown)


def merge_repeats(rows: Sequence[LoadRow]) -> list[LoadRow]:
    """Merge rows of the same model and load into one; each figure is the mean of the runs that have it."""
    by_load: dict[object, list[LoadRow]] = {}
    for row in rows:
        by_load.setdefault((row.name, row.load.identity, row.simulated), []).append(row)
    merged = []
    for of in by_load.values():
        values = [{key: mean.mean for key, mean in row.figures.items()} for row in of]
        saturated = any(row.saturated for row in of)
        known = [row.standing for row in of if row.standing]
        merged.append(
            replace(
                of[0],
                figures=compute_means(values, saturated),
                runs=len(of),
                verdict=find_gravest([row.verdict for row in of]),
                standing=join_standings(known) if known else None,
                saturated=saturated,
            )
        )
    return merged


def settle_lengths(loads: Iterable[Load], share: float, tokens: float = 0.0) -> Iterator[Load]:
    """Yield the loads, with counted lengths that are nearly those of an earlier load set equal to them.

    Nearly is within `share` of it, or within `tokens`: a server may count one more.
    """
    earlier: dict[str, list[float]] = {"input_len": [], "output_len": []}
    for load in loads:
        settled: dict[str, float] = {}
        for name, known in earlier.items():
            counted = getattr(load, name)
            if counted is None or getattr(load, f"asked_{name}") is not None:
                continue
            near = (other for other in known if abs(counted - other) <= max(tokens, share * other))
            settled[name] = next(near, counted)
            if settled[name] == counted:
                known.append(counted)
        yield replace(load, **settled)


def compute_means(values: Sequence[Mapping[str, float]], saturated: bool) -> dict[str, Mean]:
    """Average each figure over the runs that have it; if saturated, only figures that all runs have.

    A run that was not ended early is one that was lucky: its latencies are not those of the load.
    """
    keys = dict.fromkeys(key for own in values for key in own)
    known = {key: [own[key] for own in values if key in own] for key in keys}
    return {key: Mean.average(of) for key, of in known.items() if len(of) == len(values) or not saturated}


def find_gravest(levels: Sequence[str]) -> str:
    """Return the gravest of several verdicts; "" if none is known."""
    known = [level for level in levels if level in _LEVELS]
    return max(known, key=_LEVELS.index, default="")


def _format_figure(key: str, decimals: int, row: LoadRow) -> str:
    """Format a figure, with ± where the column has room for it; "-" if it is absent or not finite."""
    if (figure := row.figures.get(key)) is None:
        return "-"
    mean, half, spread = figure.mean, figure.half, ""
    if key in _SPREAD and math.isfinite(half):
        vague = repeats.is_vague(mean, half)
        if half > 0 and not vague:  # no more than two digits of what is not known, and no ±0
            decimals = max(count_decimals(half, 2, decimals), count_decimals(half, 1, 2))
        spread = f" {repeats.VAGUE}" if vague else f" ±{half:.{decimals}f}"
    return Number(f"{mean:.{decimals}f}{spread}" if math.isfinite(mean) else "-", mean)


def _format_rate(rate_per_s: float | None) -> str:
    return "" if rate_per_s is None else f"{rate_per_s:g}"


SATURATED = "saturated"
SATURATED_LEGEND = (
    f"{SATURATED}: ended early, since the server fell further and further behind: tok/s is of every token "
    "that arrived, latencies never settled"
)


def saturated_figures(run: Result) -> Figures:
    """Collect the only figures of a saturated run, output tok/s and failures; {} without a duration."""
    metrics = run.metrics
    if not metrics.duration_s:
        return {}
    return {
        "output_throughput": float(run.records.tokens.sum()) / metrics.duration_s,
        "failed": metrics.failed,
    }


_PARAMETERS = 4  # of two lines that meet: where they begin, two slopes, the bend
_FEWEST_LOADS = 4  # distinct loads: two on each line
_PLACES = 400  # that are tried for the bend
_DRAWS, _SEED = 999, 0  # of noise around one straight line
_LEVEL = 0.05  # of the test that there is a bend
_NOISELESS = 1e-12  # a rounding error, of the squares around one straight line


class Knee(msgspec.Struct, frozen=True):
    """The load at which a curve bends, and its 95 % interval; an end is None where no bound can be given.

    Beyond the second load from an end a single point is left, which any line meets.
    """

    load: float
    low: float | None
    high: float | None


def find_knee(loads: Sequence[float], values: Sequence[float], *, rises: bool) -> Knee | None:
    """Find the load at which a figure's curve bends: upwards if it `rises`, as a latency, else to flatter.

    Repeated loads are points of their own; points without a logarithm are left out. None with fewer than five
    points or four different loads, and where one straight line does as well: that is tested at 5 % against
    999 curves of one line with normal noise, since the bend's place was chosen to fit. The interval is that
    of the profile of squares by F(1, n - 4).
    """
    points = np.array([loads, values], np.float64)
    known: Bool = np.all(np.isfinite(points) & (points > 0), axis=0)
    x, y = np.log(points[:, known])
    distinct = np.unique(x)
    freedom = len(x) - _PARAMETERS
    if freedom < 1 or len(distinct) < _FEWEST_LOADS:
        return None
    places = np.linspace(distinct[1], distinct[-2], _PLACES)
    # A bend at each place adds this to a straight line: unit vectors, float64[places, points].
    added = _subtract_line(x, np.maximum(x - places[:, None], 0.0))
    bends = added / np.sqrt((added * added).sum(axis=1, keepdims=True)) * (1.0 if rises else -1.0)
    residual = _subtract_line(x, y)
    straight = float(residual @ residual)
    if straight <= _NOISELESS * float(y @ y):
        return None
    gains = _measure_gains(bends, residual)
    if _estimate_p_value(x, bends, float(gains.max()) / straight) > _LEVEL:
        return None
    left = np.maximum(straight - gains, _NOISELESS * straight)
    inside = np.flatnonzero(left <= left.min() * (1 + t_quantile(freedom) ** 2 / freedom))
    first, last = int(inside[0]), int(inside[-1])
    return Knee(
        load=float(np.exp(places[np.argmax(gains)])),
        low=float(np.exp(places[first])) if first > 0 else None,
        high=float(np.exp(places[last])) if last < _PLACES - 1 else None,
    )


def _subtract_line(x: Float64, y: Float64) -> Float64:
    """Return y, over its last axis, without its straight line of least squares by x."""
    centred = x - x.mean()
    rest = y - y.mean(axis=-1, keepdims=True)
    left: Float64 = rest - (rest @ centred)[..., None] * centred / (centred @ centred)
    return left


def _measure_gains(bends: Float64, residual: Float64) -> Float64:
    """Compute by how much a bend at each place reduces the residual's squares; 0 for a wrong-way bend."""
    gains: Float64 = np.maximum(residual @ bends.T, 0.0) ** 2
    return gains


def _estimate_p_value(x: Float64, bends: Float64, share: float) -> float:
    """Estimate how often noise around one line gains `share` of its squares by a bend: the p-value.

    The share depends on neither the line nor the noise's size, so the draws are those of any curve.
    """
    noise = np.random.default_rng(_SEED).standard_normal((_DRAWS, len(x)))
    residuals = _subtract_line(x, noise)
    shares = _measure_gains(bends, residuals).max(axis=1) / (residuals * residuals).sum(axis=1)
    return float(1 + np.count_nonzero(shares >= share)) / (_DRAWS + 1)

"""Comparison report: comparisons as passages that every form is written from, CSV, JSON, and rankings."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from loadgen.base.passages import UNBOUNDED, Passage
from loadgen.base.tables import Number, Table, encode_table, format_csv_table, list_interval_cells, make_table
from loadgen.base.text import GIB, count_decimals, format_count
from loadgen.engines import engines
from loadgen.features.roofline import models
from loadgen.features.sessions.session_figures import divide_by_turn
from loadgen.report.load_identity import Load, format_tokens
from loadgen.report.result_file import make_strict
from loadgen.study import load_table, repeats
from loadgen.study.compare.comparison import INVALID, find_column
from loadgen.study.compare.model import ALONE, ComparedFigure, ComparedLoad, Decision, Effect, Line, Split
from loadgen.study.consistency.ceilings import find_weights
from loadgen.study.load_table import SIMULATION, LoadRow, settle_lengths
from loadgen.study.quality.arm_qualities import encode_row_quality, list_quality_cells
from loadgen.study.repeats import Mean
from loadgen.study.run_summary import Reported, group_by

_FEWEST = 2  # rows that make a table
_SWEEP = 3  # loads of one row that are shown next to one another although each is compared as well
_ALIKE, _NEAR = 0.01, 0.1  # of counted lengths: shown as one, and of one series


class LoadPoint(msgspec.Struct, frozen=True):
    """One row of a comparison as a row of a table of loads."""

    row: LoadRow
    line: Line
    comparison: ComparedLoad
    series: Hashable = None  # equal for loads of one model that differ in concurrency or rate


class SweptLoads(msgspec.Struct, frozen=True):
    """Comparisons as they are shown: `points` in one table, then each of `compared` in one of its own."""

    points: tuple[LoadPoint, ...]
    compared: tuple[ComparedLoad, ...]

    @property
    def rows(self) -> tuple[LoadRow, ...]:
        """The rows of the table of loads; empty if no loads share a table."""
        return tuple(point.row for point in self.points)

    @property
    def notes(self) -> list[str]:
        """The notes below the table of loads, of loads with one row: remarks, then marks with their rows."""
        alone = [point for point in self.points if len(point.comparison.lines) == 1]
        remarks = dict.fromkeys(remark for point in alone for remark in point.comparison.remarks)
        notes = [remark for remark in remarks if remark not in (ALONE, SIMULATION)]
        marks = [(mark, point.row) for point in alone for mark in point.line.marks]
        values = [(each.name, each.load.name, each.load.length_words) for each in self.rows]
        differ = [len(set(column)) > 1 for column in zip(*values, strict=True)]
        for mark, of in group_by(marks, lambda pair: pair[0]).items():
            labels = []  # name, load and lengths where the rows differ in them, and how many at a time
            for _, row in of:
                own = compress((row.name, row.load.name, row.load.length_words), differ)
                labels.append(", ".join([*filter(None, own), row.load.pressure_words]))
            notes.append(f"{'all' if len(of) == len(self.points) else '; '.join(labels)}: {mark}")
        return notes


def arrange_loads(comparisons: Sequence[ComparedLoad]) -> SweptLoads:
    """Arrange comparisons for display: loads of one row, and rows under three or more loads, share a table.

    Rows of the same name and lengths as a lone one join it. What has rows to compare is compared as well; a
    table takes two rows, else every load is a comparison of its own.
    """
    lone = {id(each) for each in comparisons if len(each.lines) == 1 and each.lines[0].runs}
    lines = [(line, each) for each in comparisons for line in each.lines if line.runs]
    rows = [_make_row(line, each) for line, each in lines]
    near, alike = (settle_lengths((row.load for row in rows), share) for share in (_NEAR, _ALIKE))
    every = [
        LoadPoint(replace(row, load=load), line, each, (row.name, coarse.length_words, load.shape))
        for (line, each), row, coarse, load in zip(lines, rows, near, alike, strict=True)
    ]
    shown = set()
    for series, points in group_by(every, lambda point: point.series).items():
        loads = len({point.row.load.pressure for point in points})
        if loads >= _SWEEP or any(id(point.comparison) in lone for point in points):
            shown.add(series)
    points = [point for point in every if point.series in shown]
    if len(points) < _FEWEST:
        return SweptLoads((), tuple(comparisons))
    compared = (each for each in comparisons if id(each) not in lone)
    ordered = (  # model by model and length by length as they came, then from the lightest load on
        point
        for of_name in group_by(points, lambda point: point.row.name).values()
        for series in group_by(of_name, lambda point: point.series).values()
        for point in sorted(series, key=lambda point: point.row.load.pressure)
    )
    return SweptLoads(tuple(ordered), tuple(compared))


def _make_row(line: Line, comparison: ComparedLoad) -> LoadRow:
    """Make a row with the means over the runs that are not INVALID, else over all."""
    runs = [run for run in line.runs if run.level != INVALID] or line.runs
    load = comparison.load if len(comparison.lines) == 1 else runs[0].load
    if load.input_len is not None and any(run.speed_formula for run in runs):
        load = replace(load, name="")  # a rung's name is its length, which has a column of its own
    held = [run.held for run in runs]
    figures = [{key: of[key] for key in load_table.FIGURES if key in of} for of in held]
    saturated = any(run.saturated for run in runs)
    return LoadRow(
        name=line.name,
        load=load,
        figures=load_table.compute_means(figures, saturated),
        runs=len(line.runs),
        verdict=load_table.find_gravest([run.level for run in line.runs]),
        saturated=saturated,
        simulated=line.simulated,
    )


TURNS_TITLE = "TTFT and cached share by turn"
_TURNS_NOTE = "mean TTFT in ms of a row's runs, and the share of prompt tokens that the server reports cached"
_NONE = ("-", "-")


def make_turn_table(comparison: ComparedLoad) -> Table | None:
    """Make a table of a row a turn, two columns a checkpoint; None if fewer than two rows have sessions."""
    found = [(line.shown_name, _format_turns(line)) for line in comparison.lines]
    rows = [(name, turns) for name, turns in found if turns]
    if len(rows) < 2:
        return None
    names = dict.fromkeys(name for _, turns in rows for name in turns)
    order = sorted(names, key=lambda name: int(name.partition("–")[0]))
    columns = [("turn", "turn")]
    for at, (name, _) in enumerate(rows):
        columns += [(f"ttft_{at}", f"{name} TTFT"), (f"cached_{at}", "cached")]
    body = ((name, *(cell for _, turns in rows for cell in turns.get(name, _NONE))) for name in order)
    return make_table(columns, body, notes=(_TURNS_NOTE,))


def _format_turns(line: Line) -> dict[str, tuple[str, str]]:
    """Return by turn the mean TTFT in ms (over runs) and the cached share (over tokens) as texts, or {}."""
    turns = (row for run in line.runs if run.run is not None for row in run.run.derive(divide_by_turn))
    cells = {}
    for name, rows in group_by(turns, lambda row: row.name).items():
        known = [row.mean_ttft_ms for row in rows if row.mean_ttft_ms == row.mean_ttft_ms]
        ttft = f"{sum(known) / len(known):.1f}" if known else "-"
        counted = sum(row.cached_of for row in rows)
        cached = f"{100 * sum(row.cached_tokens for row in rows) / counted:.1f} %" if counted else "-"
        cells[name] = ttft, cached
    return cells


SYMBOLS = {
    Decision.FASTER: "▲", Decision.SLOWER: "▼", Decision.EQUIVALENT: "≈", Decision.UNDECIDED: "?",
    Decision.NONE: "–",
}  # fmt: skip
SIGNIFICANT = 4  # digits of a figure; JSON and CSV have all
# Figures without a verdict, which come last.
_MEASURED = ("memory_bytes", "joules_per_token")
_APART = "lie too far apart to detect any difference"
FAILED = "failed"
FORMAT = 1
_LOAD = (
    "requests", "duration_s", "input_len", "output_len", "max_concurrency", "request_rate_per_s", "shape",
)  # fmt: skip
_PARTS = ("speed", "steps", "drafts")  # of a split speed-up
_EFFECT = ("ratio", "low", "high", "p", "p_adjusted", "p_equivalent", "p_equivalent_adjusted", "detectable")


def describe_load(load: Load, unknown: str = "unknown load") -> str:
    """Describe a load in one line: name, lengths, requests, concurrency, rate; `unknown` if none is known."""
    asked = load.asked_output_len if load.asked_output_len is not None else load.output_len
    ways = ((load.input_len, "in"), (asked, "out"))
    lengths = [f"{format_tokens(tokens)} {way}" for tokens, way in ways if tokens is not None]
    parts = [" / ".join(lengths)] if lengths else []
    if load.duration_s is not None:
        parts.append(f"for {load.duration_s:g} s")
    elif load.requests is not None:
        parts.append(format_count(load.requests, "request"))
    if load.max_concurrency is not None:
        parts.append("one at a time" if load.max_concurrency == 1 else f"{load.max_concurrency} at a time")
    if load.request_rate_per_s is not None and math.isfinite(load.request_rate_per_s):
        parts.append(f"{load.request_rate_per_s:g} requests/s")
    parts += filter(None, [load.shape])
    if not parts:
        return load.name or unknown
    is_named = load.name in parts or (load.name == "1 at a time" and load.max_concurrency == 1)
    return f"{load.name}: {', '.join(parts)}" if load.name and not is_named else ", ".join(parts)


def compute_speed_up(effect: Effect | None) -> tuple[float, float, float]:
    """Return the speed-up and its interval's ends, of latencies the inverse; NaN without an effect."""
    if effect is None:
        return math.nan, math.nan, math.nan
    if effect.higher_is_faster is False:
        return 1 / effect.ratio, 1 / effect.high, 1 / effect.low
    return effect.ratio, effect.low, effect.high


def make_load_passages(comparisons: Sequence[ComparedLoad]) -> list[Passage]:
    """Make the passages of loads with a single row or swept, in one table, then of each that is compared."""
    found = arrange_loads(comparisons)
    tabled = [load_table.make_load_passage(found.rows, found.notes)] if found.rows else []
    return [*tabled, *(make_passage(each, number) for number, each in enumerate(found.compared, 1))]


def make_passage(comparison: ComparedLoad, number: int) -> Passage:
    """Make the passage of one load's comparison: a verdict a row, the table, and remarks on both."""
    title, reasons = describe_load(comparison.load), dict[str, list[str]]()
    for line in comparison.lines:
        effect = line.effects.get(comparison.headline)
        if effect is not None and effect.call is Decision.NONE and effect.why:
            reasons.setdefault(effect.why, []).append(line.name)
    shared = {why: names for why, names in reasons.items() if len(names) > 1}  # why rows have no verdict
    marks = [(mark, line.name) for line in comparison.lines for mark in line.marks if mark != line.broken]
    marks += [(f"outputs: {line.answers}", line.name) for line in comparison.lines if line.answers]
    turns = make_turn_table(comparison)
    return Passage(
        title,
        f"load-{number}",
        leads=tuple(_list_leads(comparison, shared)),
        table=_make_table(comparison),
        remarks=(
            *_list_legend(comparison),
            *comparison.remarks,
            *_prefix_names([(why, name) for why, names in shared.items() for name in names], comparison),
            *_prefix_names(marks, comparison),
        ),
        more=() if turns is None else (Passage(TURNS_TITLE, table=turns),),
    )


def _prefix_names(about: Sequence[tuple[str, str]], comparison: ComparedLoad) -> Iterator[str]:
    """Yield each sentence once, after the names of its rows, or "all"; `about` has (sentence, name) pairs."""
    for sentence, of in group_by(dict.fromkeys(about), lambda pair: pair[0]).items():
        every = len(of) == len(comparison.lines) > 1
        yield f"{'all' if every else ', '.join(name for _, name in of)}: {sentence}"


def _list_leads(comparison: ComparedLoad, shared: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each row's verdict and what it rests on, without reasons in `shared`; then why cells failed.

    As 1.44× (1.40–1.48) by tok/s; 5 pairs. Why it is undecided, or without a verdict, follows, the split into
    steps and drafts, and whether it is fast because it is broken.
    """
    label = find_column(comparison.headline).label
    for line in comparison.lines:
        if (effect := line.effects.get(comparison.headline)) is not None:
            ratio, low, high = compute_speed_up(effect)
            times = format_ratio(ratio, low, high, _count_ratio_decimals(ratio))
            parts = [f"{times} by {label}"] if times else []
            if effect.call is Decision.UNDECIDED:
                parts.append(explain_undecided(effect))
            elif effect.units > 1:
                parts.append(count_units(effect))
            if effect.why not in shared:
                parts.append(effect.why)
            parts += [describe_split(line.split), line.broken]
            yield effect.call.value, f"{line.shown_name}: {'; '.join(filter(None, parts))}".removesuffix(": ")
        yield from ((FAILED, f"{line.name}: {why}") for why in line.failures)


def _make_table(comparison: ComparedLoad) -> Table:
    """Make a table of a row a checkpoint: the headline figure first, then others, memory and energy."""
    judged = [figure for figure in comparison.figures if figure.key not in _MEASURED]
    judged.sort(key=lambda figure: figure.key != comparison.headline)
    figures = [*judged, *(figure for figure in comparison.figures if figure.key in _MEASURED)]
    has_roofline = any(line.roofline is not None for line in comparison.lines)
    rows = []
    for line in comparison.lines:
        name = f"{line.shown_name} (baseline)" if line.name == comparison.baseline else line.shown_name
        cells = [name, *(_make_cell(figure, line) for figure in figures)]
        if has_roofline:
            share = line.roofline
            cells.append("-" if share is None else Number(f"{100 * share:.0f} %", share, "roofline"))
        rows.append([*cells, str(len(line.runs))])
    roofline = [("roofline", "% of roofline")] if has_roofline else []
    columns = [("checkpoint", "checkpoint"), *((each.key, each.label) for each in figures), *roofline]
    spare = ("runs", *(figure.key for figure in reversed(judged[1:])))
    return make_table([*columns, ("runs", "runs")], rows, spanned=1, spare=spare)


def _make_cell(figure: ComparedFigure, line: Line) -> str:
    summary, effect = line.summaries.get(figure.key), line.effects.get(figure.key)
    if summary is None:
        return "-"
    text, ratio = format_spread(figure, summary), ""
    if effect is not None:
        ratio = format_ratio(effect.ratio, effect.low, effect.high, _count_ratio_decimals(effect.ratio))
        text += "" if effect.call is Decision.NONE else f" {SYMBOLS[effect.call]}"
    return Number(text, summary.mean, f"{figure.key}.mean", ratio)


def _count_ratio_decimals(ratio: float) -> int:
    """Count the decimals of a ratio: three below 0.2 and within 2 % of 1, else two."""
    return 3 if ratio < 0.2 or 0.98 < ratio < 1.02 else 2


def count_units(effect: Effect) -> str:
    """Count what an effect was tested on: pairs, or runs on each side."""
    return f"{effect.units} {'pairs' if effect.paired else 'runs per side'}"


def format_ratio(ratio: float, low: float, high: float, digits: int) -> str:
    """Write a ratio with its interval, if known, in words where that bounds nothing; "" without a ratio."""
    if not math.isfinite(ratio):
        return ""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{ratio:.{digits}f}×"
    ends = f"{low:.{digits}f}–{high:.{digits}f}"
    between = ends if repeats.is_bounded(ratio, low, high) else UNBOUNDED
    return f"{ratio:.{digits}f}× ({between})"


def describe_split(split: Split | str | None) -> str:
    """Write how much of a speed-up is steps and how much is drafts, or why that is not known; "" if None."""
    if not isinstance(split, Split):
        return f"not split into steps and drafts: {split}" if split else ""
    factors = (getattr(split, part) for part in _PARTS)
    speed, steps, drafts = (format_ratio(each.mean, each.low, each.high, 2) for each in factors)
    how = " (steps computed: TPOT × acceptance length)" if split.computed else ""
    return f"{speed} as fast by TPOT: {steps} by its steps, {drafts} by its drafts{how}"


def format_spread(figure: ComparedFigure, summary: Mean) -> str:
    """Write a mean and half its interval, as 298.1 ±1.2, in words where that bounds nothing."""
    mean, half = figure.scale(summary.mean), figure.scale(summary.half)
    decimals = count_decimals(mean, SIGNIFICANT, figure.digits)
    if not math.isfinite(half):
        return f"{mean:.{decimals}f}"
    if repeats.is_vague(summary.mean, summary.half):
        return f"{mean:.{decimals}f} {repeats.VAGUE}"
    if half > 0:  # no more than two digits of what is not known
        decimals = count_decimals(half, 2, decimals)
    return f"{mean:.{decimals}f} ±{half:.{decimals}f}"


def _list_legend(comparison: ComparedLoad) -> Iterator[str]:
    if any(summary.units > 1 for line in comparison.lines for summary in line.summaries.values()):
        yield "± half of the mean's 95 % confidence interval"
    summaries = (summary for line in comparison.lines for summary in line.summaries.values())
    if any(repeats.is_vague(summary.mean, summary.half) for summary in summaries):
        yield repeats.VAGUE_LEGEND
    effects = [effect for line in comparison.lines for effect in line.effects.values()]
    if any(effect.call is not Decision.NONE for effect in effects):
        alike = f"≈ within ± {100 * comparison.margin:g} %"
        yield f"▲ faster, ▼ slower, {alike}, ? undecided; by Holm at {comparison.alpha:g}"
    if effects:
        label = find_column(comparison.headline).label
        yield f"verdict by {label}, × relative to {comparison.baseline}"


def explain_undecided(effect: Effect) -> str:
    """Write what an effect's runs could have found, and about how many more would settle it, if known."""
    of = count_units(effect)
    least = repeats.format_difference(effect.detectable)
    power = f"{of} detect no less than {least} (statistical power 80 %)" if least else f"{of} {_APART}"
    if effect.more_runs is None:
        return power
    return f"{power}; about {format_count(effect.more_runs, 'more run')} per side would decide it"


def render_csv(comparisons: Sequence[ComparedLoad]) -> str:
    """Write comparisons as CSV, a line a figure of a row; an unknown or infinite value is empty."""
    measured = any(line.quality is not None for each in comparisons for line in each.lines)
    rows = [
        {**row, **(list_quality_cells(line.quality, each.kl_margin) if measured else {})}
        for each in comparisons
        for line in each.lines
        for row in _make_csv_rows(each, line)
    ]
    finite = ({key: None if value == math.inf else value for key, value in row.items()} for row in rows)
    return format_csv_table(list(rows[0]) if rows else [], finite)


def encode_comparisons(comparisons: Sequence[ComparedLoad]) -> dict[str, Any]:
    """Make the JSON object of comparisons and of their table of loads; NaN is null, infinity its name."""
    found = arrange_loads(comparisons)
    compared = [
        {
            "load": each.load.json(),
            **{key: getattr(each, key) for key in ("baseline", "headline", "margin", "alpha")},
            "figures": [asdict(figure) for figure in each.figures],
            "rows": [_make_json_row(each, line) for line in each.lines],
            "remarks": each.remarks,
        }
        for each in comparisons
    ]
    swept = {**encode_table(load_table.make_load_table(found.rows)), "notes": found.notes}
    clean: dict[str, Any] = make_strict({"format": FORMAT, "comparisons": compared, "loads": swept})
    return clean


def _make_csv_rows(comparison: ComparedLoad, line: Line) -> Iterator[dict[str, Any]]:
    """Yield the cells of each figure of a row; without any figure one whose key is ""."""
    split: dict[str, float | None] = {}
    for part in _PARTS:
        split |= list_interval_cells(f"split_{part}", getattr(line.split, part, None))
    for key in line.summaries or ("",):
        summary, effect = line.summaries.get(key), line.effects.get(key)
        yield {
            "load": comparison.load.name,
            "checkpoint": line.name,
            "baseline": comparison.baseline,
            "figure": key,
            "headline": key == comparison.headline if key else None,
            "runs": len(line.runs),
            **{name: getattr(summary, name, None) for name in ("units", "mean")},
            **{f"mean_{end}": getattr(summary, end, None) for end in ("low", "high")},
            "call": getattr(effect, "call", None),
            **{name: getattr(effect, name, None) for name in (*_EFFECT, "more_runs")},
            "pairs": getattr(effect, "units", None),
            **{name: getattr(effect, name, None) for name in ("paired", "why")},
            "roofline": line.roofline,
            "marks": "; ".join(line.marks),
            "answers": line.answers,
            **split,
            "failures": "; ".join(line.failures),
            "simulated": line.simulated,
            **{name: getattr(comparison.load, name) for name in _LOAD},
        }


def _make_json_row(comparison: ComparedLoad, line: Line) -> dict[str, Any]:
    ratio, low, high = compute_speed_up(line.effects.get(comparison.headline))
    quality, split = line.quality, line.split
    why = {"why": split} if split else None
    return {
        "name": line.name,
        "summaries": {
            key: {name: getattr(summary, name) for name in ("mean", "units", "low", "high")}
            for key, summary in line.summaries.items()
        },
        "effects": {key: asdict(effect) for key, effect in line.effects.items()},
        "speed_up": {"ratio": ratio, "low": low, "high": high},
        "split": {**asdict(split), "why": ""} if isinstance(split, Split) else why,
        **{key: getattr(line, key) for key in ("roofline", "marks", "answers", "failures", "simulated")},
        **({} if quality is None else {"quality": encode_row_quality(quality, comparison.kl_margin)}),
        "runs": [_make_json_run(run) for run in line.runs],
    }


def _make_json_run(run: Reported) -> dict[str, Any]:
    keys = ("name", "source", "told_by", "engine", "machine", "power_mode", "plan_digest", "memory_bytes")
    more = ("simulated", "weight_bytes", "joules_per_token", "level", "doubts", "remarks", "place", "unread")
    return {
        **{key: getattr(run, key) for key in (*keys, *more)},
        "started": None if run.started is None else run.started.isoformat(),
        "load": run.load.json(),
        "cell": None if run.cell is None else run.cell.model_dump(mode="json"),
        "figures": dict(run.figures),
    }


_PLAIN = ("", "BF16", "FP16")
_PARAMETERS = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)B(?![A-Za-z0-9])", re.IGNORECASE)
_ACTIVE = re.compile(r"(?<![A-Za-z0-9.])A(\d+(?:\.\d+)?)B(?![A-Za-z0-9])", re.IGNORECASE)
UNLIKE = "*"
SIZES_GIB = (8, 16, 24, 48, 96)
CONTEXT = 8192  # tokens of the one request whose keys and values must fit too
OVERHEAD_GIB = 1.0  # the driver's context, activations, buffers


class Model(msgspec.Struct, frozen=True):
    """The parts of a checkpoint's name: base model, parameters in 1e9, how its weights are stored."""

    base: str
    quantization: str  # "" where the name has none: as trained, in 16 bits
    parameters_b: float | None
    active_b: float | None  # of a mixture of experts

    @classmethod
    def parse(cls, name: str) -> Model:
        """Parse a checkpoint's name; its sizes are by its own words, else by the table of models or None."""
        stored, known = models.find_suffix(name), models.find_model(name)
        base = re.sub(rf"-{re.escape(stored)}$", "", name, flags=re.IGNORECASE) if stored else name
        size, active = _PARAMETERS.search(name), _ACTIVE.search(name)
        size_b = float(size[1]) if size else None
        active_size_b = float(active[1]) if active else None
        if known is not None:
            row = models.read_rows()[known.key]
            size_b = size_b or row.parameters_b
            active_size_b = active_size_b or row.active_b or None
        return cls(base, stored, size_b, active_size_b)

    @property
    def params(self) -> str:
        """The parameters as the pages write them: 4B, 30B (3B active); "-" if unknown."""
        if self.parameters_b is None:
            return "-"
        active = f" ({self.active_b:g}B active)" if self.active_b else ""
        return f"{self.parameters_b:g}B{active}"

    @property
    def type(self) -> str:
        """The kind of model as the pages write it: Dense BF16, Dense AWQ, MoE FP8."""
        return f"{'MoE' if self.active_b else 'Dense'} {self.quantization or 'BF16'}"


def make_ranking_table(comparison: ComparedLoad) -> Table:
    """Make a table of one load's rows with its headline figure, the fastest first; unlike ones are marked."""
    key = comparison.headline
    ranked = [line for line in comparison.lines if key in line.summaries]
    ranked.sort(
        key=lambda line: line.summaries[key].mean, reverse=find_column(key).higher_is_faster is not False
    )
    body = []
    for rank, line in enumerate(ranked, 1):
        model = Model.parse(find_checkpoint_name(line))
        name = f"{line.shown_name}{UNLIKE if is_unlike(comparison, line) else ''}"
        body.append((str(rank), name, model.params, model.type, _write_figure(line, key)))
    columns: list[str | tuple[str, str]] = ["rank", "model", "params", "type", (key, _find_label(key))]
    note = f"{UNLIKE} unlike {comparison.baseline}, the baseline: its rank is of another load"
    return make_table(columns, body, notes=[note] if any(row[1].endswith(UNLIKE) for row in body) else [])


def make_effect_table(comparison: ComparedLoad) -> Table:
    """Make a table of base models × quantizations: the headline figure, and how many times as fast as BF16.

    391.2 (1.88×) where it is 208.1 in BF16. A row that is unlike the baseline, or has no such figure, is left
    out.
    """
    cells: dict[tuple[float, str, str], dict[str, Line]] = {}
    for line in comparison.lines:
        if comparison.headline in line.summaries and not is_unlike(comparison, line):
            model = Model.parse(find_checkpoint_name(line))
            kind = "BF16" if model.quantization.upper() in _PLAIN else model.quantization
            where = line.name.removeprefix(find_checkpoint_name(line))  # on which server, by whom
            base = model.parameters_b or 0.0, model.params, f"{model.base}{where}"
            cells.setdefault(base, {})[kind] = line
    kinds = sorted(
        {kind for by_kind in cells.values() for kind in by_kind}, key=lambda kind: (kind != "BF16", kind)
    )
    body = []
    for (_, size, name), by_kind in sorted(cells.items(), key=lambda cell: cell[0]):
        shown = (_write_speed(by_kind.get(kind), by_kind.get("BF16"), comparison.headline) for kind in kinds)
        body.append((size, name, *shown))
    note = f"{_find_label(comparison.headline)}; × relative to the same model in BF16, if it was run"
    return make_table(("size", "model", *kinds), body, notes=[note])


def find_checkpoint_name(line: Line) -> str:
    """Return the name of the checkpoint of a row with runs, without where it ran."""
    cell = line.runs[0].cell
    return line.runs[0].name or line.name if cell is None else cell.checkpoint


def is_unlike(comparison: ComparedLoad, line: Line) -> bool:
    """Whether a row has no verdict by the headline since its load or machine was not the baseline's."""
    effect = line.effects.get(comparison.headline)
    return effect is not None and effect.unlike


def _find_label(key: str) -> str:
    return "tok/s" if key == "speed_tok_s" else find_column(key).label  # as the pages have it


def _write_speed(line: Line | None, plain: Line | None, key: str) -> str:
    """Write a row's figure with how many times as fast as `plain` it is, if that is another; "-" without."""
    if line is None:
        return "-"
    text = _write_figure(line, key)
    if plain is None or plain is line:
        return text
    ratio = line.summaries[key].mean / plain.summaries[key].mean
    times = ratio if find_column(key).higher_is_faster else 1 / ratio
    return f"{text} ({times:.2f}×)"


def _write_figure(line: Line, key: str) -> str:
    summary = line.summaries[key]
    return str(summary.mean) if summary.units == 1 and len(str(summary.mean)) < 8 else f"{summary.mean:.2f}"


def make_fit_passage(comparisons: Iterable[ComparedLoad]) -> Passage:
    """Make the passage of checkpoints: the GiB each needs, how known, and if it fits each size of memory."""
    rows: dict[str, list[Reported]] = {}
    for line in (line for comparison in comparisons for line in comparison.lines if line.runs):
        rows.setdefault(find_checkpoint_name(line), []).extend(line.runs)
    body = []
    for name, runs in rows.items():
        gib, how = compute_need(name, runs)
        is_known = math.isfinite(gib)
        answers = (("yes" if gib <= size else "no") if is_known else "-" for size in SIZES_GIB)
        body.append((name, f"{gib:.1f}" if is_known else "-", *answers, how))
    sizes = ((f"gib_{size}", str(size)) for size in SIZES_GIB)
    columns = (("model", "model"), ("gib", "GiB"), *sizes, ("how", "how known"))
    notes = (
        f"computed, files: weights + keys and values of one request of {CONTEXT} tokens + "
        f"{OVERHEAD_GIB:g} GiB for the driver, activations and buffers; measured: the server's own peak",
        "yes: it fits a memory of that many GiB with nothing else in it; "
        "where the system shares the memory (Jetson, GB10) leave room for it",
    )
    title, table = "What fits which memory (GiB)", make_table(columns, body, notes=notes)
    return Passage(title, "fits", table=table)


def compute_need(name: str, runs: Sequence[Reported]) -> tuple[float, str]:
    """Compute the GiB that a checkpoint needs: the most measured, else files or weights and KV; else NaN.

    Measured are peaks of real engines that take what they need, not a share of all; files without a known
    shape are without KV. Returned with how it is known.
    """
    measured = []
    for run in runs:
        engine = run.engine.lower()
        named = (each for each in engines.ENGINES if engine.startswith(each.name.lower()))
        profile = next(named, engines.UNKNOWN)
        if run.memory_bytes and engine and not profile.takes_all_memory and not profile.simulated:
            measured.append(run.memory_bytes)
    if measured:
        return max(measured) / GIB, "measured"
    files = max((run.weight_bytes for run in runs if run.weight_bytes), default=None)
    weights = next((run.ceiling.weights for run in runs if run.ceiling is not None), None) or find_weights(
        name
    )
    if weights is not None:
        kept = (files or weights.total_bytes) + weights.kv_bytes(CONTEXT)
        return kept / GIB + OVERHEAD_GIB, "files + KV" if files else "computed"
    if files:
        return files / GIB + OVERHEAD_GIB, "files, no KV"
    return math.nan, "unknown model"

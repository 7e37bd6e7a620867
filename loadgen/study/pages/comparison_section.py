"""Comparison section: rows, limits, qualities and the answer of several checkpoints, for every form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.study import limit_record, repeats
from loadgen.study.answer import answer
from loadgen.study.answer.answer import CheckpointAnswer
from loadgen.study.compare import comparison_report, rankings
from loadgen.study.compare.comparison import find_column
from loadgen.study.compare.limits import ComparedLimits, describe_limits
from loadgen.study.compare.model import ComparedFigure, ComparedLoad, Decision, Effect, Line
from loadgen.study.compare.rankings import RowQuality, make_quality_table
from loadgen.study.compare_command import list_qualities
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.limit_record import LimitRecord, LimitRun, ObjectiveFigures
from loadgen.study.pages import run_charts
from loadgen.study.pages.page_parts import (
    NAN,
    Bar,
    Curve,
    CurveStyle,
    Floats,
    PageSection,
    Panel,
    is_wide,
)
from loadgen.study.quality.arm_qualities import format_spread
from loadgen.study.quality.quality_record import DIFFERENT, MeanInterval
from loadgen.study.run_summary import Reported, group_by
from loadgen.study.tables import Number, Table, make_table

SYMBOLS = {
    Decision.FASTER: "▲", Decision.SLOWER: "▼", Decision.EQUIVALENT: "≈", Decision.UNDECIDED: "?",
    Decision.NONE: "–",
}  # fmt: skip
_MANY = 3  # rows: what holds for as many is written once
LEVELS = {"VALID": "✓", "SUSPECT": "!", "INVALID": "✗"}


MOST_CURVES = 8  # in one panel
_BETTER = {None: "", True: "Higher is faster.", False: "Lower is faster."}
_TPOT, _SPEED = "mean_tpot_ms", "speed_tok_s"


class ComparedCell(msgspec.Struct, frozen=True):
    """One figure of a row as it is written: its mean, and how that compares with the baseline's."""

    label: str  # of the figure
    mean: str = "–"
    spread: str = ""  # half of the mean's interval
    ratio: str = ""
    interval: str = ""  # of the ratio
    call: Decision = Decision.NONE


class ComparedRow(msgspec.Struct, frozen=True):
    """One checkpoint as it is written."""

    line: Line
    is_baseline: bool
    call: Decision | None  # by the headline figure; None where that has no effect
    lead: str  # what the row comes to in it
    marks: tuple[str, ...]  # those that few others have
    cells: tuple[ComparedCell, ...]
    roofline: str  # "" where no row has it


class Compared(msgspec.Struct, frozen=True):
    """One load's comparison as it is written, and its pictures."""

    key: str
    title: str
    comparison: ComparedLoad
    rows: tuple[ComparedRow, ...]
    shared: Mapping[str, str]  # a remark that holds for several rows, and their names
    statistics: Table | None  # everything known of each difference; None: no verdict on any
    tables: tuple[tuple[str, Table], ...]  # rows by speed, and the effect of quantization
    bars: tuple[Panel, ...]
    distributions: tuple[Panel, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The panels of bars, then of distributions."""
        return (*self.bars, *self.distributions)


def make_compared(comparison: ComparedLoad, number: int) -> Compared:
    """Make the section of one load's comparison; its key is `load-NUMBER`."""
    shared = find_shared_remarks(comparison)
    return Compared(
        key=f"load-{number}",
        title=comparison_report.describe_load(comparison.load),
        comparison=comparison,
        rows=tuple(_make_row(comparison, line, shared) for line in comparison.lines),
        shared=shared,
        statistics=_make_statistics_table(comparison),
        tables=tuple(_list_tables(comparison)),
        bars=tuple(plot_comparison(comparison)),
        distributions=tuple(plot_row_distributions(comparison)),
    )


def _make_row(comparison: ComparedLoad, line: Line, shared: Mapping[str, str]) -> ComparedRow:
    """Make a checkpoint's row, without remarks in `shared`; a dash for a roofline that only others have."""
    effect, roofline = line.effects.get(comparison.headline), ""
    if line.roofline is not None:
        roofline = Number(f"{100 * line.roofline:.0f} %", line.roofline, "roofline")
    elif any(each.roofline is not None for each in comparison.lines):
        roofline = "–"
    return ComparedRow(
        line=line,
        is_baseline=line.name == comparison.baseline,
        call=None if effect is None else effect.call,
        lead="" if effect is None else _summarise_row(comparison, line, effect, shared),
        marks=tuple(mark for mark in line.marks if mark not in shared),
        cells=tuple(_make_cell(figure, line) for figure in comparison.figures),
        roofline=roofline,
    )


def _make_cell(figure: ComparedFigure, line: Line) -> ComparedCell:
    summary, effect = line.summaries.get(figure.key), line.effects.get(figure.key)
    cell = ComparedCell(figure.label)
    if summary is not None:
        mean = Number(_format_figure(figure, summary.mean), summary.mean, f"{figure.key}.mean")
        half = figure.scale(summary.half)
        spread = f"± {half:,.{figure.digits}f}" if math.isfinite(half) else ""
        spread = repeats.VAGUE if repeats.is_vague(summary.mean, summary.half) else spread
        cell = replace(cell, mean=mean, spread=spread)
    if effect is not None and effect.ratio == effect.ratio:
        ratio = Number(format_row_ratio(effect.ratio), effect.ratio, f"{figure.key}.ratio")
        cell = replace(cell, ratio=ratio, interval=_format_interval(effect))
    return cell if effect is None else replace(cell, call=effect.call)


def _summarise_row(comparison: ComparedLoad, line: Line, effect: Effect, shared: Mapping[str, str]) -> str:
    """Summarise a row in the headline figure: 1.44× (1.40 to 1.48) by tok/s; 5 pairs.

    Why it is undecided, or without a verdict, follows, and the split into steps and drafts; a reason in
    `shared` is left out.
    """
    times = comparison_report.format_speed_up(comparison, line)
    parts = [f"{times} by {find_column(comparison.headline).label}"] if times else []
    if effect.units > 1:
        parts.append(f"{effect.units} {'pairs' if effect.paired else 'runs per side'}")
    if effect.call is Decision.UNDECIDED:
        parts.append(comparison_report.explain_undecided(effect))
    elif effect.why and effect.why not in shared:
        parts.append(effect.why)
    parts += filter(None, [comparison_report.describe_split(line.split)])
    return "; ".join(parts)


def _list_tables(comparison: ComparedLoad) -> Iterator[tuple[str, Table]]:
    """Yield titles and tables: ranking of several rows, effect of several quantizations, turns if any."""
    ranking, effects = rankings.make_ranking_table(comparison), rankings.make_effect_table(comparison)
    if len(ranking.body) > 1:
        yield "Ranking", ranking
    if len(effects.columns) > 3:  # more than one quantization
        yield "Effect of quantization", effects
    if (turns := comparison_report.make_turn_table(comparison)) is not None:
        yield comparison_report.TURNS_TITLE, turns


def _make_statistics_table(comparison: ComparedLoad) -> Table | None:
    """Make the table of ratio, interval, p values and runs of each figure and row that has a verdict.

    None where no one has.
    """
    body: list[tuple[str, ...]] = []
    for figure, line in product(comparison.figures, comparison.lines):
        effect = line.effects.get(figure.key)
        if effect is None or effect.call is Decision.NONE:
            continue
        known = effect.detectable == effect.detectable
        least = (repeats.format_difference(effect.detectable) or "none") if known else "–"
        body.append((
            f"{line.name}: {figure.label}", format_row_ratio(effect.ratio), _format_interval(effect),
            f"{effect.p:.2g}", f"{effect.p_adjusted:.2g}", f"{effect.p_equivalent:.2g}",
            f"{effect.units} {'pairs' if effect.paired else 'per side'}", least,
            "–" if effect.more_runs is None else f"{effect.more_runs}", effect.why or "–",
        ))  # fmt: skip
    titles = ("", "ratio", "95 %", "p", "p, Holm", "p, equivalent", "n", "detectable", "more runs", "why")
    return make_table(titles, body) if body else None


def _format_figure(figure: ComparedFigure, value: float) -> str:
    return f"{figure.scale(value):,.{figure.digits}f}"


def format_row_ratio(value: float) -> str:
    """Format a row's figure ÷ the baseline's as 1.235×: three decimals, or digits from 10 up or below 0.1."""
    return f"{value:.3g}×" if value >= 10 or value < 0.1 else f"{value:.3f}×"


def _format_interval(effect: Effect) -> str:
    """Format the ratio's 95 % interval; "not bounded" if it is too wide, "" without one."""
    if not (math.isfinite(effect.low) and math.isfinite(effect.high)):
        return ""
    if not repeats.is_bounded(effect.ratio, effect.low, effect.high):
        return repeats.UNBOUNDED
    return f"{format_row_ratio(effect.low)[:-1]} to {format_row_ratio(effect.high)[:-1]}"


def find_shared_remarks(comparison: ComparedLoad) -> dict[str, str]:
    """Return remarks on three rows or more next to the baseline, or on both of two, with the rows' names.

    A row's remarks are its marks, and why it has no verdict in the headline figure; names are "all" if so.
    """
    others = [line for line in comparison.lines if line.name != comparison.baseline]
    sentences: list[tuple[str, str]] = []
    for line in others:
        effect = line.effects.get(comparison.headline)
        why = [effect.why] if effect is not None and effect.call is Decision.NONE and effect.why else []
        sentences += [(line.name, sentence) for sentence in dict.fromkeys((*why, *line.marks))]
    return {
        sentence: "all" if len(of) == len(others) else ", ".join(name for name, _ in of)
        for sentence, of in group_by(sentences, lambda pair: pair[1]).items()
        if len(of) >= _MANY or len(of) == len(others) > 1
    }


def plot_comparison(compared: ComparedLoad) -> Iterator[Panel]:
    """Yield a panel of bars for each figure that a row has, a bar per checkpoint, then one of rooflines.

    The latter shows how near decoding came to the roofline, in %, if that is known of any row.
    """
    for figure in compared.figures:
        bars = tuple(_make_bar(line, figure) for line in compared.lines if figure.key in line.summaries)
        if bars:
            yield _plot_bars(f"bars-{figure.key}", figure.label, bars, _BETTER[figure.higher_is_faster])
    shares = tuple(
        Bar(line.shown_name, 100 * line.roofline, f"{100 * line.roofline:.0f} %", best=100.0)
        for line in compared.lines
        if line.roofline is not None
    )
    if shares:
        best = "100 % is what the memory bandwidth allows."
        yield _plot_bars("bars-roofline", "Decoding, % of the roofline", shares, best)


def _make_bar(line: Line, figure: ComparedFigure) -> Bar:
    summary, effect = line.summaries[figure.key], line.effects.get(figure.key)
    text = _format_figure(figure, summary.mean)
    if effect is not None and effect.ratio == effect.ratio:
        text += f" · {format_row_ratio(effect.ratio)} {SYMBOLS[effect.call]}".removesuffix(" –")
    best = NAN
    if line.roofline and figure.key in (_TPOT, "median_tpot_ms"):
        best = summary.mean * line.roofline
    mean, low, high = map(figure.scale, (summary.mean, summary.low, summary.high))
    return Bar(line.shown_name, mean, text, low, high, best)


def _plot_bars(key: str, title: str, bars: tuple[Bar, ...], better: str) -> Panel:
    sentences = [better]
    if any(bar.low == bar.low for bar in bars):
        sentences.append("The thin line is the 95 % confidence interval of the mean.")
    if any(bar.best == bar.best for bar in bars):
        sentences.append("The dashed mark is the roofline.")
    numbers = make_table(("", "mean", "95 % interval"), [(bar.name, bar.text, bar.interval) for bar in bars])
    return Panel(key, title, "", bars=bars, caption=" ".join(filter(None, sentences)), numbers=numbers)


def plot_row_distributions(compared: ComparedLoad) -> list[Panel]:
    """Return a panel for each latency, a curve for each of the first eight rows whose requests are known.

    Empty if no row has such runs.
    """
    lines = ((line.shown_name, line.runs) for line in compared.lines)
    groups = [(name, [run.run for run in runs if run.run is not None]) for name, runs in lines]
    groups = [(name, runs) for name, runs in groups if runs]
    return list(run_charts.plot_distributions(groups[:MOST_CURVES])) if groups else []


def plot_ladders(
    reported: Sequence[Reported], named: Callable[[Reported], str] = lambda run: run.name
) -> Iterator[Panel]:
    """Yield panels of mean speed over input length, eight curves each, a curve per name that `named` gives.

    Only names with runs at two lengths or more have a curve.
    """
    timed = [run for run in reported if run.figure(_SPEED) and run.load.input_len]
    curves = []
    for name, runs in group_by(timed, named).items():
        by_length = group_by(runs, lambda run: float(run.load.input_len or 0))
        if len(by_length) > 1:
            lengths = sorted(by_length)
            speeds = [np.mean([run.figure(_SPEED) or 0.0 for run in by_length[at]]) for at in lengths]
            curves.append(Curve(name, np.array(lengths), np.array(speeds), CurveStyle.JOINED))
    for start in range(0, len(curves), MOST_CURVES):
        drawn = tuple(curves[start : start + MOST_CURVES])
        points = ((curve.name, x, y) for curve in drawn for x, y in zip(curve.x, curve.y, strict=True))
        rows = tuple((name, f"{x:,.0f}", f"{y:,.2f}") for name, x, y in points)
        key, title = f"ladder-{start // MOST_CURVES + 1}", "Speed over input length"
        numbers, caption = make_table(("", "input", "tokens/s"), rows), "One request at a time."
        yield Panel(key, title, "input tokens", "tokens/s", drawn, caption=caption, numbers=numbers)


_TOP = 2.5  # times the limit, the highest that is drawn: a saturated run would flatten all others


def make_limit_sections(limits: Sequence[StoredLimit]) -> Iterator[PageSection]:
    """Yield a section for each search, in order: its answer, statements, table of runs and panels."""
    for number, limit in enumerate(limits, 1):
        record, key = limit.record, f"limit-{number}"
        title = f"{limit.shown_name}, {limit_record.describe_limit(record)}"
        lines = tuple(limit_record.list_statements(record))
        yield PageSection(
            title, key, menu=title, lines=lines[1:], table=limit_record.make_run_table(record), style="words",
            panels=tuple(_plot_search(record, key)),
        )  # fmt: skip


def _plot_search(record: LimitRecord, anchor: str) -> Iterator[Panel]:
    runs = sorted(record.runs, key=lambda run: (run.load, run.number))
    for place, objective in enumerate(record.objectives, 1):
        shown = [
            (run, figures)
            for run in runs
            for figures in run.objectives
            if figures.objective == objective and figures.value is not None
        ]
        if shown:
            yield _plot_objective(record, f"{anchor}-objective-{place}", shown)
    runs = [run for run in runs if run.goodput_per_s is not None]
    goodput = np.array([run.goodput_per_s for run in runs], np.float64)
    if goodput.any():
        rows = [(limit_record.format_load(run.load), f"{run.goodput_per_s:,.4g}") for run in runs]
        numbers = make_table(("load", "requests/s within the objectives"), rows)
        panel = _plot_runs(record, f"{anchor}-goodput", ("goodput", "requests/s"), runs, goodput)
        yield replace(panel, title="Goodput over load", numbers=numbers)


def _plot_objective(
    record: LimitRecord, key: str, shown: Sequence[tuple[LimitRun, ObjectiveFigures]]
) -> Panel:
    """Make the panel of each run's percentile with its bound over the load, and the objective's limit.

    It is cut off at 2.5 times a latency's limit, which the caption notes if a value is above; not a speed's.
    """
    runs, first = [run for run, _ in shown], shown[0][1]
    values, bounds = (
        np.array([NAN if value is None else value for value in column], np.float64)
        for column in ([each.value for _, each in shown], [each.bound for _, each in shown])
    )
    limit, unit, figure = first.limit, first.unit, limit_record.name_percentile(first.objective)
    panel = _plot_runs(record, key, (figure, unit), runs, values)
    loads, known = np.array([run.load for run in runs]), np.isfinite(bounds)
    top, side, most = (_TOP * limit, "upper", "at most") if unit == "ms" else (None, "lower", "at least")
    whole, *apart = panel.curves
    curves = (
        whole,
        Curve(f"its {side} bound at 99 %", loads[known], bounds[known], CurveStyle.POINTS),
        Curve(f"limit, {limit:g} {unit}", np.array([loads.min(), loads.max()]), np.full(2, limit)),
        *apart,
    )
    above = " Points at the upper edge are above it." if top and np.nanmax([values, bounds]) > top else ""
    rows = [
        (limit_record.format_load(run.load), f"{value:,.4g}", f"{bound:,.4g}" if bound == bound else "–",
         limit_record.describe_standing(run))
        for run, value, bound in zip(runs, values.tolist(), bounds.tolist(), strict=True)
    ]  # fmt: skip
    numbers = make_table(("load", figure, f"{most}, 99 %", ""), rows)
    return replace(panel, curves=curves, y_top=top, caption=panel.caption + above, numbers=numbers)


def _plot_runs(
    record: LimitRecord, key: str, figure: tuple[str, str], runs: Sequence[LimitRun], values: Floats
) -> Panel:
    """Make the panel of a figure (name and unit) of the runs over the load, the limit's interval as a band.

    Runs that were ended early as saturated are a curve of their own, and points of runs that did not pass
    hollow.
    """
    name, unit = figure
    curves = []
    for saturated, title in ((False, name), (True, f"{name}, saturated")):
        own = [at for at, run in enumerate(runs) if run.saturated is saturated]
        x = np.array([runs[at].load for at in own])
        verdicts = ["disturbed" if runs[at].disturbed else runs[at].verdict for at in own]
        labels = tuple(
            "saturated" if saturated else word if word in ("disturbed", "INVALID") else ""
            for word in verdicts
        )
        hollow = tuple(not runs[at].passed for at in own)
        if not saturated:
            curves.append(Curve(title, x, values[own], CurveStyle.JOINED, labels, hollow))
        elif own:
            curves.append(Curve(title, x, values[own], CurveStyle.MARKS, labels, hollow, of=0))
    sentences = ["A point per run."]
    if not all(run.passed for run in runs):
        sentences.append("A run at a hollow point is not shown to meet the objectives.")
    loads, band = np.array([run.load for run in runs]), None
    if record.limit is not None and record.limit.value is not None:
        least, most = float(loads.min()), float(loads.max())
        high = record.limit.high
        band = max(least, record.limit.low or 0.0), most if high is None else min(most, high)
        sentences.append("The band is where the limit is, at 95 %.")
    unit_asked = limit_record.name_unit(record.axis, record.of_sessions)
    x_label = f"{unit_asked} asked" if record.axis == "rate" else "concurrency"
    return Panel(
        key, f"{name} over load", x_label, unit, tuple(curves), x_log=is_wide(loads), band=band,
        caption=" ".join(sentences),
    )  # fmt: skip


_MOST_PANELS = 8
_CAPTION = "Both 95 % intervals are lines. A hollow point is different from the reference by its verdict."


# A row, its KL and its speed, each with the ends of its interval, and the speed in words.
_Point = tuple[RowQuality, MeanInterval, MeanInterval, str]


def make_quality_section(
    comparisons: Sequence[ComparedLoad], searches: Sequence[ComparedLimits] = ()
) -> PageSection:
    """Make the section of rows' qualities, with a panel for each of the first eight loads; empty if none.

    Of searches for a limit the panel has the limit in place of a speed.
    """
    rows = list_qualities(comparisons, searches)
    if not rows:
        return PageSection("")
    panels = [*(_plot_limit(each) for each in searches), *(_plot_load(each) for each in comparisons)]
    drawn = [replace(panel, key=f"quality-{number}") for number, panel in enumerate(filter(None, panels), 1)]
    return PageSection(
        rankings.QUALITY_TITLE, "quality", menu="Quality", table=make_quality_table(rows), style="words",
        panels=tuple(drawn[:_MOST_PANELS]),
    )  # fmt: skip


def _plot_load(comparison: ComparedLoad) -> Panel | None:
    column = find_column(comparison.headline)
    means = {line.name: line.summaries.get(comparison.headline) for line in comparison.lines}
    points = []
    for row in list_qualities([comparison], ()):
        mean, distance = means[row.name], _find_distance(row)
        if mean is not None and distance is not None:
            # Where its interval bounds nothing, both ends are the mean itself.
            low, high = (mean.low, mean.high) if np.isfinite(mean.half) else (mean.mean, mean.mean)
            value, low, high = map(column.scale, (mean.mean, max(low, 0.0), high))
            speed = MeanInterval(mean=value, low=low, high=high)
            text = comparison_report.format_spread(column, mean)
            points.append((row, distance, speed, text))
    load = comparison.load.name or comparison_report.describe_load(comparison.load)
    title = f"{column.label} against KL, {load}"
    return _plot_points(points, title, column.label, _BETTER[column.higher_is_faster])


def _plot_limit(compared: ComparedLimits) -> Panel | None:
    limits = {row.name: row.limit for row in compared.rows}
    points = []
    for row in list_qualities((), [compared]):
        limit, distance = limits[row.name], _find_distance(row)
        if limit is not None and limit.value is not None and distance is not None:
            low, high = (limit.value if end is None else end for end in (limit.low, limit.high))
            speed = MeanInterval(mean=limit.value, low=low, high=high)
            points.append((row, distance, speed, limit_record.format_load(limit.value)))
    label = limit_record.name_unit(compared.axis, compared.of_sessions)
    return _plot_points(points, "Limit against KL", label, f"{describe_limits(compared)}. Higher is better.")


def _plot_points(points: Sequence[_Point], title: str, label: str, better: str) -> Panel | None:
    if len(points) < 2:
        return None
    marks, lines = [], []
    for place, (row, x, y, _) in enumerate(points):
        hollow, name = row.verdict is not None and row.verdict.verdict == DIFFERENT, row.name
        marks.append(
            Curve(name, np.array([x.mean]), np.array([y.mean]), CurveStyle.MARKS, (name,), (hollow,))
        )
        across: tuple[Floats, Floats] = np.array([x.low, x.high]), np.full(2, y.mean)
        up: tuple[Floats, Floats] = np.full(2, x.mean), np.array([y.low, y.high])
        lines += [Curve("", *ends, CurveStyle.LINE, of=place) for ends in (across, up)]
    numbers = [(row.name, format_spread(distance), text) for row, distance, _, text in points]
    return Panel(
        "", title, "KL, nats a token", label, (*marks, *lines), caption=f"{better} {_CAPTION}".strip(),
        numbers=make_table(("", "KL", label), numbers),
    )  # fmt: skip


def _find_distance(row: RowQuality) -> MeanInterval | None:
    """Return a row's KL divergence; of the reference 0, up to its noise floor; None if unknown."""
    quality = row.quality
    if not quality.of_reference or quality.noise_floor is None:
        return quality.kl
    return MeanInterval(mean=0.0, low=0.0, high=quality.noise_floor.high)


def make_answer_section(found: CheckpointAnswer) -> PageSection:
    """Make the section: recommendations, then the sentence of each row, the table and its notes."""
    lines = [
        " ".join(filter(None, (title, sentence)))
        for title, sentences in answer.list_recommendations(found, plain=True)
        for sentence in sentences
    ]
    titles = ["Checkpoint", *(column.title for column in found.columns)]
    rows = []
    for written, row in zip(answer.make_answer_table(found).body, found.rows, strict=True):
        cells = [written[0]]
        for column, text in zip(found.columns, written[1:], strict=True):
            value = row.values[column.key]
            if not (isinstance(value, str) or value.words) and math.isfinite(value.mean):
                mean, _, half = text.partition(" ")  # a number has its whole value, and its half aside
                text = Number(mean, value.mean * column.scale, f"answer.{column.key}", half)
            cells.append(text)
        rows.append(cells)
    return PageSection(
        answer.TITLE, "answer", menu=answer.TITLE, lines=(*lines, *answer.list_sentences(found)),
        table=make_table(titles, rows), style="answer", remarks=tuple(answer.list_notes(found)),
    )  # fmt: skip

"""Comparison section: comparisons, limits and qualities of several checkpoints with their pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from msgspec.structs import replace

from loadgen.base.passages import (
    NAN,
    Bar,
    Curve,
    CurveStyle,
    Floats,
    Panel,
    Passage,
    is_wide,
)  # fmt: skip
from loadgen.base.tables import Number, Table, make_table
from loadgen.study import limit_record, repeats
from loadgen.study.compare import comparison_report
from loadgen.study.compare.comparison import find_column
from loadgen.study.compare.comparison_report import SYMBOLS
from loadgen.study.compare.limits import ComparedLimits, describe_limits
from loadgen.study.compare.model import ComparedFigure, ComparedLoad, Line
from loadgen.study.compare_command import list_qualities
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.limit_record import LimitRecord, LimitRun, ObjectiveFigures
from loadgen.study.pages import run_charts
from loadgen.study.quality.arm_qualities import RowQuality, format_spread, make_quality_passage
from loadgen.study.quality.quality_record import DIFFERENT, MeanInterval
from loadgen.study.run_summary import Reported, group_by

LEVELS = {"VALID": "✓", "SUSPECT": "!", "INVALID": "✗"}
COMPARISON = "comparison"  # the style of such a section
MOST_CURVES = 8  # in one panel
_BETTER = {None: "", True: "Higher is faster.", False: "Lower is faster."}
_TPOT, _SPEED = "mean_tpot_ms", "speed_tok_s"


def make_compared_section(comparison: ComparedLoad, number: int) -> Passage:
    """Make the section of one load's comparison, with all statistics, rankings and pictures."""
    passage, more = comparison_report.make_passage(comparison, number), list[Passage]()
    if (statistics := _make_statistics_table(comparison)).body:
        more.append(Passage("Statistics of every difference", table=statistics))
    ranking = comparison_report.make_ranking_table(comparison)
    effects = comparison_report.make_effect_table(comparison)
    if len(ranking.body) > 1:
        more.append(Passage("Ranking", table=ranking))
    if len(effects.columns) > 3:  # more than one quantization
        more.append(Passage("Effect of quantization", table=effects))
    panels = (*plot_comparison(comparison), *plot_row_distributions(comparison))
    return replace(passage, style=COMPARISON, more=(*more, *passage.more), panels=panels)


def _make_statistics_table(comparison: ComparedLoad) -> Table:
    """Make a table of every effect that has a ratio, those of one figure together."""
    body: list[tuple[str, ...]] = []
    for figure, line in product(comparison.figures, comparison.lines):
        effect = line.effects.get(figure.key)
        if effect is None or effect.ratio != effect.ratio:
            continue
        ratio = comparison_report.format_ratio(effect.ratio, effect.low, effect.high, 3)
        p_values = (effect.p, effect.p_adjusted, effect.p_equivalent)
        known = effect.detectable == effect.detectable
        least = (repeats.format_difference(effect.detectable) or "none") if known else "–"
        body.append((
            f"{line.name}: {figure.label}", Number(ratio, effect.ratio, f"{figure.key}.ratio"),
            *(f"{p:.2g}" if p == p else "–" for p in p_values), comparison_report.count_units(effect), least,
            "–" if effect.more_runs is None else f"{effect.more_runs}", effect.why or "–",
        ))  # fmt: skip
    titles = ("", "ratio (95 %)", "p", "p, Holm", "p, equivalent", "n", "detectable", "more runs", "why")
    return make_table(titles, body)


def format_row_ratio(value: float) -> str:
    """Format a row's figure ÷ the baseline's as 1.235×: three decimals, or digits from 10 up or below 0.1."""
    return f"{value:.3g}×" if value >= 10 or value < 0.1 else f"{value:.3f}×"


def _format_figure(figure: ComparedFigure, value: float) -> str:
    return f"{figure.scale(value):,.{figure.digits}f}"


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
    """Return a panel for each latency, a curve for each of the first eight rows with requests; [] without."""
    lines = ((line.shown_name, line.runs) for line in compared.lines)
    groups = [(name, [run.run for run in runs if run.run is not None]) for name, runs in lines]
    groups = [(name, runs) for name, runs in groups if runs]
    return list(run_charts.plot_distributions(groups[:MOST_CURVES])) if groups else []


def plot_ladders(
    reported: Sequence[Reported], named: Callable[[Reported], str] = lambda run: run.name
) -> Iterator[Panel]:
    """Yield panels of mean speed over input length, eight curves each: of names with two lengths or more."""
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


def make_limit_sections(limits: Sequence[StoredLimit]) -> Iterator[Passage]:
    """Yield a section for each search, in order: its answer, statements, table of runs and panels."""
    for number, limit in enumerate(limits, 1):
        record, key = limit.record, f"limit-{number}"
        passage = limit_record.make_search_passage(record, limit.shown_name, key)
        yield replace(passage, panels=tuple(_plot_search(record, key)))


def _plot_search(record: LimitRecord, anchor: str) -> Iterator[Panel]:
    """Yield a panel for each objective with values, then one of goodput if any run has some."""
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
) -> Passage:
    """Make the section of rows' qualities, with a panel for each of the first eight loads; empty if none.

    Of searches for a limit the panel has the limit in place of a speed.
    """
    rows = list_qualities(comparisons, searches)
    if not rows:
        return Passage("")
    panels = [*(_plot_limit(each) for each in searches), *(_plot_load(each) for each in comparisons)]
    drawn = [replace(panel, key=f"quality-{number}") for number, panel in enumerate(filter(None, panels), 1)]
    return replace(make_quality_passage(rows), panels=tuple(drawn[:_MOST_PANELS]))


def _plot_load(comparison: ComparedLoad) -> Panel | None:
    """Make the panel of the headline figure over KL; None if fewer than two rows have both."""
    column = find_column(comparison.headline)
    means = {line.name: line.summaries.get(comparison.headline) for line in comparison.lines}
    points = []
    for row in list_qualities([comparison], ()):
        mean, distance = means[row.name], _find_distance(row)
        if mean is not None and distance is not None:
            # If its interval bounds nothing, both ends are the mean itself.
            low, high = (mean.low, mean.high) if np.isfinite(mean.half) else (mean.mean, mean.mean)
            value, low, high = map(column.scale, (mean.mean, max(low, 0.0), high))
            speed = MeanInterval(mean=value, low=low, high=high)
            text = comparison_report.format_spread(column, mean)
            points.append((row, distance, speed, text))
    load = comparison.load.name or comparison_report.describe_load(comparison.load)
    title = f"{column.label} against KL, {load}"
    return _plot_points(points, title, column.label, _BETTER[column.higher_is_faster])


def _plot_limit(compared: ComparedLimits) -> Panel | None:
    """Make the panel of the limits over KL; None if fewer than two rows have both."""
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
    """Make the panel of points with their intervals; None for fewer than two."""
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

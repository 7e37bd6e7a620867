"""Charts: what is drawn of several runs: bars with the roofline, sweeps, lengths of input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from loadgen.analysis.comparison.groups import grouped
from loadgen.analysis.comparison.model import ComparedLoad, Figure, Line
from loadgen.analysis.report import formatting, run_charts
from loadgen.analysis.report.formatting import FigureTable
from loadgen.analysis.report.panel import NAN, Bar, Curve, CurveStyle, Panel
from loadgen.analysis.run_summary import Load, Reported

MOST_CURVES = 8  # in one panel
_BETTER = {None: "Neither direction is faster.", True: "Higher is faster.", False: "Lower is faster."}
_THROUGHPUT, _TTFT, _TPOT, _SPEED = "output_throughput", "mean_ttft_ms", "mean_tpot_ms", "speed_tok_s"


def comparison(compared: ComparedLoad) -> Iterator[Panel]:
    """A panel of bars a figure, checkpoints as bars, then how near decoding came to the roofline."""
    for figure in compared.figures:
        bars = tuple(_bar(line, figure) for line in compared.lines if figure.key in line.summaries)
        if bars:
            yield _bars(f"bars-{figure.key}", figure.label, bars, _BETTER[figure.higher_is_faster])
    shares = tuple(
        Bar(line.name, 100 * line.roofline, f"{100 * line.roofline:.0f} %", best=100.0)
        for line in compared.lines
        if line.roofline is not None
    )
    if shares:
        best = "100 % is what the memory bandwidth allows."
        yield _bars("bars-roofline", "Decoding, % of the roofline", shares, best)


def _bar(line: Line, figure: Figure) -> Bar:
    summary, effect = line.summaries[figure.key], line.effects.get(figure.key)
    text = formatting.written(figure, summary.mean)
    if effect is not None and effect.ratio == effect.ratio:
        text += f" · {formatting.ratio(effect.ratio)} {formatting.SYMBOLS[effect.call]}".removesuffix(" –")
    best = NAN
    if line.roofline and figure.key in (_TPOT, "median_tpot_ms"):
        best = summary.mean * line.roofline
    mean, low, high = map(figure.scaled, (summary.mean, summary.low, summary.high))
    return Bar(line.name, mean, text, low, high, best)


def _bars(key: str, title: str, bars: tuple[Bar, ...], better: str) -> Panel:
    sentences = [better]
    if any(bar.low == bar.low for bar in bars):
        sentences.append("The thin line is the 95 % confidence interval of the mean.")
    if any(bar.best == bar.best for bar in bars):
        sentences.append("The dashed mark is the roofline.")
    intervals = (f"{bar.low:,.4g} to {bar.high:,.4g}" if bar.low == bar.low else "" for bar in bars)
    rows = tuple((bar.name, bar.text, interval) for bar, interval in zip(bars, intervals, strict=True))
    numbers = FigureTable(("", "mean", "95 % interval"), rows)
    return Panel(key, title, "", bars=bars, caption=" ".join(sentences), numbers=numbers)


def distributions(compared: ComparedLoad) -> list[Panel]:
    """The latencies of the rows over one another, of those whose requests are known."""
    groups = [(line.name, [run.run for run in line.runs if run.run is not None]) for line in compared.lines]
    groups = [(name, runs) for name, runs in groups if runs]
    return list(run_charts.distributions(groups[:MOST_CURVES])) if groups else []


class Point(NamedTuple):
    """One checkpoint under one load, the mean over its runs."""

    throughput: float  # output tokens a second, all requests together
    ttft_ms: float
    speed: float  # output tokens a second of one answer: 1000 / TPOT
    label: str  # of the load


_SWEPT: tuple[tuple[str, str, str, Callable[[Point], float], bool], ...] = (
    ("ttft", "TTFT", "mean TTFT, ms", lambda point: point.ttft_ms, True),
    ("speed", "Tokens/s per request", "tokens/s per request", lambda point: point.speed, False),
)  # key, title, unit, figure, and whether less of it is better


def sweeps(reported: Sequence[Reported]) -> Iterator[Panel]:
    """Latency against throughput, of each checkpoint that was run under at least two loads of one shape."""
    keys = (_THROUGHPUT, _TTFT, _TPOT)
    timed = [run for run in reported if all((run.figure(key) or 0.0) > 0 for key in keys)]
    for shape, runs in grouped(timed, _shape).items():
        points = {
            name: _points(group)
            for name, group in grouped(runs, lambda run: run.name).items()
            if len({_pressure(run.load) for run in group}) > 1
        }
        if not points:
            continue
        named = dict(list(points.items())[:MOST_CURVES])
        lengths = f"About {shape[0]:g} tokens in and {shape[1]:g} out" if all(shape) else "Unknown lengths"
        caption = f"{lengths}; labels are the concurrency, or requests/s."
        if len(points) > len(named):
            caption += f" {len(named)} of {len(points)} checkpoints are drawn."
        stem = f"{shape[0]:.0f}-{shape[1]:.0f}"
        for name, title, unit, figure, falling in _SWEPT:
            panel = _sweep(f"sweep-{name}-{stem}", f"{title} against throughput", named, figure, falling)
            yield replace(panel, y_label=unit, caption=caption + panel.caption)


def _shape(run: Reported) -> tuple[float, float]:
    """Lengths alike to a tenth: the server may count a token or two more; 0 without one."""
    return (float(f"{run.load.input_len or 0:.2g}"), float(f"{run.load.output_len or 0:.2g}"))


def _pressure(load: Load) -> tuple[float, float]:
    """Requests at a time and requests a second, infinite where nothing limits them."""
    rate, limit = load.request_rate_per_s, load.max_concurrency
    return (math.inf if limit is None else float(limit), math.inf if rate is None else float(rate))


def _points(runs: Sequence[Reported]) -> list[Point]:
    """A point a load, from the lightest on."""
    points = []
    by_pressure = grouped(runs, lambda run: _pressure(run.load))
    for (limit, rate), group in sorted(by_pressure.items(), key=lambda pair: pair[0]):
        throughput, ttft_ms, tpot_ms = (
            float(np.mean([run.figure(key) or 0.0 for run in group])) for key in (_THROUGHPUT, _TTFT, _TPOT)
        )
        label = f"{rate:g}/s" if math.isfinite(rate) else f"{limit:g}" if math.isfinite(limit) else "all"
        points.append(Point(throughput, ttft_ms, 1e3 / tpot_ms, label))
    return points


def _sweep(
    key: str,
    title: str,
    points: Mapping[str, Sequence[Point]],
    figure: Callable[[Point], float],
    falling: bool,
) -> Panel:
    """Curves of a figure over throughput; a point that another beats in both is hollow."""
    sign = -1.0 if falling else 1.0
    every = [(point.throughput, sign * figure(point)) for curve in points.values() for point in curve]
    curves = tuple(
        Curve(
            name,
            np.array([point.throughput for point in curve]),
            np.array([figure(point) for point in curve]),
            CurveStyle.JOINED,
            tuple(point.label for point in curve),
            tuple(_beaten(point.throughput, sign * figure(point), every) for point in curve),
        )
        for name, curve in points.items()
    )
    rows = tuple(
        (name, point.label, f"{point.throughput:,.1f}", f"{figure(point):,.2f}")
        for name, curve in points.items()
        for point in curve
    )
    hollow = any(any(curve.hollow) for curve in curves)
    caption = " Another point is better in both than a hollow one." if hollow else ""
    numbers, x_label = FigureTable(("", "load", "tokens/s", "figure"), rows), "output tokens/s, all requests"
    return Panel(key, title, x_label, curves=curves, caption=caption, numbers=numbers)


def _beaten(x: float, y: float, every: Iterable[tuple[float, float]]) -> bool:
    return any(a >= x and b >= y and (a, b) != (x, y) for a, b in every)


def ladders(reported: Sequence[Reported]) -> Iterator[Panel]:
    """Speed over input length, of each checkpoint whose speed is known at two lengths or more."""
    timed = [run for run in reported if run.figure(_SPEED) and run.load.input_len]
    curves = []
    for name, runs in grouped(timed, lambda run: run.name).items():
        by_length = grouped(runs, lambda run: float(run.load.input_len or 0))
        if len(by_length) > 1:
            lengths = sorted(by_length)
            speeds = [np.mean([run.figure(_SPEED) or 0.0 for run in by_length[at]]) for at in lengths]
            curves.append(Curve(name, np.array(lengths), np.array(speeds), CurveStyle.JOINED))
    for start in range(0, len(curves), MOST_CURVES):
        drawn = tuple(curves[start : start + MOST_CURVES])
        points = ((curve.name, x, y) for curve in drawn for x, y in zip(curve.x, curve.y, strict=True))
        rows = tuple((name, f"{x:,.0f}", f"{y:,.2f}") for name, x, y in points)
        key, title = f"ladder-{start // MOST_CURVES + 1}", "Speed over input length"
        numbers, caption = FigureTable(("", "input", "tokens/s"), rows), "One request at a time."
        yield Panel(key, title, "input tokens", "tokens/s", drawn, caption=caption, numbers=numbers)

"""Charts: what is drawn of several runs: bars with the roofline, sweeps, lengths of input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

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
        Bar(line.shown_name, 100 * line.roofline, f"{100 * line.roofline:.0f} %", best=100.0)
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
    return Bar(line.shown_name, mean, text, low, high, best)


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
    lines = ((line.shown_name, line.runs) for line in compared.lines)
    groups = [(name, [run.run for run in runs if run.run is not None]) for name, runs in lines]
    groups = [(name, runs) for name, runs in groups if runs]
    return list(run_charts.distributions(groups[:MOST_CURVES])) if groups else []


class Point(NamedTuple):
    """One checkpoint under one load, the mean over its runs."""

    throughput: float  # output tokens a second, all requests together
    ttft_ms: float
    speed: float  # output tokens a second of one answer: 1000 / TPOT
    label: str  # of the load
    limit: float  # requests at a time
    rate: float  # requests a second

    @property
    def pressure(self) -> float:
        """The concurrency, or the request rate where that is what limits the load."""
        return self.rate if math.isfinite(self.rate) else self.limit


class _Axes(NamedTuple):
    """One picture of a sweep: a figure of its points over another."""

    key: str
    title: str
    x_label: str
    y_label: str
    x: Callable[[Point], float]
    y: Callable[[Point], float]


_THROUGHPUT_LABEL = "output tokens/s, all requests"
_SWEPT = (
    _Axes("ttft", "TTFT against throughput", _THROUGHPUT_LABEL, "mean TTFT, ms",
          lambda point: point.throughput, lambda point: point.ttft_ms),
    _Axes("speed", "Tokens/s per request against throughput", _THROUGHPUT_LABEL, "tokens/s per request",
          lambda point: point.throughput, lambda point: point.speed),
)  # fmt: skip
_LIMITED = _Axes("throughput", "Throughput against concurrency", "concurrency", _THROUGHPUT_LABEL,
                 lambda point: point.pressure, lambda point: point.throughput)  # fmt: skip
_FALLING = {"ttft": True, "speed": False}  # whether less of the figure is better, where points beat others


def sweeps(
    reported: Sequence[Reported], named: Callable[[Reported], str] = lambda run: run.name
) -> Iterator[Panel]:
    """Latency against throughput, and throughput against load, of what was run under several of one shape.

    `named` gives the row of a run: what is no repeat of it has another.
    """
    keys = (_THROUGHPUT, _TTFT, _TPOT)
    timed = [run for run in reported if all((run.figure(key) or 0.0) > 0 for key in keys)]
    for number, (shape, runs) in enumerate(grouped(timed, _shape).items(), 1):
        points = {
            name: _points(group)
            for name, group in grouped(runs, named).items()
            if len({_pressure(run.load) for run in group}) > 1
        }
        if not points:
            continue
        drawn = dict(list(points.items())[:MOST_CURVES])
        lengths = _lengths(runs) if shape[0] and shape[1] else "Unknown lengths"
        about = ", ".join(filter(None, (lengths, shape[2])))
        caption = f"{about}; labels are the concurrency, or requests/s."
        if len(points) > len(drawn):
            caption += f" {len(drawn)} of {len(points)} checkpoints are drawn."
        stem = f"{shape[0]:.0f}-{shape[1]:.0f}" + f"-{number}" * bool(shape[2])
        for axes in (*_SWEPT, *_load_axes(drawn)):
            yield _sweep(axes, stem, drawn, caption)


def _lengths(runs: Sequence[Reported]) -> str:
    """Tokens in and out, about as many where the runs differ in them."""
    first, *others = dict.fromkeys((run.load.input_len or 0, run.load.output_len or 0) for run in runs)
    about, digits = ("About ", ".2g") if others else ("", ".5g")
    return f"{about}{float(format(first[0], digits)):g} tokens in and {float(format(first[1], digits)):g} out"


def _load_axes(points: Mapping[str, Sequence[Point]]) -> Iterator[_Axes]:
    """Throughput over what limits the load, where that is one thing: the concurrency, or the rate."""
    every = [point for curve in points.values() for point in curve]
    if all(math.isfinite(point.limit) and math.isinf(point.rate) for point in every):
        yield _LIMITED
    elif all(math.isfinite(point.rate) for point in every):
        yield _LIMITED._replace(title="Throughput against request rate", x_label="requests/s asked")


def _shape(run: Reported) -> tuple[float, float, str]:
    """Lengths to a tenth, since a server may count a token or two more, 0 if unknown; and how they vary."""
    load = run.load
    return float(f"{load.input_len or 0:.2g}"), float(f"{load.output_len or 0:.2g}"), load.shape


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
        points.append(Point(throughput, ttft_ms, 1e3 / tpot_ms, label, limit, rate))
    return points


def _sweep(axes: _Axes, stem: str, points: Mapping[str, Sequence[Point]], caption: str) -> Panel:
    """Curves of one figure over another; a point that another beats in both is hollow."""
    sign = -1.0 if _FALLING.get(axes.key) else 1.0
    every = [(axes.x(point), sign * axes.y(point)) for curve in points.values() for point in curve]
    every *= axes.key in _FALLING
    curves = tuple(
        Curve(
            name,
            np.array([axes.x(point) for point in curve]),
            np.array([axes.y(point) for point in curve]),
            CurveStyle.JOINED,
            tuple(point.label for point in curve),
            tuple(_beaten(axes.x(point), sign * axes.y(point), every) for point in curve),
        )
        for name, curve in points.items()
    )
    rows = tuple(
        (name, point.label, f"{axes.x(point):,.1f}", f"{axes.y(point):,.2f}")
        for name, curve in points.items()
        for point in curve
    )
    if any(any(curve.hollow) for curve in curves):
        caption += " Another point is better in both than a hollow one."
    numbers = FigureTable(("", "load", axes.x_label, axes.y_label), rows)
    return Panel(f"sweep-{axes.key}-{stem}", axes.title, axes.x_label, axes.y_label, curves, caption=caption,
                 numbers=numbers)  # fmt: skip


def _beaten(x: float, y: float, every: Iterable[tuple[float, float]]) -> bool:
    return any(a >= x and b >= y and (a, b) != (x, y) for a, b in every)


def ladders(
    reported: Sequence[Reported], named: Callable[[Reported], str] = lambda run: run.name
) -> Iterator[Panel]:
    """Speed over input length, of each checkpoint whose speed is known at two lengths or more."""
    timed = [run for run in reported if run.figure(_SPEED) and run.load.input_len]
    curves = []
    for name, runs in grouped(timed, named).items():
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

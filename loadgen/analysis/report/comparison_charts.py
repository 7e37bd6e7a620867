"""Charts: what is drawn of several runs: bars with the roofline, sweeps, lengths of input."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from loadgen.analysis.comparison.model import Comparison, Figure, Line
from loadgen.analysis.report import formatting, run_charts
from loadgen.analysis.report.formatting import FigureTable
from loadgen.analysis.report.panel import NAN, Bar, Curve, CurveStyle, Panel
from loadgen.analysis.run_summary import Load, Reported

_Thing = TypeVar("_Thing")
_Key = TypeVar("_Key", bound=Hashable)

MOST_CURVES = 8  # in one panel
_THROUGHPUT, _TTFT, _TPOT, _SPEED = "output_throughput", "mean_ttft_ms", "mean_tpot_ms", "speed_tok_s"


def comparison(found: Comparison) -> Iterator[Panel]:
    """A panel of bars a figure, checkpoints as bars, then how near decoding came to the roofline."""
    for figure in found.figures:
        bars = tuple(_bar(line, figure) for line in found.lines if figure.key in line.summaries)
        if bars:
            yield _bars(f"bars-{figure.key}", figure.label, bars, _better(figure))
    shares = tuple(
        Bar(line.name, 100 * line.roofline, f"{100 * line.roofline:.0f} %", best=100.0)
        for line in found.lines
        if line.roofline is not None
    )
    if shares:
        yield _bars(
            "bars-roofline",
            "Decoding, % of the roofline",
            shares,
            "100 % is what the memory bandwidth allows.",
        )


def _bar(line: Line, figure: Figure) -> Bar:
    summary, effect = line.summaries[figure.key], line.effects.get(figure.key)
    text = formatting.written(figure, summary.mean)
    if effect is not None and effect.ratio == effect.ratio:
        text += f" · {formatting.ratio(effect.ratio)} {formatting.SYMBOLS[effect.call]}".removesuffix(" –")
    best = NAN
    if line.roofline and figure.key in (_TPOT, "median_tpot_ms"):
        best = summary.mean * line.roofline
    mean, low, high = (formatting.scaled(figure, one) for one in (summary.mean, summary.low, summary.high))
    return Bar(line.name, mean, text, low, high, best)


def _better(figure: Figure) -> str:
    if figure.higher_is_faster is None:
        return "Neither direction is faster."
    return "Higher is faster." if figure.higher_is_faster else "Lower is faster."


def _bars(key: str, title: str, bars: tuple[Bar, ...], better: str) -> Panel:
    sentences = [better]
    if any(bar.low == bar.low for bar in bars):
        sentences.append("The thin line is the 95 % confidence interval of the mean.")
    if any(bar.best == bar.best for bar in bars):
        sentences.append("The dashed mark is the roofline.")
    rows = tuple((bar.name, bar.text, _interval(bar)) for bar in bars)
    return Panel(
        key=key,
        title=title,
        x_label="",
        bars=bars,
        caption=" ".join(sentences),
        numbers=FigureTable(("", "mean", "95 % interval"), rows),
    )


def _interval(bar: Bar) -> str:
    return f"{bar.low:,.4g} to {bar.high:,.4g}" if bar.low == bar.low else ""


def distributions(found: Comparison) -> list[Panel]:
    """The latencies of the rows over one another, of those whose requests are known."""
    groups = [(line.name, [one.run for one in line.runs if one.run is not None]) for line in found.lines]
    groups = [(name, runs) for name, runs in groups if runs]
    return list(run_charts.distributions(groups[:MOST_CURVES])) if groups else []


class Point(NamedTuple):
    """One checkpoint under one load, the mean over its runs."""

    throughput: float  # output tokens a second, all requests together
    ttft_ms: float
    speed: float  # output tokens a second of one answer: 1000 / TPOT
    label: str  # of the load


def sweeps(reported: Sequence[Reported]) -> Iterator[Panel]:
    """Latency against throughput, of each checkpoint that was run under at least two loads of one shape."""
    for shape, runs in _grouped(_timed(reported), _shape):
        points = {
            name: _points(found)
            for name, found in _grouped(runs, lambda one: one.name)
            if len({_pressure(one.load) for one in found}) > 1
        }
        if not points:
            continue
        named = dict(list(points.items())[:MOST_CURVES])
        caption = f"{_lengths(shape)}; labels are the concurrency, or requests/s."
        if len(points) > len(named):
            caption += f" {len(named)} of {len(points)} checkpoints are drawn."
        stem = f"{shape[0]:.0f}-{shape[1]:.0f}"
        ttft = _sweep(f"sweep-ttft-{stem}", named, lambda point: point.ttft_ms, falling=True)
        yield replace(
            ttft, title="TTFT against throughput", y_label="mean TTFT, ms", caption=caption + ttft.caption
        )
        speed = _sweep(f"sweep-speed-{stem}", named, lambda point: point.speed, falling=False)
        yield replace(
            speed,
            title="Tokens/s per request against throughput",
            y_label="tokens/s per request",
            caption=caption + speed.caption,
        )


def _timed(reported: Sequence[Reported]) -> list[Reported]:
    keys = (_THROUGHPUT, _TTFT, _TPOT)
    return [one for one in reported if all((one.figure(key) or 0.0) > 0 for key in keys)]


def _shape(one: Reported) -> tuple[float, float]:
    """Lengths alike to a tenth: the server may count a token or two more."""
    return (_rounded(one.load.input_len), _rounded(one.load.output_len))


def _rounded(length: float | None) -> float:
    return 0.0 if not length else float(f"{length:.2g}")


def _pressure(load: Load) -> tuple[float, float]:
    """Requests at a time and requests a second, infinite where nothing limits them."""
    rate, limit = load.request_rate_per_s, load.max_concurrency
    return (math.inf if limit is None else float(limit), math.inf if rate is None else float(rate))


def _points(runs: Sequence[Reported]) -> list[Point]:
    """A point a load, from the lightest on."""
    points = []
    for pressure, found in sorted(_grouped(runs, lambda one: _pressure(one.load)), key=lambda pair: pair[0]):
        throughput, ttft_ms, tpot_ms = (
            float(np.mean([one.figure(key) or 0.0 for one in found])) for key in (_THROUGHPUT, _TTFT, _TPOT)
        )
        limit, rate = pressure
        label = f"{rate:g}/s" if math.isfinite(rate) else f"{limit:g}" if math.isfinite(limit) else "all"
        points.append(Point(throughput, ttft_ms, 1e3 / tpot_ms, label))
    return points


def _sweep(
    key: str, points: Mapping[str, Sequence[Point]], figure: Callable[[Point], float], falling: bool
) -> Panel:
    """Curves of a figure over throughput; a point that another beats in both is hollow."""
    sign = -1.0 if falling else 1.0
    every = [(point.throughput, sign * figure(point)) for found in points.values() for point in found]
    curves = tuple(
        Curve(
            name,
            np.array([point.throughput for point in found]),
            np.array([figure(point) for point in found]),
            CurveStyle.JOINED,
            tuple(point.label for point in found),
            tuple(_beaten(point.throughput, sign * figure(point), every) for point in found),
        )
        for name, found in points.items()
    )
    rows = tuple(
        (name, point.label, f"{point.throughput:,.1f}", f"{figure(point):,.2f}")
        for name, found in points.items()
        for point in found
    )
    hollow = any(any(curve.hollow) for curve in curves)
    return Panel(
        key=key,
        title="",
        x_label="output tokens/s, all requests",
        curves=curves,
        caption=" Another point is better in both than a hollow one." if hollow else "",
        numbers=FigureTable(("", "load", "tokens/s", "figure"), rows),
    )


def _beaten(x: float, y: float, every: Iterable[tuple[float, float]]) -> bool:
    return any(a >= x and b >= y and (a, b) != (x, y) for a, b in every)


def _lengths(shape: tuple[float, float]) -> str:
    return f"About {shape[0]:g} tokens in and {shape[1]:g} out" if all(shape) else "Unknown lengths"


def ladders(reported: Sequence[Reported]) -> Iterator[Panel]:
    """Speed over input length, of each checkpoint whose speed is known at two lengths or more."""
    known = [one for one in reported if one.figure(_SPEED) and one.load.input_len]
    curves = []
    for name, found in _grouped(known, lambda one: one.name):
        lengths = sorted({float(one.load.input_len or 0) for one in found})
        speeds = [
            float(np.mean([one.figure(_SPEED) or 0.0 for one in found if one.load.input_len == length]))
            for length in lengths
        ]
        if len(lengths) > 1:
            curves.append(Curve(name, np.array(lengths), np.array(speeds), CurveStyle.JOINED))
    for start in range(0, len(curves), MOST_CURVES):
        drawn = tuple(curves[start : start + MOST_CURVES])
        yield Panel(
            key=f"ladder-{start // MOST_CURVES + 1}",
            title="Speed over input length",
            x_label="input tokens",
            y_label="tokens/s",
            curves=drawn,
            caption="One request at a time.",
            numbers=FigureTable(
                ("", "input", "tokens/s"),
                tuple(
                    (one.name, f"{x:,.0f}", f"{y:,.2f}")
                    for one in drawn
                    for x, y in zip(one.x.tolist(), one.y.tolist(), strict=True)
                ),
            ),
        )


def _grouped(things: Iterable[_Thing], key: Callable[[_Thing], _Key]) -> list[tuple[_Key, list[_Thing]]]:
    """By key, in the order in which keys are first met."""
    found: dict[_Key, list[_Thing]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return list(found.items())

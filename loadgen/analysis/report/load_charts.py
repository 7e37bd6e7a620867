"""Load charts: latency, speed and goodput of what was run under several loads, a curve from load to load."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen.analysis.comparison.groups import grouped
from loadgen.analysis.comparison.rows import INVALID
from loadgen.analysis.report.comparison_charts import MOST_CURVES
from loadgen.analysis.report.formatting import FigureTable
from loadgen.analysis.report.panel import Curve, CurveStyle, Panel, is_wide
from loadgen.analysis.run_summary import Load, Reported
from loadgen.metrics.knee import knee
from loadgen.results.limit_lines import load as shown_load

_THROUGHPUT, _PER_GPU, _TTFT, _TPOT = (
    "output_throughput", "output_throughput_per_gpu", "mean_ttft_ms", "mean_tpot_ms"
)  # fmt: skip
_LOAD, _SPEED = "load", "speed"  # the concurrency or the rate; output tokens a second of one answer
_KEYS = (
    _THROUGHPUT, _PER_GPU, _TTFT, "median_ttft_ms", "p99_ttft_ms", _TPOT, "mean_e2el_ms", "request_goodput",
)  # fmt: skip


class Point(msgspec.Struct, frozen=True):
    """One checkpoint under one load, the mean over its runs that are not INVALID, if there are any."""

    figures: Mapping[str, float]  # what every one of those runs has
    label: str  # of the load
    limit: float  # requests at a time
    rate: float  # requests a second
    invalid: bool  # every run is


class _Axes(NamedTuple):
    """One picture: figures of the points over another, a curve each; `curves` are (name, key)."""

    key: str
    title: str
    x: str
    x_label: str
    y_label: str
    curves: tuple[tuple[str, str], ...]


_SERVER = "output tokens/s, all requests"
_GPU = "output tokens/s per GPU"
_PERCENTILES = (("P50", "median_ttft_ms"), ("P99", "p99_ttft_ms"))
_TTFTS = (
    _Axes("ttft", "TTFT against throughput", _THROUGHPUT, _SERVER, "TTFT, ms", _PERCENTILES),
    _Axes("ttft", "TTFT against throughput", _THROUGHPUT, _SERVER, "mean TTFT, ms", (("", _TTFT),)),
)
_LATENCIES = (
    _Axes("tpot", "TPOT against throughput", _THROUGHPUT, _SERVER, "mean TPOT, ms", (("", _TPOT),)),
    _Axes("e2el", "E2EL against throughput", _THROUGHPUT, _SERVER, "mean E2EL, ms", (("", "mean_e2el_ms"),)),
)
_PARETO = (
    _Axes("speed", "Tokens/s per user against tokens/s per GPU", _PER_GPU, _GPU, "tokens/s per user",
          (("", _SPEED),)),
    _Axes("speed", "Tokens/s per user against throughput", _THROUGHPUT, _SERVER, "tokens/s per user",
          (("", _SPEED),)),
)  # fmt: skip
_LOADED = (
    _Axes("throughput", "Throughput against {}", _LOAD, "", _SERVER, (("", _THROUGHPUT),)),
    _Axes("goodput", "Goodput against {}", _LOAD, "", "requests/s within the objectives",
          (("", "request_goodput"),)),
)  # fmt: skip


def sweeps(
    reported: Sequence[Reported],
    named: Callable[[Reported], str] = lambda run: run.name,
    saturated: Collection[str] = (),
) -> Iterator[Panel]:
    """Latency and speed against throughput, throughput and goodput against load, of several loads of a shape.

    `named` gives the row of a run: what is no repeat of it has another. `saturated` are sources of runs that
    were ended early. What a point lacks of a picture is not drawn.
    """
    timed = [
        run for run in reported if all((run.figure(key) or 0.0) > 0 for key in (_THROUGHPUT, _TTFT, _TPOT))
    ]
    for number, (shape, runs) in enumerate(grouped(timed, _shape).items(), 1):
        points = {
            name: _points(group, saturated)
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
        if any(point.invalid for curve in drawn.values() for point in curve):
            caption += f" The runs of a hollow point are {INVALID}."
        stem = f"{shape[0]:.0f}-{shape[1]:.0f}" + f"-{number}" * bool(shape[2])
        for axes in _drawable(drawn):
            yield _panel(axes, stem, drawn, caption)


def _drawable(points: Mapping[str, Sequence[Point]]) -> Iterator[_Axes]:
    """The pictures for which every point has the figures, the first of each pair where both can be drawn."""
    every = [point for curve in points.values() for point in curve]

    def has(axes: _Axes) -> bool:
        return all(
            key in point.figures for point in every for key in (axes.x, *(key for _, key in axes.curves))
        )

    yield from [axes for axes in _TTFTS if has(axes) and len(points) * len(axes.curves) <= MOST_CURVES][:1]
    yield from filter(has, _LATENCIES)
    yield from list(filter(has, _PARETO))[:1]
    loaded = [axes for axes in _LOADED if has(axes)]
    if all(math.isinf(point.rate) for point in every):
        yield from (
            axes._replace(title=axes.title.format("concurrency"), x_label="concurrency") for axes in loaded
        )
    elif all(math.isfinite(point.rate) for point in every):
        yield from (
            axes._replace(title=axes.title.format("request rate"), x_label="requests/s asked")
            for axes in loaded
        )


def _lengths(runs: Sequence[Reported]) -> str:
    """Tokens in and out, about as many where the runs differ in them."""
    first, *others = dict.fromkeys((run.load.input_len or 0, run.load.output_len or 0) for run in runs)
    about, digits = ("About ", ".2g") if others else ("", ".5g")
    return f"{about}{float(format(first[0], digits)):g} tokens in and {float(format(first[1], digits)):g} out"


def _shape(run: Reported) -> tuple[float, float, str]:
    """Lengths to a tenth, since a server may count a token or two more, 0 if unknown; and how they vary."""
    load = run.load
    return float(f"{load.input_len or 0:.2g}"), float(f"{load.output_len or 0:.2g}"), load.shape


def _pressure(load: Load) -> tuple[float, float]:
    """Requests at a time and requests a second, infinite where nothing limits them."""
    rate, limit = load.request_rate_per_s, load.max_concurrency
    return (math.inf if limit is None else float(limit), math.inf if rate is None else float(rate))


def _points(runs: Sequence[Reported], saturated: Collection[str]) -> list[Point]:
    """A point a load, from the lightest on."""
    by_pressure = grouped(runs, lambda run: _pressure(run.load))
    return [
        _point(group, limit, rate, saturated)
        for (limit, rate), group in sorted(by_pressure.items(), key=lambda pair: pair[0])
    ]


def _point(runs: Sequence[Reported], limit: float, rate: float, saturated: Collection[str]) -> Point:
    valid = [run for run in runs if run.level != INVALID]
    values = {key: [run.figure(key) for run in valid or runs] for key in _KEYS}
    figures = {
        key: float(np.mean([value for value in of if value is not None]))
        for key, of in values.items()
        if None not in of
    }
    figures[_SPEED] = 1e3 / figures[_TPOT]
    load = rate if math.isfinite(rate) else limit
    if math.isfinite(load):
        figures[_LOAD] = load
    label = f"{rate:g}/s" if math.isfinite(rate) else f"{limit:g}" if math.isfinite(limit) else "all"
    label += ", saturated" * any(run.source in saturated for run in runs)
    return Point(figures, label, limit, rate, not valid)


def _panel(axes: _Axes, stem: str, points: Mapping[str, Sequence[Point]], caption: str) -> Panel:
    """The curves of one picture, from load to load."""
    curves, rows = [], []
    for row, along in points.items():
        for suffix, key in axes.curves:
            name = ", ".join(filter(None, (row, suffix)))
            x, y = (np.array([point.figures[which] for point in along]) for which in (axes.x, key))
            labels = tuple(point.label for point in along)
            shown = labels if key == axes.curves[-1][1] else ()  # of two percentiles, next to the upper one
            hollow = tuple(point.invalid for point in along)
            curves.append(Curve(name, x, y, CurveStyle.JOINED, shown, hollow))
            rows += [(name, *cells) for cells in zip(labels, _written(x, 1), _written(y, 2), strict=True)]
    band: tuple[float, float] | None = None
    if axes.key == "throughput":
        sentences, bands = _knees(curves)
        caption = " ".join([caption, *sentences])
        band = bands[0] if len(curves) == 1 and bands else None
    if axes.key == "speed" and len(points) > 1:
        curves.append(_front([point for along in points.values() for point in along], axes))
        caption += " The line without points goes through those that no other beats in both."
    if axes.key == "speed" and axes.x == _THROUGHPUT:
        caption += " Of the whole server, since not every run knows how many GPUs it has."
    loads = np.concatenate([curve.x for curve in curves])
    return Panel(
        f"sweep-{axes.key}-{stem}", axes.title, axes.x_label, axes.y_label, tuple(curves),
        x_log=axes.x == _LOAD and is_wide(loads), band=band, caption=caption,
        numbers=FigureTable(("", "load", axes.x_label, axes.y_label), tuple(rows)),
    )  # fmt: skip


def _written(values: Iterable[float], digits: int) -> list[str]:
    return [f"{value:,.{digits}f}" for value in values]


def _knees(curves: Sequence[Curve]) -> tuple[list[str], list[tuple[float, float]]]:
    """Where each curve bends, in words, and its interval; nothing of one that is as well a straight line."""
    sentences, bands = [], []
    for curve in curves:
        found = knee(curve.x.tolist(), curve.y.tolist(), rises=False)
        if found is None:
            continue
        name = f"{curve.name} bends" if len(curves) > 1 else "The curve bends"
        ends = [("at least", found.low), ("at most", found.high)]
        between = ", ".join(f"{word} {shown_load(end)}" for word, end in ends if end is not None)
        sentences.append(f"{name} at {shown_load(found.load)} (95 %: {between or 'not bounded'}).")
        bands.append((found.low or float(curve.x.min()), found.high or float(curve.x.max())))
    return sentences, bands


def _front(points: Sequence[Point], axes: _Axes) -> Curve:
    """The points that none beats in both figures, from the left to the right."""
    key = axes.curves[0][1]
    front: list[tuple[float, float]] = []
    for x, y in sorted(((point.figures[axes.x], point.figures[key]) for point in points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    x, y = np.array(front[::-1]).T
    return Curve("best of all", x, y)

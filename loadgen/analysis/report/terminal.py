"""Terminal: the distributions and the tokens over time where there is no screen, drawn with characters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotext
from msgspec.structs import replace

from loadgen.analysis.report import run_charts
from loadgen.analysis.report.drawing import log_ticks
from loadgen.analysis.report.panel import Curve, CurveStyle, Floats, Panel
from loadgen.analysis.run_summary import Reported
from loadgen.protocol.printable import printable
from loadgen.results import load_table
from loadgen.results.run_directory import Result

_LEAST, _MOST, _ROWS = 40, 120, 15
_SHOWN = ("ttft-distribution", "itl-distribution", "tokens-over-time")
_MOST_RUNS = 6  # curves in one plot
_SYMBOLS = "*o+x#@"
_ASCII = str.maketrans("─│┌┐└┘├┤┬┴┼═║╭╮╰╯", "-|++++||-++=|++++")


def plots(reported: Sequence[Reported], width: int, plain: bool, loads: Sequence[Panel] = ()) -> str:
    """Pictures of load, TTFT and ITL as distributions, tokens over time; `plain`: ASCII without colours."""
    ours = [(name, summary.run) for name, summary in _named(reported) if summary.run is not None]
    panels = [*map(_unlabelled, loads), *_panels(ours[:_MOST_RUNS])]
    parts = [drawn(panel, width, plain) for panel in panels]
    if not parts:
        return "nothing to plot: the sources have no request times\n"
    left = len(ours) - _MOST_RUNS
    return "\n".join(parts) + (f"{left} more runs are not plotted\n" if left > 0 else "")


def _named(reported: Sequence[Reported]) -> Iterator[tuple[str, Reported]]:
    """Each run by its name, of one name under several loads with the load."""
    loads: dict[str, set[str]] = {}
    limits = [load_table.at(run.load.max_concurrency, run.load.request_rate_per_s) for run in reported]
    for run, limit in zip(reported, limits, strict=True):
        loads.setdefault(run.name, set()).add(limit)
    for run, limit in zip(reported, limits, strict=True):
        name = load_table.marked_name(run.name, bool(run.simulated))
        yield f"{name}, {limit}" if len(loads[run.name]) > 1 else name, run


def _unlabelled(panel: Panel) -> Panel:
    """A picture of load without what stands next to its points, which has no room here; with a legend."""
    curves = tuple(replace(curve, labels=()) for curve in panel.curves)
    if panel.y_top is not None:
        curves = tuple(replace(curve, y=np.minimum(curve.y, panel.y_top)) for curve in curves)
    most = [float(np.nanmax(curve.y)) for curve in curves if len(curve.y)]
    return replace(panel, curves=curves, y_top=max(most))


def _panels(runs: Sequence[tuple[str, Result]]) -> list[Panel]:
    groups = [(name if len(runs) > 1 else "", [run]) for name, run in runs]
    over_time = (panel for _, run in runs for panel in run_charts.over_time(run))
    return [panel for panel in (*run_charts.distributions(groups), *over_time) if panel.key in _SHOWN]


def drawn(panel: Panel, width: int, plain: bool) -> str:
    """One panel in characters, at most `width` wide."""
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless" if plain else "default")
    figure.canvas("default")
    figure.plot_size(max(_LEAST, min(width, _MOST)), _ROWS)
    figure.axes(False, side=1)
    named = [curve for curve in panel.curves if len(curve.x) and not curve.labels]  # no marks of percentiles
    for symbol, curve in zip(_SYMBOLS * len(named), named, strict=False):
        x, y = _points(curve)
        signal = figure.signal(np.log10(x).tolist() if panel.x_log else x.tolist(), y.tolist(),
                               marker=symbol if plain else "hd")  # fmt: skip
        if curve.form is not CurveStyle.POINTS:
            signal.lines()
        if curve.name and len(named) > 1 and panel.y_top:
            name = printable(curve.name)
            signal.label(name.encode("ascii", "replace").decode() if plain else name)
        figure.draw(signal)
    scale = " (logarithmic)" if panel.x_log else ""
    whole = f"{panel.title}: {panel.y_label} over {panel.x_label}{scale}"
    figure.title(whole if len(whole) <= width else panel.title)  # a longer one is not drawn at all
    if panel.x_log:
        _set_log_ticks(figure.ruler("x"), panel)
    built = figure.build().string(plain)
    lines = [line.rstrip() for line in str(built).translate(_ASCII if plain else {}).splitlines()]
    return "\n".join(lines) + "\n"


def _points(curve: Curve) -> tuple[Floats, Floats]:
    """The curve's corners, without what a logarithm has not."""
    x, y = curve.corners()
    drawable = x > 0 if (x > 0).any() else np.ones(len(x), bool)
    return x[drawable], y[drawable]


def _set_log_ticks(ruler: Any, panel: Panel) -> None:
    """Round numbers on an axis whose points are logarithms."""
    values = np.concatenate([curve.x[curve.x > 0] for curve in panel.curves])
    ticks = log_ticks(float(values.min()), float(values.max())).tolist()
    ruler.ticks([math.log10(tick) for tick in ticks], [f"{tick:.4g}" for tick in ticks])

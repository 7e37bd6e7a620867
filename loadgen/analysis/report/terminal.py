"""Terminal: the distributions and the tokens over time where there is no screen, drawn with characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotext

from loadgen.analysis.report import run_charts
from loadgen.analysis.report.drawing import log_ticks
from loadgen.analysis.report.panel import Curve, CurveStyle, Floats, Panel
from loadgen.analysis.run_summary import Reported
from loadgen.protocol.printable import printable
from loadgen.results.run_directory import Result

_LEAST, _MOST, _ROWS = 40, 120, 15
_SHOWN = ("ttft-distribution", "itl-distribution", "tokens-over-time")
_MOST_RUNS = 6  # curves in one plot
_SYMBOLS = "*o+x#@"
_ASCII = str.maketrans("─│┌┐└┘├┤┬┴┼═║╭╮╰╯", "-|++++||-++=|++++")


def plots(reported: Sequence[Reported], width: int, plain: bool) -> str:
    """TTFT and ITL as distributions, tokens over time of each run; `plain`: ASCII without colours."""
    ours = [(summary.name, summary.run) for summary in reported if summary.run is not None]
    parts = [drawn(panel, width, plain) for panel in _panels(ours[:_MOST_RUNS])]
    if not parts:
        return "nothing to plot: the sources have no request times\n"
    left = len(ours) - _MOST_RUNS
    return "\n".join(parts) + (f"{left} more runs are not plotted\n" if left > 0 else "")


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
    figure.title(f"{panel.title}: {panel.y_label} over {panel.x_label}{scale}")
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

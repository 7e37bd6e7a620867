"""Terminal plots: distributions, and tokens over time, drawn with characters where there is no screen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotext
from matplotlib.ticker import LogLocator, MaxNLocator
from msgspec.structs import replace

from loadgen.base.passages import Curve, CurveStyle, Floats, Panel
from loadgen.base.text import clean_line, wrap_text
from loadgen.study import load_table
from loadgen.study.pages import run_charts
from loadgen.study.pages.picture_files import TICK_STEPS, choose_log_parts
from loadgen.study.run_summary import Reported

_LEAST, _MOST, _ROWS = 40, 120, 15
_SHOWN = ("ttft-distribution", "itl-distribution", "tokens-over-time")
_MOST_TICKS, _TICK = 6, 12  # on the x axis, and columns that one takes
_MOST_RUNS = 6  # curves in one plot
_SYMBOLS = "*o+x#@"
_ASCII = str.maketrans("─│┌┐└┘├┤┬┴┼═║╭╮╰╯", "-|++++||-++=|++++")


def render_plots(reported: Sequence[Reported], width: int, plain: bool, loads: Sequence[Panel] = ()) -> str:
    """Render loads, TTFT and ITL as distributions, and tokens over time; `plain` is ASCII without colours.

    Six runs are drawn, and a line counts the others. Without anything to plot it is a line with the reason.
    """
    loads_of = Counter(name for name, _ in {(run.name, run.load.pressure_words) for run in reported})
    ours = []
    for each in reported:
        if each.run is not None:
            name = load_table.mark_simulated(each.name, bool(each.simulated))
            several = loads_of[each.name] > 1
            ours.append((f"{name}, {each.load.pressure_words}" if several else name, each.run))
    shown = ours[:_MOST_RUNS]
    groups = [(name if len(shown) > 1 else "", [run]) for name, run in shown]
    panels = [*run_charts.plot_distributions(groups)]
    panels += [panel for _, run in shown for panel in run_charts.plot_over_time(run)]
    parts = [render_panel(panel, width, plain) for panel in loads]
    parts += [render_plot(panel, width, plain) for panel in panels if panel.key in _SHOWN]
    if not parts:
        return "nothing to plot: the sources have no request times\n"
    left = len(ours) - _MOST_RUNS
    return "\n".join(parts) + (f"{left} more runs are not plotted\n" if left > 0 else "")


def render_panel(panel: Panel, width: int, plain: bool) -> str:
    """Render a panel in characters as `render_plot` does, its labels in a line below."""
    curves = tuple(replace(curve, labels=()) for curve in panel.curves)
    if panel.y_top is not None:  # curves are cut off there
        curves = tuple(replace(curve, y=np.minimum(curve.y, panel.y_top)) for curve in curves)
    most = max(float(np.nanmax(curve.y)) for curve in curves if len(curve.y))
    return render_plot(replace(panel, curves=curves, y_top=most), width, plain) + _list_labels(panel)


def _list_labels(panel: Panel) -> str:
    """Return lines with the labels of each curve's points, from left to right; "" if none has labels.

    Curves of which a point has no label are left out; if all lines are equal there is one.
    """
    points: dict[str, list[str]] = {}
    for curve in panel.curves:
        labelled = all(curve.labels) and len(curve.labels) == len(curve.x)
        order = np.argsort(curve.x, kind="stable").tolist() if labelled else []
        name = curve.name if curve.of is None else panel.curves[curve.of].name
        points.setdefault(name, []).extend(curve.labels[at] for at in order)
    lines = {name: ", ".join(labels) for name, labels in points.items() if labels}
    if len(set(lines.values())) == 1:
        lines = {"points, from the left": next(iter(lines.values()))}
    rows = (wrap_text(clean_line(f"{name}: {labels}")) for name, labels in lines.items())
    return "".join(f"{row}\n" for lines_of in rows for row in lines_of)


def render_plot(panel: Panel, width: int, plain: bool) -> str:
    """Render a panel's unlabelled curves, 40 to 120 columns by 15 lines; `plain`: ASCII without colours."""
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless" if plain else "default")
    figure.canvas("default")
    figure.plot_size(max(_LEAST, min(width, _MOST)), _ROWS)
    figure.axes(False, side=1)
    named = [curve for curve in panel.curves if len(curve.x) and not curve.labels]  # no marks of percentiles
    for symbol, curve in zip(_SYMBOLS * len(named), named, strict=False):
        x, y = _select_points(curve)
        signal = figure.signal(np.log10(x).tolist() if panel.x_log else x.tolist(), y.tolist(),
                               marker=symbol if plain else "hd")  # fmt: skip
        if curve.form not in (CurveStyle.POINTS, CurveStyle.MARKS):
            signal.lines()
        if curve.name and len(named) > 1 and panel.y_top:
            name = clean_line(curve.name)
            signal.label(name.encode("ascii", "replace").decode() if plain else name)
        figure.draw(signal)
    scale = " (logarithmic)" if panel.x_log else ""
    whole = f"{panel.title}: {panel.y_label} over {panel.x_label}{scale}"
    figure.title(whole if len(whole) <= width else panel.title)  # a longer one is not drawn at all
    drawn_points = [_select_points(curve) for curve in named]
    _set_ticks(figure.ruler("x"), [x for x, _ in drawn_points], min(_MOST_TICKS, width // _TICK), panel.x_log)
    _set_ticks(figure.ruler("y"), [y for _, y in drawn_points], _ROWS // 3)
    built = figure.build().string(plain)
    lines = [line.rstrip() for line in str(built).translate(_ASCII if plain else {}).splitlines()]
    return "\n".join(lines) + "\n"


def _select_points(curve: Curve) -> tuple[Floats, Floats]:
    """Return x and y of the curve's points with x above 0; all of them if no x is; both ends of a step."""
    x, y = curve.x, curve.y
    if curve.form is CurveStyle.STEPS:
        x, y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
    drawable = x > 0 if (x > 0).any() else np.ones(len(x), bool)
    return x[drawable], y[drawable]


def _set_ticks(ruler: Any, values: Sequence[Floats], most: int, log: bool = False) -> None:
    """Set a ruler's limits and round ticks, `most` + 1 at most; with `log` at logarithms, of any number.

    Nothing is set without two different finite values, or with `log` if one of them is 0 or less.
    """
    known = np.concatenate(values or [np.empty(0)])
    known = known[np.isfinite(known)]
    if not len(known):
        return
    low, high = float(known.min()), float(known.max())
    if low == high or (log and low <= 0):
        return
    locator = LogLocator(subs=choose_log_parts(low, high)) if log else MaxNLocator(most, steps=TICK_STEPS)
    found = np.asarray(locator.tick_values(low, high))
    ticks = found[(found >= low * 0.999) & (found <= high * 1.001)].tolist()
    ruler.lim(*(math.log10(end) if log else end for end in (low, high)))
    ruler.ticks([math.log10(each) if log else each for each in ticks], [f"{each:.12g}" for each in ticks])

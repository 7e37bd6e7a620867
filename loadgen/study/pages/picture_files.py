"""Picture files: panels as PNG and SVG files, drawn by matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from itertools import product, zip_longest
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from matplotlib.transforms import Bbox

from loadgen.base.passages import Curve, CurveStyle, Panel
from loadgen.base.tables import cut_middle
from loadgen.study.pages.colours import LIGHT, Pen, list_pens

_WIDTH, _HEIGHT, _HEADING, _LEGEND = 340, 236, 34, 17  # in points; _LEGEND is a row of one
_BARS_HEAD, _BAR = 34, 38
_IN_A_ROW = 3
_NAME, _SHORT, _LONGEST = 48, 20, 110  # letters of a name in a legend, of one of two in a row, of a heading
_LINE, _DOT, _MARK = 1.6, 3.4, 5.5
TICK_STEPS = [1, 2, 2.5, 5, 10]
_DECADES = 1.8  # of a logarithmic axis: from there on its ticks are powers of ten
_DOWNS, _SIDES = (
    (-13.0, 6.0, -24.0, 17.0, -35.0, 28.0),
    ((5.0, "left"), (-5.0, "right")),
)  # of labels
_METADATA: dict[str, Any] = {"png": {"Software": None}, "svg": {"Creator": None, "Date": None}}
_SETTINGS: Any = {
    "text.parse_math": False, "text.usetex": False, "font.family": ["DejaVu Sans"], "font.size": 10,
    "svg.fonttype": "none", "svg.hashsalt": "loadgen", "text.color": LIGHT["text"],
    "axes.labelcolor": LIGHT["faint"], "axes.edgecolor": LIGHT["faint"], "xtick.labelcolor": LIGHT["faint"],
    "ytick.labelcolor": LIGHT["faint"], "xtick.major.size": 0, "ytick.major.size": 0,
    "axes.spines.left": False, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": LIGHT["grid"], "grid.linewidth": 0.7,
}  # fmt: skip


def render_picture(panels: Sequence[Panel], form: str, heading: str = "") -> bytes:
    """Return panels, three in a row below a heading, as the bytes of a file on white.

    `form` is png, of 144 dpi, or svg. Equal panels give equal bytes.
    """
    columns = min(_IN_A_ROW, len(panels))
    rows = -(-len(panels) // columns)
    heights = []
    for panel in panels:
        names = _list_names(panel)
        legend = -(-len(names) // _count_columns(names)) * _LEGEND
        heights.append(_BARS_HEAD + _BAR * len(panel.bars) if panel.bars else _HEIGHT + legend)
    tall = max(heights)
    size = columns * _WIDTH / 72, (rows * tall + (_HEADING if heading else 0)) / 72
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # they are drawn as boxes
        figure = Figure(size, dpi=72, facecolor=LIGHT["paper"], layout="constrained")
        if heading:
            figure.suptitle(cut_middle(heading, _LONGEST), x=0.01, ha="left", size=14, weight="bold")
        places = figure.subplots(rows, columns, squeeze=False)
        for axes, panel in zip_longest(places.flat, panels):
            if panel is None:
                axes.set_axis_off()
            elif panel.bars:
                _draw_bars(axes, panel)
            else:
                _draw_curves(axes, panel)
        figure.draw_without_rendering()  # so that the labels know the room that they have
        for axes in figure.axes:
            _place_labels(axes)
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=144, metadata=_METADATA[form])
    return file.getvalue()


def _list_names(panel: Panel) -> list[str]:
    """Return the legend's names, none of a single curve unless its panel has a `y_top`."""
    names = [curve.name for curve in panel.curves if curve.of is None]
    shown = names if len(names) > 1 or panel.y_top else []
    return [cut_middle(name, _NAME) for name in (*(spans.name for spans in panel.spans), *shown) if name]


def _count_columns(names: Sequence[str]) -> int:
    return 2 if all(len(name) <= _SHORT for name in names) else 1


def _draw_curves(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", size=12, weight="bold")
    axes.set_xlabel(f"{panel.x_label} (log)" if panel.x_log else panel.x_label, loc="right")
    axes.set_ylabel(f"{panel.y_label} (log)" if panel.y_log else panel.y_label)
    if panel.band is not None:
        axes.axvspan(*panel.band, color=LIGHT["band"], zorder=0)
    samples: list[Any] = []
    most = max((float(spans.at.max()) for spans in panel.spans), default=0.0)
    for spans in panel.spans:
        thick = float(np.clip(100 / most, 0.5, 9.0))
        axes.hlines(spans.at, spans.begin, spans.end, color=LIGHT[spans.tone], linewidth=thick)
        samples.append(Patch(color=LIGHT[spans.tone]))
    for curve, pen in zip(panel.curves, list_pens(panel), strict=True):
        line = _draw_curve(axes, curve, pen)
        if curve.of is None and curve.name:
            samples.append(line)
    _set_axes(axes, panel)
    if names := _list_names(panel):
        axes.legend(
            samples, names, loc="upper left", bbox_to_anchor=(-0.12, -0.21), frameon=False, borderpad=0,
            ncols=_count_columns(names), handlelength=2.6, labelspacing=0.3,
        )  # fmt: skip


def _draw_curve(axes: Axes, curve: Curve, pen: Pen) -> Any:
    """Draw one curve with its marks and labels; return its line, as a legend shows it."""
    joined = curve.form not in (CurveStyle.POINTS, CurveStyle.MARKS)
    look: dict[str, Any] = {"color": LIGHT[pen.colour], "linestyle": (0, pen.dash) if pen.dash else "-"}
    if not joined:
        look["linestyle"] = "none"
    if curve.form is CurveStyle.STEPS:
        look["drawstyle"] = "steps-post"
    if curve.form is CurveStyle.POINTS:
        size = _MARK if curve.labels else _DOT
        look |= {"marker": "o", "markersize": size, "markeredgewidth": 0, "alpha": 0.75}
    elif curve.form in (CurveStyle.JOINED, CurveStyle.MARKS):
        look |= {"marker": pen.mark, "markersize": _MARK}
    (line,) = axes.plot(curve.x, curve.y, linewidth=_LINE, **look)
    hollow = np.flatnonzero(curve.hollow)
    axes.plot(curve.x[hollow], curve.y[hollow], linestyle="none", marker=pen.mark, markersize=_MARK,
              color=LIGHT[pen.colour], markerfacecolor=LIGHT["paper"])  # fmt: skip
    for x, y, text in zip(curve.x, curve.y, curve.labels, strict=False):
        label = axes.annotate(text, (x, y), (0, 0), textcoords="offset points", color=LIGHT["faint"])
        label.set_in_layout(False)
    return line


def _set_axes(axes: Axes, panel: Panel) -> None:
    """Set the ends of both axes, and round ticks without exponents; y goes up from 0 but for a timeline."""
    axes.margins(x=0.02, y=0.04)
    axes.set(xscale="log" if panel.x_log else "linear", yscale="log" if panel.y_log else "linear")
    if panel.x_end is not None:
        axes.set_xlim(-0.015 * panel.x_end, 1.015 * panel.x_end)
    if panel.spans:
        axes.invert_yaxis()
    elif not panel.y_log:
        top = panel.y_top * 1.02 if panel.y_top else axes.get_ylim()[1]
        axes.set_ylim(-0.012 * top if panel.y_low is None else panel.y_low, top)
    counts = bool(panel.spans) or panel.y_label == "requests"
    for axis, log, whole in ((axes.xaxis, panel.x_log, False), (axes.yaxis, panel.y_log, counts)):
        rounded = MaxNLocator(6, steps=TICK_STEPS, integer=whole)
        locator = LogLocator(subs=choose_log_parts(*axis.get_view_interval())) if log else rounded
        axis.set_major_locator(locator)
        axis.set_major_formatter(StrMethodFormatter("{x:,.12g}"))
        axis.set_minor_locator(NullLocator())


def choose_log_parts(low: float, high: float) -> tuple[float, ...]:
    """Return the multiples of powers of ten at a logarithmic axis: 1, 2 and 5; over 1.8 decades 1 alone."""
    return (1.0,) if np.log10(high / low) > _DECADES else (1.0, 2.0, 5.0)


def _place_labels(axes: Axes) -> None:
    """Move each label right or left of its point, to where it meets no other and no mark, or hide it."""
    labels = [text for text in axes.texts if isinstance(text, Annotation)]
    marked = [line for line in axes.lines if labels and line.get_marker() != "None"]
    points = [point for line in marked for point in axes.transData.transform(line.get_xydata())]
    taken = [Bbox.from_extents(x - 3, y - 3, x + 3, y + 3) for x, y in points]
    for label in labels:
        for down, (aside, side) in product(_DOWNS, _SIDES):
            label.set(position=(aside, down), horizontalalignment=side)
            box = label.get_window_extent()
            if axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 + 5 and not box.count_overlaps(taken):
                taken.append(box)
                break
        else:
            label.set_visible(False)


def _draw_bars(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", size=12, weight="bold")
    axes.set(xlim=(0, panel.reach), ylim=(len(panel.bars) - 0.6, -0.6))
    axes.set_axis_off()
    for row, bar in enumerate(panel.bars):
        axes.barh(row, panel.reach, 0.34, color=LIGHT["grid"])
        axes.barh(row, bar.value, 0.34, color=LIGHT["s1" if row == 0 or not panel.bars[0].name else "s6"])
        axes.text(0, row - 0.25, cut_middle(bar.name, _NAME - len(bar.text)), va="bottom")
        axes.text(panel.reach, row - 0.25, bar.text, va="bottom", ha="right", color=LIGHT["faint"])
        if bar.low == bar.low and bar.high == bar.high:
            for colour, width in (("paper", 4.0), ("text", 1.4)):  # seen on the bar and next to it
                axes.hlines(row, max(bar.low, 0.0), bar.high, LIGHT[colour], linewidth=width)
        if bar.best == bar.best:
            axes.vlines(bar.best, row - 0.25, row + 0.25, LIGHT["failed"], (0, (2, 1)), linewidth=_LINE)

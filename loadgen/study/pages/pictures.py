"""Pictures: panels as PNG and SVG files, by matplotlib, and in characters for a terminal, by plotext."""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
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
from msgspec.structs import replace

from loadgen.base.passages import Curve, CurveStyle, Floats, Panel
from loadgen.base.tables import cut_middle
from loadgen.base.text import clean_line, wrap_text
from loadgen.study import load_table
from loadgen.study.pages import run_charts
from loadgen.study.pages.colours import LIGHT, Pen, list_pens
from loadgen.study.pages.document import require_extra
from loadgen.study.run_summary import Reported

_WIDTH, _HEIGHT, _HEADING, _LEGEND = 340, 236, 34, 17  # in points; _LEGEND is a row of one
_BARS_HEAD, _BAR = 34, 38
_IN_A_ROW = 3
_NAME, _SHORT, _LONGEST = 48, 20, 110  # letters of a name in a legend, of one of two in a row, of a heading
_LINE, _DOT, _MARK = 1.6, 3.4, 5.5
TICK_STEPS = [1, 2, 2.5, 5, 10]
_DECADES = 1.8  # of a logarithmic axis: from there on its ticks are powers of ten
_DOWNS, _SIDES = (-13.0, 6.0, -24.0, 17.0, -35.0, 28.0), ((5.0, "left"), (-5.0, "right"))  # of labels
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


_LEAST, _MOST, _ROWS = 40, 120, 15  # columns and lines of a terminal
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
    with require_extra():
        import plotext
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

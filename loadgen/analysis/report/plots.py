"""Plots: a panel drawn by matplotlib, and as a picture in a file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from loadgen.analysis.report.palette import DASHES, LIGHT, MARKERS, Ink
from loadgen.analysis.report.panel import Curve, CurveStyle, Panel, Spans, Tone
from loadgen.errors import UsageError

WIDTH = 340  # of a picture in CSS pixels; so wide that a telephone shows its letters readable
_HEIGHT, _BAR, _LEGEND, _TITLE = 226, 38, 17, 24
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 26, 40
_SMALL, _NORMAL = 10.5, 11.0
_LONGEST, _SHORT = 52, 21  # letters of a name in a legend, alone in its row or not
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "loadgen",
    "text.parse_math": False,
    "text.usetex": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": _NORMAL,
    "path.simplify": True,
    "path.simplify_threshold": 0.2,
}
METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def save(panel: Panel, path: Path) -> None:
    """Write the panel as `.png` or `.svg`, on white and with its title; raises UsageError."""
    with drawn(panel, LIGHT, titled=True) as figure:
        metadata = {"Software": None} if path.suffix == ".png" else METADATA
        try:
            figure.savefig(path, dpi=144 if path.suffix == ".png" else 72, metadata=metadata)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}; choose another directory") from None


@contextmanager
def drawn(panel: Panel, ink: Ink, titled: bool) -> Iterator[Figure]:
    """The panel as a figure, to be written while the settings it was drawn with hold."""
    with mpl.rc_context({**_SETTINGS, "text.color": ink.text}), warnings.catch_warnings():
        # A browser has the letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        rows = _legend_rows(panel)
        head = _TITLE * titled
        inside = _BAR * len(panel.bars) if panel.bars else _HEIGHT - _TOP - _BOTTOM
        top = head + (6 if panel.bars else _TOP)
        bottom = (10 if panel.bars else _BOTTOM) + _LEGEND * len(rows)
        height = top + inside + bottom
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor=ink.paper)
        left = 8 if panel.bars else _LEFT
        axes = figure.add_axes(
            (left / WIDTH, bottom / height, (WIDTH - left - _RIGHT) / WIDTH, inside / height)
        )
        if titled:
            figure.text(8 / WIDTH, 1 - 17 / height, panel.title, size=12, weight="bold", color=ink.text)
        if panel.bars:
            _bars(axes, panel, ink)
        else:
            _axes(axes, panel, ink)
            _curves(axes, panel, ink)
            _legend(figure, rows, height, ink)
        yield figure


def _axes(axes: Axes, panel: Panel, ink: Ink) -> None:
    """The frame: two axes, a grid, and what they show written above and below them."""
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(ink.faint)
    axes.spines["bottom"].set_linewidth(0.8)
    axes.grid(True, color=ink.grid, linewidth=0.7, clip_on=False)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=_SMALL, labelcolor=ink.faint, pad=4)
    if panel.x_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=_subs(panel), numticks=8))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=bool(panel.spans)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_tick))
    said: dict[str, Any] = {"size": _SMALL, "color": ink.faint, "transform": axes.transAxes}
    box = axes.get_window_extent()
    axes.text(-(_LEFT - 8) / box.width, 1 + 10 / box.height, panel.y_label, ha="left", va="bottom", **said)
    axes.text(1, -33 / box.height, panel.x_label, ha="right", va="bottom", **said)


def _subs(panel: Panel) -> tuple[float, ...]:
    """Where a logarithmic axis has its ticks in a decade, by how many decades there are."""
    values = np.concatenate([curve.x for curve in panel.curves])
    values = values[values > 0]
    decades = np.log10(values.max() / values.min()) if len(values) else 1.0
    return (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.8 else (1.0, 2.0, 5.0)


def _tick(value: float, _: int = 0) -> str:
    for least, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least:
            return f"{value / (1e3 if letter == 'k' else least):g}{letter}"
    return f"{value:.6g}"


def _curves(axes: Axes, panel: Panel, ink: Ink) -> None:
    if panel.band is not None:
        axes.axvspan(panel.band[0], panel.band[1], color=ink.band, linewidth=0, zorder=0)
    for index, curve in enumerate(panel.curves):
        _curve(axes, curve, index, ink)
    for spans in panel.spans:
        _spans(axes, spans, ink)
    axes.margins(x=0.02, y=0.06)
    if panel.spans:
        axes.autoscale_view()
        axes.invert_yaxis()
    else:
        top = panel.y_top
        highest = top * 1.02 if top else max(axes.get_ylim()[1], 1e-9)
        axes.set_ylim(-0.012 * highest, highest)
    if panel.x_end is not None:
        axes.set_xlim(-0.015 * panel.x_end, panel.x_end * 1.015)
    for curve in panel.curves:
        _labels(axes, curve, ink)


def _curve(axes: Axes, curve: Curve, index: int, ink: Ink) -> None:
    colour = ink.series[index % len(ink.series)]
    dash, marker = DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)]
    style: dict[str, Any] = {"color": colour, "linewidth": 1.6, "linestyle": dash}
    if curve.form is CurveStyle.STEPS:
        style["drawstyle"] = "steps-post"
    if curve.form is CurveStyle.POINTS:
        _dots(axes, curve, colour)
    else:
        axes.plot(curve.x, curve.y, **style)
    if curve.form is CurveStyle.JOINED:
        hollow = np.array(curve.hollow or (False,) * len(curve.x), bool)
        dots: dict[str, Any] = {
            "linestyle": "none",
            "marker": marker,
            "markersize": 5,
            "markeredgecolor": colour,
        }
        axes.plot(curve.x[~hollow], curve.y[~hollow], markerfacecolor=colour, **dots)
        axes.plot(curve.x[hollow], curve.y[hollow], markerfacecolor=ink.paper, **dots)


def _labels(axes: Axes, curve: Curve, ink: Ink) -> None:
    """What stands beside points: to their right while there is room, below the marks of a distribution."""
    down = -10 if curve.form is CurveStyle.POINTS else 4
    for x, y, label in zip(curve.x, curve.y, curve.labels, strict=False):
        across = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))[0]
        side, align = (-5, "right") if across > 0.85 else (5, "left")
        said: dict[str, Any] = {"textcoords": "offset points", "size": 8, "color": ink.faint, "ha": align}
        axes.annotate(label, (x, y), (side, down), **said)


def _dots(axes: Axes, curve: Curve, colour: str) -> None:
    """All points as one outline of strokes too short to be seen but for their round ends."""
    at = np.stack([curve.x, curve.y], axis=1).astype(np.float64)
    short = np.array([max(float(np.ptp(curve.x)), 1e-9) * 1e-4, 0.0])
    corners = np.stack([at - short, at + short], axis=1)
    codes = np.tile(np.array([Outline.MOVETO, Outline.LINETO], np.uint8), len(at))
    axes.update_datalim(at)
    axes.add_patch(
        PathPatch(
            Outline(corners.reshape(-1, 2), codes),
            fill=False,
            edgecolor=colour,
            linewidth=5.5 if curve.labels else 3.4,
            alpha=0.75,
            capstyle="round",
        )
    )
    axes.autoscale_view()


def _spans(axes: Axes, spans: Spans, ink: Ink) -> None:
    """All stretches of one kind as one outline: a page holds hundreds of them."""
    corners = np.empty((len(spans.at), 2, 2))
    corners[:, 0, 0], corners[:, 1, 0], corners[:, :, 1] = spans.begin, spans.end, spans.at[:, None]
    codes = np.tile(np.array([Outline.MOVETO, Outline.LINETO], np.uint8), len(spans.at))
    box, count = axes.get_window_extent(), max(spans.at.max(), 1.0)
    width = float(np.clip(box.height / count * 0.62, 0.5, 9.0))
    outline = Outline(corners.reshape(-1, 2), codes)
    axes.add_patch(PathPatch(outline, fill=False, edgecolor=_toned(spans.tone, ink), linewidth=width,
                             capstyle="butt"))  # fmt: skip


def _toned(tone: Tone, ink: Ink) -> str:
    return {Tone.WAIT: ink.wait, Tone.PREFILL: ink.prefill, Tone.DECODE: ink.decode, Tone.FAILED: ink.failed}[
        tone
    ]


def _bars(axes: Axes, panel: Panel, ink: Ink) -> None:
    """Bars from the top down, the name above each and its figure at its end."""
    axes.set_axis_off()
    ends = [max(v for v in (bar.value, bar.high, bar.best) if v == v) for bar in panel.bars]
    most = max([*ends, 1e-12])
    axes.set_xlim(0, most * 1.02)
    axes.set_ylim(len(panel.bars), 0)
    for row, bar in enumerate(panel.bars):
        colour = ink.series[0] if row == 0 or not panel.bars[0].name else ink.series[5]
        name = _cut(bar.name, _LONGEST - len(bar.text))
        axes.text(0, row + 0.36, name, size=_SMALL, color=ink.text, ha="left", va="bottom")
        axes.text(1, row + 0.36, bar.text, size=_SMALL, color=ink.faint, ha="right", va="bottom",
                  transform=axes.get_yaxis_transform())  # fmt: skip
        axes.barh(row + 0.62, most * 1.02, 0.34, color=ink.grid, linewidth=0)
        axes.barh(row + 0.62, bar.value, 0.34, color=colour, linewidth=0)
        if bar.low == bar.low and bar.high == bar.high:
            for colour, width in ((ink.paper, 4.0), (ink.text, 1.4)):  # seen on the bar and beside it
                axes.plot([max(bar.low, 0), bar.high], [row + 0.62] * 2, color=colour, linewidth=width)
        if bar.best == bar.best:
            axes.plot([bar.best] * 2, [row + 0.38, row + 0.86], color=ink.failed, linewidth=1.6,
                      linestyle=(0, (2, 1)))  # fmt: skip


def _legend_rows(panel: Panel) -> list[list[tuple[str, Any]]]:
    """What the legend names, two in a row where they are short; nothing where there is one curve."""
    entries: list[tuple[str, Any]] = [(spans.name, spans.tone) for spans in panel.spans]
    if len(panel.curves) > 1 or (panel.curves and panel.curves[0].name and panel.y_top):
        entries += [(curve.name, index) for index, curve in enumerate(panel.curves)]
    entries = [(name, what) for name, what in entries if name]
    in_a_row = 2 if all(len(name) <= _SHORT for name, _ in entries) else 1
    return [entries[start : start + in_a_row] for start in range(0, len(entries), in_a_row)]


def _legend(figure: Figure, rows: list[list[tuple[str, Any]]], height: float, ink: Ink) -> None:
    for number, row in enumerate(reversed(rows)):
        y = (_LEGEND * number + 7) / height
        for place, (name, what) in enumerate(row):
            x = (8 + place * (WIDTH - 16) / 2) / WIDTH
            style: dict[str, Any] = (
                {"color": _toned(what, ink), "linewidth": 5}
                if isinstance(what, Tone)
                else ({"color": ink.series[what % len(ink.series)], "linestyle": DASHES[what % len(DASHES)]})
            )
            figure.add_artist(
                Line2D([x, x + 22 / WIDTH], [y + 3 / height] * 2, solid_capstyle="butt", **style)
            )
            figure.text(x + 27 / WIDTH, y, _cut(name), size=_SMALL, color=ink.text, va="bottom")


def _cut(name: str, most: int = _LONGEST) -> str:
    """A name that fits, its middle left out: what tells checkpoints apart stands at the end."""
    if len(name) <= most:
        return name
    end = most * 3 // 5
    return f"{name[: most - end - 1]}…{name[-end:]}"

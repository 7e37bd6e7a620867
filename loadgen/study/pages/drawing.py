"""Drawing: a panel as outlines and texts on a canvas in CSS pixels, for SVG and PNG alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import product, repeat
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen.features.attribution.parts import PARTS
from loadgen.study.pages.page_parts import Bar, Curve, CurveStyle, Floats, Panel
from loadgen.study.tables import cut_middle

WIDTH = 340  # so wide that a telephone shows the letters readable
_HEIGHT, _BAR, _LEGEND, _TITLE = 226, 38, 17, 24
_EDGE, _LEFT, _RIGHT, _TOP, _BOTTOM = 8, 44, 10, 26, 40
_LINE, _DOT, MARK_SIZE = 1.6, 3.4, 5.5
DOTS_OPACITY = 0.75
_TEXT = 11.0  # letters: no smaller on a telephone 390 px wide
_SAMPLE = 27  # what stands before a name in a legend
_FULL, _HALF = WIDTH - _EDGE - _RIGHT - _SAMPLE, (WIDTH - 2 * _EDGE) // 2 - _SAMPLE - 4  # a name's room there
# Where a label stands, from its point downwards: below the marks of a distribution, else where there is room.
_DOWNS, _DOWN = (-4.0, 11.0, -15.0, 22.0, -26.0, 33.0), (12.0,)
_MOST_TICKS = 6
_BARS_WIDTH = WIDTH - _EDGE - _RIGHT

# Colours that people with any colour vision tell apart (after Okabe and Ito 2008), and a dash to each.
_LIGHT_SERIES = ("#0069b4", "#c84800", "#007a5a", "#a3457e", "#9a6700", "#2a8fbd", "#5b5b5b", "#7b3fb5")
_DARK_SERIES = ("#5cb2f0", "#ff9358", "#3ccfa0", "#ec9dca", "#ecc04c", "#8bd8ff", "#bdbdbd", "#c3a0f5")
SERIES = tuple(f"s{number}" for number in range(1, len(_LIGHT_SERIES) + 1))  # roles of curves, in turn
# A dash is what is drawn, left out, drawn, ..., in widths of the line.
DASHES: tuple[tuple[float, ...], ...] = (
    (), (5, 1.6), (1.4, 1.4), (6, 1.6, 1.4, 1.6), (9, 2), (3, 1, 1, 1, 1, 1), (2.5, 2.5), (7, 1, 1, 1),
)  # fmt: skip
# A mark is its corners, the angle of the first in degrees, and the radius of every other one (of a star < 1).
MARKERS: tuple[tuple[int, float, float], ...] = (
    (20, 0, 1), (4, 45, 1), (3, -90, 1), (4, 0, 1), (3, 90, 1), (10, -90, 0.45), (8, 45, 0.45), (5, -90, 1),
)  # fmt: skip
SHADES = {part.key: f"part-{part.key}" for part in PARTS}  # of a wait: violet, greens, yellows, blues, grey
_LIGHT_SHADES = (
    "#7b3fb5", "#b792db", "#3d8f73", "#8fd0b4", "#0b6e4f", "#12a37a", "#5ec2b0", "#a3d9c0", "#d9a927",
    "#9a6700", "#0069b4", "#a9d0f2", "#0a3a66", "#4d5fd1", "#2484d6", "#b3bac2",
)  # fmt: skip
_DARK_SHADES = (
    "#c3a0f5", "#7d5fb0", "#2f9c7a", "#1d6b52", "#8be0bf", "#3ccfa0", "#4f9c82", "#226f57", "#8a6a1c",
    "#ecc04c", "#5cb2f0", "#2b5f8c", "#7fd3ea", "#8f9cff", "#4aa0e6", "#5a6570",
)  # fmt: skip
# A page's variables have the names of these roles; `band` is behind what stands out, `faint` labels axes.
LIGHT = {
    "paper": "#ffffff", "text": "#1d2329", "faint": "#59636e", "grid": "#e2e6ea", "band": "#eef3f8",
    "wait": "#b3bac2", "prefill": "#c84800", "decode": "#0069b4", "failed": "#c01048",
    **dict(zip(SERIES, _LIGHT_SERIES, strict=True)), **dict(zip(SHADES.values(), _LIGHT_SHADES, strict=True)),
}  # fmt: skip
DARK = {
    "paper": "#15191e", "text": "#e4e8ec", "faint": "#9aa5b0", "grid": "#2b323a", "band": "#1d2732",
    "wait": "#5a6570", "prefill": "#ff9358", "decode": "#5cb2f0", "failed": "#ff6b93",
    **dict(zip(SERIES, _DARK_SERIES, strict=True)), **dict(zip(SHADES.values(), _DARK_SHADES, strict=True)),
}  # fmt: skip
# Of DejaVu Sans, the widest that is in use, in shares of the letters' size; what is not here is _OTHER_WIDTH.
_WIDTHS = {
    **dict.fromkeys("ijl'|.,:; ", 0.32),
    **dict.fromkeys("()[]{}ftr-/", 0.40),
    **dict.fromkeys("mwMW%@", 0.98),
    **dict.fromkeys("ABCDEFGHKNOPQRUVXYZ&", 0.72),
    **dict.fromkeys("=+×÷~<>≤±", 0.84),
}
_OTHER_WIDTH = 0.64
_RISE, _FALL = 0.8, 0.22  # of letters over and below their baseline
_NEAR = 5.0  # from a point to its label


class Part(StrEnum):
    """The kind of a shape, for charts.js, which redraws it and knows these letters."""

    GRID = "g"
    BASE = "a"  # the line that x stands on
    BAND = "b"
    X_TICK = "x"
    Y_TICK = "y"
    X_LABEL = "u"
    CURVE = "c"  # one a curve, in order
    MARKER = "m"  # one a point of each curve of joined points
    SPANS = "s"
    LABEL = "l"


class Polyline(msgspec.Struct, frozen=True):
    """Lines through points (n, 2), lifted at NaN, or a dot of `width` at each; colours are roles of LIGHT."""

    points: Floats
    stroke: str = ""
    width: float = 1.0
    dash: tuple[float, ...] = ()
    fill: str = ""
    dots: bool = False
    part: Part | None = None


class Text(msgspec.Struct, frozen=True):
    """One line of text on its baseline; `anchor` is the end that stands at x: start, middle or end."""

    x: float
    y: float
    text: str
    colour: str = "faint"
    size: float = _TEXT
    anchor: str = "start"
    bold: bool = False
    part: Part | None = None


class Drawing(msgspec.Struct, frozen=True):
    """A picture: its shapes, later ones on top; bars have no axes."""

    height: float
    shapes: tuple[Polyline | Text, ...]
    width: float = WIDTH
    axes: Axes | None = None


class Axis(msgspec.Struct, frozen=True):
    """Values from `low` to `high` (of a logarithmic axis their logarithms) over pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def px(self, values: Floats) -> Floats:
        """Return the pixels of values; those outside lie at the axis' ends."""
        with np.errstate(divide="ignore"):
            scaled = np.log10(values) if self.log else values
        share = np.clip((scaled - self.low) / (self.high - self.low), 0.0, 1.0)
        at: Floats = self.start + share * (self.end - self.start)
        return at

    def choose_ticks(self, whole: bool = False) -> Floats:
        """Return round values on the axis, `whole` numbers alone if it is not logarithmic."""
        if self.log:
            return choose_log_ticks(10.0**self.low, 10.0**self.high)
        return choose_linear_ticks(self.low, self.high, _MOST_TICKS, whole)


class Axes(NamedTuple):
    """Both axes of a picture; y goes up but for a timeline."""

    x: Axis
    y: Axis

    def place(self, x_values: Floats, y_values: Floats) -> Floats:
        """Return the pixels of points, (n, 2)."""
        return np.stack([self.x.px(x_values), self.y.px(y_values)], axis=1)

    def place_marks(self, curve: Curve) -> Floats:
        """Return the pixels of a curve's marks, (n, 2); (0, 2) unless it is joined points or marks."""
        marked = curve.form in (CurveStyle.JOINED, CurveStyle.MARKS)
        return self.place(curve.x, curve.y) if marked else np.empty((0, 2))


def draw_panel(panel: Panel, titled: bool = False) -> Drawing:
    """Draw a panel's bars, or its curves and spans with axes, labels and legend; `titled` adds its title."""
    head = _TITLE if titled else 0
    shapes: list[Polyline | Text] = []
    if titled:
        shapes.append(Text(_EDGE, 17, panel.title, "text", 12, bold=True))
    if panel.bars:
        shapes += _draw_bars(panel.bars, head + 6)
        return Drawing(head + 6 + _BAR * len(panel.bars) + 10, tuple(shapes))
    axes = Axes(_make_x_axis(panel), _make_y_axis(panel, head))
    shapes += _draw_frame(panel, axes)
    for index, curve in enumerate(panel.curves):
        shapes += _draw_curve(curve, index, axes)
    most = max((float(spans.at.max()) for spans in panel.spans), default=0.0)
    thick = float(np.clip(abs(axes.y.end - axes.y.start) / max(most, 1.0) * 0.62, 0.5, 9.0))
    for spans in panel.spans:  # all stretches of one kind are one outline
        at = axes.y.px(spans.at)
        lines = _make_segments(axes.x.px(spans.begin), at, axes.x.px(spans.end), at)
        shapes.append(Polyline(lines, spans.tone, thick, part=Part.SPANS))
    marks = (point.tolist() for curve in panel.curves for point in axes.place_marks(curve))
    reach = MARK_SIZE / 2
    taken: list[Box] = [(x - reach, y - reach, x + reach, y + reach) for x, y in marks]
    for curve in panel.curves:
        downs = _DOWN if curve.form is CurveStyle.POINTS else _DOWNS
        for (x, y), text in zip(axes.place(curve.x, curve.y).tolist(), curve.labels, strict=False):
            shapes.append(place_label(text, (x, y), downs, (axes.x.start, axes.x.end), taken))
    legend = _arrange_legend(panel)
    for number, row in enumerate(legend):
        for place, (name, sample) in enumerate(row):
            left = _EDGE + place * (WIDTH - 2 * _EDGE) / 2
            baseline = head + _HEIGHT + _LEGEND * number + 9
            moved = sample.points + np.array([left, baseline - 3.5])
            shapes.append(msgspec.structs.replace(sample, points=moved))
            shapes.append(Text(left + _SAMPLE, baseline, fit_name(name, _FULL), "text"))
    return Drawing(head + _HEIGHT + _LEGEND * len(legend), tuple(shapes), axes=axes)


def choose_linear_ticks(low: float, high: float, most: int, whole: bool = False) -> Floats:
    """Return multiples of a round step from `low` to `high`, `most` + 1 at most; whole numbers if `whole`."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    steps = (part * power for part in (1.0, 2.0, 2.5, 5.0, 10.0))
    step = next(step for step in steps if step > least * 0.999 and not (whole and step % 1))
    return np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step


def choose_log_ticks(low: float, high: float) -> Floats:
    """Return round values from `low` to `high`, one to three per decade, fewer over more decades.

    Both ends if there is no round value between them.
    """
    decades = math.log10(high / low)
    parts = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.8 else (1.0, 2.0, 5.0)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = np.array([part * 10.0**power for power in powers for part in parts])
    inside = ticks[(ticks >= low * 0.999) & (ticks <= high * 1.001)]
    return inside if len(inside) else np.array([low, high])


def _make_x_axis(panel: Panel) -> Axis:
    """Make the x axis from 0 to the panel's `x_end`, else over all values, with a margin."""
    left, right = float(_LEFT), float(WIDTH - _RIGHT)
    if panel.x_end is not None:
        return Axis(-0.015 * panel.x_end, 1.015 * panel.x_end, left, right)
    values = np.concatenate([*(c.x for c in panel.curves), *(s.begin for s in panel.spans),
                             *(s.end for s in panel.spans)]).astype(np.float64)  # fmt: skip
    if log := panel.x_log and bool((values > 0).any()):
        values = np.log10(values[values > 0])
    low, high = float(values.min()), float(values.max())
    margin = 0.02 * (high - low) or (0.3 if log else 0.05 * abs(low) or 0.5)
    return Axis(low - margin, high + margin, left, right, log)


def _make_y_axis(panel: Panel, head: float) -> Axis:
    """Make the y axis, downwards for a timeline, else up from 0 or `y_low` to `y_top` or the highest.

    With `y_log` it goes from the lowest value above 0 to the highest.
    """
    top, bottom = float(head + _TOP), float(head + _HEIGHT - _BOTTOM)
    if panel.spans:
        at = np.concatenate([spans.at for spans in panel.spans])
        margin = 0.06 * float(np.ptp(at)) or 0.5
        return Axis(float(at.min()) - margin, float(at.max()) + margin, top, bottom)
    if panel.y_log:
        values = np.concatenate([curve.y[curve.y > 0] for curve in panel.curves]).astype(np.float64)
        low, high = np.log10([values.min(), values.max()]).tolist() if len(values) else (0.0, 1.0)
        margin = 0.04 * (high - low) or 0.3
        return Axis(low - margin, high + margin, bottom, top, log=True)
    most = max([0.0, *(float(np.nanmax(curve.y)) for curve in panel.curves if len(curve.y))])
    high = panel.y_top * 1.02 if panel.y_top else most * 1.06 or 1.0
    return Axis(-0.012 * high if panel.y_low is None else panel.y_low, high, bottom, top)


def _draw_frame(panel: Panel, axes: Axes) -> Iterator[Polyline | Text]:
    x, y = axes
    top, bottom = min(y.start, y.end), max(y.start, y.end)
    if panel.band is not None:
        left, right = x.px(np.array(panel.band)).tolist()
        yield Polyline(_outline_box(left, top, right, bottom), fill="band", part=Part.BAND)
    across, up = x.choose_ticks(), y.choose_ticks(whole=bool(panel.spans) or panel.y_label == "requests")
    x_px, y_px = x.px(across), y.px(up)
    grid = [_make_segments(x_px, top, x_px, bottom), _make_segments(x.start, y_px, x.end, y_px)]
    yield Polyline(np.concatenate(grid), "grid", 0.7, part=Part.GRID)
    yield Polyline(np.array([(x.start, bottom), (x.end, bottom)]), "faint", 0.8, part=Part.BASE)
    for px, value in zip(x_px.tolist(), across.tolist(), strict=True):
        yield Text(px, bottom + 14, format_tick(value), anchor="middle", part=Part.X_TICK)
    for px, value in zip(y_px.tolist(), up.tolist(), strict=True):
        yield Text(_LEFT - 5, px + 4, format_tick(value), anchor="end", part=Part.Y_TICK)
    yield Text(_EDGE, top - 12, f"{panel.y_label} (log)" if y.log else panel.y_label)
    x_label = f"{panel.x_label} (log)" if x.log else panel.x_label
    yield Text(WIDTH - _RIGHT, bottom + 31, x_label, anchor="end", part=Part.X_LABEL)


def format_tick(value: float) -> str:
    """Format a value at an axis: 20k from 10,000, then M and G, else in six digits."""
    for least, divisor, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / divisor:g}{letter}"
    return f"{value:.6g}"


def _choose_style(index: int) -> tuple[str, tuple[float, ...]]:
    """Return the colour's role and the dash, in pixels, of the curve of an index; they repeat after eight."""
    return SERIES[index % len(SERIES)], tuple(_LINE * part for part in DASHES[index % len(DASHES)])


def _draw_curve(curve: Curve, index: int, axes: Axes) -> Iterator[Polyline]:
    place = index if curve.of is None else curve.of
    colour, dash = _choose_style(place)
    if curve.form is CurveStyle.POINTS:
        size = MARK_SIZE if curve.labels else _DOT
        yield Polyline(axes.place(curve.x, curve.y), colour, size, dots=True, part=Part.CURVE)
        return
    line = curve.list_corners() if curve.form is not CurveStyle.MARKS else (curve.x[:0], curve.y[:0])
    yield Polyline(axes.place(*line), colour, _LINE, dash, part=Part.CURVE)
    corners, turn, inner = MARKERS[place % len(MARKERS)]
    angles = math.radians(turn) + np.arange(corners + 1) * 2 * math.pi / corners
    radii = np.where(np.arange(corners + 1) % 2, inner, 1.0) * 0.6 * MARK_SIZE
    marker = np.stack([np.cos(angles) * radii, np.sin(angles) * radii], axis=1)
    for point, hollow in zip(axes.place_marks(curve), curve.hollow or repeat(False), strict=False):
        fill = "paper" if hollow else colour
        yield Polyline(point + marker, colour, 1.0, fill=fill, part=Part.MARKER)


def _draw_bars(bars: Sequence[Bar], top: float) -> Iterator[Polyline | Text]:
    """Yield bars from the top down, on one scale, each with its name and figure above it.

    Its interval and its best value are drawn where they are known.
    """
    values = [value for bar in bars for value in (bar.value, bar.high, bar.best) if value == value]
    scale = _BARS_WIDTH / (max([*values, 1e-12]) * 1.02)
    for row, bar in enumerate(bars):
        upper, lower, name_y = (top + _BAR * (row + share) for share in (0.45, 0.79, 0.29))
        middle = (upper + lower) / 2
        room = _BARS_WIDTH - measure_text(bar.text) - _RIGHT
        yield Text(_EDGE, name_y, fit_name(bar.name, room), "text")
        yield Text(WIDTH - _RIGHT, name_y, bar.text, anchor="end")
        yield Polyline(_outline_box(_EDGE, upper, WIDTH - _RIGHT, lower), fill="grid")
        colour = SERIES[0] if row == 0 or not bars[0].name else SERIES[5]
        yield Polyline(_outline_box(_EDGE, upper, _EDGE + bar.value * scale, lower), fill=colour)
        if bar.low == bar.low and bar.high == bar.high:
            ends = np.array([(_EDGE + max(end, 0.0) * scale, middle) for end in (bar.low, bar.high)])
            yield Polyline(ends, "paper", 4.0)  # the line is seen on the bar and next to it
            yield Polyline(ends, "text", 1.4)
        if bar.best == bar.best:
            best = _EDGE + bar.best * scale
            yield Polyline(np.array([(best, upper - 3), (best, lower + 3)]), "failed", _LINE, (3.2, 1.6))


def _arrange_legend(panel: Panel) -> list[list[tuple[str, Polyline]]]:
    """Return the legend's rows of (name, line sample), two in a row if all names are short.

    [] if there is one curve without spans, unless it has a name and the panel a `y_top`.
    """
    sample = np.array([(0.0, 0.0), (22.0, 0.0)])
    entries = [(spans.name, Polyline(sample, spans.tone, 5.0)) for spans in panel.spans]
    own = [curve for curve in panel.curves if curve.of is None]
    if len(own) > 1 or (own and own[0].name and panel.y_top):
        for index, curve in enumerate(panel.curves):
            colour, dash = _choose_style(index)
            if curve.of is not None:
                continue
            if curve.form in (CurveStyle.POINTS, CurveStyle.MARKS):
                entries.append((curve.name, Polyline(np.array([(11.0, 0.0)]), colour, MARK_SIZE, dots=True)))
            else:
                entries.append((curve.name, Polyline(sample, colour, _LINE, dash)))
    entries = [entry for entry in entries if entry[0]]
    in_a_row = 2 if all(measure_text(name) <= _HALF for name, _ in entries) else 1
    return [entries[start : start + in_a_row] for start in range(0, len(entries), in_a_row)]


def _outline_box(left: float, top: float, right: float, bottom: float) -> Floats:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)])


def _make_segments(x0: Floats | float, y0: Floats | float, x1: Floats | float, y1: Floats | float) -> Floats:
    ends = np.broadcast_arrays(x0, y0, x1, y1, np.nan, np.nan)
    return np.stack(ends, axis=1).reshape(-1, 2).astype(np.float64)


def measure_text(text: str, size: float = _TEXT) -> float:
    """Estimate the width of a text in pixels by its letters, rather too wide than too narrow."""
    return size * sum(_WIDTHS.get(letter, _OTHER_WIDTH) for letter in text)


def fit_name(name: str, most: float) -> str:
    """Return a name that takes at most `most` pixels, with as much of its middle left out as needed."""
    letters = len(name)
    while letters > 1 and measure_text(cut_middle(name, letters)) > most:
        letters -= 1
    return cut_middle(name, letters)


Box = tuple[float, float, float, float]  # a rectangle that is taken: left, top, right, bottom


def place_label(
    text: str, point: tuple[float, float], downs: Sequence[float], ends: tuple[float, float], taken: list[Box]
) -> Text:
    """Return a label right or left of a point, at the first of `downs` where it meets no box of `taken`.

    It lies within `ends`, those of the x axis, on the left first near the right end; its box is added to
    `taken`. Without room its text is "".
    """
    sides = [(_NEAR, "start"), (-_NEAR, "end")]
    if point[0] > ends[0] + 0.85 * (ends[1] - ends[0]):
        sides.reverse()
    long = measure_text(text)
    for down, (aside, anchor) in product(downs, sides):
        x, y = point[0] + aside, point[1] + down
        left = x if anchor == "start" else x - long
        top, right, bottom = y - _RISE * _TEXT, left + long, y + _FALL * _TEXT
        inside = ends[0] <= left and right <= ends[1] + _NEAR
        if inside and not any(left < r and a < right and top < b and t < bottom for a, t, r, b in taken):
            taken.append((left, top, right, bottom))
            return Text(x, y, text, anchor=anchor, part=Part.LABEL)
    return Text(point[0] + sides[0][0], point[1] + downs[0], "", anchor=sides[0][1], part=Part.LABEL)

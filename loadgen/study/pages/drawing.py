"""Drawing: a panel as outlines and texts on a canvas in CSS pixels, for SVG and PNG alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import repeat

import msgspec
import numpy as np

from loadgen.study.pages.lettering import Box, fitted, placed, width
from loadgen.study.pages.palette import DASHES, MARKERS, SERIES
from loadgen.study.pages.panel import Bar, Curve, CurveStyle, Floats, Panel, Spans

WIDTH = 340  # so wide that a telephone shows the letters readable
_HEIGHT, _BAR, _LEGEND, _TITLE = 226, 38, 17, 24
_EDGE, _LEFT, _RIGHT, _TOP, _BOTTOM = 8, 44, 10, 26, 40
_LINE, _DOT, _MARK = 1.6, 3.4, 5.5
DOTS_OPACITY = 0.75
_TEXT = 11.0  # letters: no smaller on a telephone 390 px wide
_SAMPLE = 27  # what stands before a name in a legend
_FULL, _HALF = WIDTH - _EDGE - _RIGHT - _SAMPLE, (WIDTH - 2 * _EDGE) // 2 - _SAMPLE - 4  # a name's room there
# Where a label stands, from its point downwards: below the marks of a distribution, else where there is room.
_DOWNS, _DOWN = (-4.0, 11.0, -15.0, 22.0, -26.0, 33.0), (12.0,)
_MOST_TICKS = 6
_BARS_WIDTH = WIDTH - _EDGE - _RIGHT


class Part(StrEnum):
    """What a shape is, for what redraws it: charts.js, which knows these letters."""

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
    """Lines through points (n, 2), lifted at NaN, or a dot of `width` at each; colours are an ink's roles."""

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
    """A picture: its shapes, later ones on top; `axes` are x and y, None of bars, which have none."""

    height: float
    shapes: tuple[Polyline | Text, ...]
    width: float = WIDTH
    axes: tuple[Axis, Axis] | None = None


class Axis(msgspec.Struct, frozen=True):
    """Values from `low` to `high` (of a logarithmic axis their logarithms) over pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def px(self, values: Floats) -> Floats:
        """Where values are drawn, those outside at the axis' ends."""
        with np.errstate(divide="ignore"):
            scaled = np.log10(values) if self.log else values
        share = np.clip((scaled - self.low) / (self.high - self.low), 0.0, 1.0)
        at: Floats = self.start + share * (self.end - self.start)
        return at

    def ticks(self, whole: bool = False) -> Floats:
        """Round values on the axis."""
        if self.log:
            return log_ticks(10.0**self.low, 10.0**self.high)
        return linear_ticks(self.low, self.high, _MOST_TICKS, whole)


def draw(panel: Panel, titled: bool = False) -> Drawing:
    """The panel's picture; `titled` writes its title above."""
    head = _TITLE * titled
    title = [Text(_EDGE, 17, panel.title, "text", 12, bold=True)] * titled
    if panel.bars:
        height = head + 6 + _BAR * len(panel.bars) + 10
        return Drawing(height, (*title, *_bars(panel.bars, head + 6)))
    x, y = _x_axis(panel), _y_axis(panel, head)
    legend = _legend_rows(panel)
    shapes = [*title, *_frame(panel, x, y)]
    for index, curve in enumerate(panel.curves):
        shapes += _curve(curve, index, x, y)
    shapes += [_spans(spans, x, y) for spans in panel.spans]
    taken = [Box.around(point, _MARK / 2) for curve in panel.curves for point in _marks(curve, x, y)]
    for curve in panel.curves:
        shapes += _labels(curve, x, y, taken)
    shapes += _legend(legend, head + _HEIGHT)
    return Drawing(head + _HEIGHT + _LEGEND * len(legend), tuple(shapes), axes=(x, y))


def linear_ticks(low: float, high: float, most: int, whole: bool = False) -> Floats:
    """Round values between two, `most` and one more at most; whole numbers if asked for."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    steps = (part * power for part in (1.0, 2.0, 2.5, 5.0, 10.0))
    step = next(step for step in steps if step > least * 0.999 and not (whole and step % 1))
    return np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step


def log_ticks(low: float, high: float) -> Floats:
    """Round values between two on a logarithmic axis, fewer a decade the more decades; else both ends."""
    decades = math.log10(high / low)
    parts = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.8 else (1.0, 2.0, 5.0)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = np.array([part * 10.0**power for power in powers for part in parts])
    inside = ticks[(ticks >= low * 0.999) & (ticks <= high * 1.001)]
    return inside if len(inside) else np.array([low, high])


def _x_axis(panel: Panel) -> Axis:
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


def _y_axis(panel: Panel, head: float) -> Axis:
    """Downwards for a timeline, else from zero up."""
    top, bottom = float(head + _TOP), float(head + _HEIGHT - _BOTTOM)
    if panel.spans:
        at = np.concatenate([spans.at for spans in panel.spans])
        margin = 0.06 * float(np.ptp(at)) or 0.5
        return Axis(float(at.min()) - margin, float(at.max()) + margin, top, bottom)
    most = max([0.0, *(float(np.nanmax(curve.y)) for curve in panel.curves if len(curve.y))])
    high = panel.y_top * 1.02 if panel.y_top else most * 1.06 or 1.0
    return Axis(-0.012 * high, high, bottom, top)


def _frame(panel: Panel, x: Axis, y: Axis) -> Iterator[Polyline | Text]:
    """What is behind the curves: the band, the grid, and what the axes show."""
    top, bottom = min(y.start, y.end), max(y.start, y.end)
    if panel.band is not None:
        left, right = x.px(np.array(panel.band)).tolist()
        yield Polyline(_box(left, top, right, bottom), fill="band", part=Part.BAND)
    across, up = x.ticks(), y.ticks(whole=bool(panel.spans) or panel.y_label == "requests")
    x_px, y_px = x.px(across), y.px(up)
    grid = [_segments(x_px, top, x_px, bottom), _segments(x.start, y_px, x.end, y_px)]
    yield Polyline(np.concatenate(grid), "grid", 0.7, part=Part.GRID)
    yield Polyline(np.array([(x.start, bottom), (x.end, bottom)]), "faint", 0.8, part=Part.BASE)
    for px, value in zip(x_px.tolist(), across.tolist(), strict=True):
        yield Text(px, bottom + 14, tick(value), anchor="middle", part=Part.X_TICK)
    for px, value in zip(y_px.tolist(), up.tolist(), strict=True):
        yield Text(_LEFT - 5, px + 4, tick(value), anchor="end", part=Part.Y_TICK)
    yield Text(_EDGE, top - 12, panel.y_label)
    x_label = f"{panel.x_label} (log)" if x.log else panel.x_label
    yield Text(WIDTH - _RIGHT, bottom + 31, x_label, anchor="end", part=Part.X_LABEL)


def tick(value: float) -> str:
    """A value at an axis, as 20k."""
    for least, divisor, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / divisor:g}{letter}"
    return f"{value:.6g}"


def _style(index: int) -> tuple[str, tuple[float, ...]]:
    """Colour and dash of the curve of an index."""
    return SERIES[index % len(SERIES)], tuple(_LINE * part for part in DASHES[index % len(DASHES)])


def _curve(curve: Curve, index: int, x: Axis, y: Axis) -> Iterator[Polyline]:
    place = index if curve.of is None else curve.of
    colour, dash = _style(place)
    if curve.form is CurveStyle.POINTS:
        size = _MARK if curve.labels else _DOT
        yield Polyline(_at(curve.x, curve.y, x, y), colour, size, dots=True, part=Part.CURVE)
        return
    line = curve.corners() if curve.form is not CurveStyle.MARKS else (curve.x[:0], curve.y[:0])
    yield Polyline(_at(*line, x, y), colour, _LINE, dash, part=Part.CURVE)
    for point, empty in zip(_marks(curve, x, y), curve.hollow or repeat(False), strict=False):
        yield _marker(point, place, "paper" if empty else colour)


def _marks(curve: Curve, x: Axis, y: Axis) -> Floats:
    """Where a curve's marks are, (n, 2); none of curves without."""
    marked = curve.form in (CurveStyle.JOINED, CurveStyle.MARKS)
    return _at(curve.x, curve.y, x, y) if marked else np.empty((0, 2))


def _marker(point: Floats, index: int, fill: str) -> Polyline:
    """A point of a curve: a polygon or a star, by index."""
    corners, turn, inner = MARKERS[index % len(MARKERS)]
    angles = math.radians(turn) + np.arange(corners + 1) * 2 * math.pi / corners
    radii = np.where(np.arange(corners + 1) % 2, inner, 1.0) * 0.6 * _MARK
    outline = point + np.stack([np.cos(angles) * radii, np.sin(angles) * radii], axis=1)
    return Polyline(outline, _style(index)[0], 1.0, fill=fill, part=Part.MARKER)


def _labels(curve: Curve, x: Axis, y: Axis, taken: list[Box]) -> Iterator[Text]:
    """What stands next to points, on their right while there is room; "" where there is none."""
    downs = _DOWN if curve.form is CurveStyle.POINTS else _DOWNS
    for point, text in zip(_at(curve.x, curve.y, x, y).tolist(), curve.labels, strict=False):
        label = placed(text, (point[0], point[1]), downs, _TEXT, (x.start, x.end), taken)
        yield Text(label.x, label.y, label.text, size=_TEXT, anchor=label.anchor, part=Part.LABEL)


def _spans(spans: Spans, x: Axis, y: Axis) -> Polyline:
    """All stretches of one kind as one outline: a page holds hundreds of them."""
    at = y.px(spans.at)
    width = float(np.clip(abs(y.end - y.start) / max(float(spans.at.max()), 1.0) * 0.62, 0.5, 9.0))
    lines = _segments(x.px(spans.begin), at, x.px(spans.end), at)
    return Polyline(lines, spans.tone.value, width, part=Part.SPANS)


def _bars(bars: Sequence[Bar], top: float) -> Iterator[Polyline | Text]:
    """Bars from the top down, the name above each and its figure at its end."""
    values = [value for bar in bars for value in (bar.value, bar.high, bar.best) if value == value]
    scale = _BARS_WIDTH / (max([*values, 1e-12]) * 1.02)
    for row, bar in enumerate(bars):
        upper, lower, name_y = (top + _BAR * (row + share) for share in (0.45, 0.79, 0.29))
        middle = (upper + lower) / 2
        room = _BARS_WIDTH - width(bar.text, _TEXT) - _RIGHT
        yield Text(_EDGE, name_y, fitted(bar.name, room, _TEXT), "text")
        yield Text(WIDTH - _RIGHT, name_y, bar.text, anchor="end")
        yield Polyline(_box(_EDGE, upper, WIDTH - _RIGHT, lower), fill="grid")
        colour = SERIES[0] if row == 0 or not bars[0].name else SERIES[5]
        yield Polyline(_box(_EDGE, upper, _EDGE + bar.value * scale, lower), fill=colour)
        if bar.low == bar.low and bar.high == bar.high:
            ends = np.array([(_EDGE + max(end, 0.0) * scale, middle) for end in (bar.low, bar.high)])
            yield Polyline(ends, "paper", 4.0)  # the line is seen on the bar and next to it
            yield Polyline(ends, "text", 1.4)
        if bar.best == bar.best:
            best = _EDGE + bar.best * scale
            yield Polyline(np.array([(best, upper - 3), (best, lower + 3)]), "failed", _LINE, (3.2, 1.6))


def _legend_rows(panel: Panel) -> list[list[tuple[str, Polyline]]]:
    """Names with samples, two in a row where they are short; nothing where there is one curve."""
    sample = np.array([(0.0, 0.0), (22.0, 0.0)])
    entries = [(spans.name, Polyline(sample, spans.tone.value, 5.0)) for spans in panel.spans]
    own = [curve for curve in panel.curves if curve.of is None]
    if len(own) > 1 or (own and own[0].name and panel.y_top):
        for index, curve in enumerate(panel.curves):
            colour, dash = _style(index)
            if curve.of is not None:
                continue
            if curve.form in (CurveStyle.POINTS, CurveStyle.MARKS):
                entries.append((curve.name, Polyline(np.array([(11.0, 0.0)]), colour, _MARK, dots=True)))
            else:
                entries.append((curve.name, Polyline(sample, colour, _LINE, dash)))
    entries = [entry for entry in entries if entry[0]]
    in_a_row = 2 if all(width(name, _TEXT) <= _HALF for name, _ in entries) else 1
    return [entries[start : start + in_a_row] for start in range(0, len(entries), in_a_row)]


def _legend(rows: Sequence[Sequence[tuple[str, Polyline]]], top: float) -> Iterator[Polyline | Text]:
    for number, row in enumerate(rows):
        for place, (name, sample) in enumerate(row):
            left, baseline = _EDGE + place * (WIDTH - 2 * _EDGE) / 2, top + _LEGEND * number + 9
            yield msgspec.structs.replace(sample, points=sample.points + np.array([left, baseline - 3.5]))
            yield Text(left + _SAMPLE, baseline, fitted(name, _FULL, _TEXT), "text")


def _at(x_values: Floats, y_values: Floats, x: Axis, y: Axis) -> Floats:
    return np.stack([x.px(x_values), y.px(y_values)], axis=1)


def _box(left: float, top: float, right: float, bottom: float) -> Floats:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)])


def _segments(x0: Floats | float, y0: Floats | float, x1: Floats | float, y1: Floats | float) -> Floats:
    """Each from (x0, y0) to (x1, y1), the pen lifted between them."""
    ends = np.broadcast_arrays(x0, y0, x1, y1, np.nan, np.nan)
    return np.stack(ends, axis=1).reshape(-1, 2).astype(np.float64)

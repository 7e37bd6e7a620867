"""Picture files: a drawing as SVG, inside a page or a file by itself, and as PNG by matplotlib."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from loadgen.study.pages.drawing import DOTS_OPACITY, LIGHT, Axis, Drawing, Part, Polyline, Text, draw_panel
from loadgen.study.pages.page_parts import Floats, Panel

# On a page the style sheet has what is the same in every tick.
_TICKS, _BY_STYLE = (Part.X_TICK, Part.Y_TICK, Part.X_LABEL), ("font-size", "text-anchor", "fill")
_DIGITS = 5  # more than a screen can show of any axis
_DOTS_PER_INCH = 144  # of 72 CSS pixels
_METADATA = {"Software": None}
_SETTINGS: Any = {"text.parse_math": False, "text.usetex": False, "font.family": ["DejaVu Sans"]}
_ALIGNED = {"start": "left", "middle": "center", "end": "right"}


def render_inline_svg(panel: Panel, identity: str) -> str:
    """Return a panel as an `<svg>` element in the page's colours, its numbers in the attribute `data-chart`.

    Ids inside begin with `identity`. A panel of bars has no such numbers.
    """
    drawing = draw_panel(panel)
    attributes = {"class": "plot"}
    if drawing.axes is not None:
        attributes["data-chart"] = encode_chart_data(panel, drawing.axes)
    return _render_element(drawing, panel, identity, lambda role: f"var(--{role})", attributes)


def render_svg(drawing: Drawing, panel: Panel) -> str:
    """Return a drawing as the text of an SVG file, with a panel's title for readers who cannot see it."""
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "width": f"{drawing.width:g}",
                  "height": f"{drawing.height:g}", "font-family": "DejaVu Sans, sans-serif",
                  "stroke-linejoin": "round", "style": f"background:{LIGHT['paper']}"}  # fmt: skip
    return _render_element(drawing, panel, panel.key, LIGHT.__getitem__, attributes) + "\n"


def _render_element(
    drawing: Drawing, panel: Panel, identity: str, colour: Callable[[str], str], attributes: dict[str, str]
) -> str:
    """Return a drawing as an `<svg>` element with these attributes, whose colours `colour` gives by role.

    With `data-chart` among them each shape is marked with its part.
    """
    view, title_id = f"0 0 {drawing.width:g} {drawing.height:g}", f"{identity}-title"
    root = Element("svg", {**attributes, "viewBox": view, "role": "img", "aria-labelledby": title_id})
    SubElement(root, "title", {"id": title_id}).text = f"{panel.title}: {panel.caption}"
    for shape in drawing.shapes:
        if isinstance(shape, Text):
            element = SubElement(root, "text", {
                "x": f"{shape.x:.4g}", "y": f"{shape.y:.4g}", "font-size": f"{shape.size:g}",
                "text-anchor": shape.anchor, "fill": colour(shape.colour),
            })  # fmt: skip
            element.attrib |= {"font-weight": "bold"} if shape.bold else {}
            element.text = shape.text
        else:
            element = SubElement(root, "path", _describe_path(shape, colour))
        if shape.part is not None and "data-chart" in attributes:
            element.set("data-part", shape.part)
            for attribute in _BY_STYLE if shape.part in _TICKS else ():
                del element.attrib[attribute]
    return tostring(root, encoding="unicode")


def _describe_path(outline: Polyline, colour: Callable[[str], str]) -> dict[str, str]:
    attributes = {"d": _render_steps(outline), "fill": colour(outline.fill) if outline.fill else "none"}
    if outline.stroke:
        attributes |= {"stroke": colour(outline.stroke), "stroke-width": f"{outline.width:g}"}
    if outline.dash:
        attributes["stroke-dasharray"] = " ".join(f"{part:.3g}" for part in outline.dash)
    if outline.dots:
        attributes |= {"stroke-linecap": "round", "stroke-opacity": f"{DOTS_OPACITY}"}
    return attributes


def _render_steps(outline: Polyline) -> str:
    """Return the path's `d` through the points, in tenths of a pixel relative to the point before.

    The pen is lifted at NaN; dots are lines of no length.
    """
    steps, at, pen = [], (0, 0), False
    for x, y in np.round(outline.points * 10).tolist():
        if x != x or y != y:
            pen = False
            continue
        point = (int(x), int(y))
        dx, dy = point[0] - at[0], point[1] - at[1]
        if outline.dots:
            steps.append(f"m{_format_tenths(dx, dy)}h0")
        elif not pen:
            steps.append(f"m{_format_tenths(dx, dy)}")
        else:
            step = f"h{_format_tenths(dx)}" if not dy else f"v{_format_tenths(dy)}"
            steps.append(step if not dx or not dy else f"l{_format_tenths(dx, dy)}")
        at, pen = point, True
    return "".join(steps)


def _format_tenths(*values: int) -> str:
    """Return numbers of tenths as a path's text, as short as it allows: 3 is .3, no space before a minus."""
    written = [f"{value / 10:g}" for value in values]
    written = [
        text.replace("0.", ".") if abs(value) < 10 else text
        for text, value in zip(written, values, strict=True)
    ]
    return "".join(text if not at or text[0] == "-" else f" {text}" for at, text in enumerate(written))


def encode_chart_data(panel: Panel, axes: Sequence[Axis]) -> str:
    """Return a panel's numbers as JSON, each axis as [low, high, first pixel, last pixel, log or not].

    Curves are [name, form, x, y, labels], spans are [name, begin, end, at]; null where there is no value.
    """
    chart: dict[str, object] = {
        "axes": [
            [*round_values([axis.low, axis.high, axis.start, axis.end]), int(axis.log)] for axis in axes
        ],
        "units": [panel.x_label, panel.y_label],
        "curves": [
            [curve.name, curve.form.value, round_values(curve.x), round_values(curve.y), list(curve.labels)]
            for curve in panel.curves
        ],
    }
    if panel.spans:
        chart["spans"] = [
            [spans.name, round_values(spans.begin), round_values(spans.end), round_values(spans.at)]
            for spans in panel.spans
        ]
    if panel.band is not None:
        chart["band"] = round_values(panel.band)
    if panel.y_top is not None:
        chart["top"] = panel.y_top  # the y axis stays as it is
    return json.dumps(chart, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def round_values(values: Floats | Sequence[float]) -> list[float | int | None]:
    """Return values rounded to five digits, whole ones as int; None for NaN."""
    short = (None if value != value else float(f"{value:.{_DIGITS}g}") for value in map(float, values))
    return [int(value) if value is not None and value.is_integer() else value for value in short]


def render_png(drawing: Drawing) -> bytes:
    """Return a drawing as a PNG file, on white, at 144 dpi; raises ModuleNotFoundError without matplotlib."""
    import matplotlib as mpl  # which takes half a second, and is of an extra
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # they are drawn as boxes
        figure = Figure(figsize=(drawing.width / 72, drawing.height / 72), dpi=72, facecolor=LIGHT["paper"])
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        for shape in drawing.shapes:
            if isinstance(shape, Text):
                axes.text(
                    shape.x, shape.y, shape.text, color=LIGHT[shape.colour], size=shape.size,
                    ha=_ALIGNED[shape.anchor], va="baseline", weight="bold" if shape.bold else "normal",
                )  # fmt: skip
                continue
            x, y = shape.points.T
            if shape.fill:
                axes.fill(x, y, color=LIGHT[shape.fill], linewidth=0)
            if shape.dots:
                axes.plot(x, y, color=LIGHT[shape.stroke], linestyle="none", marker="o", alpha=DOTS_OPACITY,
                          markersize=shape.width, markeredgewidth=0)  # fmt: skip
            elif shape.stroke:
                dashes: Any = {"dashes": tuple(np.array(shape.dash) / shape.width)} if shape.dash else {}
                axes.plot(x, y, color=LIGHT[shape.stroke], linewidth=shape.width, solid_capstyle="butt",
                          dash_capstyle="butt", solid_joinstyle="round", **dashes)  # fmt: skip
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=_DOTS_PER_INCH, metadata=_METADATA)
    return png.getvalue()

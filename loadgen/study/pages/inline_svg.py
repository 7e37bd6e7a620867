"""Vector: a drawing as SVG: inside a page in the page's colours, or a file by itself."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from loadgen.study.pages import chart_data
from loadgen.study.pages.drawing import DOTS_OPACITY, Drawing, Part, Polyline, Text, draw
from loadgen.study.pages.palette import LIGHT
from loadgen.study.pages.panel import Panel

# On a page the style sheet has what is the same in every tick.
_TICKS, _BY_STYLE = (Part.X_TICK, Part.Y_TICK, Part.X_LABEL), ("font-size", "text-anchor", "fill")


def inline(panel: Panel, identity: str) -> str:
    """The panel as an `<svg>` element: colours are the page's variables, its id begins with `identity`."""
    drawing = draw(panel)
    attributes = {"class": "plot"}
    if drawing.axes is not None:
        attributes["data-chart"] = chart_data.dumped(panel, drawing.axes)
    return _svg(drawing, panel, identity, lambda role: f"var(--{role})", attributes)


def standalone(panel: Panel) -> str:
    """The panel as the text of an SVG file, on white and with its title."""
    return standalone_drawing(draw(panel, titled=True), panel)


def standalone_drawing(drawing: Drawing, panel: Panel) -> str:
    """A drawing as the text of an SVG file, with the title of a panel in it for readers who cannot see it."""
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "width": f"{drawing.width:g}",
                  "height": f"{drawing.height:g}", "font-family": "DejaVu Sans, sans-serif",
                  "stroke-linejoin": "round", "style": f"background:{LIGHT['paper']}"}  # fmt: skip
    return _svg(drawing, panel, panel.key, LIGHT.__getitem__, attributes) + "\n"


def _svg(
    drawing: Drawing, panel: Panel, identity: str, colour: Callable[[str], str], attributes: dict[str, str]
) -> str:
    view, title_id = f"0 0 {drawing.width:g} {drawing.height:g}", f"{identity}-title"
    root = Element("svg", {**attributes, "viewBox": view, "role": "img", "aria-labelledby": title_id})
    SubElement(root, "title", {"id": title_id}).text = f"{panel.title}: {panel.caption}"
    for shape in drawing.shapes:
        if isinstance(shape, Text):
            element = SubElement(root, "text", _text(shape, colour))
            element.text = shape.text
        else:
            element = SubElement(root, "path", _path(shape, colour))
        if shape.part is not None and "data-chart" in attributes:
            element.set("data-part", shape.part)
            for attribute in _BY_STYLE if shape.part in _TICKS else ():
                del element.attrib[attribute]
    return tostring(root, encoding="unicode")


def _text(text: Text, colour: Callable[[str], str]) -> dict[str, str]:
    attributes = {"x": f"{text.x:.4g}", "y": f"{text.y:.4g}", "font-size": f"{text.size:g}",
                  "text-anchor": text.anchor, "fill": colour(text.colour)}  # fmt: skip
    return attributes | ({"font-weight": "bold"} if text.bold else {})


def _path(outline: Polyline, colour: Callable[[str], str]) -> dict[str, str]:
    attributes = {"d": _steps(outline), "fill": colour(outline.fill) if outline.fill else "none"}
    if outline.stroke:
        attributes |= {"stroke": colour(outline.stroke), "stroke-width": f"{outline.width:g}"}
    if outline.dash:
        attributes["stroke-dasharray"] = " ".join(f"{part:.3g}" for part in outline.dash)
    if outline.dots:
        attributes |= {"stroke-linecap": "round", "stroke-opacity": f"{DOTS_OPACITY}"}
    return attributes


def _steps(outline: Polyline) -> str:
    """The path through the points, in tenths of a pixel, each from the one before."""
    steps, at, pen = [], (0, 0), False
    for x, y in np.round(outline.points * 10).tolist():
        if x != x or y != y:
            pen = False
            continue
        point = (int(x), int(y))
        dx, dy = point[0] - at[0], point[1] - at[1]
        if outline.dots:
            steps.append(f"m{_tenths(dx, dy)}h0")
        elif not pen:
            steps.append(f"m{_tenths(dx, dy)}")
        else:
            step = f"h{_tenths(dx)}" if not dy else f"v{_tenths(dy)}"
            steps.append(step if not dx or not dy else f"l{_tenths(dx, dy)}")
        at, pen = point, True
    return "".join(steps)


def _tenths(*values: int) -> str:
    """Numbers of tenths as short as a path allows: 3 is .3, and a minus parts two numbers."""
    written = [f"{value / 10:g}" for value in values]
    written = [
        text.replace("0.", ".") if abs(value) < 10 else text
        for text, value in zip(written, values, strict=True)
    ]
    return "".join(text if not at or text[0] == "-" else f" {text}" for at, text in enumerate(written))

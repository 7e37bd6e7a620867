"""Vector: a drawing as SVG: inside a page in the page's colours, or a file by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from loadgen.analysis.report.drawing import DOTS_OPACITY, Drawing, Polyline, Text, draw
from loadgen.analysis.report.palette import LIGHT
from loadgen.analysis.report.panel import Panel


def inline(panel: Panel, identity: str) -> str:
    """The panel as an `<svg>` element: colours are the page's variables, its id begins with `identity`."""
    return _svg(draw(panel), panel, identity, lambda role: f"var(--{role})", {"class": "plot"})


def standalone(panel: Panel) -> str:
    """The panel as the text of an SVG file, on white and with its title."""
    drawing = draw(panel, titled=True)
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
            SubElement(root, "text", _text(shape, colour)).text = shape.text
        else:
            SubElement(root, "path", _path(shape, colour))
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
    """The path through the points, in tenths of a pixel."""
    steps, x0, y0 = [], math.nan, math.nan
    for x, y in np.round(outline.points, 1).tolist():
        if outline.dots:
            steps.append(f"M{x:g} {y:g}h0")
        elif x == x:
            move = "M" if x0 != x0 else "L"
            steps.append(f"H{x:g}" if y == y0 else f"V{y:g}" if x == x0 else f"{move}{x:g} {y:g}")
        x0, y0 = x, y
    return "".join(steps)

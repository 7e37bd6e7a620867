"""Vector: a panel as SVG inside a page: small, in the page's colours, reaching nothing outside itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from xml.etree import ElementTree

from loadgen.analysis.report import plots
from loadgen.analysis.report.palette import PLACES
from loadgen.analysis.report.panel import Panel

_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_STEP = re.compile(r"([ML]) (\S+) (\S+) ?")
_VARIABLES = {colour: f"var({name})" for name, colour in PLACES.named().items()}
_COLOUR = re.compile(r"#f[01][0-9a-f]{2}5e")
_GEOMETRY = ("d", "x", "y", "width", "height", "transform", "viewBox")
# What most elements have in common; the page's style sheet says the same.
CLASSES = {
    "fill: none; stroke: var(--grid); stroke-width: 0.7": "grid",
    "font-size: 10.5px; text-anchor: middle; fill: var(--faint)": "tick",
    "font-size: 10.5px; text-anchor: end; fill: var(--faint)": "tick end",
}


def inline(panel: Panel, identity: str) -> str:
    """The panel as an `<svg>` element: colours are the page's variables, ids begin with `identity`."""
    with plots.drawn(panel, PLACES, titled=False) as figure:
        written = BytesIO()
        figure.savefig(written, format="svg", metadata=plots.METADATA, transparent=True)
    root = ElementTree.fromstring(written.getvalue())  # nosec B314 # just written by matplotlib
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    named = {name: f"{identity}-{number}" for number, name in enumerate(sorted(used), 1)}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        kept = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update(_attributes(kept, named))
    _tidy(root)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update({"class": "plot", "role": "img", "aria-labelledby": f"{identity}-title"})
    title = ElementTree.Element("title", {"id": f"{identity}-title"})
    title.text = f"{panel.title}: {panel.caption}"
    root.insert(0, title)
    return ElementTree.tostring(root, encoding="unicode")


def _tidy(element: ElementTree.Element) -> None:
    """Leave out what draws nothing, groups that say nothing, and the blanks between elements."""
    kept: list[ElementTree.Element] = []
    for child in element:
        _tidy(child)
        child.tail = None
        if child.tag == "g" and not child.attrib:
            kept += child
        elif not (child.tag in ("metadata", "style") or _is_nothing(child)):
            kept.append(child)
    element[:] = kept
    if element.tag not in ("text", "title", "tspan"):
        element.text = None


def _is_nothing(element: ElementTree.Element) -> bool:
    if element.tag == "path":
        return element.get("style") == "fill: none" or not element.get("d")
    return element.tag in ("g", "defs") and not len(element)


def _attributes(given: dict[str, str], named: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in given.items():
        if name == "id":
            if value in named:
                yield name, named[value]
            continue
        if name in _GEOMETRY:
            value = _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), value)
            value = re.sub(r"\s*rotate\(-?0 [^)]*\)", "", value)
        value = re.sub(r"url\(#([^)]+)\)", lambda found: f"url(#{named[found[1]]})", value)
        if name == "href" and value.startswith("#"):
            value = f"#{named[value[1:]]}"
        if name == "style":
            value = _COLOUR.sub(lambda found: _VARIABLES[found[0]], value)
            value = re.sub(r"font-family: *[^;]*;?|stroke-linecap: square", "", value).rstrip("; ")
        value = " ".join(value.split())
        if name == "style" and value in CLASSES:
            yield "class", CLASSES[value]
        elif value:
            yield name, _shortened(value) if name == "d" else value


def _shortened(outline: str) -> str:
    """A path of M and L with what stays the same left out; any other as it is."""
    if _STEP.sub("", outline).strip():
        return outline
    said, last = [], ("", "")
    for letter, x, y in _STEP.findall(outline):
        if letter == "M":
            said.append(f"M{x} {y}")
        elif y == last[1]:
            said.append(f"H{x}")
        elif x == last[0]:
            said.append(f"V{y}")
        else:
            said.append(f"L{x} {y}")
        last = (x, y)
    return "".join(said)

"""HTML: the report as one HTML file that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

import jinja2
from markupsafe import Markup

from loadgen import __version__
from loadgen.study.pages import picture_files
from loadgen.study.pages.comparison_section import LEVELS, SYMBOLS
from loadgen.study.pages.document import Document
from loadgen.study.pages.drawing import DARK, LIGHT
from loadgen.study.pages.page_parts import Panel

_HERE = Path(__file__).parent
_SCRIPTS = ("page.js", "charts.js")
_OTHER_COLOURS = {  # added to those of the pictures: raised ground, links, and what is good, doubtful, bad
    "light": "--raised:#f6f8fa;--link:#005a9e;--good:#00694d;--warn:#9a4a00;--bad:#b3093c;",
    "dark": "--raised:#1b2027;--link:#79bdf5;--good:#4ed3a8;--warn:#ffab70;--bad:#ff7c9f;",
}


def render_page(document: Document) -> str:
    """Render the document as one HTML page with its styles and scripts; equal documents give equal bytes."""
    loader, undefined = jinja2.FileSystemLoader(_HERE), jinja2.StrictUndefined
    places = jinja2.Environment(loader=loader, autoescape=True, undefined=undefined)
    places.filters.update(drawn=_render_picture, exact=repr)
    whole = "".join((_HERE / name).read_text("utf-8") for name in _SCRIPTS)
    lines = (line.strip() for line in whole.splitlines())
    script = "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))
    accounts = document.accounts
    title = accounts[0].headline if len(accounts) == 1 else document.title
    if document.simulated:
        title += (
            " (SIMULATED)" if all(each.reported.simulated for each in accounts) else " (partly SIMULATED)"
        )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return places.get_template("page.html.j2").render(
        document=document,
        alone=len(accounts) == 1,
        title=title,
        version=__version__,
        levels=LEVELS,
        symbols=SYMBOLS,
        light=_render_variables(LIGHT, "light"),
        dark=_render_variables(DARK, "dark"),
        style=Markup((_HERE / "page.css").read_text("utf-8")),  # nosec B704 # our own file
        script=Markup(script),  # nosec B704 # our own file
        script_digest=digest,
    ) + "\n"  # fmt: skip


def _render_picture(panel: Panel, place: str) -> Markup:
    return Markup(picture_files.render_inline_svg(panel, f"{place}-{panel.key}-plot"))  # nosec B704 # escaped by ElementTree


def _render_variables(colours: Mapping[str, str], theme: str) -> Markup:
    variables = "".join(f"--{role}:{colour};" for role, colour in colours.items())
    return Markup(variables + _OTHER_COLOURS[theme])  # nosec B704 # constants of ours

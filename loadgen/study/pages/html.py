"""HTML: the report as one HTML file that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import numpy as np
from markupsafe import Markup
from msgspec.structs import replace

from loadgen import __version__
from loadgen.base.passages import Panel
from loadgen.study.compare.comparison_report import FAILED, SYMBOLS
from loadgen.study.pages.colours import DARK, LIGHT, list_pens
from loadgen.study.pages.comparison_section import LEVELS
from loadgen.study.pages.document import Document

_HERE = Path(__file__).parent
_SCRIPTS = ("page.js", "uPlot.LICENSE", "uPlot.iife.min.js", "charts.js")
_STYLES = ("uPlot.min.css", "page.css")
_DIGITS = 5  # more than a screen can show of any axis
_OTHER_COLOURS = {  # added to those of the pictures: raised ground, links, and what is good, doubtful, bad
    "light": "--raised:#f6f8fa;--link:#005a9e;--good:#00694d;--warn:#9a4a00;--bad:#b3093c;",
    "dark": "--raised:#1b2027;--link:#79bdf5;--good:#4ed3a8;--warn:#ffab70;--bad:#ff7c9f;",
}


def render_page(document: Document) -> str:
    """Render the document as one HTML page with its styles and scripts; equal documents give equal bytes."""
    loader, undefined = jinja2.FileSystemLoader(_HERE), jinja2.StrictUndefined
    places = jinja2.Environment(loader=loader, autoescape=True, undefined=undefined)
    places.filters.update(encoded=encode_panel, exact=repr)
    lines = (line.strip() for line in _read_files(_SCRIPTS).splitlines())
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
        symbols={**SYMBOLS, FAILED: "✗"},
        light=_render_variables(LIGHT, "light"),
        dark=_render_variables(DARK, "dark"),
        style=Markup(_read_files(_STYLES)),  # nosec B704 # files of the package
        script=Markup(script),  # nosec B704 # files of the package
        script_digest=digest,
    ) + "\n"  # fmt: skip


def encode_panel(panel: Panel) -> str:
    """Encode a panel's axes, curves and spans as JSON for charts.js: values in five digits, null for NaN."""

    def round_values(values: Any) -> Any:
        if np.ndim(values) == 0:
            return float(values)
        short = (None if value != value else float(f"{value:.{_DIGITS}g}") for value in values.tolist())
        return [int(value) if value is not None and value.is_integer() else value for value in short]

    drawn = msgspec.to_builtins(replace(panel, bars=(), numbers=None), enc_hook=round_values)
    return json.dumps({**drawn, "pens": list_pens(panel)}, separators=(",", ":"), ensure_ascii=False)


def _read_files(names: tuple[str, ...]) -> str:
    contents = ((name, (_HERE / name).read_text("utf-8")) for name in names)
    return "".join(f"/*! uPlot\n{text}*/\n" if "LICENSE" in name else text for name, text in contents)


def _render_variables(colours: Mapping[str, str], theme: str) -> Markup:
    variables = "".join(f"--{role}:{colour};" for role, colour in colours.items())
    return Markup(variables + _OTHER_COLOURS[theme])  # nosec B704 # constants of ours

"""Screenshots for the docs: the HTML report of some places, or the terminal after one run.

    python benchmarks/pictures.py PLACE… [--out docs/pictures] [--name report]
    python benchmarks/pictures.py RUN_DIR --terminal [--out docs/pictures] [--name terminal]

It needs Chromium and playwright. A picture is cropped and its colours are reduced, so that it stays small.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.text import Text

from loadgen import cli
from loadgen.base.printing import Screen, make_terminal_ink
from loadgen.base.text import WIDTH
from loadgen.report import report, run_directory

LAUNCH = (  # of the browser
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
_COLOURS = 64
_COLUMNS = 84


@dataclass(frozen=True)
class Shot:
    """One picture: how wide and high, in which colours, what is scrolled to, and what the pointer is over."""

    name: str
    width: int
    height: int
    scheme: str = "light"
    at: str = "body"
    point: str = ""


SHOTS = (  # of several runs
    Shot("summary", 1180, 1000),
    Shot("summary-dark", 1180, 760, "dark"),
    Shot("telephone", 360, 900),
    Shot("run", 1180, 1250, at="[id^=run-][id$=-drawn]"),
)
ONE = (  # of one
    Shot("one", 1180, 1000),
    Shot("charts", 1180, 1050, "dark", at="[id$=-tokens-over-time]", point="[id$=-server-requests] .u-over"),
)


def main() -> int:
    """Make the page or the terminal, take every shot; 0 where all were written."""
    parser = argparse.ArgumentParser(description="Photograph the HTML report of these places, or a terminal.")
    parser.add_argument("places", nargs="+", metavar="PLACE")
    parser.add_argument("--out", default="docs/pictures", metavar="DIR")
    parser.add_argument("--name", help="what the pictures' names begin with (default: report, or terminal)")
    parser.add_argument(
        "--terminal", action="store_true", help="the command and the report of a run directory"
    )
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    name = arguments.name or ("terminal" if arguments.terminal else "report")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no chromium on this machine", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        page = Path(scratch) / "report.html"
        if not arguments.terminal and (code := cli.main(["report", *arguments.places, "--html", str(page)])):
            return code
        browser = playwright.chromium.launch(executable_path=chromium, args=list(LAUNCH))
        if arguments.terminal:
            pictures = {name: terminal(browser, Path(arguments.places[0]))}
        else:
            shots = SHOTS if 'class="run"' in page.read_text("utf-8") else ONE
            pictures = {f"{name}-{shot.name}": taken(browser, page, shot) for shot in shots}
        browser.close()
    for stem, picture in pictures.items():
        path = out / f"{stem}.png"
        path.write_bytes(small(picture))
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0


def terminal(browser: Browser, run: Path) -> bytes:
    """A PNG of what stood in the terminal: the command, and what it printed, in its colours."""
    command = json.loads((run / "result.json").read_bytes())["loadgen"]["command"]
    directory = f"runs/{run.name}"
    screen = Screen(WIDTH, make_terminal_ink())
    shown = report.render_short(run_directory.load(run), directory, screen=screen)
    text = f"$ {shlex.join(['loadgen', *command[1:]])}\n{shown}\nrun directory: {directory}"
    return draw_terminal(browser, text, _COLUMNS)


def draw_terminal(browser: Browser, text: str, columns: int) -> bytes:
    """A PNG of a terminal of some columns that shows a text, in its colours."""
    console = Console(record=True, file=io.StringIO(), width=columns)
    console.print(Text.from_ansi(text))
    drawn = console.export_svg(title="loadgen")
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # fonts of another host
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    page.set_content(f"<body style='margin:0'>{drawn}</body>")
    picture = page.locator("svg").first.screenshot()
    page.close()
    return picture


def taken(browser: Browser, path: Path, shot: Shot) -> bytes:
    """A PNG of the page from an element down."""
    size: Any = {"width": shot.width, "height": shot.height}
    page = browser.new_page(viewport=size, color_scheme="dark" if shot.scheme == "dark" else "light")
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details.run').forEach((one, at) => { one.open = at === 0; })")
    page.add_style_tag(content="html{scroll-behavior:auto!important}")
    page.locator(shot.at).first.evaluate("one => one.scrollIntoView()")
    if shot.point and (box := page.locator(shot.point).bounding_box()):
        page.mouse.move(box["x"] + 0.45 * box["width"], box["y"] + 0.5 * box["height"])
    picture = page.screenshot()
    page.close()
    return picture


def small(png: bytes) -> bytes:
    """The same in few colours."""
    # So that the few letters in colour keep it: the other methods count pixels.
    method = Image.Quantize.MAXCOVERAGE
    shown = Image.open(io.BytesIO(png)).convert("RGB").quantize(_COLOURS, method, dither=Image.Dither.NONE)
    written = io.BytesIO()
    shown.save(written, "PNG", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    sys.exit(main())

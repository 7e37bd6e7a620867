"""Screenshots of the HTML report, as the docs show them: a page of these places, made and photographed.

    python benchmarks/pictures.py PLACE… [--out docs/pictures] [--name report]

It needs Chromium and playwright. A picture is cut and its colours are counted, so that it stays small.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from loadgen import cli

_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
_COLOURS = 64


@dataclass(frozen=True)
class Shot:
    """One picture: how wide, how high at most, in which colours, and what is scrolled to first."""

    name: str
    width: int
    height: int
    scheme: str = "light"
    at: str = "header"


SHOTS = (
    Shot("summary", 1180, 1000),
    Shot("summary-dark", 1180, 760, "dark"),
    Shot("telephone", 360, 900),
    Shot("run", 1180, 1250, at="[id^=run-][id$=-drawn]"),
)


def main() -> int:
    """Make the page, take every shot; 0 where all were written."""
    parser = argparse.ArgumentParser(description="Photograph the HTML report of these places.")
    parser.add_argument("places", nargs="+", metavar="PLACE")
    parser.add_argument("--out", default="docs/pictures", metavar="DIR")
    parser.add_argument("--name", default="report", help="what the pictures' names begin with")
    asked = parser.parse_args()
    out = Path(asked.out)
    out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no chromium on this machine", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        page = Path(scratch) / "report.html"
        if code := cli.main(["report", *asked.places, "--html", str(page)]):
            return code
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
        for shot in SHOTS:
            path = out / f"{asked.name}-{shot.name}.png"
            path.write_bytes(small(taken(browser, page, shot)))
            print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
        browser.close()
    return 0


def taken(browser: Browser, path: Path, shot: Shot) -> bytes:
    """A PNG of the page from an element down."""
    size: Any = {"width": shot.width, "height": shot.height}
    page = browser.new_page(viewport=size, color_scheme="dark" if shot.scheme == "dark" else "light")
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details.run').forEach((one, at) => { one.open = at === 0; })")
    page.add_style_tag(content="html{scroll-behavior:auto!important}")
    page.locator(shot.at).first.evaluate("one => one.scrollIntoView()")
    picture = page.screenshot()
    page.close()
    return picture


def small(png: bytes) -> bytes:
    """The same in few colours."""
    shown = Image.open(io.BytesIO(png)).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    written = io.BytesIO()
    shown.save(written, "PNG", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    sys.exit(main())

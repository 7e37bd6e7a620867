"""The terminals of docs/recipes.md: its commands are run, in order, and what they print is drawn.

    python benchmarks/recipe_pictures.py [NAME…] [--out docs/pictures]

They run in one scratch directory, next to an embedded engine at port 8000, and one uses what another
leaves. A section whose picture is not `recipe-NAME.png` has it from elsewhere: it is run if it needs no
server. It needs Chromium.
"""

from __future__ import annotations

import argparse
import glob
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import sync_playwright

_ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(_ROOT), str(_ROOT / "servers")]

from benchmarks.pictures import LAUNCH, draw_terminal, small  # noqa: E402

_ENGINE = ("engine", "--preset", "h20/qwen3-8b-fp8", "--port", "8000")
_PICTURE = re.compile(r"\]\(pictures/recipe-([\w-]+)\.png\)")
_FENCED = re.compile(r"^```\n(.*?)^```", re.M | re.S)
_MOST_LINES = 42  # of a picture
_COLUMNS = 80


class Recipe(NamedTuple):
    """The commands of a section of the page, and its picture's name; "" if it has another's."""

    name: str
    commands: tuple[str, ...]


def main() -> int:
    """Run the recipes, draw these or all of them; 1 if a command could not be run."""
    parser = argparse.ArgumentParser(description="Draw the terminals of docs/recipes.md.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", default="docs/pictures", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no chromium on this machine", file=sys.stderr)
        return 1
    recipes = list(read_recipes((_ROOT / "docs" / "recipes.md").read_text("utf-8")))
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        (Path(scratch) / "docs").symlink_to(_ROOT / "docs")
        engine = subprocess.Popen([*_loadgen(), *_ENGINE], cwd=scratch, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(executable_path=chromium, args=list(LAUNCH))
        try:
            for recipe in recipes:
                shown = "\n".join(f"$ {command}\n{run(command, scratch)}" for command in recipe.commands)
                if recipe.name and (not arguments.names or recipe.name in arguments.names):
                    path = arguments.out.resolve() / f"recipe-{recipe.name}.png"
                    path.write_bytes(small(draw_terminal(browser, cut(shown), _COLUMNS)))
                    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
        finally:
            engine.terminate()
            engine.wait()
            browser.close()
    return 0


def read_recipes(page: str) -> Iterator[Recipe]:
    """Yield the sections of a page that are run, with the commands of their first block."""
    for section in page.split("\n## ")[1:]:
        picture, block = _PICTURE.search(section), _FENCED.search(section)
        if block and (picture or "--base-url" not in block[1]):
            lines = block[1].splitlines()
            yield Recipe(
                picture[1] if picture else "", tuple(line.replace(".venv/bin/", "") for line in lines)
            )


def run(command: str, place: str) -> str:
    """Run a command as a person would, at a terminal; return what it printed there, without progress."""
    words = [word for part in shlex.split(command)[1:] for word in _expand(part, place)]
    ours, its = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(_COLUMNS), "TERM": "xterm-256color"}
    done = subprocess.Popen(
        [*_loadgen(), *words], cwd=place, stdout=its, stderr=subprocess.DEVNULL, env=environment
    )
    os.close(its)
    printed = b""
    while chunk := _read(ours):
        printed += chunk
    os.close(ours)
    done.wait()
    return printed.decode().replace("\r\n", "\n").rstrip("\n")


def cut(text: str) -> str:
    """Return the text's first lines, and how many more there are."""
    lines = text.splitlines()
    more = [] if len(lines) <= _MOST_LINES else [f"… {len(lines) - _MOST_LINES} more lines"]
    return "\n".join([*lines[:_MOST_LINES], *more])


def _expand(word: str, place: str) -> list[str]:
    return sorted(glob.glob(word, root_dir=place)) if "*" in word else [word]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # its other end is closed
        return b""


def _loadgen() -> tuple[str, ...]:
    return sys.executable, "-m", "loadgen"


if __name__ == "__main__":
    sys.exit(main())

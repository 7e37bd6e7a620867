"""`llms.txt` of the docs, for programs that read them: every page of the menu with its first sentence.

`mkdocs build` puts it at the site's root, and next to each page its Markdown.
`python scripts/llms_txt.py` prints it. The format: https://llmstxt.org
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_FACTS = """\
Every run has a verdict: VALID, SUSPECT or INVALID. A figure of an INVALID run is no measurement; one of a
SUSPECT run is quoted with its doubts. Exit codes, `result.json` and `--json` are for programs."""
_MENU = re.compile(r"^ +- (?:(?P<section>[^:\n]+):|(?P<title>[^:\n]+): (?P<page>[\w-]+\.md))$", re.M)
_SENTENCE = re.compile(r"(?:[^.]|\.(?! |$))+\.?")
_LEAST = 50  # characters that say what a page is about


def render(menu: str, pages: dict[str, str]) -> str:
    """Return llms.txt of a `mkdocs.yml` and its pages' Markdown, by name; raises KeyError."""
    name, description = (read_key(menu, key) for key in ("site_name", "site_description"))
    lines = [f"# {name}", "", f"> {description}", "", _FACTS]
    for entry in _MENU.finditer(menu.partition("\nnav:\n")[2]):
        if entry["section"]:
            lines += ["", f"## {entry['section']}", ""]
        elif entry["page"] != "index.md":
            lines.append(f"- [{entry['title']}]({entry['page']}): {find_sentence(pages[entry['page']])}")
    return "\n".join([*lines, ""])


def read_key(menu: str, key: str) -> str:
    """Return the text of a top-level key; "" if it is missing."""
    found = re.search(rf"^{key}: (.+)$", menu, re.M)
    return found[1] if found else ""


def find_sentence(page: str) -> str:
    """Return the first sentence of a page's prose as plain text, more if it is short; "" without prose."""
    blocks = re.sub(r"```.*?```", "", page, flags=re.S).split("\n\n")
    prose = (" ".join(block.split()) for block in blocks if re.match(r"[\w`*\[]", block.strip()))
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", next(prose, "")).replace("**", "")
    found = ""
    for sentence in _SENTENCE.finditer(plain):
        found = f"{found} {sentence[0].strip()}".strip()
        if len(found) >= _LEAST:
            break
    return found.rstrip(":")


def on_post_build(config: Any, **_: Any) -> None:
    """Write llms.txt and every page's Markdown into the site."""
    site = Path(config["site_dir"])
    for path in (_ROOT / "docs").glob("*.md"):
        shutil.copy(path, site)
    (site / "llms.txt").write_text(make(), "utf-8")


def make() -> str:
    """Return llms.txt of these docs."""
    pages = {path.name: path.read_text("utf-8") for path in (_ROOT / "docs").glob("*.md")}
    return render((_ROOT / "mkdocs.yml").read_text("utf-8"), pages)


if __name__ == "__main__":
    sys.stdout.write(make())

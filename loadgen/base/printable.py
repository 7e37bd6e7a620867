"""Printable: text from outside without what would command a terminal or break a file."""

from __future__ import annotations

import json
import re
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# C0 and C1 but for line feed and tab, DEL, marks that turn the direction of writing, separators of lines and
# paragraphs, halves of a surrogate pair.
_COMMANDS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff"
)
_COMMAND = re.compile(f"[{_COMMANDS}]")
_UNSAFE = re.compile(r"[^\w .,+=@()\[\]-]")
_LONGEST_NAME = 100


def clean_text(text: str) -> str:
    """Replace every control character, direction mark and lone surrogate by U+FFFD.

    Line feeds and tabs stay; what comes back can be printed, and written as UTF-8.
    """
    return _COMMAND.sub(REPLACEMENT, text)


def clean_line(text: str) -> str:
    """Make a text one line: blanks become spaces, other letters that cannot be printed U+FFFD."""
    return "".join(c if c.isprintable() else " " if c.isspace() else REPLACEMENT for c in text)


def format_json(value: Any, indent: int | None = None) -> str:
    """Write strict JSON for a terminal: control characters escaped, lone surrogates U+FFFD.

    Raises ValueError of NaN and infinities, TypeError of what JSON has no word for.
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent)
    return _COMMAND.sub(
        lambda found: REPLACEMENT if "\ud800" <= found[0] <= "\udfff" else f"\\u{ord(found[0]):04x}", text
    )


def make_file_name(name: str) -> str:
    """Make a name part of a file's: no separator or control character, not hidden, 100 characters at most."""
    return _UNSAFE.sub("-", name)[:_LONGEST_NAME].lstrip(". ").rstrip() or "-"

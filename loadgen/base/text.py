"""Text: made printable, quoted, wrapped at 80 columns, aligned and cut, for terminals, logs and CSV files."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import reprlib
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

WIDTH = 80  # of a terminal
GIB = 1 << 30  # bytes
_SHOWN = 40  # characters of a quoted value
_REPR = reprlib.Repr()
DUMB = ("dumb", "unknown")  # values of TERM: no colours, and what is shown cannot be taken back
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# C0 and C1 but for line feed and tab, DEL, marks that turn the direction of writing, separators of lines and
# paragraphs, halves of a surrogate pair.
_COMMANDS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff"
)
_COMMAND = re.compile(f"[{_COMMANDS}]")
_UNSAFE = re.compile(r"[^\w .,+=@()\[\]-]")
_LONGEST_NAME = 100
_NO_BREAK = "\u00a0"
_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|nan)|-")  # "-": nothing ran


def wrap_text(text: str, indent: str = "  ", width: int = WIDTH, break_words: bool = False) -> list[str]:
    """Wrap a text at `width` columns, cleaned, all lines but the first indented; [] for an empty text.

    A longer word, a path say, stays whole; `break_words` breaks it, and any word at its hyphens.
    """
    cleaned, breaks = clean_text(text), break_words
    return textwrap.wrap(
        cleaned, width, subsequent_indent=indent, break_on_hyphens=breaks, break_long_words=breaks
    )


def wrap_chain(begun: str, links: Iterable[str], indent: str) -> list[str]:
    """Wrap `begun` and links joined by arrows as `wrap_text` does; no link is broken at its blanks."""
    chain = " → ".join(link.replace(" ", _NO_BREAK) for link in links)
    return [line.replace(_NO_BREAK, " ") for line in wrap_text(f"{begun} {chain}", indent)]


def cut_end(text: str, width: int) -> str:
    """Shorten a text to `width` characters by cutting its end, the last one `…`."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def align_cells(cells: Sequence[str], widths: Sequence[int], gap: str = "") -> str:
    """Pad cells to their widths (< 0: left-aligned) and join them by `gap`, without blanks at the end."""
    padded = (
        cell.rjust(width) if width > 0 else cell.ljust(-width)
        for cell, width in zip(cells, widths, strict=True)
    )
    return gap.join(padded).rstrip()


def list_first(names: Sequence[str], most: int) -> str:
    """Join the first `most` names by commas, then ` and N more` if there are more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def describe_install(extra: str) -> str:
    """Describe how an extra is installed, as a message ends that says what needs it."""
    return f"in the clone, .venv/bin/pip install '.[{extra}]'"


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: 1 run, 2,000 runs."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def count_decimals(number: float, digits: int, most: int = 6) -> int:
    """Count the decimals that show the first `digits` digits of a number, at most `most`; 0 of 0, ∞, NaN."""
    if not 0 < abs(number) < math.inf:
        return 0
    return max(0, min(most, digits - 1 - math.floor(math.log10(abs(number)))))


def quote_value(value: Any) -> str:
    """Quote a value for an error message, a text cut to 40 characters, any other value to 80."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}…"
    text = _REPR.repr(value)
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}…"


def clean_text(text: str) -> str:
    """Replace every control character, direction mark and lone surrogate by U+FFFD.

    Line feeds and tabs stay; what comes back can be printed, and written as UTF-8.
    """
    return _COMMAND.sub(REPLACEMENT, text)


def clean_line(text: str) -> str:
    """Make a text one line: blanks become spaces, other letters that cannot be printed U+FFFD."""
    return "".join(c if c.isprintable() else " " if c.isspace() else REPLACEMENT for c in text)


def format_json(value: Any, indent: int | None = None) -> str:
    """Format strict JSON for a terminal: control characters escaped, lone surrogates U+FFFD.

    Raises ValueError for NaN and infinities, TypeError for values of types that JSON lacks.
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent)
    return _COMMAND.sub(
        lambda found: REPLACEMENT if "\ud800" <= found[0] <= "\udfff" else f"\\u{ord(found[0]):04x}", text
    )


def format_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Format rows as CSV, None and NaN as empty cells, booleans as in JSON.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_format_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _format_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value if value == value else None
    formula = _FORMULA.match(value) is not None and _NUMBER.fullmatch(value) is None
    return clean_text(f"'{value}" if formula else value)


def make_file_name(name: str) -> str:
    """Make a name safe in a file's name: no separators, not hidden, at most 100 characters; `-` if empty."""
    return _UNSAFE.sub("-", name)[:_LONGEST_NAME].lstrip(". ").rstrip() or "-"

"""Layout: text for a terminal and a log file: lines wrapped at 80 columns, tables, long names cut."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 80  # of a terminal
DUMB = ("dumb", "unknown")  # values of TERM: no colours, and what is shown cannot be taken back


def wrap_text(text: str, indent: str = "  ", width: int = WIDTH, break_words: bool = False) -> list[str]:
    """Lines of at most `width` columns, all but the first indented, none of an empty text.

    A longer word, a path say, stays whole, unless words may be broken.
    """
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=break_words, break_long_words=break_words
    )


def wrap_first_line(text: str, indent: str = "  ", width: int = WIDTH) -> list[str]:
    """As `wrapped`, but lines after the first stay as they are: those of a traceback, say."""
    first, *more = text.splitlines() or [""]
    return [*wrap_text(first, indent, width), *(f"{indent}{line.rstrip()}" for line in more)]


def align_cells(cells: Sequence[str], widths: Sequence[int], gap: str = "") -> str:
    """A line of a table: each cell at the right of its width, or at the left of a negative one."""
    padded = (
        cell.rjust(width) if width > 0 else cell.ljust(-width)
        for cell, width in zip(cells, widths, strict=True)
    )
    return gap.join(padded).rstrip()


def cut_end(text: str, width: int) -> str:
    """The text in at most `width` letters, its end left out."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def cut_middle(name: str, width: int) -> str:
    """A name in at most `width` letters, its middle left out: quantizations stand at the end."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def list_first(names: Sequence[str], most: int) -> str:
    """The first `most` of the names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def format_count(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 2 runs."""
    return f"{number} {noun}{'s' * (number != 1)}"


def format_cell_ms(value_ms: float) -> str:
    """A latency in milliseconds, as wide as a cell."""
    if value_ms != value_ms:
        return "-"
    return f"{value_ms:.1f}" if value_ms < 1e4 else f"{value_ms:.0f}"

"""Layout: text for a terminal and a log file: lines wrapped at 80 columns, tables, long names cut."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 80  # of a terminal
DUMB = ("dumb", "unknown")  # values of TERM: no colours, and what is shown cannot be taken back


def wrap_text(text: str, indent: str = "  ", width: int = WIDTH, break_words: bool = False) -> list[str]:
    """Wrap a text at `width` columns, all lines but the first indented; [] for an empty text.

    A longer word, a path say, stays whole, unless words may be broken.
    """
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=break_words, break_long_words=break_words
    )


def wrap_first_line(text: str, indent: str = "  ", width: int = WIDTH) -> list[str]:
    """Wrap a text's first line only; the others stay as they are, such as a traceback's."""
    first, *more = text.splitlines() or [""]
    return [*wrap_text(first, indent, width), *(f"{indent}{line.rstrip()}" for line in more)]


def align_cells(cells: Sequence[str], widths: Sequence[int], gap: str = "") -> str:
    """Align the cells of a line: each to the right of its width, to the left if that is negative."""
    padded = (
        cell.rjust(width) if width > 0 else cell.ljust(-width)
        for cell, width in zip(cells, widths, strict=True)
    )
    return gap.join(padded).rstrip()


def cut_end(text: str, width: int) -> str:
    """Cut a text's end, so that `width` letters are left."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def cut_middle(name: str, width: int) -> str:
    """Cut a name's middle, so that `width` letters are left: quantizations stand at the end."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def list_first(names: Sequence[str], most: int) -> str:
    """List the first `most` of the names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def format_count(number: int, noun: str) -> str:
    """Write a number with its noun: 1 run, 2 runs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_cell_ms(value_ms: float) -> str:
    """Write a latency in milliseconds, as wide as a cell."""
    if value_ms != value_ms:
        return "-"
    return f"{value_ms:.1f}" if value_ms < 1e4 else f"{value_ms:.0f}"

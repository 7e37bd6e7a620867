"""Layout: text for a terminal and a log file: lines wrapped at 80 columns, tables, long names cut."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from loadgen.base.csv_text import format_csv

WIDTH = 80  # of a terminal
DUMB = ("dumb", "unknown")  # values of TERM: no colours, and what is shown cannot be taken back
_GAP = "  "
_NUMBER = re.compile(r"[\d.]+( ±(>100%|[\d.]+))?|-|inf|none|")  # right-aligned


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


class Column(msgspec.Struct, frozen=True):
    """A column: the cell it takes, its title, and how wide a grid draws it at least."""

    key: str
    title: str
    width: int = 0


class Table(msgspec.Struct, frozen=True):
    """What a renderer draws: cells under columns, and lines below."""

    columns: tuple[Column, ...]
    body: tuple[tuple[str, ...], ...]
    spanned: int = 0
    notes: tuple[str, ...] = ()

    def spans(self) -> list[list[int]]:
        """For each row and spanned column: how many rows the cell that begins here holds; 0, it goes on."""
        counts = [[1] * self.spanned for _ in self.body]
        for index in range(len(self.body) - 1, 0, -1):
            for column in range(self.spanned):
                if self.body[index][: column + 1] == self.body[index - 1][: column + 1]:
                    counts[index - 1][column] += counts[index][column]
                    counts[index][column] = 0
        return counts

    def shown(self) -> list[tuple[str, ...]]:
        """The body with a cell that goes on left blank."""
        rows = (zip_longest(*pair, fillvalue=1) for pair in zip(self.body, self.spans(), strict=True))
        return [tuple(str(cell) if count else "" for cell, count in row) for row in rows]


def render_markdown_table(table: Table) -> str:
    """Write a table as Markdown, which has no spans: each row is whole; the notes are a list below."""
    titles, rule = [escape_markdown(column.title) for column in table.columns], ["---"] * len(table.columns)
    cells = [titles, rule, *([escape_markdown(cell) for cell in row] for row in table.body)]
    notes = ["", *(f"* {escape_markdown(note)}" for note in table.notes)] * bool(table.notes)
    return "\n".join([*(f"| {' | '.join(row)} |" for row in cells), *notes]) + "\n"


def escape_markdown(cell: str) -> str:
    """Escape a line of text, so that it is not markup in a table, a heading or a list of Markdown."""
    escaped = re.sub(r"[\\*`|\[\]]|_(?![A-Za-z0-9])|(?<![A-Za-z0-9])_", r"\\\g<0>", cell)
    return html.escape(escaped, quote=False)


def render_csv_table(table: Table) -> str:
    """Write a table as comma-separated values under the columns' keys, without notes."""
    return format_csv([[column.key for column in table.columns], *table.body])


def measure_table(table: Table) -> int:
    """Measure the columns of a terminal that a table takes if its titles wrap and its cells do not."""
    head = min(1, table.spanned)
    across = list(zip(table.columns, *table.body, strict=True))[head:]
    return sum(1 + max(map(len, [*column.title.split(), *cells])) for column, *cells in across)


def render_text_table(table: Table, width: int = WIDTH) -> str:
    """Write a table for a terminal: a spanning first column is a heading, the widest wrap to fit `width`."""
    head = min(1, table.spanned)
    titles = tuple(column.title for column in table.columns[head:])
    body = [row[head:] for row in table.shown()]
    across = list(zip(titles, *body, strict=True))
    widths = [max(map(len, [*title.split(), *cells])) for title, *cells in across]
    least = sum(widths) + len(widths)
    gap = " " if least <= width < least + len(widths) else _GAP  # where that spares wrapping a cell
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in across]
    while sum(widths) + len(gap) * len(widths) > width and max(widths) > 1:
        wide = [at for at, own in enumerate(widths) if own > words[at]]  # where no word is broken
        widths[max(wide or range(len(widths)), key=widths.__getitem__)] -= 1
    numbers = [all(_NUMBER.fullmatch(cell) for cell in cells) for _, *cells in across]
    sides = [width if number else -width for width, number in zip(widths, numbers, strict=True)]

    def lines(row: Sequence[str]) -> list[str]:
        parts = [wrap_text(cell, "", width, True) or [""] for cell, width in zip(row, widths, strict=True)]
        return [gap * head + align_cells(cells, sides, gap) for cells in zip_longest(*parts, fillvalue="")]

    drawn = [*lines(titles), *lines(["-" * width for width in widths])]
    for row, whole, begun in zip(body, table.body, table.spans(), strict=True):
        if any(begun[:head]):
            drawn += wrap_text(whole[0], "", width, True)
        drawn += lines(row)
    for note in table.notes:
        drawn += wrap_text(note, _GAP, width, True)
    return "\n".join(drawn) + "\n"

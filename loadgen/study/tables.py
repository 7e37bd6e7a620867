"""Tables: cells under columns, drawn for a terminal, as Markdown, and as CSV."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from loadgen.base.text import WIDTH, align_cells, clean_line, format_csv, wrap_text

_GAP = "  "
_MOST_NAMING = 3  # columns next to the spanned ones that name a row, in each part of a wide table
_WORD = re.compile(r"[^\s-]*-+|[^\s-]+")  # with the hyphens at which it may be broken
_DIGITS = re.compile(r"[\d.]+( ±(>100%|[\d.]+))?|-|inf|none|")  # right-aligned


def cut_middle(name: str, width: int) -> str:
    """Shorten a name to `width` characters by a `…` for its middle: quantizations stand at the end."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def format_csv_table(keys: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Write mappings as CSV under a header of `keys`, with an empty cell where a row lacks a key."""
    return format_csv([keys, *([row.get(key) for key in keys] for row in rows)])


def list_interval_cells(name: str, interval: Any) -> dict[str, float | None]:
    """List the cells of CSV of a `mean` and of its interval from `low` to `high`; None for one not known."""
    ends = {"": "mean", "_low": "low", "_high": "high"}
    values = {f"{name}{suffix}": getattr(interval, end, math.nan) for suffix, end in ends.items()}
    return {key: value if math.isfinite(value) else None for key, value in values.items()}


class Number(str):
    """A figure as it is written, with its whole value and where that stands in the JSON ("": nowhere)."""

    __slots__ = ("aside", "key", "value")
    value: float
    key: str
    aside: str

    def __new__(cls, text: str, value: float, key: str = "", aside: str = "") -> Number:
        """Make the number from its text; `aside` is a remark that is written next to it."""
        number = super().__new__(cls, text)
        number.value, number.key, number.aside = value, key, aside
        return number


def format_number(key: str, value: object, digits: int = 2, aside: str = "") -> str:
    """Return a number as a Number with `,` between thousands and `digits` decimals, if it is not an int.

    NaN and None are a dash; a bool or anything else is its text.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return "–" if value is None or value != value else str(value)
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
    return Number(text, value, key, aside)


class Column(msgspec.Struct, frozen=True):
    """A table's column: the key of its cells, its title, and its least width in a drawn grid."""

    key: str
    title: str
    width: int = 0


class Table(msgspec.Struct, frozen=True):
    """A table for terminal, Markdown or CSV: columns, rows of text cells, and notes below."""

    columns: tuple[Column, ...]
    body: tuple[tuple[str, ...], ...]
    spanned: int = 0
    notes: tuple[str, ...] = ()

    def count_spans(self) -> list[list[int]]:
        """Count, for each row and spanned column, the rows that the cell covers; 0 if one above covers it."""
        counts = [[1] * self.spanned for _ in self.body]
        for index in range(len(self.body) - 1, 0, -1):
            for column in range(self.spanned):
                if self.body[index][: column + 1] == self.body[index - 1][: column + 1]:
                    counts[index - 1][column] += counts[index][column]
                    counts[index][column] = 0
        return counts

    def list_shown(self) -> list[tuple[str, ...]]:
        """List the rows with the cells of spanned columns left blank where they repeat the row above."""
        rows = (zip_longest(*pair, fillvalue=1) for pair in zip(self.body, self.count_spans(), strict=True))
        return [tuple(str(cell) if count else "" for cell, count in row) for row in rows]


def make_table(
    columns: Iterable[str | tuple[str, str]],
    rows: Iterable[Iterable[str]],
    spanned: int = 0,
    notes: Iterable[str] = (),
) -> Table:
    """Make a table; a column is (key, title) or a title alone; the first `spanned` merge equal cells."""
    named = (Column(each, each) if isinstance(each, str) else Column(*each) for each in columns)
    # A cell may be a number that a page shows with more digits: a text that needs no change is kept.
    body = tuple(tuple(cell if cell.isprintable() else clean_line(cell) for cell in row) for row in rows)
    return Table(tuple(named), body, spanned, tuple(map(clean_line, notes)))


def render_markdown_table(table: Table) -> str:
    """Write a table as Markdown, which has no spans: each row is whole; the notes are a list below."""
    titles, rule = [escape_markdown(column.title) for column in table.columns], ["---"] * len(table.columns)
    cells = [titles, rule, *([escape_markdown(cell) for cell in row] for row in table.body)]
    notes = ["", *(f"* {escape_markdown(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*(f"| {' | '.join(row)} |" for row in cells), *notes]) + "\n"


def escape_markdown(cell: str) -> str:
    """Escape a line of text, so that it is not markup in a table, a heading or a list of Markdown."""
    escaped = re.sub(r"[\\*`|\[\]]|_(?![A-Za-z0-9])|(?<![A-Za-z0-9])_", r"\\\g<0>", cell)
    return html.escape(escaped, quote=False)


def render_csv_table(table: Table) -> str:
    """Write a table as comma-separated values under the columns' keys, without notes."""
    return format_csv([[column.key for column in table.columns], *table.body])


def measure_table(table: Table) -> int:
    """Compute a table's least width in a terminal, without a spanned first column; only titles may wrap."""
    head = min(1, table.spanned)
    across = list(zip(table.columns, *table.body, strict=True))[head:]
    return sum(1 + max(map(len, [*column.title.split(), *cells])) for column, *cells in across)


def split_columns(table: Table, width: int, measure: Callable[[Table], int]) -> list[Table]:
    """Split a table into parts that `measure` at most `width`, each with the columns that name its rows.

    These are the spanned ones and the next, and one or two more where rows are alike in them. The notes are
    left out.
    """
    most = min(table.spanned + _MOST_NAMING, len(table.columns))
    lengths = range(min(table.spanned + 1, most), most + 1)
    tells = (size for size in lengths if len({row[:size] for row in table.body}) == len(table.body))
    named = list(range(next(tells, lengths[0])))
    parts = [named]
    for at in range(len(named), len(table.columns)):
        if len(parts[-1]) > len(named) and measure(select_columns(table, [*parts[-1], at])) > width:
            parts.append(named)
        parts[-1] = [*parts[-1], at]
    return [select_columns(table, part) for part in parts]


def select_columns(table: Table, places: Sequence[int]) -> Table:
    """Return a table with the columns at these places alone, and without its notes."""
    body = tuple(tuple(row[at] for at in places) for row in table.body)
    return Table(tuple(table.columns[at] for at in places), body, table.spanned)


def _measure_words(table: Table) -> int:
    """Compute the least width in a terminal at which no word is broken, but at its hyphens."""
    head = min(1, table.spanned)
    across = list(zip(table.columns, *table.body, strict=True))[head:]
    return sum(
        len(_GAP) + max(len(part) for text in (column.title, *cells) for part in _WORD.findall(text) or [""])
        for column, *cells in across
    )


def render_text_table(table: Table, width: int = WIDTH) -> str:
    """Draw a table for a terminal of `width` columns; a spanned first column becomes headings.

    It is drawn in parts where a word would be broken otherwise.
    """
    parts = split_columns(table, width, _measure_words)
    notes = [line for note in table.notes for line in wrap_text(note, _GAP, width, True)]
    return "\n".join(_draw_table(part, width) for part in parts) + "".join(f"{line}\n" for line in notes)


def _draw_table(table: Table, width: int) -> str:
    head = min(1, table.spanned)
    titles = tuple(column.title for column in table.columns[head:])
    body = [row[head:] for row in table.list_shown()]
    across = list(zip(titles, *body, strict=True))
    widths = [max(map(len, [*title.split(), *cells])) for title, *cells in across]
    least = sum(widths) + len(widths)
    gap = " " if least <= width < least + len(widths) else _GAP  # where that spares wrapping a cell
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in across]
    while sum(widths) + len(gap) * len(widths) > width and max(widths) > 1:
        wide = [at for at, own in enumerate(widths) if own > words[at]]  # where no word is broken
        widths[max(wide or range(len(widths)), key=widths.__getitem__)] -= 1
    numbers = [all(_DIGITS.fullmatch(cell) for cell in cells) for _, *cells in across]
    sides = [width if number else -width for width, number in zip(widths, numbers, strict=True)]

    def lines(row: Sequence[str]) -> list[str]:
        parts = [wrap_text(cell, "", width, True) or [""] for cell, width in zip(row, widths, strict=True)]
        return [gap * head + align_cells(cells, sides, gap) for cells in zip_longest(*parts, fillvalue="")]

    drawn = [*lines(titles), *lines(["-" * width for width in widths])]
    for row, whole, begun in zip(body, table.body, table.count_spans(), strict=True):
        if any(begun[:head]):
            drawn += wrap_text(whole[0], "", width, True)
        drawn += lines(row)
    return "\n".join(drawn) + "\n"

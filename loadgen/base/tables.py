"""Tables: cells under columns, and their numbers, for a terminal, as Markdown, CSV and JSON."""

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
# A number with its interval and verdict: right-aligned, and not broken at its blanks.
_DIGITS = re.compile(
    r"[-+]?[\d.,]+( ±(>100%|[\d.,]+))?( [▲▼≈?])?( (%|ms))?( \([<>]?\d+ %\))?"
    r"|(over )?[\d.,]+( to [\d.,]+)?|[-–]|inf|none|"
)


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
    """Return the CSV cells NAME, NAME_low, NAME_high of an interval's mean, low, high; None if not finite."""
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


def format_number(key: str, value: object, digits: int = 2, aside: str = "", signed: bool = False) -> str:
    """Return a number as a Number with `,` between thousands and `digits` decimals, if it is not an int.

    NaN and None are a dash; a bool or anything else is its text. `signed` ones begin with + or -, but 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return "–" if value is None or value != value else str(value)
    sign = "+" if signed and value else ""
    text = f"{value:{sign},}" if isinstance(value, int) else f"{value:{sign},.{digits}f}"
    return Number(text, value, key, aside)


def format_share(key: str, value: float | None) -> str:
    """Return a share from 0 to 1 as a Number in percent with one decimal; None is a dash."""
    return "–" if value is None else Number(f"{100 * value:.1f} %", value, key)


class Column(msgspec.Struct, frozen=True):
    """A table's column: the key of its cells, its title, and its least width in a drawn grid."""

    key: str
    title: str
    width: int = 0
    short: str = ""  # the title in a terminal; "": the same


class Table(msgspec.Struct, frozen=True):
    """A table for terminal, Markdown or CSV: columns, rows of text cells, and notes below."""

    columns: tuple[Column, ...]
    body: tuple[tuple[str, ...], ...]
    spanned: int = 0
    notes: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()  # keys of columns that a terminal leaves out, one by one, until the cells fit

    def count_spans(self) -> list[list[int]]:
        """Count, for each row and spanned column, the rows that the cell covers; 0 if one above covers it."""
        counts = [[1] * self.spanned for _ in self.body]
        for index in range(len(self.body) - 1, 0, -1):
            for column in range(self.spanned):
                if self.body[index][: column + 1] == self.body[index - 1][: column + 1]:
                    counts[index - 1][column] += counts[index][column]
                    counts[index][column] = 0
        return counts

    def list_numeric(self) -> list[bool]:
        """List of each column whether its cells are numbers alone, which stand at the right."""
        columns = zip(*self.body, strict=True) if self.body else ((),) * len(self.columns)
        return [all(_DIGITS.fullmatch(cell) for cell in cells) for cells in columns]

    def list_shown(self) -> list[tuple[str, ...]]:
        """List the rows with the cells of spanned columns left blank where they repeat the row above."""
        rows = (zip_longest(*pair, fillvalue=1) for pair in zip(self.body, self.count_spans(), strict=True))
        return [tuple(str(cell) if count else "" for cell, count in row) for row in rows]


def make_table(
    columns: Iterable[str | tuple[str, str] | Column],
    rows: Iterable[Iterable[str]],
    spanned: int = 0,
    notes: Iterable[str] = (),
    spare: Iterable[str] = (),
) -> Table:
    """Make a table; a tuple is a key and a title, a text both; the first `spanned` merge equal cells."""
    named = (
        each if isinstance(each, Column) else Column(each, each) if isinstance(each, str) else Column(*each)
        for each in columns
    )
    # A cell may be a number that a page shows with more digits: a text that needs no change is kept.
    body = tuple(tuple(cell if cell.isprintable() else clean_line(cell) for cell in row) for row in rows)
    return Table(tuple(named), body, spanned, tuple(map(clean_line, notes)), tuple(spare))


def render_markdown_table(table: Table) -> str:
    """Write a table as Markdown, which has no spans: each row is whole; the notes are a list below.

    A number's remark is below it, in its cell.
    """
    titles = [escape_markdown(column.title) for column in table.columns]
    rule = ["---:" if table.body and numeric else "---" for numeric in table.list_numeric()]
    rows = [titles, rule, *(map(_write_markdown_cell, row) for row in table.body)]
    notes = ["", *(f"* {escape_markdown(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), *notes]) + "\n"


def _write_markdown_cell(cell: str) -> str:
    aside = cell.aside if isinstance(cell, Number) else ""
    return f"{escape_markdown(cell)}<br>{escape_markdown(aside)}" if aside else escape_markdown(cell)


def escape_markdown(text: str) -> str:
    """Make a text one line of Markdown that is no markup in a table, a heading or a list."""
    line = clean_line(" ".join(text.split()))
    escaped = re.sub(r"[\\*`|\[\]]|^#|_(?![A-Za-z0-9])|(?<![A-Za-z0-9])_", r"\\\g<0>", line)
    return html.escape(escaped, quote=False)


def render_csv_table(table: Table) -> str:
    """Write a table as comma-separated values under the columns' keys, without notes."""
    return format_csv([[column.key for column in table.columns], *table.body])


def encode_table(table: Table) -> dict[str, Any]:
    """Make the JSON object of a table: its rows by the columns' keys, numbers in full, and its notes."""
    keys = [column.key for column in table.columns]
    body = ([cell.value if isinstance(cell, Number) else cell for cell in row] for row in table.body)
    return {"rows": [dict(zip(keys, row, strict=True)) for row in body], "notes": list(table.notes)}


def measure_table(table: Table) -> int:
    """Compute a table's least width in a terminal, without a spanned first column; only titles may wrap."""
    head = min(1, table.spanned)
    across = list(zip(table.columns, *table.body, strict=True))[head:]
    return sum(1 + max(map(len, [*_title(column).split(), *cells])) for column, *cells in across)


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
        len(_GAP) + max(len(part) for text in (_title(column), *cells) for part in _list_words(text))
        for column, *cells in across
    )


def _title(column: Column) -> str:
    return column.short or column.title


def _list_words(text: str) -> list[str]:
    """List the parts of a cell that stay whole: a number, or words and their parts before hyphens."""
    return [text] if _DIGITS.fullmatch(text) else _WORD.findall(text) or [""]


def render_text_table(table: Table, width: int = WIDTH) -> str:
    """Draw a table for a terminal of `width` columns; a spanned first column becomes headings.

    It is drawn in parts where a word would be broken otherwise.
    """
    kept = table  # without as many spare columns as it takes for the cells to fit
    for key in table.spare:
        if measure_table(kept) <= width:
            break
        kept = select_columns(kept, [at for at, each in enumerate(kept.columns) if each.key != key])
    parts = split_columns(kept, width, _measure_words)
    notes = [line for note in table.notes for line in wrap_text(note, _GAP, width, True)]
    return "\n".join(_draw_table(part, width) for part in parts) + "".join(f"{line}\n" for line in notes)


def _draw_table(table: Table, width: int) -> str:
    """Draw a table in one part, without notes; cells are wrapped, words broken only if it must, to fit."""
    head = min(1, table.spanned)
    titles = tuple(map(_title, table.columns[head:]))
    body = [row[head:] for row in table.list_shown()]
    across = list(zip(titles, *body, strict=True))
    widths = [max(map(len, [*title.split(), *cells])) for title, *cells in across]
    least = sum(widths) + len(widths)
    gap = " " if least <= width < least + len(widths) else _GAP  # where that spares wrapping a cell
    words = [
        max(len(word) for cell in column for word in ([cell] if _DIGITS.fullmatch(cell) else cell.split(" ")))
        for column in across
    ]
    while sum(widths) + len(gap) * len(widths) > width and max(widths) > 1:
        wide = [at for at, own in enumerate(widths) if own > words[at]]  # where no word is broken
        widths[max(wide or range(len(widths)), key=widths.__getitem__)] -= 1
    numeric = table.list_numeric()[head:]
    sides = [width if number else -width for width, number in zip(widths, numeric, strict=True)]

    def lines(row: Sequence[str]) -> list[str]:
        parts = [
            [cell] if len(cell) <= width else wrap_text(cell, "", width, True)
            for cell, width in zip(row, widths, strict=True)
        ]
        return [gap * head + align_cells(cells, sides, gap) for cells in zip_longest(*parts, fillvalue="")]

    drawn = [*lines(titles), *lines(["-" * width for width in widths])]
    for row, whole, begun in zip(body, table.body, table.count_spans(), strict=True):
        if any(begun[:head]):
            drawn += wrap_text(whole[0], "", width, True)
        drawn += lines(row)
    return "\n".join(drawn) + "\n"

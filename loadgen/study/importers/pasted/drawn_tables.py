"""Drawn tables: those that reStructuredText, a database and a terminal draw with rules, as rows of cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from loadgen.base.errors import UsageError

_MOST_CELLS = 50_000  # of a page
MOST_COLUMNS = 40
_LONGEST = 2000  # characters of a line
# A terminal's corners, rules and sides, as the signs that everyone else draws with.
_SIGNS = {
    **dict.fromkeys(map(ord, "┏┌╭╔╒┳┬╦╤┓┐╮╗╕┡├╞╟╠┢╇┼╪╫╬╈┩┤╡╢╣┪└┗╰╚╘┴┻╩╧┘┛╯╝╛"), "+"),
    **dict.fromkeys(map(ord, "─━"), "-"), ord("═"): "=", **dict.fromkeys(map(ord, "│┃║"), "|"),
}  # fmt: skip
_TOP = re.compile(r"\s*\+(?:[-=]{2,}\+)+\s*")
_ESCAPED = re.compile(r"\\([\\*`|_\[\]<>])")


class Row(msgspec.Struct, frozen=True):
    """One row of a table: its line in the page, from 1, and a cell for each column."""

    line: int
    cells: tuple[str, ...]
    column: int = 0  # of the page's table, from 1, where a row is a column there


class Grid(msgspec.Struct, frozen=True):
    """A table: the titles of its columns, its rows, and the lines from its first to its last."""

    titles: tuple[str, ...]
    rows: tuple[Row, ...]
    first: int
    last: int


def check_size(cells: int) -> None:
    """Raise UsageError if a page's tables have over 50,000 cells."""
    if cells > _MOST_CELLS:
        raise UsageError(f"its tables have more than {_MOST_CELLS} cells: give it in parts")


def read_table(lines: Sequence[str], begin: int) -> Grid | None:
    """Read the table whose first rule is the line at an index, to its last row; None if none begins there.

    A column goes on below a blank in a rule. One of over 40 columns has no titles.
    """
    top = lines[begin][:_LONGEST].translate(_SIGNS).rstrip()
    if _TOP.fullmatch(top) is None:
        return None
    margin = top.index("+")
    bounds = [at - margin for at, sign in enumerate(top) if sign == "+"]
    columns = [*pairwise(bounds)] if len(bounds) <= MOST_COLUMNS + 1 else []
    titles, rows, section = list[Row](), list[Row](), list[Row]()  # the section is below the last rule
    spanned = [False] * len(columns)
    end, last = begin + 1, min(len(lines), begin + _MOST_CELLS)
    while end < last:
        line = lines[end][:_LONGEST].translate(_SIGNS)[margin:].rstrip()
        if line[:1] not in ("+", "|") or (line[0] == "+" and not section):
            break
        end += 1
        cells = [line[left + 1 : right].strip() for left, right in columns]
        if line[0] == "|":
            split = [cell.strip() for cell in line[1:].removesuffix("|").split("|")]
            cells = split if len(split) == len(cells) else cells  # else a bar stands in one
            if section and not (titles and _begins_row(section[-1].cells, cells)):
                section[-1] = _join_below(section[-1], cells)
            else:
                section.append(Row(end, tuple(cells)))
        elif titles:
            rows += _fill_spanned(section, rows[-1].cells if rows else (), spanned)
            section, spanned = [], [not cell.strip("+") for cell in cells]
        else:
            titles, section = section, []
    return Grid(titles[0].cells if titles else (), (*rows, *section), begin + 1, end)


def _begins_row(above: Sequence[str], cells: Sequence[str]) -> bool:
    """Whether cells below a row are a row of their own: below its first number stands another."""
    numbered = (cell[:1].isdigit() for over, cell in zip(above, cells, strict=True) if over[:1].isdigit())
    return next(numbered, False)


def _join_below(row: Row, cells: Sequence[str]) -> Row:
    joined = (f"{old} {cell}".strip() for old, cell in zip(row.cells, cells, strict=True))
    return Row(row.line, tuple(joined))


def _fill_spanned(section: Sequence[Row], above: Sequence[str], spanned: Sequence[bool]) -> list[Row]:
    """Return rows without escapes; an empty cell of the first is that above where the rule is blank."""
    rows = [Row(row.line, tuple(_ESCAPED.sub(r"\1", cell) for cell in row.cells)) for row in section]
    if above:
        over = zip(rows[0].cells, above, spanned, strict=True)
        rows[0] = Row(rows[0].line, tuple(cell or (old if goes_on else "") for cell, old, goes_on in over))
    return rows

"""Drawn tables: those of reStructuredText, of a terminal and of plain text, as rows of cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from loadgen.base.errors import UsageError

_MOST_CELLS = 50_000  # of a page
MOST_COLUMNS = 40
_LONGEST = 2000  # characters of a line
_GRID_RULE = re.compile(r"\+(?:[-= ]{2,}\+){2,}$")
_RULE = re.compile(r"\s*(?:-{2,}\s{1,3}|={2,}\s{1,3}){1,40}(?:-{2,}|={2,})\s*$")
_ESCAPED = re.compile(r"\\([\\*`|_\[\]<>])")
_SPEED = re.compile(r"speed|/ ?time", re.IGNORECASE)
# What a terminal's tables are drawn with: their first line, the rules in them, the last one, and the sides.
_BOX_TOPS, _BOX_ENDS, _BOX_SIDES = "┏┌╭╔╒", "┗└╰╚╘", "┃│║"
_BOX_RULES = f"┡├╞╟╠┢{_BOX_ENDS}"
_BOX_LINES = tuple(_BOX_RULES + _BOX_SIDES)
_BOX_SIDE = re.compile(f"[{_BOX_SIDES}]")


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


def read_table(lines: Sequence[str], at: int) -> Grid | None:
    """Read the table that begins at index `at`, or has the rule below its titles there; None if none.

    One that is damaged, or of over 40 columns, has no titles.
    """
    line = lines[at].strip()
    if len(line) > _LONGEST:
        return None
    read: Grid | None = None
    if line.startswith("+-") and _GRID_RULE.match(line):
        read = _read_drawn(lines, at)
    elif line[:1] in _BOX_TOPS and len(line) > 2:
        read = _read_boxed(lines, at)
    elif at and line[:2] in ("--", "==") and _RULE.match(line):
        read = _read_ruled(lines, at)
    return read


def check_size(cells: int) -> None:
    """Raise UsageError if a page's tables have over 50,000 cells."""
    if cells > _MOST_CELLS:
        raise UsageError(f"its tables have more than {_MOST_CELLS} cells: give it in parts")


def _find_end(lines: Sequence[str], begin: int, is_row: Callable[[str], bool]) -> int:
    """Find the index after a table's last row: the first line that is no row, or 50,000 lines on."""
    end, last = begin, min(len(lines), begin + _MOST_CELLS)
    while end < last and is_row(lines[end]):
        end += 1
    return end


def _read_boxed(lines: Sequence[str], begin: int) -> Grid:
    """Read a table that a terminal draws; a line with one cell at most continues the line above."""
    titles: tuple[str, ...] = ()
    rows: list[Row] = []
    end = begin + 1
    last = _find_end(
        lines, end, lambda line: line.strip()[:1] in _BOX_LINES and len(line.strip()) <= _LONGEST
    )
    while end < last:
        line, end = lines[end].strip(), end + 1
        if line[0] in _BOX_RULES:
            if rows and not titles:
                titles, rows = _stack_cells([row.cells for row in rows]), []
            if line[0] in _BOX_ENDS:
                break
            continue
        cells = tuple(cell.strip() for cell in _BOX_SIDE.split(line)[1:-1])
        if rows and titles and sum(map(bool, cells)) <= 1 and len(cells) == len(rows[-1].cells):
            rows[-1] = _join_below(rows[-1], cells)
        else:
            rows.append(Row(end, cells))
    whole = len(titles) <= MOST_COLUMNS and all(len(row.cells) == len(titles) for row in rows)
    return Grid(titles, tuple(rows), begin + 1, end) if whole else Grid((), (), begin + 1, end)


def _join_below(row: Row, cells: Sequence[str]) -> Row:
    joined = (f"{old} {cell}".strip() for old, cell in zip(row.cells, cells, strict=True))
    return Row(row.line, tuple(joined))


def _read_drawn(lines: Sequence[str], begin: int) -> Grid:
    """Read a grid of reStructuredText, or of a database: a cell goes on below a blank in a rule."""
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    end = _find_end(lines, begin, lambda line: line[indent : indent + 1] in ("+", "|"))
    bounds = [at for at, letter in enumerate(lines[begin][indent:].rstrip()) if letter == "+"]
    if len(bounds) - 1 > MOST_COLUMNS:
        return Grid((), (), begin + 1, end)
    columns = list(pairwise(bounds))
    is_double = any(line.strip()[:2] == "+=" for line in lines[begin:end])
    titles: tuple[str, ...] = ()
    rows: list[Row] = []
    current, goes_on = Row(begin + 1, ("",) * len(columns)), [False] * len(columns)
    for at in range(begin + 1, end):
        text = lines[at][indent:].rstrip()
        cells = [text[left + 1 : right] for left, right in columns]
        if text[:1] == "|" or not all(set(cell) <= {*"-= +"} for cell in cells):
            plain = tuple(cell.strip() for cell in cells)
            pairs = [*zip(current.cells, plain, strict=True)]
            numbered = [cell[:1].isdigit() for over, cell in pairs if over[:1].isdigit()]
            if titles and numbered and all(numbered) and all(cell or not over for over, cell in pairs):
                rows.append(current)  # a row of its own, with no rule between them
                current = Row(at + 1, plain)
            else:
                current = _join_below(current, plain)
            continue
        above = rows[-1].cells if rows else ()
        whole = tuple(
            _ESCAPED.sub(r"\1", above[column] if going and above and not cell else cell)
            for column, (going, cell) in enumerate(zip(goes_on, current.cells, strict=True))
        )
        if ("=" in text or not is_double) and not titles:
            titles = whole
        elif any(whole):
            rows.append(Row(current.line, whole))
        current, goes_on = Row(at + 2, ("",) * len(columns)), [not cell.strip() for cell in cells]
    return Grid(titles, tuple(rows), begin + 1, end)


def _read_ruled(lines: Sequence[str], rule: int) -> Grid | None:
    """Read a table of plain text: columns by the dashes of a rule below the titles, of one line or several.

    A line that begins at the margin, left of the first column, is the first cell of the rows below it. None
    without a title above, of one column, and of over 40.
    """
    spans = [(match.start(), match.end()) for match in re.finditer(r"-+|=+", lines[rule])]
    if not 1 < len(spans) <= MOST_COLUMNS:
        return None
    margin = spans[0][0]
    begin = rule
    while begin and rule - begin < 5 and _is_within(lines[begin - 1], spans):
        begin -= 1
    if begin == rule:
        return None
    titles = _stack_cells([_cut_cells(lines[at], spans) for at in range(begin, rule)])
    # The column that every row has on its first line: the speed, else the first.
    key = next((at for at, title in enumerate(titles) if _SPEED.search(title) is not None), 0)
    rows: list[Row] = []  # the first cell is the head's

    def is_head(line: str) -> bool:
        return margin > 0 and not line[:margin].isspace()

    def is_row(line: str) -> bool:
        if not line.strip() or len(line) > _LONGEST:
            return False
        return _END.match(line) is None if is_head(line) else _is_within(line, spans)

    head, last = "", _find_end(lines, rule + 1, is_row)
    for number, line in enumerate(lines[rule + 1 : last], rule + 2):
        if is_head(line):
            head = line.strip()
        elif (cells := _cut_cells(line, spans))[key] or not rows:
            rows.append(Row(number, (head, *cells)))
        else:
            rows[-1] = _join_below(rows[-1], ("", *cells))
    if not margin:
        return Grid(
            titles, _fill_blank_cells([Row(row.line, row.cells[1:]) for row in rows]), begin + 1, last
        )
    return Grid(("Model", *titles), _fill_blank_cells(rows), begin + 1, last)


# What stands below our tables.
_END = re.compile(r"(?:Speed|Server:|TTFT |\[|\d+ (?:or \d+ )*tokens|[\w(+]{1,20}\)?/time)")


def _is_within(line: str, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a line has text, and none of it between the columns."""
    if not line.strip() or len(line) > _LONGEST:
        return False
    gaps = [(0, spans[0][0]), *((left[1], right[0]) for left, right in pairwise(spans))]
    return all(not line[left:right].strip() for left, right in gaps)


def _cut_cells(line: str, spans: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    return tuple(line[left:right].strip() for left, right in [*spans[:-1], (spans[-1][0], len(line))])


def _stack_cells(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(" ".join(filter(None, cells)) for cells in zip(*parts, strict=True))


def _fill_blank_cells(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows, a blank second cell filled with that of the row above if their first are equal."""
    filled: list[Row] = []
    for row in rows:
        cells = list(row.cells)
        if filled and len(cells) > 1 and not cells[1] and filled[-1].cells[0] == cells[0]:
            cells[1] = filled[-1].cells[1]
        filled.append(Row(row.line, tuple(cells)))
    return tuple(filled)

"""Page reader: headings, lines, results and tables of a page in order, by the parsers of Markdown and HTML.

Results and tables that are drawn with signs are lifted out first, and a comment stands in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

from loadgen.base.errors import UsageError
from loadgen.study.importers.pasted.headings import (
    BOLD_LEVEL,
    ITEM_LEVEL,
    PageLine,
    strip_marks,
)
from loadgen.study.importers.pasted.pasted_blocks import HEADER, RULE

_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))")
_LEFT_OUT = str.maketrans("", "", "\ue000\ue001\u00ad")
_LIFTED = re.compile("\ue000(\\d{1,9})\ue001")  # where a result or a table was
_COMMENTED = re.compile("<!--(\ue000\\d{1,9}\ue001)-->")
# What a block without its rule ends before; a heading with a number behind a colon is a line of it.
_ENDS = re.compile(
    r"\s{0,20}(?:>\s?){0,5}(?:#{1,6}\s{1,9}\w(?!.{0,200}:\s{1,60}[-+]?\d)|`{3}|~{3}|</?h[1-6]\b)",
    re.IGNORECASE,
)
_FENCE = re.compile(r"\s{0,20}(?:>\s?){0,5}(?:`{3}|~{3})")
_BOLD = re.compile(r"\s*(\*\*|__)(?=\S)(.+)(?<=\S)\1:?\s*")
_SHOWN = frozenset({"alt", "caption", "label", "name", "summary", "title"})  # attributes
_HEADS = {f"h{level}": level for level in range(1, 7)}
_ELEMENT = re.compile(
    r"</?(?:h[1-6]|p|div|pre|li|table|tabitem|t[rhd]|caption|dt|figcaption|summary)\b", re.IGNORECASE
)
_INSIDE = frozenset({"a", "code", "em", "font", "i", "img", "span", "sub", "sup", "u"})  # a line
_MOST_SPANNED, _LONGEST_TITLE = 1000, 120
_CELL_MARKS = re.compile(r"(?<!\\)(?:\*\*|`)")
_ESCAPED = re.compile(r"\\([\\*`|_\[\]<>])")
_DOCUMENT = re.compile(r"\s*<(?:!doctype|html)\b", re.IGNORECASE)  # of nothing but HTML
_MARKDOWN = MarkdownIt("zero", {"html": True}).enable(
    ["blockquote", "code", "fence", "heading", "html_block", "lheading", "list", "hr", "table"]
)
_IN_CODE = MarkdownIt("zero").enable("table")

_MOST_CELLS = 50_000  # of a page
_MOST_COLUMNS = 40
_LONGEST = 2000  # characters of a line
# A terminal's corners, rules and sides, as the signs that everyone else draws with.
_SIGNS = {
    **dict.fromkeys(map(ord, "┏┌╭╔╒┳┬╦╤┓┐╮╗╕┡├╞╟╠┢╇┼╪╫╬╈┩┤╡╢╣┪└┗╰╚╘┴┻╩╧┘┛╯╝╛"), "+"),
    **dict.fromkeys(map(ord, "─━"), "-"), ord("═"): "=", **dict.fromkeys(map(ord, "│┃║"), "|"),
}  # fmt: skip
_RULE_ABOVE = re.compile(r"\s*\+(?:[-=]{2,}\+)+\s*")


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


class PastedBlock(msgspec.Struct):
    """A result as a client prints it, and the titles of the table's cell that it stands in, if it does."""

    number: int  # the line of its title, counted from 1
    lines: list[str]
    closed: bool = False  # by its rule
    cell: tuple[str, str] | None = None
    # As the verdict of a report of ours has it, below the block.
    simulated: str = ""
    level: str = ""


Part = PageLine | PastedBlock | Grid
_Cell = tuple[str, int, int]  # its text, how many rows it spans, and columns


def read_parts(text: str) -> list[Part]:
    """Read a page's lines, blocks and tables in order; UsageError if its tables have over 50,000 cells."""
    reader = _PageReader(*_lift_results(split_lines(text.translate(_LEFT_OUT))))
    return reader.read_page()


def split_lines(text: str) -> list[str]:
    """Split a text into lines, without a terminal's colours; a progress bar's rewritten line is one."""
    plain = _COLOUR.sub("", text).replace("\r\n", "\n")
    return (plain if "\n" in plain else plain.replace("\r", "\n")).split("\n")


def _lift_results(lines: Sequence[str]) -> tuple[list[str], list[int], list[PastedBlock | Grid]]:
    """Lift a page's blocks, else its drawn tables; return the other lines, their numbers, and the lifted."""
    kept, numbers, lifted = list[str](), list[int](), list[Any]()  # blocks, or tables
    at = cells = 0
    in_fence = False
    is_of_blocks = any(HEADER.search(line) for line in lines if "===" in line)
    while at < len(lines):
        begin, line = at, lines[at]
        at += 1
        if is_of_blocks:
            line, at = _lift_blocks(lines, begin, lifted)
            in_fence = in_fence is not bool(_FENCE.match(line))
        elif (grid := _read_drawn(lines, begin)) is not None:
            _check_size(cells := cells + 1 + len(grid.rows) * len(grid.titles))
            line, at = _mark(len(lifted)) if grid.titles else "", grid.last
            lifted += [grid] if grid.titles else []
        kept.append(line)
        numbers.append(begin + 1)
        if in_fence and begin + 1 < at < len(lines) and not (lifted[-1].closed or _FENCE.match(lines[at])):
            in_fence = False  # a heading ended a block that is cut off: what follows is no code
            kept.append("```")
            numbers.append(at)
    return kept, numbers, lifted


def _mark(place: int) -> str:
    return f"<!--\ue000{place}\ue001-->"


def _lift_blocks(lines: Sequence[str], at: int, lifted: list[PastedBlock | Grid]) -> tuple[str, int]:
    """Add the blocks that begin in a line to `lifted`; return it with a comment for each, and the next index.

    A block ends with its rule, or where another, a heading or a fence begins. The last line of a page that is
    cut off in a block is left out.
    """
    before, rest, at = "", lines[at], at + 1
    while (begins := HEADER.search(rest)) is not None:
        before += f"{rest[: begins.start()]}{_mark(len(lifted))}"
        rest = rest[begins.end() :]
        lifted.append(block := PastedBlock(at, []))
        while (ends := _find_end(rest)) is None:
            block.lines.append(rest)
            rest = ""
            if at == len(lines):
                del block.lines[-1]  # its last figure may be cut
                break
            if _ENDS.match(lines[at]) is not None:
                break
            rest, at = lines[at], at + 1
        else:
            block.lines.append(rest[: ends.start()])
            block.closed = ends.re is RULE
            rest = rest[ends.end() if block.closed else ends.start() :]
    return before + rest, at


def _find_end(line: str) -> re.Match[str] | None:
    """Find the rule that closes a block, or the title of the next one, whichever is first."""
    found = [match for match in (RULE.search(line), HEADER.search(line)) if match is not None]
    return min(found, key=lambda match: match.start(), default=None)


def _check_size(cells: int) -> None:
    """Raise UsageError if a page's tables have over 50,000 cells."""
    if cells > _MOST_CELLS:
        raise UsageError(f"its tables have more than {_MOST_CELLS} cells: give it in parts")


def _read_drawn(lines: Sequence[str], begin: int) -> Grid | None:
    """Read the table whose first rule is the line at an index, to its last row; None if none begins there.

    A column goes on below a blank in a rule. One of over 40 columns has no titles.
    """
    top = lines[begin][:_LONGEST].translate(_SIGNS).rstrip()
    if _RULE_ABOVE.fullmatch(top) is None:
        return None
    margin = top.index("+")
    bounds = [at - margin for at, sign in enumerate(top) if sign == "+"]
    columns = [*pairwise(bounds)] if len(bounds) <= _MOST_COLUMNS + 1 else []
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


class _PageReader(HTMLParser):
    """Reads the kept lines of a page into its parts: Markdown's tokens, and the HTML in them."""

    def __init__(self, lines: list[str], numbers: list[int], lifted: Sequence[PastedBlock | Grid]) -> None:
        super().__init__()
        self._lines, self._numbers, self._lifted = lines, numbers, lifted
        self._parts = list[Part]()
        self._base = 0  # the index of the line where what is read begins
        self._line = ""
        self._item, self._item_level = "", 0  # the mark of a list's item that begins
        self._head = ""  # the element of an open heading
        self._table: list[tuple[int, list[_Cell]]] | None = None  # rows, each with its line
        self._first = self._count = self._read = 0
        self._cell: list[str] | None = None
        self._spans = (1, 1)

    def read_page(self) -> list[Part]:
        """Read the page to its parts."""
        text = "\n".join(self._lines)
        if _DOCUMENT.match(text):
            self._feed(text, 0)
        else:
            self._walk(_MARKDOWN.parse(text), self._lines, 0)
        self._end_table()
        self._end_line()
        return self._parts

    @property
    def _number(self) -> int:
        return self._numbers[min(self._base + self.getpos()[0], len(self._numbers)) - 1]

    def _feed(self, text: str, base: int) -> None:
        self._base = base
        self.feed(text)
        self.close()
        self.reset()

    def _walk(
        self, tokens: Sequence[Token], lines: Sequence[str], offset: int, *, code: bool = False
    ) -> None:
        """Read tokens of Markdown, of these lines, the first of which has the index `offset` in the page."""
        before = Token("", "", 0)
        for token in tokens:
            if token.map is not None:
                self._base = offset + token.map[0]
            if token.type == "inline":
                self._read_inline(token.content, before, code)
            elif token.type in ("fence", "code_block"):
                self._read_code(token)
            elif token.type == "html_block":
                self._feed(token.content, self._base)
            elif token.type == "list_item_open":
                self._item, self._item_level = f"{token.info}{token.markup} ", ITEM_LEVEL + token.level
            elif token.type == "tr_open" and token.map is not None and "|" not in lines[token.map[0]]:
                self._end_table()  # below it is a paragraph, which Markdown takes for its row
            elif token.nesting and token.tag in ("table", "tr", "th", "td", *_HEADS):
                self.handle_starttag(token.tag, []) if token.nesting > 0 else self.handle_endtag(token.tag)
            elif token.type == "paragraph_close":
                self._end_paragraph()
            before = token

    def _read_inline(self, content: str, before: Token, code: bool) -> None:
        """Read a cell's text, or a paragraph's lines; HTML in them is read too, unless it is `code`."""
        if before.tag in ("th", "td") and self._cell is not None:
            self._feed(_ESCAPED.sub(r"\1", _CELL_MARKS.sub("", content)), self._base)
            return
        base = self._base
        *above, last = content.split("\n")
        if before.markup in ("=", "-") and (above or len(last) > _LONGEST_TITLE or last.startswith("|")):
            self._head = ""  # lines above a rule
        for at, line in enumerate([*above, last]):
            self._base = base + at
            if not code and _ELEMENT.search(line):
                self._feed(line, self._base)
            else:
                self._read_code_line(line)
            if above:
                self._end_line()

    def _read_code(self, token: Token) -> None:
        """Read code: indented HTML as such, text with bars as Markdown's tables, any other by lines."""
        begin = self._base + (token.type == "fence")
        if token.type == "code_block" and (self._table is not None or token.content.lstrip()[:1] == "<"):
            self._feed(token.content, begin)
            return
        if token.info.strip():
            self.handle_data(f"{token.markup}{token.info}\n")
        lines = token.content.split("\n")
        if "|" in token.content and self._cell is None:
            self._walk(_IN_CODE.parse(token.content), lines, begin, code=True)
        else:
            for at, line in enumerate(lines):
                self._base = begin + at
                self._read_code_line(line)
                self.handle_data("\n")
        self._end_paragraph()

    def _read_code_line(self, line: str) -> None:
        for at, piece in enumerate(_COMMENTED.split(line)):
            if at % 2:
                self.handle_comment(piece)
            else:
                self.handle_data(piece)

    def handle_data(self, data: str) -> None:
        """Add text to the open cell, heading or line."""
        if self._cell is not None:
            self._cell.append(data.translate(_LEFT_OUT))
        elif self._head:
            self._line += data.replace("\n", " ")
        else:
            first, *others = data.split("\n")
            self._line += first
            for other in others:
                self._end_line()
                self._line = other

    def handle_comment(self, data: str) -> None:
        """Add what was lifted out here, or the words of a comment."""
        lifted = _LIFTED.fullmatch(data)
        if self._cell is not None:
            self._cell.append(data if lifted is not None else " ")
        elif lifted is None:
            self._line += f" {data} "
        else:
            self._end_line()
            self._parts.append(self._lifted[int(lifted[1])])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a table, a row, a cell, a heading, an item or a line."""
        if tag == "table":
            self._end_table()
            self._end_line()
            self._table, self._first = [], self._number
        elif tag in ("tr", "td", "th") and self._table is not None:
            self._end_cell()
            if tag == "tr":
                self._table.append((self._number, []))
            else:
                given = dict(attrs)
                self._spans = _read_span(given.get("rowspan")), _read_span(given.get("colspan"))
                self._cell = []
        elif self._cell is not None:
            self._cell.append(" ")
        elif tag in ("b", "strong"):
            self._line += "**"
        else:
            if tag not in _INSIDE:
                self._end_line()
            self._line += "".join(f" {value} " for key, value in attrs if key in _SHOWN and value)
            self._head = tag if tag in _HEADS else self._head
            if tag == "li":
                self._item, self._item_level = "- ", ITEM_LEVEL

    def handle_endtag(self, tag: str) -> None:
        """End a table, a row, a cell, a heading, an item or a line."""
        if tag == "table":
            self._end_table()
        elif tag in ("tr", "td", "th"):
            self._end_cell()
        elif self._cell is not None:
            self._cell.append(" ")
        elif tag == self._head:
            line, self._line, self._head = self._line, "", ""
            if name := strip_marks(line):
                self._parts.append(PageLine(line.strip(), _HEADS[tag], name))
        elif tag in ("b", "strong"):
            self._line += "**"
        elif tag not in _INSIDE:
            self._end_paragraph()

    def _end_paragraph(self) -> None:
        self._end_line()
        self._parts.append(PageLine(""))

    def _end_line(self) -> None:
        """Add the open line to the parts: a bold one as a heading, an item, else text; no blank one."""
        line, self._line = self._line, ""
        if not line.strip():
            return
        if (bold := _BOLD.fullmatch(line)) is not None and not self._item:
            read = PageLine(line, BOLD_LEVEL, strip_marks(bold[2]))
        elif self._item:
            read = PageLine(f"{self._item}{line}", self._item_level, strip_marks(line))
            self._item = ""
        else:
            read = PageLine(line)
        self._parts.append(read)

    def _end_cell(self) -> None:
        if self._cell is not None and self._table:
            self._read += 1
            _check_size(self._read)
            self._table[-1][1].append((" ".join("".join(self._cell).split()), *self._spans))
        self._cell = None

    def _end_table(self) -> None:
        """Add the open table: the blocks in its cells, else a grid if it has two rows and two columns.

        Raises UsageError of over 50,000 cells in all.
        """
        self._end_cell()
        rows = list[Row]()
        for row in _spread_cells(self._table or []):
            self._count += len(row.cells)
            _check_size(self._count)
            rows += [row] if row.cells else []
        self._table = None
        if any(_LIFTED.search(cell) for row in rows for cell in row.cells):
            self._parts += self._list_blocks([row.cells for row in rows])
        elif len(rows) > 1 and len(rows[0].cells) > 1:
            titles = rows[0].cells
            missing = [""] * len(titles)
            body = tuple(Row(row.line, (*row.cells, *missing)[: len(titles)]) for row in rows[1:])
            self._parts.append(Grid(titles, body, self._first, max(self._number, rows[-1].line)))

    def _list_blocks(self, rows: Sequence[tuple[str, ...]]) -> Iterator[Part]:
        """Yield what was lifted from cells; a block gets its column's and row's titles."""
        below = reversed(rows)
        heads = {at: cell for cells in below for at, cell in enumerate(cells) if not _LIFTED.search(cell)}
        for cells in rows:
            first = "" if _LIFTED.search(cells[0]) else cells[0]
            for at, cell in enumerate(cells):
                for lifted in _LIFTED.finditer(cell):
                    part = self._lifted[int(lifted[1])]
                    if isinstance(part, PastedBlock):
                        part.cell = heads.get(at, ""), first
                    yield part


def _spread_cells(rows: Iterable[tuple[int, Sequence[_Cell]]]) -> Iterator[Row]:
    """Yield the rows of a table, in which a cell stands in each row and column that it spans, 40 at most."""
    spanning = dict[int, tuple[int, str]]()  # by column: how many rows are left, and the cell
    for line, cells in rows:
        spread = list[str]()
        for text, down, across in (*cells, ("", 0, 0)):
            while spanning.get(len(spread), (0, ""))[0] > 0:
                left, above = spanning[len(spread)]
                spanning[len(spread)] = left - 1, above
                spread.append(above)
            for _ in range(min(across, _MOST_COLUMNS - len(spread))):
                spanning[len(spread)] = down - 1, text
                spread.append(text)
        yield Row(line, tuple(spread) if cells else ())


def _read_span(value: str | None) -> int:
    return min(int(value), _MOST_SPANNED) if value and value.isdecimal() and len(value) < 5 else 1

"""Page reader: headings, lines, results and tables of a page in order, by the parsers of Markdown and HTML.

Results and tables that are drawn with signs are lifted out first, and a comment stands in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html.parser import HTMLParser
from itertools import pairwise

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

from loadgen.base.errors import UsageError
from loadgen.study.importers.pasted.headings import BOLD_LEVEL, ITEM_LEVEL, PageLine, strip_marks
from loadgen.study.importers.pasted.pasted_blocks import HEADER, RULE

_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))")
_LEFT_OUT = str.maketrans("", "", "\ue000\ue001\u00ad")
_LIFTED = re.compile("\ue000(\\d{1,9})\ue001")  # where a result or a table was
_COMMENTED = re.compile("<!--(\ue000\\d{1,9}\ue001)-->")
# A block's title and rule; a fence and a heading, which end a block without its rule. A heading with a number
# behind a colon is a line of it.
_SIGN = re.compile(
    rf"(?P<title>{HEADER.pattern})|(?P<rule>{RULE.pattern})"
    r"|^[^\S\n]{0,20}(?:>[^\S\n]?){0,5}(?:(?P<fence>`{3}|~{3})"
    r"|(?P<heading>#{1,6}\s{1,9}\w(?!.{0,200}:\s{1,60}[-+]?\d)|</?h[1-6]\b))",
    re.IGNORECASE | re.MULTILINE,
)
# What a fence's text is written in: any other word of its first line is a name.
LANGUAGE = re.compile(
    r"[{.]*(?:|ansi|bash|console|csv|diff|json|log|markdown|md|none|output|plain|plaintext|powershell|python"
    r"|sh|shell|shellsession|stdout|terminal|text|txt|yaml|zsh)\}?(?!\w)",
    re.IGNORECASE,
)
_BOLD = re.compile(r"\s*(\*\*|__)(?=\S)(.+)(?<=\S)\1:?\s*")
_SHOWN = frozenset({"alt", "caption", "label", "name", "summary", "title"})  # attributes
_HEADS = {f"h{level}": level for level in range(1, 7)}
_LINE_ELEMENT = re.compile(
    r"</?(?:h[1-6]|p|div|pre|li|table|tabitem|t[rhd]|caption|dt|figcaption|summary)\b", re.IGNORECASE
)
_INSIDE = frozenset({"a", "code", "em", "font", "i", "img", "span", "sub", "sup", "u"})  # a line
_LISTS, _DEEPEST = ("ul", "ol"), 9
_CELL_MARKS = re.compile(r"(?<!\\)(?:\*\*|`)|\\(?=[\\*`|_\[\]<>])")
_DOCUMENT = re.compile(r"\s*<(?:!doctype|html)\b", re.IGNORECASE)  # of nothing but HTML
_MARKDOWN = MarkdownIt("zero", {"html": True}).enable(
    ["blockquote", "code", "fence", "heading", "html_block", "lheading", "list", "hr", "table"]
)
_IN_CODE = MarkdownIt("zero").enable("table")
_MOST_CELLS, _MOST_COLUMNS, _MOST_SPANNED = 50_000, 40, 1000  # of a page, of a table, of a cell
# A terminal's corners, rules and sides, as the signs that everyone else draws with.
_SIGNS = {
    **dict.fromkeys(map(ord, "┏┌╭╔╒┳┬╦╤┓┐╮╗╕┡├╞╟╠┢╇┼╪╫╬╈┩┤╡╢╣┪└┗╰╚╘┴┻╩╧┘┛╯╝╛"), "+"),
    **dict.fromkeys(map(ord, "─━"), "-"), ord("═"): "=", **dict.fromkeys(map(ord, "│┃║"), "|"),
}  # fmt: skip
_DRAWN = re.compile(
    r"^([^\S\n]{0,200})\+(?:[-=]{2,}+\+)++[^\S\n]*\n(?:(?:\1\|.*(?:\n|\Z))++(?:\1\+.*(?:\n|\Z))?+)++",
    re.MULTILINE,
)


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
    lines: Sequence[str] = ()
    closed: bool = False  # by its rule
    cell: tuple[str, str] | None = None
    # As the verdict of a report of ours has it, below the block.
    simulated: str = ""
    level: str = ""


Part = PageLine | PastedBlock | Grid
_Cell = tuple[str, int, int]  # its text, how many rows it spans, and columns


def read_parts(text: str) -> list[Part]:
    """Read a page's lines, and its blocks, else its tables; UsageError if these have over 50,000 cells."""
    plain = "\n".join(split_lines(text.translate(_LEFT_OUT)))
    lift = _lift_blocks if HEADER.search(plain) is not None else _lift_drawn
    return _PageReader(*lift(plain)).read_page()


def split_lines(text: str) -> list[str]:
    """Split a text into lines, without a terminal's colours; a progress bar's rewritten line is one."""
    plain = _COLOUR.sub("", text).replace("\r\n", "\n")
    return (plain if "\n" in plain else plain.replace("\r", "\n")).split("\n")


def _lift_blocks(text: str) -> tuple[str, list[PastedBlock]]:
    """Return a page with a comment for each block, and the blocks.

    A block ends with its rule, or where another, a heading or a fence begins. The last line of a page that is
    cut off in a block is left out.
    """
    kept, blocks, number, counted = list[str](), list[PastedBlock](), 1, 0
    at, is_open, in_fence = 0, False, False
    for sign in _SIGN.finditer(text):
        kind, begin = sign.lastgroup, sign.start()
        if is_open:
            blocks[-1].lines, blocks[-1].closed = text[at:begin].split("\n"), kind == "rule"
            at, is_open = sign.end() if kind == "rule" else begin, False
            if kind in ("fence", "heading"):  # what follows a block that is cut off by a heading is no code
                kept.append("\n```\n" if kind == "heading" and in_fence else "\n")
                in_fence &= kind == "fence"
        if kind == "title":
            number, counted = number + text.count("\n", counted, begin), begin
            kept.append(f"{text[at:begin]}<!--\ue000{len(blocks)}\ue001-->")
            blocks.append(PastedBlock(number))
            at, is_open = sign.end(), True
        in_fence ^= kind == "fence"
    if is_open:
        blocks[-1].lines = text[at:].split("\n")[:-1]  # its last figure may be cut
        at = len(text)
    return "".join([*kept, text[at:]]), blocks


def _lift_drawn(text: str) -> tuple[str, list[Grid]]:
    """Return a page with a comment and empty lines for each drawn table, and the tables."""
    kept, grids, at, number, cells = list[str](), list[Grid](), 0, 1, 0
    for drawn in _DRAWN.finditer(text.translate(_SIGNS)):
        kept.append(text[at : drawn.start()])
        number += text.count("\n", at, drawn.start())
        grid = _read_drawn(drawn[0].rstrip("\n").split("\n"), len(drawn[1]), number)
        if grid is not None:
            cells += (1 + len(grid.rows)) * len(grid.titles)
            _check_size(cells)
            kept.append(f"<!--\ue000{len(grids)}\ue001-->")
            grids.append(grid)
        lines = drawn[0].count("\n")
        kept.append("\n" * lines)
        at, number = drawn.end(), number + lines
    return "".join([*kept, text[at:]]), grids


def _check_size(cells: int) -> None:
    """Raise UsageError if a page's tables have over 50,000 cells."""
    if cells > _MOST_CELLS:
        raise UsageError(f"its tables have more than {_MOST_CELLS} cells: give it in parts")


def _read_drawn(lines: Sequence[str], margin: int, first: int) -> Grid | None:
    """Read the lines of a drawn table from its first rule on; None of one of over 40 columns.

    A column goes on below a blank in a rule. A cell goes on in the next line, unless that begins a row.
    """
    columns = [*pairwise(at for at, sign in enumerate(lines[0]) if sign == "+")]
    titles, rows, section = tuple[str, ...](), list[Row](), list[Row]()  # the section is below the last rule
    goes_on = [False] * len(columns)
    if len(columns) > _MOST_COLUMNS:
        return None
    for number, line in enumerate(lines[1:], first + 1):
        cells = [line[left + 1 : right].strip() for left, right in columns]
        if line[margin] == "|":
            split = [cell.strip() for cell in line[margin + 1 :].rstrip().removesuffix("|").split("|")]
            cells = split if len(split) == len(cells) else cells  # else a bar stands in one
            if section and not (titles and _begins_row(section[-1].cells, cells)):
                joined = (f"{old} {cell}".strip() for old, cell in zip(section[-1].cells, cells, strict=True))
                section[-1] = Row(section[-1].line, tuple(joined))
            else:
                section.append(Row(number, tuple(cells)))
        elif titles:
            rows += _fill_spanned(section, rows[-1].cells if rows else (), goes_on)
            section, goes_on = [], [not cell.strip("+") for cell in cells]
        else:
            titles, section = section[0].cells, []
    rows += _fill_spanned(section, (), goes_on)
    return Grid(titles, tuple(rows), first, first + len(lines) - 1) if titles else None


def _begins_row(above: Sequence[str], cells: Sequence[str]) -> bool:
    """Whether cells below a row are a row of their own: below its first number stands another."""
    numbered = (cell[:1].isdigit() for over, cell in zip(above, cells, strict=True) if over[:1].isdigit())
    return next(numbered, False)


def _fill_spanned(section: Sequence[Row], above: Sequence[str], goes_on: Sequence[bool]) -> list[Row]:
    """Return rows without escapes; an empty cell of the first is that above where the rule is blank."""
    rows = [Row(row.line, tuple(_CELL_MARKS.sub("", cell) for cell in row.cells)) for row in section]
    if above and rows:
        over = zip(rows[0].cells, above, goes_on, strict=True)
        rows[0] = Row(rows[0].line, tuple(cell or (old if spans else "") for cell, old, spans in over))
    return rows


class _PageReader(HTMLParser):
    """Reads a page without what was lifted out into its parts: Markdown's tokens, and the HTML in them."""

    def __init__(self, text: str, lifted: Sequence[PastedBlock | Grid]) -> None:
        super().__init__()
        self._text, self._lifted = text, lifted
        self._parts = list[Part]()
        self._base = 0  # the index of the line where what is read begins
        self._line = ""
        self._item = self._depth = 0  # the level of a list's item that begins, and how deep lists are
        self._head = ""  # the element of an open heading
        self._table: list[tuple[int, list[_Cell]]] | None = None  # rows, each with its line
        self._first = self._read = 0
        self._cell: list[str] | None = None
        self._spans = (1, 1)

    def read_page(self) -> list[Part]:
        """Read the page to its parts."""
        if _DOCUMENT.match(self._text):
            self._feed(self._text, 0)
        else:
            self._walk(_MARKDOWN.parse(self._text), self._text.split("\n"), 0)
        self._end_table()
        self._end_line()
        return self._parts

    @property
    def _number(self) -> int:
        return self._base + self.getpos()[0]

    def _feed(self, text: str, base: int) -> None:
        self._base = base
        self.feed(text)
        self.close()
        self.reset()

    def _walk(
        self, tokens: Sequence[Token], lines: Sequence[str], offset: int, *, code: bool = False
    ) -> None:
        """Read tokens of Markdown, of these lines, the first of which has the index `offset` in the page."""
        for token in tokens:
            if token.map is not None:
                self._base = offset + token.map[0]
            if token.type == "inline" and self._cell is not None:
                self._feed(_CELL_MARKS.sub("", token.content), self._base)
            elif token.type == "inline":
                self._read_lines(token.content, code)
            elif token.type in ("fence", "code_block"):
                self._read_code(token)
            elif token.type == "html_block":
                self._feed(token.content, self._base)
            elif token.type == "tr_open" and token.map is not None and "|" not in lines[token.map[0]]:
                self._end_table()  # below it is a paragraph, which Markdown takes for its row
            elif token.nesting > 0:
                self.handle_starttag(token.tag, [])
            elif token.nesting < 0:
                self.handle_endtag(token.tag)

    def _read_lines(self, text: str, code: bool) -> None:
        """Read the lines of a paragraph or of code; HTML in them is read too, unless it is `code`."""
        base, lines = self._base, text.split("\n")
        if len(lines) > 1 or lines[0].startswith("|"):
            self._head = ""  # lines above a rule are no heading
        for at, line in enumerate(lines):
            if not code and _LINE_ELEMENT.search(line):
                self._feed(line, base + at)
            else:
                for place, piece in enumerate(_COMMENTED.split(line)):
                    (self.handle_comment if place % 2 else self.handle_data)(piece)
            if at < len(lines) - 1:
                self.handle_data("\n")

    def _read_code(self, token: Token) -> None:
        """Read code: indented HTML as such, text with bars as Markdown's tables, any other by lines."""
        begin = self._base + (token.type == "fence")
        if token.type == "code_block" and (self._table is not None or token.content.lstrip()[:1] == "<"):
            self._feed(token.content, begin)
            return
        if named := LANGUAGE.sub("", token.info.strip(), count=1).strip():
            self.handle_data(f"{named}\n")
        if "|" in token.content and self._cell is None:
            self._walk(_IN_CODE.parse(token.content), token.content.split("\n"), begin, code=True)
        else:
            self._base = begin
            self._read_lines(token.content, code=True)
        self._end_paragraph()

    def handle_data(self, data: str) -> None:
        """Add text to the open cell, heading or line."""
        if self._cell is not None:
            self._cell.append(data.translate(_LEFT_OUT))
            return
        *ended, rest = [data.replace("\n", " ")] if self._head else data.split("\n")
        for line in ended:
            self._line += line
            self._end_line()
        self._line += rest

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
        elif tag == "tr" and self._table is not None:
            self._end_cell()
            self._table.append((self._number, []))
        elif tag in ("td", "th") and self._table is not None:
            self._end_cell()
            given = dict(attrs)
            self._cell, self._spans = [], (_read_span(given.get("rowspan")), _read_span(given.get("colspan")))
        elif self._cell is not None:
            self._cell.append(" ")
        elif tag in ("b", "strong"):
            self._line += "**"
        else:
            if tag not in _INSIDE:
                self._end_line()
            self._line += "".join(f" {value} " for key, value in attrs if key in _SHOWN and value)
            self._head = tag if tag in _HEADS else self._head
            self._depth = min(self._depth + (tag in _LISTS), _DEEPEST)
            self._item = ITEM_LEVEL + self._depth if tag == "li" else self._item

    def handle_endtag(self, tag: str) -> None:
        """End a table, a row, a cell, a heading, an item or a line."""
        if tag == "table":
            self._end_table()
        elif tag in ("tr", "td", "th"):
            self._end_cell()
        elif self._cell is not None:
            self._cell.append(" ")
        elif tag == self._head:
            line, self._line, self._head = self._line.strip(), "", ""
            self._parts += [PageLine(line, _HEADS[tag])] if strip_marks(line) else []
        elif tag in ("b", "strong"):
            self._line += "**"
        elif tag not in _INSIDE:
            self._depth = max(self._depth - (tag in _LISTS), 0)
            self._end_paragraph()

    def _end_paragraph(self) -> None:
        self._end_line()
        self._parts.append(PageLine(""))

    def _end_line(self) -> None:
        """Add the open line to the parts: an item, a bold one as a heading, else text; no blank one."""
        line, self._line = self._line, ""
        if line.strip():
            level = self._item or (BOLD_LEVEL if _BOLD.fullmatch(line) else 0)
            self._item = 0
            self._parts.append(PageLine(line, level))

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
        for row, (_, cells) in zip(_spread_cells(self._table or []), self._table or [], strict=True):
            self._read += max(0, len(row.cells) - len(cells))
            _check_size(self._read)
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

"""Headings: what stands above a line of a page, in Markdown, reStructuredText or HTML pasted as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum, auto

import msgspec

from loadgen.analysis.importers import blocks
from loadgen.analysis.importers.blocks import HEADER, RULE

# For lines stripped at their end; none of them matches a run of blanks twice, since pages are untrusted.
_FENCE = re.compile(r"\s*+(?:>\s*+)*+(?:[-*+]\s++)?(`{3,}|~{3,})\s*+([^`]*)$")
_ATX = re.compile(r"\s{0,3}(?:>\s*+)*+(#{1,6})\s++(\S.*)$")
_BOLD = re.compile(r"\s*+(?:>\s*+)*+(\*\*|__)(?=\S)(.+)(?<=\S)\1$")
_ITEM = re.compile(r"\s*+(?:>\s*+)*+(?:(?:[-*+]|\d{1,3}[.)])\s++|<li>)(\S.*)$")
_HTML = re.compile(
    r"\s*+<(h[1-6]|b|strong|summary)\b[^>]*+>(.*?)</\1>\s*+:?\s*+(?:<br\s*+/?>)?$", re.IGNORECASE
)
_UNDERLINE = re.compile(r"\s{0,3}([=\-~^\"])\1{2,}\s*+$")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^)]{0,300}\)")
_TAG = re.compile(r"<[^<>]+>")
_MARKS = frozenset("#*_<>`~-+0123456789")  # what a heading, an item or a fence begins with
_LONGEST = 1000  # characters of a line that is a heading, an item or a fence
_UNDERLINES = '=-~^"'  # in the order of their levels, as most pages have them
_BOLD_LEVEL, _ITEM_LEVEL = 20, 30
# A heading of only such words describes the load, or what follows; it names no model.
_LOAD_WORD = re.compile(
    r"a|and|at|batch|benchmark|benchmarking|benchmarks|by|client|clients|concurrency|concurrent|for|full"
    r"|heavy|high|in|inf|infinite|input|k|latency|length|lengths|light|load|loads|long|low|max|maximum"
    r"|medium|mid|min|moderate|of|online|optimized|out|output|peak|per|performance|qps|query|rate"
    r"|request|requests|result|results|rps|run|running|s|scenario|second|seconds|serving|sglang|short"
    r"|single|size|speed|stream|streams|stress|test|testing|tests|the|throughput|time|tok|tokens|under"
    r"|user|users|vllm|with|x"
    r"|\d+"
)
_MODEL = re.compile(r"\S*\d(?:\.\d+)?[BM]\b\S*", re.IGNORECASE)
_LONGEST_TITLE, _LONGEST_LOAD = 120, 40


class Kind(Enum):
    """What a line is."""

    TEXT = auto()
    HEADING = auto()
    ITEM = auto()  # of a list
    FENCE = auto()


class PageLine(msgspec.Struct, frozen=True):
    """One line of a page: `level` is a heading's depth, 1 the outermost."""

    number: int  # counted from 1
    text: str
    kind: Kind = Kind.TEXT
    level: int = 0
    name: str = ""  # of a heading or an item, without its marks
    underlined: bool = False


class Outline:
    """The headings above where a page is read."""

    def __init__(self) -> None:
        self._open: list[PageLine] = []
        self._naming: dict[int, bool] = {}  # by line number: whether it names what stands below it

    def enter(self, line: PageLine) -> None:
        """Go on below a heading or an item."""
        self._open = [heading for heading in self._open if heading.level < line.level]
        self._open.append(line)
        self._naming = {heading.number: self._naming[heading.number] for heading in self._open[:-1]}
        self._naming[line.number] = _names(line) and not _is_load(line.name)

    @property
    def name(self) -> str:
        """The nearest heading that names something; the nearest of all where none does."""
        headings = [line.name for line in self._open if line.kind is Kind.HEADING]
        naming = [line.name for line in self._open if self._naming[line.number]]
        return (naming or headings or [""])[-1]

    @property
    def load(self) -> str:
        """What stands between that heading and here: a list's item, a heading that names a load."""
        below = [line.name for line in self._open]
        if self.name in below:
            below = below[below.index(self.name) + 1 :]
        return ", ".join(name for name in below if len(name) <= _LONGEST_LOAD)


def lines(text: Sequence[str]) -> Iterator[PageLine]:
    """Every line of a page, as what it is; in a fence there are no headings, for # begins a comment there."""
    fence = skip = False
    for number, (raw, following) in enumerate(zip(text, [*text[1:], ""], strict=True), 1):
        if not raw:
            skip = False
            yield PageLine(number, raw)
            continue
        bare = raw.strip()
        if skip or len(raw) > _LONGEST or not (bare[:1] in _MARKS or _UNDERLINE.match(following)):
            skip = False
            yield PageLine(number, raw)
        elif (fence_mark := _FENCE.match(raw.rstrip())) is not None:
            opens = not fence or fence_mark[2].strip() != ""  # a fence with a language opens one
            fence = opens and _closed(text, number)
            yield PageLine(number, raw, Kind.FENCE)
        elif fence:
            yield PageLine(number, raw)
        else:
            heading = _heading(number, raw, following)
            skip = heading is not None and heading.underlined
            yield heading or _item(number, raw)


def _closed(text: Sequence[str], begin: int) -> bool:
    """Whether a fence that was opened is closed again; one that a block was cut off in is not."""
    cut = False
    for at in range(begin, len(text)):
        if (mark := _FENCE.match(text[at][:_LONGEST].rstrip())) is not None:
            return not mark[2].strip()
        cut = (cut or HEADER.search(text[at]) is not None) and RULE.search(text[at]) is None
        if cut and (mark := _ATX.match(text[at].rstrip())) is not None and len(mark[1]) > 1:
            return False
    return False


def _heading(number: int, raw: str, following: str) -> PageLine | None:
    bare = raw.rstrip()
    if (match := _ATX.match(bare)) is not None:
        name = _plain(match[2].rstrip("#").rstrip() or match[2])
        return PageLine(number, raw, Kind.HEADING, len(match[1]), name)
    if (match := _HTML.match(bare)) is not None:
        level = int(match[1][1]) if match[1][1:].isdigit() else _BOLD_LEVEL
        return PageLine(number, raw, Kind.HEADING, level, _plain(match[2]))
    if (match := _BOLD.match(bare.removesuffix(":").rstrip())) is not None:
        return PageLine(number, raw, Kind.HEADING, _BOLD_LEVEL, _plain(match[2]))
    under = _UNDERLINE.match(following)
    if under is not None and _is_title(raw):
        level = 1 + _UNDERLINES.index(under[1])
        return PageLine(number, raw, Kind.HEADING, level, _plain(raw), underlined=True)
    return None


def _item(number: int, raw: str) -> PageLine:
    match = _ITEM.match(raw.rstrip())
    if match is None:
        return PageLine(number, raw)
    indent = len(raw) - len(raw.lstrip())
    return PageLine(number, raw, Kind.ITEM, _ITEM_LEVEL + indent, _plain(match[1]))


def _is_title(raw: str) -> bool:
    """Whether a line is text that the next one underlines, and no rule or row itself."""
    plain = raw.strip()
    fits = len(plain) <= _LONGEST_TITLE and plain[:1] != "|" and re.search(r"\w", plain) is not None
    return fits and HEADER.search(plain) is None and blocks.key_of(plain.partition(":")[0]) is None


def _plain(marked: str) -> str:
    """A heading without links, tags, stars, back-ticks and a colon at its end."""
    text = _TAG.sub("", _LINK.sub(r"\1", marked))
    return re.sub(r"(\*\*|__|``?|(?<!\w)[*_]|[*_](?!\w))", "", text).strip().rstrip(":").strip()


def _names(line: PageLine) -> bool:
    """Whether a line names what stands below it: a heading does, an item where it is a model's name alone."""
    return line.kind is Kind.HEADING or _MODEL.fullmatch(line.name) is not None


def _is_load(name: str) -> bool:
    return all(_LOAD_WORD.fullmatch(word) for word in re.findall(r"[^\W\d_]+|\d+", name.lower()))

"""Headings: what stands above a line of a page, in Markdown, reStructuredText or HTML pasted as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum, auto

import msgspec

from loadgen.study.importers import blocks, titles
from loadgen.study.importers.blocks import HEADER, RULE
from loadgen.study.importers.titles import Title

# For lines stripped at their end; none of them matches a run of blanks twice, since pages are untrusted.
_FENCE = re.compile(r"\s*+(?:>\s*+)*+(?:[-*+]\s++)?(`{3,}|~{3,})\s*+([^`]*)$")
_ATX = re.compile(r"\s{0,3}(?:>\s*+)*+(#{1,6})\s++(\S.*)$")
_BOLD = re.compile(r"\s*+(?:>\s*+)*+(\*\*|__)(?=\S)(.+)(?<=\S)\1$")
_ITEM = re.compile(r"\s*+(?:>\s*+)*+(?:(?:[-*+]|\d{1,3}[.)])\s++|<li>)(\S.*)$")
_HTML = re.compile(
    r"\s*+(?:<(?:p|div|li|span)\b[^<>]*+>\s*+){0,3}<(h[1-6]|b|strong|summary|caption|figcaption|dt)\b[^<>]*+>"
    r"(.*?)</\1>\s*+:?\s*+(?:<br\s*+/?>\s*+|</(?:p|div|li|span|summary|figure)>\s*+){0,3}$",
    re.IGNORECASE,
)
_QUOTE = re.compile(r"\s*+(?:>\s*+)*+")
_PARAGRAPH = re.compile(r"\s*+<p\b[^<>]*+>(.*)</p>\s*+$", re.IGNORECASE)
_UNDERLINE = re.compile(r"\s{0,3}([=\-~^\"])\1{2,}\s*+$")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^)]{0,300}\)")
_TAG = re.compile(r"<[^<>]+>")
_MARKS = frozenset("#*_<>`~-+0123456789")  # what a heading, an item or a fence begins with
_LONGEST = 1000  # characters of a line that is a heading, an item or a fence
_UNDERLINES = '=-~^"'  # in the order of their levels, as most pages have them
_BOLD_LEVEL, _ITEM_LEVEL, _LINE_LEVEL = 20, 30, 2000
# Of a line that is no heading by its marks and may be one by its words.
_SPEAKING = re.compile(r"\d[bm]\b|high|low|phi-|deepseek|glm-", re.IGNORECASE)
_LONGEST_TITLE, _LONGEST_LOAD = 120, 40


class Kind(Enum):
    """What a line is."""

    TEXT = auto()
    HEADING = auto()
    ITEM = auto()  # of a list
    LINE = auto()  # alone, with no mark of a heading, and nothing in it but a checkpoint and a load
    FENCE = auto()


class PageLine(msgspec.Struct, frozen=True):
    """One line of a page: `level` is a heading's depth, 1 the outermost."""

    number: int  # counted from 1
    text: str
    kind: Kind = Kind.TEXT
    level: int = 0
    name: str = ""  # of a heading or an item, without its marks
    underlined: bool = False


class Subject(msgspec.Struct, frozen=True):
    """What the headings above a place say of what stands there; "" for what they do not."""

    name: str = ""
    model: str = ""  # the checkpoint, where one is recognized
    load: str = ""
    quantization: str = ""  # of headings that name no checkpoint
    heading: str = ""  # the nearest, where none names anything


class Outline:
    """The headings above where a page is read."""

    def __init__(self) -> None:
        self._open: list[tuple[PageLine, Title]] = []

    def enter(self, line: PageLine) -> None:
        """Go on below a heading, an item or a line that names something.

        Bold lines, items and plain lines have no levels: a load stands below a name, and a name below a load.
        Of headings, a load stands below a checkpoint's of its own level.
        """
        title = titles.parse(line.name)
        kept = [(own, above) for own, above in self._open if own.level <= line.level]
        first = next((at for at, each in enumerate(kept) if _ends(*each, line, title)), len(kept))
        self._open = [*kept[:first], (line, title)]

    @property
    def names(self) -> list[str]:
        """The headings themselves, the nearest first."""
        return [line.name for line, _ in reversed(self._open)]

    @property
    def subject(self) -> Subject:
        """The nearest heading that names something, with its load, and how its weights are stored.

        The load is of that heading or below it: a list's item, a heading that names one; else above it.
        """
        at = next((at for at in range(len(self._open) - 1, -1, -1) if _names(*self._open[at])), -1)
        stored = next((title.quantization for _, title in reversed(self._open) if title.quantization), "")
        if at < 0:
            lines = (line for line, title in reversed(self._open) if not title.exact)
            heading = next((line.name for line in lines if line.kind is Kind.HEADING), "")
            return Subject(quantization=stored, load=self._load(at), heading=heading)
        own = self._open[at][1]
        name, model = own.name, own.model and titles.with_storage(own.model, stored)
        if model != own.model or (stored and not own.model):
            name = model if own.exact else f"{name}, {stored}"
        return Subject(name, model, load=self._load(at))

    def _load(self, at: int) -> str:
        """The load below a heading that names something; -1: none does."""
        above, below = self._open[: max(at, 0)], self._open[max(at, 0) :]
        own = [title.load for _, title in below if title.exact or title.name]
        higher = (title.load for _, title in reversed(above) if title.exact)
        described = (line.name for line, title in self._open[at + 1 :] if _describes(line, title, at >= 0))
        loads = [*filter(None, own)] or [*filter(None, higher)][:1] or [*filter(None, described)]
        return ", ".join(loads)


def lines(text: Sequence[str]) -> Iterator[PageLine]:
    """Every line of a page, as what it is; in a fence there are no headings, for # begins a comment there."""
    fence = skip = False
    before = ""
    for number, (raw, following) in enumerate(zip(text, [*text[1:], ""], strict=True), 1):
        above, before = before, raw
        if not raw:
            skip = False
            yield PageLine(number, raw)
            continue
        bare = raw.strip()
        if skip or len(raw) > _LONGEST:
            skip = False
            yield PageLine(number, raw)
        elif not (bare[:1] in _MARKS or _UNDERLINE.match(following)):
            yield PageLine(number, raw) if fence else _line(number, raw, above, following)
        elif (fence_mark := _FENCE.match(raw.rstrip())) is not None:
            opens = not fence or fence_mark[2].strip() != ""  # a fence with a language opens one
            fence = opens and _closed(text, number)
            yield PageLine(number, raw, Kind.FENCE)
        elif fence:
            yield PageLine(number, raw)
        else:
            heading = _heading(number, raw, following) or _item(number, raw)
            skip = heading is not None and heading.underlined
            yield heading or _line(number, raw, above, following)


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


def _item(number: int, raw: str) -> PageLine | None:
    match = _ITEM.match(raw.rstrip())
    if match is None:
        return None
    indent = len(raw) - len(raw.lstrip())
    return PageLine(number, raw, Kind.ITEM, _ITEM_LEVEL + indent, _plain(match[1]))


def _line(number: int, raw: str, above: str, following: str) -> PageLine:
    """A line without marks: text, unless it is alone and is a checkpoint's name, a load, or both."""
    if len(raw) > _LONGEST_TITLE or _SPEAKING.search(raw) is None:
        return PageLine(number, raw)
    paragraph = _PARAGRAPH.match(raw)
    alone = paragraph is not None or not (_unquoted(above) and _FENCE.match(above) is None)
    follows = paragraph is not None or not _unquoted(following) or _is_beginning(following)
    name = _plain(paragraph[1] if paragraph is not None else _unquoted(raw))
    if alone and follows and titles.parse(name).exact:
        return PageLine(number, raw, Kind.LINE, _LINE_LEVEL, name)
    return PageLine(number, raw)


def _unquoted(line: str) -> str:
    mark = _QUOTE.match(line[:_LONGEST])
    return line[mark.end() :].strip() if mark is not None else line.strip()


def _is_beginning(line: str) -> bool:
    """Whether a block, or the fence around it, begins with a line."""
    return HEADER.search(line) is not None or _FENCE.match(line[:_LONGEST].rstrip()) is not None


def _is_title(raw: str) -> bool:
    """Whether a line is text that the next one underlines, and no rule or row itself."""
    plain = raw.strip()
    fits = len(plain) <= _LONGEST_TITLE and plain[:1] != "|" and re.search(r"\w", plain) is not None
    return fits and HEADER.search(plain) is None and blocks.key_of(plain.partition(":")[0]) is None


def _plain(marked: str) -> str:
    """A heading without links, tags, stars, back-ticks and a colon at its end."""
    text = _TAG.sub("", _LINK.sub(r"\1", marked))
    return re.sub(r"(\*\*|__|``?|(?<!\w)[*_]|[*_](?!\w))", "", text).strip().rstrip(":").strip()


def _names(line: PageLine, title: Title) -> bool:
    """Whether a line names what stands below it: an item or a plain line does where it is a model's name."""
    return title.name != "" and (line.kind is Kind.HEADING or (title.exact and title.model != ""))


def _describes(line: PageLine, title: Title, named: bool) -> bool:
    """Whether a line below a name says something of the load: an item does with any short text."""
    if len(line.name) > _LONGEST_LOAD:
        return False
    return line.kind is Kind.ITEM or (named and not (title.name or title.quantization))


def _ends(own: PageLine, above: Title, line: PageLine, title: Title) -> bool:
    """Whether what stands below an open heading of the same level ends where a line begins."""
    if own.level < line.level:
        return False
    names, named = _names(line, title), _names(own, above)
    if own.level >= _BOLD_LEVEL:
        return names is named
    return names or not above.model

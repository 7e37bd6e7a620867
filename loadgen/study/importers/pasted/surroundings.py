"""Surroundings: what stands around a result in its page, and distinguishes it from the page's other results.

Two results of a page are repeats only if the page says so (Run 2), or if nothing between them differs. So
every line between two results counts, in whatever form, but for what is read from it: the flags of commands,
a heading's checkpoint and load.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

import msgspec

from loadgen.base import secrecy
from loadgen.base.errors import UsageError
from loadgen.base.text import cut_end
from loadgen.study import labels
from loadgen.study.importers.pasted import grids
from loadgen.study.importers.pasted.pasted_blocks import HEADER, RULE

_LONGEST = 2000  # characters of a line that are compared
_SHOWN = 60  # of the words in a row's name
_MOST_LINES = 200  # between two results, the nearest
_NAMED_TAG = re.compile(
    r"<[^<>]{0,200}?\b(?:title|label|name|summary|caption|alt)\s*=\s*[\"']([^\"'<>]{1,100})[\"'][^<>]{0,200}>"
)
_TAG = re.compile(r"</?[A-Za-z!][^<>]{0,300}>")
_COMMENT = re.compile(r"<!--(.{0,300}?)-->")
_MARKS = re.compile(
    r"\s{0,20}(?:>\s?)*(?:#{1,6}\s|\d{1,3}[.)]\s|\.\.\s(?:[\w-]+::\s)?|//+|;+|={3,}\s|:::+|%+\s?)*"
)
_CAPTION = re.compile(
    r"\W{0,3}(?:table|tab|figure|fig|listing|tabelle|tableau|tabla|表|图|図)\W{0,3}\d", re.IGNORECASE
)
_LINK = re.compile(r"!?\[([^\[\]]{1,200})\]\([^()]{0,300}\)")
_FENCE = re.compile(r"[`~]{3,}\s*(?:[{.]*(\w*)[}]?)")
# What a fence's text is written in: any other word of its first line is a name.
_LANGUAGES = frozenset({
    "", "ansi", "bash", "console", "csv", "diff", "json", "log", "markdown", "md", "none", "output", "plain",
    "plaintext", "powershell", "python", "sh", "shell", "shellsession", "stdout", "terminal", "text", "txt",
    "yaml", "zsh",
})  # fmt: skip


class Surroundings(msgspec.Struct, frozen=True):
    """What stands between a result and the one above it."""

    section: object = None  # what its headings name: a result has nothing of those above it in another
    lines: Sequence[str] = ()  # without what is read from them
    commands: tuple[dict[str, str] | None, ...] = ()  # the labels of each kind of command; None without one


def describe_surroundings(found: Sequence[Surroundings], below: Sequence[str]) -> list[dict[str, str]]:
    """Return the labels of each of a page's results: of commands, and as `above` the words that are its own.

    What is said of all distinguishes none. A result of which nothing else is said has the labels of the one
    above it: it is a second run of the same. Of several lines the nearest is the result's, and those before
    it are of the results below, too, until others take their place. Where the lines `below` the last
    result begin with a caption, captions stand below.
    """
    texts = [[*_read_own(each.lines)] for each in found]
    captions = [*texts[1:], [*_read_own(below)]]
    if texts and not texts[0] and all(own and _CAPTION.match(own[0][0]) for own in captions):
        texts = [own[:1] for own in captions]
    common = Counter(key for own in texts for key in {key for key, _ in own})
    shown: dict[str, str] = {}
    paths, commands = list[tuple[str, ...]](), list[tuple[dict[str, str] | None, ...]]()
    for at, (each, every) in enumerate(zip(found, texts, strict=True)):
        own = [key for key, text in every if common[key] < len(found) and shown.setdefault(key, text)]
        goes_on = at > 0 and found[at - 1].section == each.section
        above = paths[-1] if goes_on else ()
        is_same = not own or (own[-1:] == [*above[-1:]] and set(own) <= set(above))
        paths.append(above if is_same else (*(own[:-1] or above[:-1]), own[-1]))
        if goes_on and is_same:
            pairs = zip(each.commands, commands[-1], strict=True)
            commands.append(tuple(before if given is None else given for given, before in pairs))
        else:
            commands.append(each.commands)
    words = _choose_words(paths, shown)
    return [
        {key: value for each in own for key, value in (each or {}).items()}
        | ({"above": words[path]} if path else {})
        for own, path in zip(commands, paths, strict=True)
    ]


def _read_own(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what is compared of each line, and how it is shown; nothing of one that any run may have."""
    for line in lines[-_MOST_LINES:]:
        plain = line[:_LONGEST]
        fence = _FENCE.match(plain.strip())
        if fence is not None:
            plain = plain.strip()[fence.end() :] if fence[1].lower() in _LANGUAGES else plain.strip("`~ \t")
        plain = _LINK.sub(r"\1", plain)
        plain = _TAG.sub(" ", _NAMED_TAG.sub(r" \1 ", _COMMENT.sub(r" \1 ", plain)))
        mark = _MARKS.match(plain)
        plain = " ".join(plain[mark.end() if mark is not None else 0 :].split())
        if key := labels.strip_run(plain):
            yield key, secrecy.hide_secrets(re.sub(r"\*\*|__|`", "", plain).strip("-+*_:\uff1a. "))


def _choose_words(paths: Iterable[tuple[str, ...]], shown: dict[str, str]) -> dict[tuple[str, ...], str]:
    """Choose the words that each path is shown with: its last line if no other ends so, else all of them."""
    every = dict.fromkeys(path for path in paths if path)
    last = Counter(path[-1] for path in every)
    texts = {
        path: " ".join(shown[key] for key in (path if last[path[-1]] > 1 else path[-1:])) for path in every
    }
    begin = 0  # of several long texts, what all begin with in whole words is cut off
    if len(texts) > 1 and any(len(text) > _SHOWN for text in texts.values()):
        words = zip(*(text.split(" ")[:-1] for text in texts.values()), strict=False)
        begin = sum(len(each[0]) + 1 for each in takewhile(lambda each: len({*each}) == 1, words))
    cut = {path: cut_end(text[begin:], _SHOWN) for path, text in texts.items()}
    twice = Counter(cut.values())
    return {
        path: text if twice[text] == 1 else f"{at}. {text}" for at, (path, text) in enumerate(cut.items(), 1)
    }


def name_cells(lines: Sequence[str]) -> Callable[[int], list[str] | None]:
    """Return a function that gives the titles of the cell that a page's next block stands in, by its line."""
    cells: list[tuple[range, Iterator[list[str]]]] = []
    try:
        tables = grids.find_tables(lines) if any("|" in line or "<t" in line for line in lines) else []
    except UsageError:
        tables = []
    for grid in tables:
        rows = [grid.titles, *(row.cells for row in grid.rows)]
        heads = [
            next((cell for cell in column if not HEADER.search(cell)), "")
            for column in zip(*rows, strict=True)
        ]
        titled = [
            [heads[at], "" if HEADER.search(row[0]) else row[0]]
            for row in rows
            for at, cell in enumerate(row)
            for begins in HEADER.finditer(cell)
            if RULE.search(cell, begins.end()) is not None  # it has its last line, too
        ]
        if titled:
            cells.append((range(grid.first, grid.last + 1), iter(titled)))

    def find(line: int) -> list[str] | None:
        inside = next((own for place, own in cells if line in place), None)
        return None if inside is None else next(inside, None)

    return find

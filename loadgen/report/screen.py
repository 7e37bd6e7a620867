"""Screen: where text is shown: how wide it is, and in which colours; a file has 80 columns and none."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TextIO

import msgspec

from loadgen.base.text import DUMB, WIDTH

_LEAST, _MOST = 40, 120  # columns: longer lines are hard to read


class Colour(StrEnum):
    """What a colour means; each is as readable on white as on black (contrast above 3.7 to 1)."""

    GOOD = "color(28)"
    WARNING = "color(166)"
    BAD = "color(196)"


class Mark(msgspec.Struct, frozen=True):
    """A phrase of a text that has a colour where there are any: its first occurrence, as whole words."""

    phrase: str
    colour: Colour
    bold: bool = False


Ink = Callable[[str, Mark], str]


def no_ink(text: str, mark: Mark) -> str:
    """The text as it is."""
    return text


class Screen(msgspec.Struct, frozen=True):
    """Where text is shown; the default is a file."""

    width: int = WIDTH
    ink: Ink = no_ink

    @classmethod
    def of(cls, stream: TextIO | None) -> Screen:
        """The screen of a stream: a terminal's width, 40 to 120, and its colours; else a file's."""
        if stream is None or stream.closed or not stream.isatty():
            return cls()
        columns = shutil.get_terminal_size((WIDTH, 0)).columns
        return cls(max(_LEAST, min(columns, _MOST)), terminal_ink())

    def painted(self, lines: Sequence[str], marks: Iterable[Mark]) -> list[str]:
        """The lines with their marks in colour; a phrase may go on in the next line."""
        text, end = "\n".join(lines), 0
        if self.ink is no_ink or not lines:
            return list(lines)
        parts: list[str] = []
        for found, mark in sorted(_found(text, marks), key=lambda pair: pair[0].start()):
            if found.start() < end:  # in another one
                continue
            parts += [text[end : found.start()], self._inked(found[0], mark)]
            end = found.end()
        return "".join([*parts, text[end:]]).split("\n")

    def _inked(self, phrase: str, mark: Mark) -> str:
        """A phrase in colour, its lines one by one: no indent is coloured, and no line ends in colour."""
        pieces = re.split(r"(\n\s*)", phrase)
        return "".join(piece if piece.isspace() else self.ink(piece, mark) for piece in pieces)


def _found(text: str, marks: Iterable[Mark]) -> Iterable[tuple[re.Match[str], Mark]]:
    for mark in marks:
        words = r"\s+".join(map(re.escape, mark.phrase.split()))
        if words and (found := re.search(rf"(?<!\w){words}(?!\w)", text)):
            yield found, mark


def terminal_ink() -> Ink:
    """What colours text on a terminal; NO_COLOR and a terminal that knows none leave it as it is."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in DUMB:
        return no_ink
    from rich.color import ColorSystem  # a file needs none of it
    from rich.style import Style

    def ink(text: str, mark: Mark) -> str:
        # Of 256 colours, which every emulator knows whatever TERM is called: of the sixteen, which each
        # user's theme has its own of, yellow on white cannot be read.
        return Style(color=mark.colour.value, bold=mark.bold or None).render(
            text, color_system=ColorSystem.EIGHT_BIT
        )

    return ink

"""Printing: how text and JSON reach a terminal, a pipe or a file, in the width and the colours that it has.

It never raises: a terminal, pipe or disk that takes no more costs the words, not the run.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from typing import Any, NamedTuple, TextIO

from loadgen.base.errors import UsageError
from loadgen.base.text import DUMB, WIDTH, format_json

_JSON_ABOUT = "print the result as one JSON object, everything else on standard error"


def print_text(text: str, stream: TextIO | None, end: str = "\n") -> bool:
    """Write a text and `end` to a stream and flush it; returns whether the stream took it, never raises.

    Characters that the stream's encoding lacks are backslash-escaped. False if the stream is closed, absent
    (`2>&-`), full (/dev/full, a full disk), or no longer read (`| head -1`).
    """
    if stream is None:
        return False
    try:
        stream.write(escape_unencodable(text + end, getattr(stream, "encoding", None)))
        stream.flush()
    except (OSError, ValueError) as error:  # ValueError: the stream is closed
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            _lost.append(stream)  # one without a buffer (PYTHONUNBUFFERED) holds nothing to flush later
        return False
    return True


_lost: list[TextIO] = []  # streams that did not take a text


def flush_stream(stream: TextIO | None) -> bool:
    """Flush a stream; returns whether it took what it still held.

    True for an absent stream, which holds nothing, and for one whose reader is gone (`| head -1`).
    """
    try:
        if stream is not None:
            stream.flush()
    except BrokenPipeError:
        return True
    except (OSError, ValueError):
        return False
    return True


def flush_standard_streams() -> bool:
    """Flush stdout and stderr as `flush_stream` does; returns whether both took all that was printed."""
    out, error = flush_stream(sys.stdout), flush_stream(sys.stderr)
    return out and error and not any(stream in (sys.stdout, sys.stderr) for stream in _lost)


# Without a handler, logging itself would print what a program that uses the package has not asked for.
logging.getLogger("loadgen").addHandler(logging.NullHandler())


class Warnings(logging.Handler):
    """Prints each warning that the package logs as a line of the command's on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log record as `loadgen: …` on standard error."""
        print_text(f"loadgen: {record.getMessage()}", sys.stderr)


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print the package's log warnings on standard error inside the block; as a library it prints nothing."""
    log, handler = logging.getLogger("loadgen"), Warnings(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def escape_unencodable(text: str, encoding: str | None) -> str:
    """Backslash-escape the characters that an encoding lacks; None is UTF-8, an unknown one ASCII."""
    try:
        return text.encode(encoding or "utf-8", "backslashreplace").decode(encoding or "utf-8")
    except (LookupError, UnicodeError):  # no such encoding, or one that takes no escapes
        return text.encode("ascii", "backslashreplace").decode("ascii")


_LEAST, _MOST = 40, 120  # columns: longer lines are hard to read


class Colour(StrEnum):
    """A colour by its meaning; each is as readable on white as on black (contrast above 3.7 to 1)."""

    GOOD = "color(28)"
    WARNING = "color(166)"
    BAD = "color(196)"


class Mark(NamedTuple):
    """A phrase of a report and the colour of its first occurrence in a text, as whole words."""

    phrase: str
    colour: Colour
    bold: bool = False


Ink = Callable[[str, Mark], str]


def leave_plain(text: str, mark: Mark) -> str:
    """Return the text without colour; the ink of files and of terminals without colours."""
    return text


class Screen(NamedTuple):
    """The width in columns and the colours of an output; the default is a file: 80 columns, no colour."""

    width: int = WIDTH
    ink: Ink = leave_plain

    @classmethod
    def from_stream(cls, stream: TextIO | None) -> Screen:
        """Return a terminal's screen (40 to 120 columns, its colours), or a file's for any other stream."""
        if stream is None or stream.closed or not stream.isatty():
            return cls()
        columns = shutil.get_terminal_size((WIDTH, 0)).columns
        return cls(max(_LEAST, min(columns, _MOST)), make_terminal_ink())

    def paint(self, lines: Sequence[str], marks: Iterable[Mark]) -> list[str]:
        """Colour each phrase's first occurrence in wrapped lines, also over line ends, if not in another."""
        text, end = "\n".join(lines), 0
        if self.ink is leave_plain or not lines:
            return list(lines)
        parts: list[str] = []
        for found, mark in sorted(_find_marks(text, marks), key=lambda pair: pair[0].start()):
            if found.start() < end:  # in another one
                continue
            # Line by line, so that no indent is coloured and no line ends in colour.
            pieces = re.split(r"(\n\s*)", found[0])
            inked = (piece if piece.isspace() else self.ink(piece, mark) for piece in pieces)
            parts += [text[end : found.start()], *inked]
            end = found.end()
        return "".join([*parts, text[end:]]).split("\n")


def _find_marks(text: str, marks: Iterable[Mark]) -> Iterable[tuple[re.Match[str], Mark]]:
    for mark in marks:
        words = r"\s+".join(map(re.escape, mark.phrase.split()))
        if words and (found := re.search(rf"(?<!\w){words}(?!\w)", text)):
            yield found, mark


def make_terminal_ink() -> Ink:
    """Make the function (text, mark) → coloured text; it adds no colour under NO_COLOR or a dumb terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in DUMB:
        return leave_plain
    from rich.color import ColorSystem  # a file needs none of it
    from rich.style import Style

    def ink(text: str, mark: Mark) -> str:
        # Every emulator knows the 256 colours, whatever TERM says. The user's theme redefines the first
        # sixteen, and yellow on white cannot be read.
        style = Style(color=mark.colour.value, bold=mark.bold or None)
        return style.render(text, color_system=ColorSystem.EIGHT_BIT)

    return ink


def add_json_flag(parser: argparse._ActionsContainer, about: str = _JSON_ABOUT) -> None:
    """Add the flag --json to a parser or a group of one."""
    parser.add_argument("--json", action="store_true", help=about)


def print_json(value: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Print an object as strict JSON, on standard output without a stream.

    Raises ValueError for NaN and infinities in it.
    """
    print_text(format_json(value, indent=1), sys.stdout if stream is None else stream)


@contextmanager
def print_one_object(wanted: bool) -> Iterator[list[Mapping[str, Any]]]:
    """Yield a list for results, and print them as one object at the end, if it is `wanted`.

    Meanwhile what is for standard output goes to standard error. One result is printed as it is, several as
    `runs`; nothing is printed without one, and where an exception ends the block.
    """
    results: list[Mapping[str, Any]] = []
    if not wanted:
        yield results
        return
    stream = sys.stdout
    with redirect_stdout(sys.stderr):
        yield results
    if results:
        print_json(results[0] if len(results) == 1 else {"runs": results}, stream)


def refuse_without_result(wanted: bool, flags: Mapping[str, bool]) -> None:
    """Raise UsageError for --json, if it is `wanted`, with the first of these flags that is given."""
    if given := [flag for flag, is_given in flags.items() if wanted and is_given]:
        raise UsageError(f"--json prints a result, and {given[0]} makes none: leave out one of them")

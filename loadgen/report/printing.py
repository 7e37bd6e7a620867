"""Printing that never raises: a terminal, pipe or disk that takes no more costs the words, not the run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def printed(text: str, stream: TextIO | None, end: str = "\n") -> bool:
    """Write a text and its end to a stream, at once; whether it took them.

    What the stream's encoding cannot hold is written as its escape. False where the stream is closed,
    absent (`2>&-`), full (/dev/full, a full disk), or no longer read (`| head -1`).
    """
    if stream is None:
        return False
    try:
        stream.write(encodable(text + end, getattr(stream, "encoding", None)))
        stream.flush()
    except (OSError, ValueError):  # ValueError: the stream is closed
        return False
    return True


def flushed(stream: TextIO | None) -> bool:
    """Write out what a stream still holds; False where it does not take that.

    An absent stream holds nothing, and a reader that went away (`| head -1`) has read what it wanted.
    """
    try:
        if stream is not None:
            stream.flush()
    except BrokenPipeError:
        return True
    except (OSError, ValueError):
        return False
    return True


# Without a handler, logging itself would print what a program that uses the package has not asked for.
logging.getLogger("loadgen").addHandler(logging.NullHandler())


class Warnings(logging.Handler):
    """What the package logs as a warning, as the command's own lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one warning."""
        printed(f"loadgen: {record.getMessage()}", sys.stderr)


@contextmanager
def warnings_printed() -> Iterator[None]:
    """Within it, warnings of the package are printed; as a library it logs and prints nothing."""
    log, handler = logging.getLogger("loadgen"), Warnings(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def encodable(text: str, encoding: str | None) -> str:
    """The text in characters that an encoding has, the others as backslash escapes; None: UTF-8."""
    try:
        return text.encode(encoding or "utf-8", "backslashreplace").decode(encoding or "utf-8")
    except (LookupError, UnicodeError):  # no such encoding, or one that takes no escapes
        return text.encode("ascii", "backslashreplace").decode("ascii")

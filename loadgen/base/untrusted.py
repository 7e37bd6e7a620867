"""Untrusted: the values of servers, logs and files, made finite, short and printable.

Everything from outside passes one of these before it is kept: a number that JSON cannot hold, half a
character or a text without an end is met here, not where the result is written.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from loadgen.base.text import clean_line

MOST = 1 << 53  # the greatest count that a float and any reader of JSON keep exactly
DEEPEST = 64  # tables and lists inside one another
LONGEST = 300  # characters of a text that is kept
# msgspec raises these for bytes that are not JSON of the expected type, or are nested too deep.
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_DIGITS = 19  # of 2⁶³

Hide = Callable[[str], str]  # a text with its secrets masked


def hide_nothing(text: str) -> str:
    """Return a text as it is; the `Hide` function for where no secret is known."""
    return text


def read_text(value: object, longest: int = LONGEST) -> str:
    """Read a string as printable text on one line, cut to `longest` characters; "" for anything else."""
    if not isinstance(value, str):
        return ""
    if len(value) > longest:
        value = value[: longest - 1] + "…"
    return value if value.isprintable() else clean_line(value)


def read_line(value: str, longest: int = LONGEST) -> str:
    """Read a string as one line, each run of blanks and line ends as one blank, cut to `longest`."""
    return read_text(" ".join(value.split()), longest)


def read_error_text(body: bytes) -> str:
    """Read the message in an HTTP error's body: of nested JSON the innermost `error`, `message` or `detail`.

    The first of these keys that has a value counts. Other JSON is written out, any other body is text.
    """
    try:
        value = msgspec.json.decode(body)
        while isinstance(value, dict):
            inner = next((value[key] for key in ("error", "message", "detail") if value.get(key)), None)
            if inner is None:
                break
            value = inner
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except (*NOT_JSON, ValueError, OverflowError):  # these two: a number that cannot be written again
        return body.decode("utf-8", "replace")


def read_count(value: object) -> int | None:
    """Read a count, 0 to 2⁵³, also a whole float; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= MOST else None


def read_number(value: object) -> float | None:
    """Read a finite number, 0 to 2⁵³, also one written as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        finite = float(value)
    except (ValueError, OverflowError):
        return None
    return finite if math.isfinite(finite) and 0 <= finite <= MOST else None


def read_digits(text: str) -> int | None:
    """Read a count in decimal digits, 0 to 2⁵³; None for anything else."""
    return read_count(int(text)) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def parse_json(raw: bytes) -> Any:
    """Parse JSON; numbers not finite and integers beyond 19 digits become None; raises ValueError."""
    try:
        return json.loads(
            raw.decode("utf-8-sig", "replace"),
            parse_int=lambda written: int(written) if len(written) <= _DIGITS else None,
            parse_float=lambda written: value if math.isfinite(value := float(written)) else None,
            parse_constant=lambda _: None,  # NaN and the infinities, which are not JSON
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object; empty for anything else."""
    try:
        return read_mapping(parse_json(raw))
    except ValueError:
        return {}


def read_mapping(value: object) -> dict[str, Any]:
    """Read a JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def read_list(value: object) -> list[Any]:
    """Read a JSON list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def read_file_bytes(place: Path, most_bytes: int) -> bytes:
    """Read a regular file of at most `most_bytes` bytes; raises OSError for any other.

    A device, a FIFO or a file of /proc may never end, or act when it is read: what is not a regular file is
    never opened, and a file that claims to be empty, as those of /proc do, is not read.
    """
    raw = read_file_head(place, most_bytes + 1)
    if len(raw) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 10} KiB")
    return raw


def read_file_head(place: Path, most_bytes: int) -> bytes:
    """Read a regular file's first bytes, up to `most_bytes` and its reported size; else raises OSError."""
    with open_regular(place) as file:
        return file.read(min(os.fstat(file.fileno()).st_size, most_bytes))


def open_regular(place: Path) -> BinaryIO:
    """Open a regular file for reading; raises OSError for any other, which is not opened."""
    try:
        _refuse_irregular(os.stat(place))
    except ValueError:  # a null byte in its name
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None
    file = os.fdopen(open_unblocked(place), "rb")
    try:
        _refuse_irregular(os.fstat(file.fileno()))  # it may have been replaced since
    except OSError:
        file.close()
        raise
    return file


def _refuse_irregular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def open_unblocked(path: Path) -> int:
    """Open a path of any kind for reading, never waiting for a FIFO's writer; raises OSError."""
    waits_not = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, os.O_RDONLY | waits_not | getattr(os, "O_CLOEXEC", 0))


def is_too_deep(value: Any) -> bool:
    """Whether tables and lists are nested more than 64 deep, found without recursion."""
    level = [value]
    for _ in range(DEEPEST + 1):
        nested = [part for part in level if isinstance(part, dict | list)]
        level = [inner for part in nested for inner in (part.values() if isinstance(part, dict) else part)]
        if not level:
            return False
    return True

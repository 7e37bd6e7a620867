"""Untrusted: what a server, a log or a file said, as values that are bounded: finite, short, printable.

Whatever comes from outside passes one of these before it is kept: a number that JSON cannot hold, half a
character or a text without an end is met here, not where the result is written.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

MOST = 1 << 53  # the greatest count that a float and any reader of JSON keep exactly
LONGEST = 300  # characters of a text that is kept
_DIGITS = 19  # of 2⁶³
_LOST = "\ufffd"


def text(said: object, longest: int = LONGEST) -> str:
    """A string of at most so many printable characters; "" where it is none."""
    if not isinstance(said, str):
        return ""
    if len(said) > longest:
        said = said[: longest - 1] + "…"
    if said.isprintable():
        return said
    return "".join(one if one.isprintable() else " " if one.isspace() else _LOST for one in said)


def whole(said: object) -> int | None:
    """A count, 0 to 2⁵³; None of anything else."""
    if isinstance(said, float) and said.is_integer():
        said = int(said)
    if isinstance(said, bool) or not isinstance(said, int):
        return None
    return said if 0 <= said <= MOST else None


def number(said: object) -> float | None:
    """A finite number, 0 to 2⁵³, also where it stands as text; None of anything else."""
    if isinstance(said, bool) or not isinstance(said, int | float | str):
        return None
    try:
        value = float(said)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and 0 <= value <= MOST else None


def digits(said: str) -> int | None:
    """The count that decimal digits name, 0 to 2⁵³; None of anything else."""
    return whole(int(said)) if said.isascii() and said.isdecimal() and len(said) <= _DIGITS else None


def json_value(raw: bytes) -> Any:
    """What JSON says, null in place of numbers that are not finite or beyond 19 digits; raises ValueError."""
    try:
        return json.loads(
            raw.decode("utf-8-sig", "replace"),
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_nothing,
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def json_object(raw: bytes) -> dict[str, Any]:
    """The object that JSON says; empty where it says anything else, or is none."""
    try:
        found = json_value(raw)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def file_bytes(place: Path, most_bytes: int) -> bytes:
    """A regular file's bytes; raises OSError where it is another thing, or larger.

    A device, a FIFO or a file of /proc may answer for ever, or do something when it is read: what is no
    regular file is never opened, and what claims to be empty is not read, as /proc's do.
    """
    raw = file_head(place, most_bytes + 1)
    if len(raw) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 10} KiB")
    return raw


def file_head(place: Path, most_bytes: int) -> bytes:
    """The first bytes of a regular file, at most so many; raises OSError where it is another thing."""
    try:
        found = os.stat(place)
    except ValueError:  # a null byte in its name
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    # It may have been replaced since: no FIFO without a writer, and no terminal, is to hold us.
    waits_not = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    with open(place, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | waits_not)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        parts, left = [], min(found.st_size, most_bytes)
        while left > 0 and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def _integer(said: str) -> int | None:
    return int(said) if len(said) <= _DIGITS else None


def _float(said: str) -> float | None:
    value = float(said)
    return value if math.isfinite(value) else None


def _nothing(said: str) -> None:
    """NaN and the infinities, which are no JSON."""

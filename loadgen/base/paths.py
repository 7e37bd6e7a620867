"""Paths: a path as a user or a file writes it, made one of this machine."""

from __future__ import annotations

from pathlib import Path

from loadgen.base.errors import UsageError

_LONGEST, _LONGEST_PART = 4096, 255  # bytes, which are Linux's own limits


def expand_path(path: str | Path) -> Path:
    """Fill in ~ and ~user of a path; raises UsageError for what cannot be a path."""
    text = str(path)
    encoded, shown = text.encode("utf-8", "surrogateescape"), f"{text[:60]!r}… is not a valid path"
    if b"\0" in encoded:
        raise UsageError(f"{text!r} is not a valid path: it holds a zero byte")
    if len(encoded) > _LONGEST:
        raise UsageError(f"{shown}: it has {len(text)} characters, {_LONGEST} at most")
    if max(map(len, encoded.split(b"/"))) > _LONGEST_PART:
        raise UsageError(f"{shown}: a name in it is longer than {_LONGEST_PART} bytes")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0]
        raise UsageError(f"{text}: {user} is not a user of this machine: write the path out") from None

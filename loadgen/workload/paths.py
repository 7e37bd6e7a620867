"""Places: a path that a user or a file names, as a path."""

from __future__ import annotations

from pathlib import Path

from loadgen.errors import UsageError

_LONGEST, _LONGEST_PART = 4096, 255  # bytes, which are Linux's own limits


def place(said: str | Path) -> Path:
    """The path, with ~ and ~user filled in; raises UsageError of what can be no path."""
    text = str(said)
    if "\0" in text:
        raise UsageError(f"{text!r} is no path: it holds a zero byte")
    if len(text.encode("utf-8", "surrogateescape")) > _LONGEST:
        raise UsageError(f"{text[:60]!r}… is no path: it has {len(text)} characters, {_LONGEST} at most")
    if any(len(part.encode("utf-8", "surrogateescape")) > _LONGEST_PART for part in text.split("/")):
        raise UsageError(f"{text[:60]!r}… is no path: a name in it is longer than {_LONGEST_PART} bytes")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.partition("/")[0]
        raise UsageError(f"{text}: {user} is no user of this machine: write the path out") from None

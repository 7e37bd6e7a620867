"""Run place: the directory of a run, made before its first request."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from loadgen.base.errors import UsageError

_OWN = 0o700  # a run may hold a user's prompts and answers
_MOST_NAME_BYTES = 200  # of the 255 that file systems give a name
JOURNAL = "journal.bin"  # while a run goes on, and for good where its result could not be written


def create_directory(base: Path, name: str, started: datetime, flag: str = "--run-dir") -> Path:
    """Create a new directory `TIME-NAME` under `base` and return it; raises UsageError with the flag."""
    plain = re.sub(r"[^\w.-]+", "-", name)  # a profile's own name may hold anything, and much of it
    plain = plain.encode()[:_MOST_NAME_BYTES].decode(errors="ignore")
    stem = f"{started.astimezone():%Y%m%d-%H%M%S}-{plain}"
    create_place(base, flag)
    for path in number_paths(base / stem):
        try:
            path.mkdir(mode=_OWN)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}; choose another {flag}") from None
        return path
    raise UsageError(f"{base} has too many runs of this second; choose another {flag}")


def number_paths(path: Path) -> Iterator[Path]:
    """Yield the path itself, then with 2 to 999 appended, for the caller to take the first free one."""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in range(2, 1000))


def create_place(directory: Path, flag: str) -> None:
    """Create a directory and check that files can be written in it; raises UsageError with the flag."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {error.strerror}; choose another {flag}") from None
    if not os.access(directory, os.W_OK):
        raise UsageError(f"cannot write {directory}: permission denied; choose another {flag}")


def remove_empty(directory: Path) -> None:
    """Remove the directory of a run that left no file."""
    with contextlib.suppress(OSError):
        directory.rmdir()


def read_wall_clock() -> datetime:
    """Return the date and time in UTC, for people; nothing is measured by it."""
    return datetime.now(UTC)

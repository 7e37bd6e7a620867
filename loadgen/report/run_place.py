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
    """A new directory for a run under `base`; raises UsageError with the flag when it cannot be written."""
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
    """The path, then with the numbers 2 to 999 after it: one for each that is taken."""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in range(2, 1000))


def create_place(directory: Path, flag: str) -> None:
    """See to it that files can be written to a directory; raises UsageError that names the flag."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {error.strerror}; choose another {flag}") from None
    if not os.access(directory, os.W_OK):
        raise UsageError(f"cannot write {directory}: permission denied; choose another {flag}")


def remove_empty(directory: Path) -> None:
    """Take away the directory of a run that left nothing."""
    with contextlib.suppress(OSError):
        directory.rmdir()


def read_wall_clock() -> datetime:
    """The wall clock, for people; nothing is measured by it."""
    return datetime.now(UTC)

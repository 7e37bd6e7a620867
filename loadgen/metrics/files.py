"""Files: written whole or not at all, and readable by their owner alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_OWN = 0o600  # a run may hold prompts and answers of people


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Make the file hold what `write` writes; if anything stops it, the name is as it was before.

    The bytes go to a temporary file in the same directory, mode 0600, and are on the disk before it takes the
    name. Raises OSError, or what `write` raises; either way nothing is left behind.
    """
    temporary = path.parent / f".{os.urandom(8).hex()}.part"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWN)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # it has its name by now, or is not to stay
            temporary.unlink()
    _sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """The same with a text as UTF-8; letters that it cannot hold are escaped."""
    data = text.encode("utf-8", "backslashreplace")
    write_whole(path, lambda file: file.write(data))


def _sync_directory(directory: Path) -> None:
    """Put a new name on the disk; where the file system has no such thing, the file is there all the same."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

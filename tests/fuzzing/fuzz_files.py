"""Files that fuzz targets write again and again: in a directory of the process, gone with it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def place(name: str = "") -> Path:
    """A directory of this process for one target's files."""
    if not name:
        made = Path(tempfile.mkdtemp(prefix="loadgen-fuzz-"))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        return made
    inner = place() / name
    inner.mkdir()
    return inner


def written(data: bytes, name: str, directory: str = "files") -> Path:
    """A file that holds these bytes, and nothing that was there before."""
    path = place(directory) / name
    path.write_bytes(data)
    return path

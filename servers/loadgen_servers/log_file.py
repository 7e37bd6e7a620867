"""Log file: where a server's output goes, its owner's alone, and never through a symbolic link."""

from __future__ import annotations

import os
from pathlib import Path


def open_log(path: Path, append: bool = False) -> int:
    """Open a log for writing: a new one, or with `append` after what is there; raises OSError, of a link too.

    Readable by this user alone: engines print keys, prompts and answers.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags | (os.O_APPEND if append else os.O_TRUNC), 0o600)

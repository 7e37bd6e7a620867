"""Server log: what a server that was started here has written, of a file that may be removed or very long."""

from __future__ import annotations

import os
from pathlib import Path

from loadgen.protocol import untrusted

_MOST_BYTES = 4 << 20  # of its beginning, and of its end


def beginning(log: Path) -> str:
    """The first 4 MiB: what an engine says of itself it says when it starts; "" where the log is gone."""
    try:
        return untrusted.file_head(log, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def text(log: Path) -> str:
    """The whole log, of a longer one the first and the last 4 MiB; "" where it is gone."""
    try:
        head = untrusted.file_head(log, _MOST_BYTES)
        with log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(len(head), size - _MOST_BYTES)
            file.seek(begin)
            tail = file.read(_MOST_BYTES)
    except OSError:
        return ""
    left_out = begin - len(head)
    gap = f"\n… {left_out} bytes are left out here …\n".encode() if left_out else b""
    return (head + gap + tail).decode("utf-8", "replace")


def missing(log: Path) -> str:
    """Why there is no log to be read, in words; "" where there is one."""
    if os.path.isfile(log):
        return ""
    return (
        f"the server's log was removed while it ran, so nothing is known from it: {untrusted.text(str(log))}"
    )

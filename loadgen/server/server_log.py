"""Server log: the output of a server started here, in a file that may be removed or very long."""

from __future__ import annotations

import os
from pathlib import Path

from loadgen.base import untrusted

_MOST_BYTES = 4 << 20  # of its beginning and of its end


def read_beginning(log: Path) -> str:
    """Read the first 4 MiB, where an engine prints its configuration; "" if the log is gone."""
    try:
        return untrusted.read_file_head(log, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def read_log(log: Path) -> str:
    """Read the log, of a long one the first and the last 4 MiB; if it is gone, that in words."""
    try:
        head = untrusted.read_file_head(log, _MOST_BYTES)
        with log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(len(head), size - _MOST_BYTES)
            file.seek(begin)
            tail = file.read(_MOST_BYTES)
    except OSError:
        gone = "the server's log was removed while it ran, so it could not be read"
        return "" if os.path.isfile(log) else f"{gone}: {untrusted.read_text(str(log))}"
    left_out = begin - len(head)
    gap = f"\n… {left_out} bytes left out …\n".encode() if left_out else b""
    return (head + gap + tail).decode("utf-8", "replace")

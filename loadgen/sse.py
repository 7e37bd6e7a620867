"""Server-sent events: where each event's data is in a body, and where it ends."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DONE = b"[DONE]"
_PLAIN_SEAM = b"\n\ndata: "
_FIRST = b"data: "
_NEWLINE = ord("\n")
_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"([^\r\n]*)(?:\r\n|\n|\r)")


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a stream, up to `[DONE]`.

    `ends` is int64[events]: how much of the body there must be for the event's data to be complete,
    which is its last data line with its line end, not the empty line after it.
    """

    array: bytes  # the data of all events as one JSON array, if each is JSON
    ends: NDArray[np.int64]
    done: bool  # `[DONE]` was seen


def read(body: bytes, whole: bool) -> Events:
    """The events of a body; a last line that is cut off is left out unless the body is `whole`."""
    return _read_plain(body) or _read_any(body, whole)


def _read_plain(body: bytes) -> Events | None:
    """As `read` for the form that servers send (`data: …`, two newlines, nothing else); None for others.

    Every newline of the body must belong to a seam between two events or to the end: then none is left
    that could begin another field.
    """
    if not (body.startswith(_FIRST) and body.endswith(b"\n\n")) or b"\r" in body:
        return None
    datas = body[len(_FIRST) : -2].split(_PLAIN_SEAM)
    if np.count_nonzero(np.frombuffer(body, np.uint8) == _NEWLINE) != 2 * len(datas):
        return None
    lengths = np.fromiter(map(len, datas), np.int64, len(datas))
    ends = np.cumsum(lengths + len(_PLAIN_SEAM)) - 1  # a data line, and its own newline
    done = _DONE in datas
    if done:
        del datas[datas.index(_DONE) :]
    return Events(b"[%b]" % b",".join(datas), ends[: len(datas)], done)


def _read_any(body: bytes, whole: bool) -> Events:
    datas, ends, done = split(body, whole)
    return Events(b"[%b]" % b",".join(datas), np.array(ends, np.int64), done)


def split(body: bytes, whole: bool) -> tuple[list[bytes], list[int], bool]:
    """Each event's data, where it ends, and whether `[DONE]` closed them.

    Comments and the fields `event`, `id` and `retry` are ignored, and so is what follows `[DONE]`.
    """
    datas: list[bytes] = []
    ends: list[int] = []
    pending: list[bytes] = []
    pending_end = 0
    for line, end in _lines(body, whole):
        if line.startswith(b"data:"):
            pending.append(line[6:] if line.startswith(b"data: ") else line[5:])
            pending_end = end
        elif not line and pending:
            if pending == [_DONE]:
                return datas, ends, True
            datas.append(b"\n".join(pending))
            ends.append(pending_end)
            pending = []
    if pending == [_DONE]:
        return datas, ends, True
    if pending:  # its line is complete, only the empty line after it is missing
        datas.append(b"\n".join(pending))
        ends.append(pending_end)
    return datas, ends, False


def _lines(body: bytes, whole: bool) -> list[tuple[bytes, int]]:
    """Each line without its end, and the length of the body up to and with the first byte of that end."""
    begin = len(_BOM) if body.startswith(_BOM) else 0
    lines = []
    for match in _LINE.finditer(body, begin):
        lines.append((match[1], match.end(1) + 1))
        begin = match.end()
    if whole and begin < len(body):
        lines.append((body[begin:], len(body)))
    return lines

"""Server-sent events: where each event's data is in a body, and where it ends."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

_DONE = b"[DONE]"
_FIELD = b"data: "
_BLANK = b" " * len(_FIELD)
_LAST = b"data: [DONE]\n\n"
_NEWLINE = ord("\n")
_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"([^\r\n]*)(?:\r\n|\n|\r)")


class Events(msgspec.Struct, frozen=True):
    """The events of a stream, up to `[DONE]`.

    `ends` is int64[events]: how much of the body there must be for the event's data to be complete,
    which is its last data line with its line end, not the empty line after it.
    """

    lines: bytes  # the data of each event in a line, if it is JSON; others are empty
    ends: NDArray[np.int64]
    done: bool  # `[DONE]` was seen


def one_line(data: bytes) -> bytes:
    """JSON in one line: a newline between its parts is a blank, and inside a string there is none."""
    return data.replace(b"\n", b" ")


def read(body: bytes, whole: bool) -> Events:
    """The events of a body; a last line that is cut off is left out unless the body is `whole`.

    Where some event's data is no JSON, only `split` tells for sure.
    """
    return _read_plain(body) or _read_any(body, whole)


def _read_plain(body: bytes) -> Events | None:
    """As `read` for the form that servers send (`data: …`, two newlines, nothing else); None for others."""
    text = np.frombuffer(body, np.uint8)
    newlines = np.flatnonzero(text == _NEWLINE)
    firsts, seconds = newlines[::2], newlines[1::2]
    if not body.endswith(b"\n\n") or len(firsts) != len(seconds):
        return None
    follow = seconds - firsts == 1
    follow[:-1] &= text[seconds[:-1] + 1] == _FIELD[0]
    found = blanked(body) if follow.all() else None
    if found is None:
        return None
    lines, done = found
    if not done and _DONE in body:
        return None
    ends = firsts[: len(firsts) - done] + 1  # a data line, and its own newline
    return Events(lines, ends, done)


def blanked(body: bytes) -> tuple[bytes, bool] | None:
    """Events `data: …` as lines of JSON, the field's names blanked, and whether `[DONE]` closes them.

    For a body whose events all begin with a `d`, and end with the only newlines there are: one that is
    no such field is no JSON either, so parsing finds it. None where the first event shows already that
    they are not such.
    """
    if not body.startswith(_FIELD) or b"\r" in body:
        return None
    done = body.endswith(_LAST)
    events = body[len(_FIELD) : -len(_LAST)] if done else body[len(_FIELD) :]
    return events.replace(b"\n" + _FIELD, b"\n" + _BLANK), done


def _read_any(body: bytes, whole: bool) -> Events:
    datas, ends, done = split(body, whole)
    return Events(b"\n".join(map(one_line, datas)), np.array(ends, np.int64), done)


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

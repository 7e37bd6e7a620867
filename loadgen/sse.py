"""Server-sent events: where each event's data is in a body, and where it ends."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.arrays import Int64

_DONE = b"[DONE]"
_FIELD = b"data: "
_CLOSE = b"\n\n"
_LAST = _FIELD + _DONE + _CLOSE
_NEWLINE = ord("\n")
_FIRST = np.zeros(1, np.int64)
_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"([^\r\n]*)(?:\r\n|\n|\r)")


class Events(msgspec.Struct, frozen=True):
    """The events of a stream, up to `[DONE]`.

    `ends` is int64[events]: how much of the body there must be for the event's data to be complete,
    which is its last data line with its line end, not the empty line after it.
    """

    lines: bytes | bytearray  # the data of each event in a line, if it is JSON; others are empty
    ends: Int64
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
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)[1::2] + 1
    found = blanked(body, ends)
    if found is None:
        return None
    lines, done = found
    if not done and _DONE in body:
        return None
    return Events(lines, ends[: len(ends) - done] - 1, done)  # a data line, and its own newline


def blanked(body: bytes, ends: Int64) -> tuple[bytearray, bool] | None:
    """Events `data: …` as lines of JSON, the field's names blanked, and whether `[DONE]` closes them.

    `ends` is int64[events], where each event ends in the body, the last one with it. None where one is
    not that field and two newlines, or another line end is among them.
    """
    done = body.endswith(_LAST)
    ends = ends[: len(ends) - done]
    if not len(ends) or ends[-1] + done * len(_LAST) != len(body) or b"\r" in body:
        return None
    lines = bytearray(memoryview(body)[: ends[-1]])
    begins = np.concatenate((_FIRST, ends[:-1]))
    fields, closes = _wherever(lines, len(_FIELD)), _wherever(lines, len(_CLOSE))
    if begins[-1] >= len(fields) or fields[begins].tobytes() != _FIELD * len(ends):
        return None
    newlines = np.count_nonzero(np.frombuffer(lines, np.uint8) == _NEWLINE)
    if newlines != len(_CLOSE) * len(ends) or closes[ends - len(_CLOSE)].tobytes() != _CLOSE * len(ends):
        return None
    fields[begins] = b" " * len(_FIELD)
    return lines, done


def _wherever(text: bytearray, length: int) -> NDArray[np.bytes_]:
    """So many bytes from each position on: the text's own, so what is set there is set in the text."""
    return np.ndarray(len(text) - length + 1, f"S{length}", text, strides=(1,))


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

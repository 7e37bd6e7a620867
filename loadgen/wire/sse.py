"""Server-sent events: where each event's data is in a body, and where it ends."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64

_DONE = b"[DONE]"
_FIELD = b"data: "
_CLOSE = b"\n\n"
_LAST = _FIELD + _DONE + _CLOSE
_BLANK = ord(" ")  # the last of the bytes that are blank
_BRACKET = _DONE[0]
_NEWLINE = ord("\n")
_FIRST = np.zeros(1, np.int64)
_BOM = b"\xef\xbb\xbf"
_LINE_ENDS = b"\r\n"


class Events(msgspec.Struct, frozen=True):
    """The events of a stream, up to `[DONE]`.

    `ends` is int64[events]: how much of the body there must be for the event's data to be complete,
    which is its last data line with its line end, not the empty line after it.
    """

    lines: bytes | bytearray  # the data of each event in a line, if it is JSON; others are empty
    ends: Int64
    done: bool  # `[DONE]` was seen
    fault: bytes | None = None  # the data of an event that is an error by its name: the last one


def one_line(data: bytes) -> bytes:
    """JSON on one line: newlines between its parts become blanks; a string holds no newline."""
    return data.replace(b"\n", b" ")


def read(body: bytes, whole: bool) -> Events:
    """The events of a body; a last line that is cut off is left out unless the body is `whole`.

    Where some event's data is not JSON, only `split` decides reliably.
    """
    if plain := _read_plain(body):
        return plain
    datas, ends, done, fault = split(body, whole)
    return Events(b"\n".join(map(one_line, datas)), np.array(ends, np.int64), done, fault)


def _read_plain(body: bytes) -> Events | None:
    """As `read` for the form that servers send (`data: …`, two newlines, nothing else); None for others."""
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)[1::2] + 1
    found = _blanked(body, ends)
    if found is None:
        return None
    lines, done = found
    events = len(ends) - done
    firsts = np.frombuffer(body, np.uint8)[np.concatenate((_FIRST, ends[:-1]))[:events] + len(_FIELD)]
    if ((firsts <= _BLANK) | (firsts == _BRACKET)).any():  # blank data is no event, and [DONE] not the last
        return None
    return Events(lines, ends[:events] - 1, done)  # a data line, and its own newline


def _blanked(body: bytes, ends: Int64) -> tuple[bytearray, bool] | None:
    """Events `data: …` as lines of JSON, the field's names blanked, and whether `[DONE]` closes them.

    `ends` is int64[events], where each event ends in the body, the last one with it. None where one is
    not that field and two newlines, or another line end is among them.
    """
    done = body.endswith(_LAST)
    ends = ends[: len(ends) - done]
    if not len(ends) or ends[-1] + done * len(_LAST) != len(body) or b"\r" in body:
        return None
    if ends[-1] < len(_FIELD):
        return None  # no event at all: shorter than the field's name
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
    """`length` bytes from each position on: the text's own, so what is set there is set in the text."""
    return np.ndarray(len(text) - length + 1, f"S{length}", text, strides=(1,))


def split(body: bytes, whole: bool) -> tuple[list[bytes], list[int], bool, bytes | None]:
    """Each event's data, where it ends, whether `[DONE]` closed them, and the data of an error that did.

    Comments and the fields `id` and `retry` are ignored, and so are blank data and what follows `[DONE]` or
    an error. That is an event of the type `error`, or what has llama.cpp's field of that name.
    """
    datas: list[bytes] = []
    ends: list[int] = []
    pending: list[bytes] = []
    pending_end, failed = 0, False
    for line, end in (*_lines(body, whole), (b"", len(body))):  # an event may lack the empty line after it
        if line.startswith(b"data:"):
            pending.append(line[6:] if line.startswith(b"data: ") else line[5:])
            pending_end = end
        elif line.startswith(b"error:"):
            pending.append(line[6:])
            failed = True
        elif line.startswith(b"event:"):
            failed = failed or line[6:].strip() == b"error"
        elif not line and (pending or failed):
            data = b"\n".join(pending)
            if failed:
                return datas, ends, False, data.strip()
            if data.strip() == _DONE:
                return datas, ends, True, None
            if data.strip():
                datas.append(data)
                ends.append(pending_end)
            pending = []
    return datas, ends, False, None


def _lines(body: bytes, whole: bool) -> list[tuple[bytes, int]]:
    """Each line without its end, and the length of the body up to and with the first byte of that end."""
    begin = len(_BOM) if body.startswith(_BOM) else 0
    lines = []
    for line in body[begin:].splitlines(keepends=True):
        text = line.rstrip(_LINE_ENDS)
        if len(text) < len(line):
            lines.append((text, begin + len(text) + 1))
        elif whole:
            lines.append((text, len(body)))
        begin += len(line)
    return lines

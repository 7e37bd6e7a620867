"""SSE: where each server-sent event's data is in a body, and where it ends."""

from __future__ import annotations

from functools import cache, lru_cache

import httptools
import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.wire.http1 import HEAD_END, Headers, Response, explain_compression

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


def join_lines(data: bytes) -> bytes:
    """Put JSON on one line by replacing newlines, which cannot occur inside its strings, by blanks."""
    return data.replace(b"\n", b" ")


def read_events(body: bytes, whole: bool) -> Events:
    """Read the events of a body; an incomplete last line is dropped unless the body is `whole`.

    Where some event's data is not JSON, only `split_events` decides reliably.
    """
    if plain := _read_plain(body):
        return plain
    datas, ends, done, fault = split_events(body, whole)
    return Events(b"\n".join(map(join_lines, datas)), np.array(ends, np.int64), done, fault)


def _read_plain(body: bytes) -> Events | None:
    """Read events of the usual form alone (`data: …`, two newlines); None for any other."""
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)[1::2] + 1
    blanked = _blank_names(body, ends)
    if blanked is None:
        return None
    lines, done = blanked
    events = len(ends) - done
    firsts = np.frombuffer(body, np.uint8)[np.concatenate((_FIRST, ends[:-1]))[:events] + len(_FIELD)]
    if (
        (firsts <= _BLANK) | (firsts == _BRACKET)
    ).any():  # blank data is not an event, and [DONE] not the last
        return None
    return Events(lines, ends[:events] - 1, done)  # a data line, and its own newline


def _blank_names(body: bytes, ends: Int64) -> tuple[bytearray, bool] | None:
    """Turn events `data: …` into lines of JSON, the field's names blanked; also whether `[DONE]` closes them.

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
    fields, closes = _slice_everywhere(lines, len(_FIELD)), _slice_everywhere(lines, len(_CLOSE))
    if begins[-1] >= len(fields) or fields[begins].tobytes() != _FIELD * len(ends):
        return None
    newlines = np.count_nonzero(np.frombuffer(lines, np.uint8) == _NEWLINE)
    if newlines != len(_CLOSE) * len(ends) or closes[ends - len(_CLOSE)].tobytes() != _CLOSE * len(ends):
        return None
    fields[begins] = b" " * len(_FIELD)
    return lines, done


def _slice_everywhere(text: bytearray, length: int) -> NDArray[np.bytes_]:
    """View the `length` bytes at each position of `text`, writable, as one array without copying."""
    return np.ndarray(len(text) - length + 1, f"S{length}", text, strides=(1,))


def split_events(body: bytes, whole: bool) -> tuple[list[bytes], list[int], bool, bytes | None]:
    """Split a body into events: data of each, its end, whether `[DONE]` came, and an error event's data.

    Comments and the fields `id` and `retry` are ignored, and so are blank data and what follows `[DONE]` or
    an error. That is an event of the type `error`, or what has llama.cpp's field of that name.
    """
    datas: list[bytes] = []
    ends: list[int] = []
    pending: list[bytes] = []
    pending_end, failed = 0, False
    for line, end in (
        *_split_lines(body, whole),
        (b"", len(body)),
    ):  # an event may lack the empty line after it
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


def _split_lines(body: bytes, whole: bool) -> list[tuple[bytes, int]]:
    """List each line without its end, and the body's length with the first byte of that end.

    A last line without an end is listed only if the body is `whole`.
    """
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


_LAST_CHUNK = b"0\r\n\r\n"
_PLAIN_FIELD = b"data: "
BEGIN = b"\r\n" + _PLAIN_FIELD  # of an event, with the end of its chunk's size
END = b"\n\n\r\n"  # of an event, with the end of its chunk
_PLAIN_DONE = BEGIN + b"[DONE]" + END
_LASTS = b"\ne" + _PLAIN_DONE + _LAST_CHUNK, b"\nE" + _PLAIN_DONE + _LAST_CHUNK
_DONE_BYTES = len(_PLAIN_DONE) - 4  # without the line ends of the framing
_CONTROLS = len(b"\r\n" + END)  # control bytes of an event
_BETWEEN = b" " * len(END[1:] + b"ff" + BEGIN)  # after a longer size the last byte of BEGIN is a blank
_PLAIN_BLANK = ord(" ")  # the first byte that is not a control byte
_SMALLEST = 2048  # bytes of a response; below them the passes cost more than they save
_SHORTEST, _LONGEST = 16, 4095  # bytes of a chunk: a size of two or three digits
_OPENING_BYTES = 12  # the newline before a chunk, its size, BEGIN, and where there is room an object's `{`

_FORMS = b"\n%x" + BEGIN + b"{", b"\n%X" + BEGIN + b"{"


class PlainStream(msgspec.Struct, frozen=True):
    """A chunked streamed answer in the usual form; `begins`, `ends` are int64[events], positions in `raw`.

    They are where each event's data begins, and where its newline is; `[DONE]` is not one of the events. No
    data holds a control byte.
    """

    raw: bytes
    headers: Headers
    begins: Int64
    ends: Int64
    done: bool  # `[DONE]` was seen
    body_bytes: int

    def lines(self) -> bytearray:
        """Return each event's data on a line of its own, padded with blanks."""
        begin = int(self.begins[0])
        lines = bytearray(memoryview(self.raw)[begin : int(self.ends[-1])])
        wherever = np.ndarray(
            len(lines) - len(_BETWEEN) + 1, _make_void_type(len(_BETWEEN)), lines, strides=(1,)
        )
        wherever[self.ends[:-1] + 1 - begin] = np.void(_BETWEEN)
        return lines


def read_plain_stream(raw: bytes) -> PlainStream | None:
    """Read a whole response of the usual chunked form; None for any other.

    Each event has six control bytes, and the places of these say where all the rest is: a chunk's size is
    compared with them, so that a parser would find the same.
    """
    if len(raw) < _SMALLEST or not raw.endswith(_LAST_CHUNK):
        return None
    head = _read_head(raw[: raw.find(HEAD_END) + len(HEAD_END)])
    if head is None:
        return None
    done = raw.endswith(_LASTS)
    after = len(_LASTS[0]) - 1 if done else len(_LAST_CHUNK)
    places = (np.frombuffer(raw, np.uint8) < _PLAIN_BLANK).nonzero()[0]
    places = places[head.controls - 1 : len(places) - len(HEAD_END) - done * _CONTROLS]
    count, over = divmod(len(places) - 1, _CONTROLS)
    if over or count < 1 or places[-1] != len(raw) - after - 1:
        return None
    # From the newline before it on: after its size, after its data, and what need not be looked at.
    fields, ends = places[2::_CONTROLS], places[3::_CONTROLS]
    lengths = ends - fields
    if cut_lines(raw, ends, len(END)).tobytes() != END * count or not _has_sizes(
        raw, places[:-1:_CONTROLS], lengths
    ):
        return None
    body_bytes = int(np.add.reduce(lengths)) + count + done * _DONE_BYTES
    return PlainStream(raw, head.headers, fields + len(b"\n" + _PLAIN_FIELD), ends, done, body_bytes)


def cut_lines(raw: bytes, places: Int64, length: int) -> NDArray[np.void]:
    """Copy the `length` bytes at each place, void[places]; raises IndexError if there are fewer."""
    wherever = np.ndarray(len(raw) - length + 1, _make_void_type(length), raw, strides=(1,))
    return wherever[places]


@lru_cache(maxsize=1024)  # to make one takes longer than to use it
def _make_void_type(length: int) -> np.dtype[np.void]:
    return np.dtype((np.void, length))


@cache
def _list_openings(form: bytes) -> NDArray[np.void]:
    """List the bytes that precede a chunk's data for each data length, void[lengths], zeros if impossible."""
    begins = [(form % length)[:_OPENING_BYTES] for length in range(_SHORTEST, _LONGEST + 1)]
    none = bytes(_OPENING_BYTES)
    return np.frombuffer(b"".join((none * (_SHORTEST - 1), *begins, none)), _make_void_type(_OPENING_BYTES))


def _has_sizes(raw: bytes, places: Int64, lengths: Int64) -> bool:
    """Whether each chunk's hex size is its event's length plus framing; all digits in the same case."""
    written = cut_lines(raw, places, _OPENING_BYTES).tobytes()
    return any(_list_openings(form).take(lengths, mode="clip").tobytes() == written for form in _FORMS)


class _Head(msgspec.Struct, frozen=True):
    """Fields of the head of a chunked, uncompressed response with status 200."""

    headers: Headers
    controls: int  # control bytes


@lru_cache(maxsize=16)  # a server's heads are the same but for the second
def _read_head(head: bytes) -> _Head | None:
    """Read the head of a chunked, uncompressed response with status 200; None for any other."""
    response = Response()
    try:
        response.parser.feed_data(head)
        over = response.complete
        response.parser.feed_data(_LAST_CHUNK)
    except (httptools.HttpParserUpgrade, httptools.HttpParserError):
        return None
    finally:
        del response.parser
    chunked = response.complete and not over and not response.pieces
    if not chunked or response.status != 200 or explain_compression(response.headers):
        return None
    return _Head(response.headers, sum(byte < _PLAIN_BLANK for byte in head))

"""Plain: the form in which servers stream, found in a few passes over a whole response.

A head, each event (`data: …` and two newlines) in a chunk of its own, the last chunk. What is not of
this form is for `http1.unframe` and `sse.read`, which take everything, and twice as long.
"""

from __future__ import annotations

from functools import cache, lru_cache

import httptools
import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.wire.http1 import HEAD_END, Headers, Response, compressed

_LAST_CHUNK = b"0\r\n\r\n"
_FIELD = b"data: "
BEGIN = b"\r\n" + _FIELD  # of an event, with the end of its chunk's size
END = b"\n\n\r\n"  # of an event, with the end of its chunk
_DONE = BEGIN + b"[DONE]" + END
_LASTS = b"\ne" + _DONE + _LAST_CHUNK, b"\nE" + _DONE + _LAST_CHUNK
_DONE_BYTES = len(_DONE) - 4  # without the line ends of the framing
_CONTROLS = len(b"\r\n" + END)  # control bytes of an event
_BETWEEN = b" " * len(END[1:] + b"ff" + BEGIN)  # after a longer size the last byte of BEGIN is a blank
_BLANK = ord(" ")  # the first byte that is no control byte
_SMALLEST = 2048  # bytes of a response; below them the passes cost more than they save
_SHORTEST, _LONGEST = 16, 4095  # bytes of a chunk: a size of two or three digits
_OPENING_BYTES = 12  # the newline before a chunk, its size, BEGIN, and where there is room an object's `{`

_FORMS = b"\n%x" + BEGIN + b"{", b"\n%X" + BEGIN + b"{"


class PlainStream(msgspec.Struct, frozen=True):
    """A good answer of the form; `begins` and `ends` are int64[events], positions in all of `raw`.

    They are where each event's data begins, and where its newline is; `[DONE]` is not one of the events.
    No data holds a control byte.
    """

    raw: bytes
    headers: Headers
    begins: Int64
    ends: Int64
    done: bool  # `[DONE]` was seen
    body_bytes: int

    def lines(self) -> bytearray:
        """The data of each event in a line, with blanks for what is between it and the next."""
        begin = int(self.begins[0])
        lines = bytearray(memoryview(self.raw)[begin : int(self.ends[-1])])
        wherever = np.ndarray(len(lines) - len(_BETWEEN) + 1, _void(len(_BETWEEN)), lines, strides=(1,))
        wherever[self.ends[:-1] + 1 - begin] = np.void(_BETWEEN)
        return lines


def read(raw: bytes) -> PlainStream | None:
    """The events of an answer of the form; None for any other.

    Each event has six control bytes, and the places of these say where all the rest is: a chunk's size is
    compared with them, so that a parser would find the same.
    """
    if len(raw) < _SMALLEST or not raw.endswith(_LAST_CHUNK):
        return None
    head = _head(raw[: raw.find(HEAD_END) + len(HEAD_END)])
    if head is None:
        return None
    done = raw.endswith(_LASTS)
    after = len(_LASTS[0]) - 1 if done else len(_LAST_CHUNK)
    places = (np.frombuffer(raw, np.uint8) < _BLANK).nonzero()[0]
    places = places[head.controls - 1 : len(places) - len(HEAD_END) - done * _CONTROLS]
    count, over = divmod(len(places) - 1, _CONTROLS)
    if over or count < 1 or places[-1] != len(raw) - after - 1:
        return None
    # From the newline before it on: after its size, after its data, and what need not be looked at.
    fields, ends = places[2::_CONTROLS], places[3::_CONTROLS]
    lengths = ends - fields
    if cut(raw, ends, len(END)).tobytes() != END * count or not _sized(raw, places[:-1:_CONTROLS], lengths):
        return None
    body_bytes = int(np.add.reduce(lengths)) + count + done * _DONE_BYTES
    return PlainStream(raw, head.headers, fields + len(b"\n" + _FIELD), ends, done, body_bytes)


def cut(raw: bytes, places: Int64, length: int) -> NDArray[np.void]:
    """`length` bytes from each place on, void[places]; raises IndexError where there are fewer."""
    wherever = np.ndarray(len(raw) - length + 1, _void(length), raw, strides=(1,))
    return wherever[places]


@lru_cache(maxsize=1024)  # to make one takes longer than to use it
def _void(length: int) -> np.dtype[np.void]:
    return np.dtype((np.void, length))


@cache
def _openings(form: bytes) -> NDArray[np.void]:
    """What is before each chunk's data, void[lengths] from one byte on; zeros where no event is so long."""
    begins = [(form % length)[:_OPENING_BYTES] for length in range(_SHORTEST, _LONGEST + 1)]
    none = bytes(_OPENING_BYTES)
    return np.frombuffer(b"".join((none * (_SHORTEST - 1), *begins, none)), _void(_OPENING_BYTES))


def _sized(raw: bytes, places: Int64, lengths: Int64) -> bool:
    """Whether a byte more than each length is the size of an event's chunk; all digits in the same case."""
    written = cut(raw, places, _OPENING_BYTES).tobytes()
    return any(_openings(form).take(lengths, mode="clip").tobytes() == written for form in _FORMS)


class _Head(msgspec.Struct, frozen=True):
    """A head whose status is 200 and that chunks follow, not compressed."""

    headers: Headers
    controls: int  # control bytes


@lru_cache(maxsize=16)  # a server's heads are the same but for the second
def _head(head: bytes) -> _Head | None:
    """What such a head holds; None of any other."""
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
    if not chunked or response.status != 200 or compressed(response.headers):
        return None
    return _Head(response.headers, sum(byte < _BLANK for byte in head))

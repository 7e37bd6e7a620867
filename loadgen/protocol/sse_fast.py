"""Plain: the form in which servers stream, found in a few passes over a whole response.

A head, each event (`data: …` and two newlines) in a chunk of its own, the last chunk. What is not of
this form is for `http1.unframe` and `sse.read`, which take everything and several times longer.
"""

from __future__ import annotations

from functools import lru_cache

import httptools
import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.arrays import Int64
from loadgen.protocol.http1 import HEAD_END, Headers, Response, compressed

_LAST_CHUNK = b"0\r\n\r\n"
_FIELD = b"data: "
BEGIN = b"\r\n" + _FIELD  # of an event, with the end of its chunk's size
END = b"\n\n\r\n"  # of an event, with the end of its chunk
_LAST = BEGIN + b"[DONE]" + END + _LAST_CHUNK
_CONTROLS = b"\r\n" + END  # bytes of an event
_LINES = _CONTROLS.count(b"\n")
_BLANK = ord(" ")  # the first byte that is no control byte
_SMALLEST = 2048  # bytes of a response; below them the passes cost more than they save
_LONGEST = 4095  # bytes of a chunk: three digits
_SIZE = np.dtype("V4")  # how a chunk begins: up to three digits, and what must follow them
_NO_SIZE = bytes(_SIZE.itemsize)


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

    def lines(self) -> bytes:
        """The data of each event in a line."""
        begin = int(self.begins[0]) - len(_FIELD)
        data = self.raw[begin : int(self.ends[-1])].split(b"\n")[::_LINES]
        return b"\n".join(data).replace(b"\n" + _FIELD, b"\n")[len(_FIELD) :]


def read(raw: bytes) -> PlainStream | None:
    """The events of an answer of the form; None for any other.

    Each event has six control bytes, and the places of these say where all the rest is: a chunk's size is
    compared with them, so that a parser would find the same.
    """
    if len(raw) < _SMALLEST or not raw.endswith(_LAST_CHUNK):
        return None
    head = raw.find(HEAD_END) + len(HEAD_END)
    headers = _headers(raw[:head])
    if headers is None:
        return None
    text = np.frombuffer(raw, np.uint8)
    places = (text[head : -len(_LAST_CHUNK)] < _BLANK).nonzero()[0] + head
    count, over = divmod(len(places), len(_CONTROLS))
    if over or not count or text[places].tobytes() != _CONTROLS * count:
        return None
    size_ends, fields, ends, closes, _, chunk_ends = places.reshape(count, -1).T
    # Places rise: where two differ by three, those between them are next to each other.
    if chunk_ends[-1] + 1 + len(_LAST_CHUNK) != len(raw) or np.count_nonzero(chunk_ends - ends != 3):
        return None
    if cut(raw, size_ends, len(BEGIN)).tobytes() != BEGIN * count:
        return None
    lengths = closes - fields
    if not _sized(raw, np.concatenate(((head,), chunk_ends[:-1] + 1)), lengths):
        return None
    done = raw.endswith(_LAST)
    events = slice(count - done)
    if count == done:
        return None
    begins = size_ends[events] + len(BEGIN)
    return PlainStream(raw, headers, begins, ends[events], done, int(np.add.reduce(lengths)))


def cut(raw: bytes, places: Int64, length: int) -> NDArray[np.void]:
    """`length` bytes from each place on, void[places]; raises IndexError where there are fewer."""
    wherever: NDArray[np.void] = np.ndarray(len(raw) - length + 1, f"V{length}", raw, strides=(1,))
    return wherever[places]


def _sizes(form: bytes) -> NDArray[np.void]:
    """How a chunk of each length begins that holds an event, void[lengths]; the last one fits none."""
    begins = [(form % length + BEGIN)[: _SIZE.itemsize] for length in range(_LONGEST + 1)]
    return np.frombuffer(b"".join((*begins, _NO_SIZE)), _SIZE)


_SIZES = _sizes(b"%x"), _sizes(b"%X")


def _sized(raw: bytes, begins: Int64, lengths: Int64) -> bool:
    """Whether each chunk begins with its length, its digits in the same case as the others'."""
    written = cut(raw, begins, _SIZE.itemsize).tobytes()
    return any(sizes.take(lengths, mode="clip").tobytes() == written for sizes in _SIZES)


@lru_cache(maxsize=16)  # a server's heads are the same but for the second
def _headers(head: bytes) -> Headers | None:
    """Of a head whose status is 200 and that chunks follow, not compressed; None of any other."""
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
    return (
        response.headers if chunked and response.status == 200 and not compressed(response.headers) else None
    )

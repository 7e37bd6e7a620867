"""Plain: the form in which servers stream, found in a few passes over a whole response.

A head, each event (`data: …` and two newlines) in a chunk of its own, the last chunk. What is not of
this form is for `http1.unframe` and `sse.read`, which take everything and a third longer.
"""

from __future__ import annotations

import httptools
import numpy as np

from loadgen.arrays import Int64
from loadgen.protocol.http1 import HEAD_END, HttpBody, Response, compressed
from loadgen.protocol.sse import Events, blanked

_SIXTEENS = 16 ** np.arange(1, 8)  # from each of them on a chunk's size has a digit more
_FRAME = len(b"0\r\n\r\n")  # of a chunk whose size has one digit; the last one is nothing else
_AFTER_DATA = len(b"\n\r\n")  # a data line and its own newline; then the event's, and the chunk's end
_FEWEST = 16  # reads; below them the passes cost more than they save


def read(raw: bytes, read_ends: Int64) -> tuple[HttpBody, Events] | None:
    """The answer and its events, if it is of the form and each event's data is JSON; else None.

    Where events and reads end is counted from the response's begin, not the body's. The parser
    reports how long the chunks are. Nothing is shorter than a head, these chunks with bare sizes and an end,
    so where the response is just as long, that is what it is, and each chunk's place is known.
    """
    if len(read_ends) < _FEWEST:
        return None
    response = Response()
    try:
        response.parser.feed_data(raw)
    except (httptools.HttpParserUpgrade, httptools.HttpParserError):
        return None
    finally:
        del response.parser
    if not response.complete or not response.pieces or compressed(response.headers):
        return None
    lengths, head = response.lengths(), raw.find(HEAD_END) + len(HEAD_END)
    ends = (lengths + _SIXTEENS.searchsorted(lengths, "right") + _FRAME).cumsum() + head
    if ends[-1] + _FRAME != len(raw):
        return None
    body = b"".join(response.pieces)
    found = blanked(body, lengths.cumsum())
    if found is None:
        return None
    lines, done = found
    answer = HttpBody(response.status, response.headers, body, read_ends, True, None)
    return answer, Events(lines, ends[: len(ends) - done] - _AFTER_DATA, done)

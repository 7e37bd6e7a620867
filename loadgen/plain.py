"""Plain: the form in which servers stream, found in a few passes over a whole response.

A head, each event (`data: …` and two newlines) in a chunk of its own, the last chunk. What is not of
this form is for `http1.unframe` and `sse.read`, which take everything and a third longer.
"""

from __future__ import annotations

import httptools
import numpy as np

from loadgen.http1 import HEAD_END, Int64, Response, Unframed
from loadgen.sse import Events, blanked

_NEWLINE, _DATA = ord("\n"), ord("d")
_OF_AN_EVENT = 4  # newlines: its chunk's size, its own two, its chunk's end
_OF_THE_END = 2
_FEWEST = 16  # reads; below them the passes cost more than they save


def read(raw: bytes, read_ends: Int64) -> tuple[Unframed, Events] | None:
    """The answer and its events, if it is of the form and each event's data is JSON; else None.

    Where events and reads end is counted from the response's begin, not the body's. The parser says
    how long the chunks are; with four newlines each, there is one way in which they follow.
    """
    if len(read_ends) < _FEWEST:
        return None
    response = Response()
    try:
        response.parser.feed_data(raw)
    except (httptools.HttpParserUpgrade, httptools.HttpParserError):
        return None
    finally:
        response.leave_parser()
    lengths, head = response.lengths(), raw.find(HEAD_END) + len(HEAD_END)
    text = np.frombuffer(raw, np.uint8, offset=head)
    newlines = np.flatnonzero(text == _NEWLINE)
    whole = response.complete and response.encoding == "identity"
    if not whole or not len(lengths) or len(newlines) != _OF_AN_EVENT * len(lengths) + _OF_THE_END:
        return None
    size, first, second, end = newlines[:-_OF_THE_END].reshape(-1, _OF_AN_EVENT).T
    follow = (end - size - 2 == lengths) & (second - first == 1) & (end - second == 2)
    if np.count_nonzero(follow & (text[size + 1] == _DATA)) < len(lengths):
        return None
    body = b"".join(response.pieces)
    found = blanked(body)
    if found is None:
        return None
    lines, done = found
    answer = Unframed(response.status, response.headers, body, read_ends, True, None)
    return answer, Events(lines, first[: len(first) - done] + head + 1, done)

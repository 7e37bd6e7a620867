"""The engine's messages of Anthropic's API have the shapes that vLLM's were recorded with."""

from __future__ import annotations

from typing import Any

import msgspec

from loadgen_servers.engine.anthropic_messages import PATH, refuse
from loadgen_servers.engine.messages import ResponseOptions, reply_for
from loadgen_servers.engine.request import Refusal
from servers.engine.test_messages import RESPONSES, dialect, shape, unchunk, written


def events(body: bytes) -> list[tuple[bytes, Any]]:
    """Names and shapes."""
    parts = [part.split(b"\ndata: ") for part in body.split(b"\n\n") if part]
    return [(name, shape(msgspec.json.decode(data))) for name, data in parts]


def test_a_stream_has_the_recorded_shape() -> None:
    body = unchunk(written(reply_for(dialect(PATH), ResponseOptions(19)), 8, cached=0))
    assert events(body) == events((RESPONSES / "messages_stream.txt").read_bytes())


def test_an_answer_not_streamed_has_the_recorded_shape() -> None:
    reply = reply_for(dialect(PATH), ResponseOptions(19, stream=False))
    body = reply.last(8, "length", 0).partition(b"\r\n\r\n")[2]
    assert shape(msgspec.json.decode(body)) == shape(
        msgspec.json.decode((RESPONSES / "messages_nostream.txt").read_bytes())
    )


def test_a_refusal_is_an_error_of_this_api() -> None:
    answer = refuse(Refusal("404 Not Found", "no such model", "NotFoundError", "model"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert msgspec.json.decode(body) == {
        "type": "error",
        "error": {"type": "NotFoundError", "message": "no such model"},
    }

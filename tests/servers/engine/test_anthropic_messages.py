"""The engine's messages of Anthropic's API have the shapes that vLLM's were recorded with."""

from __future__ import annotations

from typing import Any

import msgspec

from builders import recorded
from builders.loops import loop_over
from loadgen_servers import http_server
from loadgen_servers.engine.anthropic_messages import CHOICE, MessagesDialect, refuse
from loadgen_servers.engine.messages import ResponseOptions, text_of
from loadgen_servers.engine.reply import DetailedStream, PlainStream, reply_for
from loadgen_servers.engine.request import Refusal
from servers.engine.test_messages import RESPONSES, shape, unchunk, written


def dialect(interval: int = 1) -> MessagesDialect:
    return MessagesDialect(CHOICE, "m", 1, interval)


def events(body: bytes) -> list[tuple[bytes, Any]]:
    """Names and shapes."""
    parts = [part.split(b"\ndata: ") for part in body.split(b"\n\n") if part]
    return [(name, shape(msgspec.json.decode(data))) for name, data in parts]


def written_cached(prompt: int, tokens: int, cached: int | None, reason: str = "length") -> bytes:
    reply = reply_for(dialect(), ResponseOptions(prompt))
    return b"".join([*(reply.token(n) for n in range(1, tokens)), reply.last(tokens, reason, cached)])


def test_a_stream_has_the_recorded_shape() -> None:
    body = unchunk(written_cached(19, 8, 0))
    assert events(body) == events((RESPONSES / "messages_stream.txt").read_bytes())


def test_an_answer_not_streamed_has_the_recorded_shape() -> None:
    reply = reply_for(dialect(), ResponseOptions(19, stream=False))
    body = reply.last(8, "length", 0).partition(b"\r\n\r\n")[2]
    assert shape(msgspec.json.decode(body)) == shape(
        msgspec.json.decode((RESPONSES / "messages_nostream.txt").read_bytes())
    )


@loop_over("interval", [1, 4, 7])
@loop_over("tokens", [1, 2, 5, 40])
def test_prebuilt_messages_say_what_formatted_ones_say(interval: int, tokens: int) -> None:
    wanted = ResponseOptions(3)
    plain, formatted = PlainStream(dialect(interval), wanted), DetailedStream(dialect(interval), wanted)
    assert written(plain, tokens) == written(formatted, tokens)


@loop_over(
    ("cached", "reason", "known", "ended"),
    [(None, "length", -1, "length"), (0, "stop", 0, "stop"), (480, "length", 480, "length")],
)
def test_the_client_reads_what_the_engine_writes(
    cached: int | None, reason: str, known: int, ended: str
) -> None:
    data = http_server.STREAM_HEAD + written_cached(501, 40, cached, reason)
    record = recorded.decode("messages", [data], keep_text=True)
    assert recorded.outcome(record) == (None, ended, 501, 40, True)
    assert (record.cached_tokens, record.text) == (known, text_of(0, 40))
    assert recorded.decode(
        "messages", [http_server.STREAM_HEAD + written_cached(501, 40, 0, "abort")]
    ).failure


def test_a_refusal_is_an_error_of_this_api() -> None:
    answer = refuse(Refusal("404 Not Found", "no such model", "NotFoundError", "model"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert msgspec.json.decode(body) == {
        "type": "error",
        "error": {"type": "NotFoundError", "message": "no such model"},
    }

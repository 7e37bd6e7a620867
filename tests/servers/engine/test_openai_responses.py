"""The engine's `/v1/responses`: events that vLLM's were recorded with, and requests as those of chat."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over
from loadgen_servers import http_server
from loadgen_servers.engine.messages import ResponseOptions, text_of
from loadgen_servers.engine.openai_responses import CHOICE, ResponsesDialect, write_chat
from loadgen_servers.engine.reply import DetailedStream, PlainStream, reply_for
from loadgen_servers.engine.request import Refusal
from servers.engine.test_messages import RESPONSES, unchunk, written


def dialect(interval: int = 1) -> ResponsesDialect:
    return ResponsesDialect(CHOICE, "m", 1, interval)


def written_cached(prompt: int, tokens: int, cached: int | None, reason: str = "length") -> bytes:
    reply = reply_for(dialect(), ResponseOptions(prompt))
    return b"".join([*(reply.token(n) for n in range(1, tokens)), reply.last(tokens, reason, cached)])


def keys_of(body: bytes) -> dict[bytes, set[str]]:
    """The members of each kind of event, of what is in them too, as `response.id`."""
    found: dict[bytes, set[str]] = {}
    for part in filter(None, body.split(b"\n\n")):
        name, _, data = part.partition(b"\ndata: ")
        event: dict[str, Any] = msgspec.json.decode(data)
        inside = [f"{key}.{own}" for key, value in event.items() if isinstance(value, dict) for own in value]
        found[name] = {*event, *inside}
    return found


def test_its_events_and_their_members_are_among_the_recorded_ones() -> None:
    own = keys_of(unchunk(written_cached(16, 8, 0)))
    theirs = keys_of((RESPONSES / "responses_stream.txt").read_bytes())
    assert {name: keys - theirs[name] for name, keys in own.items()} == {name: set() for name in own}
    assert len(own) == 4


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
    record = recorded.decode("responses", [data], keep_text=True)
    assert recorded.outcome(record) == (None, ended, 501, 40, True)
    assert (record.cached_tokens, record.text) == (known, text_of(0, 40))
    stopped = http_server.STREAM_HEAD + written_cached(501, 40, 0, "abort")
    assert recorded.decode("responses", [stopped]).failure


@loop_over(
    ("body", "messages"),
    [
        ({"input": "Hi"}, [("user", "Hi")]),
        ({"instructions": "Be", "input": "Hi"}, [("system", "Be"), ("user", "Hi")]),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
            [("user", [{"text": "Hi"}])],
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "sun"}]},
            [("", None)],
        ),
    ],
)
def test_a_request_is_that_of_chat(body: dict[str, Any], messages: list[tuple[str, Any]]) -> None:
    chat = msgspec.json.decode(write_chat(msgspec.json.encode({**body, "max_output_tokens": 5})))
    assert [(each["role"], each["content"]) for each in chat["messages"]] == messages
    assert chat["max_completion_tokens"] == 5


@loop_over(
    ("body", "status", "why"),
    [
        (b'{"input": 5}', "400 Bad Request", "1 validation error: Expected `str | array`"),
        (b'{"input":', "400 Bad Request", "1 validation error: Input data was truncated"),
        (b'{"previous_response_id": "resp_1"}', "404 Not Found", "Response with id 'resp_1' not found."),
    ],
)
def test_what_it_does_not_serve_is_refused(body: bytes, status: str, why: str) -> None:
    with pytest.raises(Refusal) as caught:
        write_chat(body)
    assert caught.value.status == status
    assert caught.value.message.startswith(why)

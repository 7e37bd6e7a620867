"""The engine's messages have vLLM's shapes: the recorded ones, with only ids and texts different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over
from loadgen_servers import http_server
from loadgen_servers.engine import anthropic_messages, openai_responses
from loadgen_servers.engine.messages import (
    CHOICES,
    CYCLE,
    Choice,
    DetailedStream,
    Dialect,
    PlainStream,
    Reply,
    ResponseOptions,
    ids_of,
    reply_for,
    text_of,
)
from loadgen_servers.engine.openai_responses import PATH, write_chat
from loadgen_servers.engine.request import Refusal

RESPONSES = Path(__file__).parents[2] / "data" / "responses" / "vllm-0.32"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
IDS = (100, 200, 300, 400, 500)
SAME_SHAPE = {
    "completions_ids_stream": (COMPLETIONS, 1, 12, ResponseOptions(5, include_usage=True)),
    "completions_stream_one": (COMPLETIONS, 1, 1, ResponseOptions(2, include_usage=True)),
    "completions_stream_nousage": (COMPLETIONS, 1, 4, ResponseOptions(2)),
    "completions_ids_stream_contusage": (COMPLETIONS, 1, 12, ResponseOptions(5, True, True, True)),
    "completions_ids_stream_tokids": (COMPLETIONS, 1, 12, ResponseOptions(5, True, True, False, True, IDS)),
    "si4_completions_ids_stream": (COMPLETIONS, 4, 14, ResponseOptions(5, True, True, False, True, IDS)),
    "chat_stream": (CHAT, 1, 12, ResponseOptions(13, include_usage=True)),
    "si4_chat_stream": (CHAT, 4, 14, ResponseOptions(13, include_usage=True)),
    "messages_stream": (anthropic_messages.PATH, 1, 8, ResponseOptions(19)),
}
WHOLE = {
    "completions_text_nostream": (COMPLETIONS, 8, ResponseOptions(9, stream=False)),
    "chat_nostream": (CHAT, 8, ResponseOptions(13, stream=False)),
    "messages_nostream": (anthropic_messages.PATH, 8, ResponseOptions(19, stream=False)),
}
KINDS: dict[str, tuple[type[Dialect], Choice]] = {
    **{path: (Dialect, choice) for path, choice in CHOICES.items()},
    anthropic_messages.PATH: (anthropic_messages.MessagesDialect, anthropic_messages.CHOICE),
    openai_responses.PATH: (openai_responses.ResponsesDialect, openai_responses.CHOICE),
}
OURS = {"id", "created", "model", "system_fingerprint", "text", "content"}


def dialect(path: str, interval: int = 1) -> Dialect:
    kind, choice = KINDS[path]
    return kind(choice, "m", 1, interval)


def shape(value: Any, key: str = "") -> Any:
    """The value with its members in order, and what is the engine's own reduced to its type."""
    if isinstance(value, dict):
        return [(name, shape(member, name)) for name, member in value.items()]
    if key == "token_ids" and isinstance(value, list):
        return len(value)
    if isinstance(value, list):
        return [shape(member) for member in value]
    if key in OURS and value != "":
        return type(value).__name__
    return value


def events(body: bytes) -> list[tuple[bytes, Any]]:
    """Names, which only some APIs have, and shapes."""
    parts = [part.rpartition(b"data: ") for part in body.split(b"\n\n") if part]
    return [
        (name, data if data == b"[DONE]" else shape(msgspec.json.decode(data))) for name, _, data in parts
    ]


def unchunk(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if length == 0:
            assert data == b""
    return body


def written(reply: Reply, tokens: int, reason: str = "length", cached: int | None = None) -> bytes:
    parts = [reply.token(n) for n in range(1, tokens)]
    return b"".join([*parts, reply.last(tokens, reason, cached)])


@loop_over("name", SAME_SHAPE)
def test_a_stream_has_the_recorded_shape(name: str) -> None:
    path, interval, tokens, wanted = SAME_SHAPE[name]
    cached = 0 if path == anthropic_messages.PATH else None
    body = unchunk(written(reply_for(dialect(path, interval), wanted), tokens, cached=cached))
    assert events(body) == events((RESPONSES / f"{name}.txt").read_bytes())


@loop_over("name", WHOLE)
def test_an_answer_not_streamed_has_the_recorded_shape(name: str) -> None:
    path, tokens, wanted = WHOLE[name]
    reply = reply_for(dialect(path), wanted)
    assert (reply.start(), reply.token(1)) == (b"", b"")
    cached = 0 if path == anthropic_messages.PATH else None
    head, _, body = written(reply, tokens, cached=cached).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert shape(msgspec.json.decode(body)) == shape(
        msgspec.json.decode((RESPONSES / f"{name}.txt").read_bytes())
    )


def test_a_refusal_is_an_error_of_anthropics_api() -> None:
    answer = anthropic_messages.refuse(Refusal("404 Not Found", "no such model", "NotFoundError", "model"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 Not Found\r\n")
    error = {"type": "NotFoundError", "message": "no such model"}
    assert msgspec.json.decode(body) == {"type": "error", "error": error}


@loop_over("path", KINDS)
@loop_over("interval", [1, 4, 7])
@loop_over("tokens", [1, 2, 5, 40])
def test_prebuilt_messages_say_what_formatted_ones_say(path: str, interval: int, tokens: int) -> None:
    wanted = ResponseOptions(3, include_usage=True)
    plain = PlainStream(dialect(path, interval), wanted)
    formatted = DetailedStream(dialect(path, interval), wanted)
    assert written(plain, tokens) == written(formatted, tokens)


@loop_over("path", [anthropic_messages.PATH, openai_responses.PATH])
@loop_over(
    ("cached", "reason", "known", "ended"),
    [(None, "length", -1, "length"), (0, "stop", 0, "stop"), (480, "length", 480, "length")],
)
def test_the_client_reads_what_the_engine_writes(
    path: str, cached: int | None, reason: str, known: int, ended: str
) -> None:
    api = path.rpartition("/")[2]

    def stream(reason: str, cached: int | None) -> bytes:
        reply = reply_for(dialect(path), ResponseOptions(501))
        return http_server.STREAM_HEAD + written(reply, 40, reason, cached)

    record = recorded.decode(api, [stream(reason, cached)], keep_text=True)
    assert recorded.outcome(record) == (None, ended, 501, 40, True)
    assert (record.cached_tokens, record.text) == (known, text_of(0, 40))
    assert recorded.decode(api, [stream("abort", 0)]).failure


def test_an_aborted_stream_ends_cleanly_and_says_so() -> None:
    reply = PlainStream(dialect(COMPLETIONS, 4), ResponseOptions(3, include_usage=True))
    body = b"".join([*(reply.token(n) for n in range(1, 8)), reply.last(7, "abort")])
    last, usage = (msgspec.json.decode(part[6:]) for part in unchunk(body).split(b"\n\n")[-4:-2])
    assert last["choices"][0]["finish_reason"] == "abort"
    assert last["choices"][0]["text"] == text_of(5, 2)
    assert usage["usage"] == {"prompt_tokens": 3, "total_tokens": 10, "completion_tokens": 7}


@loop_over("path", CHOICES)
def test_cached_tokens_are_told_where_they_are_to_be(path: str) -> None:
    wanted = ResponseOptions(9, include_usage=True)
    streamed = unchunk(PlainStream(dialect(path), wanted).last(1, "length", 0)).split(b"\n\n")[-3]
    assert msgspec.json.decode(streamed[6:])["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    whole = Reply(dialect(path), wanted).last(1, "length", 8).partition(b"\r\n\r\n")[2]
    usage = msgspec.json.decode(whole)["usage"]
    rest = {"created_cache_tokens": None, "multimodal_tokens": None}
    assert usage["prompt_tokens_details"] == {"cached_tokens": 8, **rest}


def test_the_head_of_a_stream_leaves_before_its_first_token() -> None:
    assert reply_for(dialect(CHAT), ResponseOptions(1)).start() == http_server.STREAM_HEAD


@loop_over("path", KINDS)
def test_hidden_tokens_are_counted_and_not_shown(path: str) -> None:
    api = path.removeprefix("/v1/").partition("/")[0]
    wanted = ResponseOptions(5, include_usage=True, hidden=3)
    stream = http_server.STREAM_HEAD + written(reply_for(dialect(path), wanted), 5)
    record = recorded.decode(api, [stream], keep_text=True)
    assert (record.output_tokens, record.text, record.failure) == (5, text_of(3, 2), None)
    whole = Reply(dialect(path), wanted).last(5, "length").partition(b"\r\n\r\n")[2]
    assert (text_of(3, 2).encode() in whole, text_of(2, 2).encode() in whole) == (True, False)


@loop_over("path", [path for path in KINDS if path != COMPLETIONS])
def test_a_role_sent_at_once_is_not_sent_again(path: str) -> None:
    kind, choice = KINDS[path]
    made = reply_for(kind(choice, "m", 1, role_at_once=True), ResponseOptions(1))
    usual = reply_for(kind(choice, "m", 1), ResponseOptions(1))
    assert made.start() != usual.start()
    assert made.start() + made.token(1) == usual.start() + usual.token(1)


def test_only_what_asks_for_details_is_formatted() -> None:
    kinds: dict[type[Reply], ResponseOptions] = {
        PlainStream: ResponseOptions(1, include_usage=True),
        DetailedStream: ResponseOptions(1, token_ids=True),
        Reply: ResponseOptions(1, stream=False),
    }
    assert [type(reply_for(dialect(CHAT), wanted)) for wanted in kinds.values()] == list(kinds)


def test_token_i_is_word_i_of_a_cycle() -> None:
    assert text_of(CYCLE, 2) == text_of(0, 2) == " the model"
    assert ids_of(CYCLE + 1, 2) == [1001, 1002]


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
    own = keys_of(unchunk(written(reply_for(dialect(PATH), ResponseOptions(16)), 8, cached=0)))
    theirs = keys_of((RESPONSES / "responses_stream.txt").read_bytes())
    assert {name: keys - theirs[name] for name, keys in own.items()} == {name: set() for name in own}
    assert len(own) == 4


@loop_over(("body", "messages"), [
    ({"input": "Hi"}, [("user", "Hi")]),
    ({"instructions": "Be", "input": "Hi"}, [("system", "Be"), ("user", "Hi")]),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
     [("user", [{"text": "Hi"}])]),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "sun"}]}, [("", None)]),
])  # fmt: skip
def test_a_request_is_that_of_chat(body: dict[str, Any], messages: list[tuple[str, Any]]) -> None:
    chat = msgspec.json.decode(write_chat(msgspec.json.encode({**body, "max_output_tokens": 5})))
    assert [(each["role"], each["content"]) for each in chat["messages"]] == messages
    assert chat["max_completion_tokens"] == 5


@loop_over(("body", "status", "why"), [
    (b'{"input": 5}', "400 Bad Request", "1 validation error: Expected `str | array`"),
    (b'{"input":', "400 Bad Request", "1 validation error: Input data was truncated"),
    (b'{"previous_response_id": "resp_1"}', "404 Not Found", "Response with id 'resp_1' not found."),
])  # fmt: skip
def test_what_it_does_not_serve_is_refused(body: bytes, status: str, why: str) -> None:
    with pytest.raises(Refusal) as caught:
        write_chat(body)
    assert caught.value.status == status
    assert caught.value.message.startswith(why)

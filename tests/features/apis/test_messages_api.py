"""Anthropic's messages: as servers sent them, as documented, as made of chats, and what a plan sends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.base.structs import replace
from loadgen.base.urls import ApiPlace, choose_key_headers, parse_base_url
from loadgen.engines.engines import ENGINES
from loadgen.features.apis.messages_api import Messages, convert_body
from loadgen.plan import plan, profile
from loadgen.plan.plan import list_api_headers
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.records.record import Record
from loadgen.run.command.credentials import collect_credentials
from loadgen.run.command.options import parse

TABLES = read_tables("messages_api")

Event = dict[str, Any]


def named(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


def decode(events: list[Event], *more: bytes) -> Record:
    return recorded.decode_events("messages", (*map(named, events), *more))


def test_a_recorded_answer_has_the_times_of_its_texts() -> None:
    at_ns, reads = recorded.timed("vllm-0.32/messages")
    record = recorded.decode("messages", reads, at_ns)
    assert record.arrival_ns.tolist() == at_ns[3:11]
    assert (record.failure, record.exact_tokens) == (None, True)


@loop_over(("events", "tokens", "text", "reason", "visible", "prompt"), TABLES["texts"])
def test_texts_thoughts_and_calls_carry_tokens_and_nothing_else(
    events: list[Event], tokens: list[int] | int, text: str, reason: str, visible: int, prompt: int
) -> None:
    record = decode(events)
    assert (record.failure, record.text, record.finish_reason) == (None, text, reason)
    assert (record.tokens.tolist() if isinstance(tokens, list) else record.output_tokens) == tokens
    assert (record.usage, record.input_tokens) == (True, prompt)
    assert record.visible_ns == record.arrival_ns[visible]


@loop_over(("first", "last", "prompt", "cached"), TABLES["prompts"])
def test_a_prompt_is_what_was_read_created_and_neither(
    first: dict[str, int], last: dict[str, int], prompt: int, cached: int
) -> None:
    events = read_tables("messages_api")["answer"]
    events[0]["message"]["usage"] |= first
    events[-2]["usage"] = last
    record = decode(events)
    assert (record.failure, record.output_tokens) == (None, 2)
    assert (record.input_tokens, record.cached_tokens) == (prompt, cached)


@loop_over(("events", "more", "kind", "says", "tokens"), TABLES["failures"])
def test_what_went_wrong_is_told_and_what_came_is_counted(
    events: list[Event], more: str, kind: str, says: str, tokens: int
) -> None:
    record = decode(events, more.encode())
    assert record.failure is not None
    assert (record.failure.kind.value, int(record.tokens.sum())) == (kind, tokens)
    assert record.failure.detail.startswith(says)


def test_a_whole_answer_has_texts_thoughts_and_calls_alone() -> None:
    blocks = [
        {"type": "thinking", "thinking": "so", "signature": "EqQB"},
        {"type": "text", "text": " it"},
        {"type": "web_search_tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "no"}]},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
    ]
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5}
    answer = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": "tool_use"}
    body = msgspec.json.encode({**answer, "usage": usage})
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    record = recorded.decode("messages-nostream", [head, body], keep_text=True)
    assert recorded.outcome(record) == (None, "stop", 7, 5, True)
    assert (record.cached_tokens, record.text) == (4, 'so itf{"a":1}')


def test_a_request_has_its_limit_and_no_running_usage() -> None:
    api = Messages()
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    assert api.make_request("m", "hi", 9) == body
    assert api.make_fields({"top_k": 3}, stream=True, running_usage=False) == {"top_k": 3, "stream": True}
    with pytest.raises(UsageError, match="not token ids: use --prompt-format words"):
        api.make_request("m", [1, 2], 9)
    with pytest.raises(UsageError, match="leave out --continuous-usage"):
        api.make_fields({}, stream=True, running_usage=True)


USER = {"role": "user", "content": "hi"}


RAW = {"messages": msgspec.Raw(b'[{"role":"user","content":"hi"}]')}


@loop_over(("chat", "messages"), [*TABLES["chats"], (RAW, {"messages": [USER]})])
def test_a_chat_body_is_one_of_messages(chat: dict[str, Any], messages: dict[str, Any] | None) -> None:
    assert convert_body(chat) == (
        {key: value for key, value in chat.items() if value is not None} if messages is None else messages
    )


VERSION = {"anthropic-version": "2023-06-01"}
ANTHROPIC = "https://api.anthropic.com"


def test_ignore_eos_is_refused_by_every_engine() -> None:
    keys = {"backend": "anthropic-messages", "input_len": 8, "output_len": 5, "max_concurrency": 1}
    of = plan.make(profile.build({**keys, "num_prompts": 1}), ModelTarget(ENGINES[0], "m"), Seed(1))
    assert of.refuses_ignore_eos(ENGINES[0])


@loop_over(("engine", "noted"), [(engine.name, engine.name == "SGLang") for engine in ENGINES])
def test_what_sglang_does_not_count_is_a_note(engine: str, noted: bool) -> None:
    notes = list(Messages().fit_engine(engine).list_notes())
    assert [note.startswith("in /v1/messages SGLang names cached tokens only") for note in notes] == [
        True
    ] * noted


@loop_over(
    ("backend", "paths", "headers"),
    [
        ("anthropic-messages", [None], VERSION),
        ("openai", ["/v1/messages?beta=true"], VERSION),
        ("openai", [None, f"{ANTHROPIC}/v1/messages"], VERSION),
        ("openai", [None, "http://h"], {}),
        ("openai-chat", ["/v1/messages"], {}),
    ],
)
def test_its_version_is_a_header(backend: str, paths: list[str | None], headers: dict[str, str]) -> None:
    assert list_api_headers(backend, *paths) == headers


@loop_over(
    ("url", "names"),
    [
        (ANTHROPIC, ("x-api-key",)),
        ("http://localhost:8000", ("Authorization", "x-api-key")),
        (None, ("Authorization", "x-api-key")),
    ],
)
def test_its_key_is_in_a_header_of_its_own(
    url: str | None, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0")
    assert choose_key_headers(url, VERSION) == names
    values = {"x-api-key": "sk-0", "Authorization": "Bearer sk-0"}
    options = replace(parse(["--base-url", url or "http://h"]), headers={**VERSION, "x-api-key": "mine"})
    own = {name: values[name] for name in names if name != "x-api-key"}
    assert collect_credentials(options).headers == {**VERSION, "x-api-key": "mine", **own}
    options = replace(options, headers=VERSION)
    assert collect_credentials(options).headers == {**VERSION, **{name: values[name] for name in names}}


def test_a_pasted_url_of_it_is_taken_apart() -> None:
    assert parse_base_url(f"{ANTHROPIC}/v1/messages") == ApiPlace(ANTHROPIC, endpoint="/v1/messages")

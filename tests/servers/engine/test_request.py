"""What the engine makes of a request's body."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders.loops import loop_over, read_tables
from loadgen_servers.engine.request import GenerationRequest, Refusal, ServedModel, parse, whole_tokens

TABLES = read_tables("engine_request")

SERVED = ServedModel("m", max_model_len=100, vocab_size=1000)


def ask(chat: bool = False, served: ServedModel = SERVED, **body: Any) -> GenerationRequest:
    return parse(msgspec.json.encode(body), chat, served)


PROMPTS = TABLES["prompts"]


@loop_over(("body", "tokens"), PROMPTS.values())
def test_prompt_tokens_of(body: dict[str, Any], tokens: int) -> None:
    assert ask(chat="messages" in body, **body).response.prompt_tokens == tokens


USER = [{"role": "user", "content": "Hello there"}]
LENGTHS = {
    "completions default to 16": (False, {"prompt": [1]}, 16),
    "chat defaults to the room that is left": (True, {"messages": USER}, 89),
    "max_tokens": (True, {"messages": USER, "max_tokens": 7}, 7),
    "max_completion_tokens wins": (True, {"messages": USER, "max_tokens": 7, "max_completion_tokens": 9}, 9),
}


@loop_over(("chat", "body", "tokens"), LENGTHS.values())
def test_output_tokens(chat: bool, body: dict[str, Any], tokens: int) -> None:
    asked = ask(chat, **body)
    assert (asked.max_tokens, asked.output_tokens, asked.finish_reason) == (tokens, tokens, "length")


REFUSED = TABLES["refused"]


@loop_over(("body", "status", "kind", "param"), REFUSED.values())
def test_refused(body: dict[str, Any], status: str, kind: str, param: str | None) -> None:
    with pytest.raises(Refusal) as caught:
        ask(**body)
    error = msgspec.json.decode(caught.value.body())["error"]
    assert caught.value.status == status
    assert (error["type"], error["param"], error["code"]) == (kind, param, int(status[:3]))


def test_bad_json_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        parse(b'{"model":', False, SERVED)
    assert caught.value.status == "400 Bad Request"


@loop_over("stream", [False, True])
def test_an_unknown_token_id_is_told_in_band_on_a_stream(stream: bool) -> None:
    with pytest.raises(Refusal, match="999999") as caught:
        ask(prompt=[999999], stream=stream)
    assert caught.value.in_stream is stream


def test_unknown_members_are_ignored() -> None:
    asked = ask(prompt=[1], temperature=0, repetition_penalty=1.0, logprobs=None, best_of=1, user="u")
    assert asked.max_tokens == 16


OPTIONS = {
    "nothing": ({}, (False, False)),
    "usage": ({"include_usage": True}, (True, False)),
    "running usage": ({"include_usage": True, "continuous_usage_stats": True}, (True, True)),
    "running usage alone is nothing, as in vLLM": ({"continuous_usage_stats": True}, (False, False)),
}


@loop_over(("options", "usage"), OPTIONS.values())
def test_stream_options(options: dict[str, bool], usage: tuple[bool, bool]) -> None:
    wanted = ask(prompt=[1], stream=True, stream_options=options).response
    assert (wanted.include_usage, wanted.continuous_usage) == usage


def test_early_eos_ends_its_share_at_the_same_token_every_time() -> None:
    served = ServedModel("m", max_model_len=100_000, early_eos=0.25)
    first = [ask(served=served, prompt=[i], max_tokens=64) for i in range(1000)]
    again = [ask(served=served, prompt=[i], max_tokens=64) for i in range(1000)]
    assert first == again
    stopped = [asked for asked in first if asked.finish_reason == "stop"]
    assert 200 < len(stopped) < 300
    assert all(1 <= asked.output_tokens <= asked.max_tokens for asked in stopped)
    assert {asked.output_tokens for asked in first if asked.finish_reason == "length"} == {64}


@loop_over(("member", "value", "least"), [("ignore_eos", True, 64), ("min_tokens", 60, 60)])
def test_early_eos_obeys(member: str, value: int, least: int) -> None:
    served = ServedModel("m", max_model_len=100_000, early_eos=1.0)
    bodies: list[dict[str, Any]] = [{"prompt": [i], "max_tokens": 64, member: value} for i in range(50)]
    lengths = [ask(served=served, **body).output_tokens for body in bodies]
    assert min(lengths) >= least


@loop_over(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2)])
def test_a_text_fills_whole_tokens(text: str, tokens: int) -> None:
    assert len(whole_tokens(text)) == tokens * 4
    assert whole_tokens(text).rstrip(b"\0") == text.encode()


SAME_BEGINNING = TABLES["same beginning"]


@loop_over(("one", "other", "shared"), SAME_BEGINNING.values())
def test_prompts_share_the_full_blocks_they_begin_with(
    one: dict[str, Any], other: dict[str, Any], shared: int
) -> None:
    blocks, others = (ask(chat="messages" in body, max_tokens=1, **body).blocks(16) for body in (one, other))
    assert [a == b for a, b in zip(blocks, others, strict=False)][:shared] == [True] * shared
    assert not set(blocks[shared:]) & set(others[shared:])


def test_a_prompt_has_as_many_blocks_as_it_fills() -> None:
    lengths = (15, 16, 31, 32, 90)
    assert [len(ask(prompt=[1] * n, max_tokens=1).blocks(16)) for n in lengths] == [0, 1, 1, 2, 5]
    assert [len(ask(prompt="abcd" * n, max_tokens=1).blocks(16)) for n in lengths] == [0, 1, 1, 2, 5]


def test_a_limit_is_refused_where_it_is_missing_and_needed() -> None:
    raw = b'{"messages":[{"role":"user","content":"hi"}]}'
    with pytest.raises(Refusal, match="max_tokens: Field required"):
        parse(raw, True, SERVED, limited=True)
    assert parse(raw, True, SERVED).max_tokens == 91

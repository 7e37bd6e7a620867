"""Plans of Anthropic's messages: what is sent where, with which headers, and what is refused before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from builders import recorded
from builders.data_files import jsonl
from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.base.urls import ApiPlace, choose_key_headers, parse_base_url
from loadgen.engines.engines import ENGINES
from loadgen.features.messages.messages_api import Messages
from loadgen.features.sessions import turn_sending
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan, list_api_headers
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.records.decode import Decoder
from loadgen.run.command.credentials import collect_credentials
from loadgen.run.command.options import parse

SMALL = {
    "turns": 2,
    "num_sessions": 2,
    "input_len": 8,
    "output_len": 5,
    "max_concurrency": 2,
    "prefix_len": 6,
}
API = {"backend": "anthropic-messages"}
VERSION = {"anthropic-version": "2023-06-01"}
ANTHROPIC = "https://api.anthropic.com"


def made(endpoint: str | None = None, **keys: Any) -> Plan:
    target = ModelTarget(ENGINES[0], "m", endpoint=endpoint)
    return plan.make(profile.build({**SMALL, **API, **keys}), target, Seed(1, chosen=True))


def test_turns_have_their_system_prompt_apart_and_their_limit() -> None:
    of, chat = made(temperature=0.5, top_k=3), made(backend="openai-chat")
    assert (of.path, of.dialect) == ("/v1/messages", Messages())
    system, *history = chat.payload(1)["messages"]
    assert of.payload(1) == {
        "model": "m",
        "max_tokens": 5,
        "system": system["content"],
        "messages": history,
        "temperature": 0.5,
        "top_k": 3,
        "stream": True,
    }
    assert of.notes[-1:] == (
        "ignore_eos is not sent: /v1/messages has no such field, so answers may be shorter",
    )
    assert of.refuses_ignore_eos(ENGINES[0])
    assert made(ignore_eos=False).notes == of.notes[:-1]


@loop_over(("engine", "noted"), [(engine.name, engine.name == "SGLang") for engine in ENGINES])
def test_what_sglang_does_not_count_is_a_note(engine: str, noted: bool) -> None:
    notes = list(Messages().fit_engine(engine).list_notes())
    assert [note.startswith("in /v1/messages SGLang names cached tokens only") for note in notes] == [
        True
    ] * noted


def test_a_live_answer_is_sent_back_without_its_reasoning() -> None:
    name = "vllm-0.32/messages_thinking_stream"
    job = turn_sending._make_live_judge(Decoder(Messages(), True), Messages())
    answer = job(recorded.capture(recorded.reads(name)))
    assert answer == {
        "role": "assistant",
        "content": "",
        "reasoning": " actually_leveles <<_level keysmac IndexError",
    }
    answer = job(recorded.capture(recorded.reads("sglang-0.5.23/messages_stream")))
    assert answer == {"role": "assistant", "content": " actually_leveles <<_level keysmac IndexError"}
    body = msgspec.json.decode(made().body_after(1, [{**answer, "reasoning": "hm"}]))
    assert body["messages"][1] == answer


def test_recorded_conversations_have_tools_in_its_form(tmp_path: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    rows = [
        {"conversation_id": "a", "turn": 1, "role": "user", "content": "q", "tools": [tool], "max_tokens": 7},
        {"conversation_id": "a", "turn": 2, "role": "assistant", "content": "r"},
    ]
    keys: dict[str, Any] = {"dataset_path": jsonl(tmp_path, rows), "turns": None, "prefix_len": 0}
    keys |= {"num_sessions": None, "ignore_eos": False}
    assert made(**keys).payload(0) == {
        "model": "m",
        "max_tokens": 7,
        "messages": [{"role": "user", "content": "q"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "stream": True,
    }
    del rows[0]["max_tokens"]
    keys["dataset_path"] = jsonl(tmp_path, rows)
    with pytest.raises(
        UsageError, match="needs a limit to each answer, and some have none: pass --output-len"
    ):
        made(**keys)


@loop_over(
    ("keys", "why"),
    [
        ({"min_p": 0.1}, "/v1/messages has no field for --min-p: leave it out, or use --extra-body if"),
        ({"logprobs": 2, "min_tokens": 3}, "no field for --logprobs, --min-tokens: leave it out"),
        (
            {"continuous_usage": True},
            "/v1/messages counts tokens at the end alone: leave out --continuous-us",
        ),
        ({"assistant": "server"}, "the server keep the history, and /v1/messages sends it with each turn"),
        ({"endpoint": "/v1/chat/completions"}, "anthropic-messages needs an endpoint ending in /messages"),
    ],
)
def test_what_it_cannot_carry_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        made(**keys)


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

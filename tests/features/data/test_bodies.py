"""Bodies: whole requests keep their keys, their order and the bytes of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.data_files import jsonl, planned
from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.features.data import bodies

USER = {"role": "user", "content": "a"}
CHAT: dict[str, Any] = {"messages": [USER]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CHAT_API = {"backend": "openai-chat"}
LAID_OVER = b'"stream":true,"stream_options":{"include_usage":true}'


@loop_over(
    ("row", "keys", "sent"),
    [
        (
            b'{"messages": [{"role":"u",  "content":"\\u00e9 \xc3\xa9"}], "temperature": 0.10, "model": "l"}',
            CHAT_API,
            b'{"messages":[{"role":"u",  "content":"\\u00e9 \xc3\xa9"}],"temperature":0.10,"model":"l",'
            + LAID_OVER
            + b"}",
        ),
        (b'{"stream": false, "messages": [{"role": "user"}], "max_tokens": 5}', CHAT_API,
         b'{"stream":true,"messages":[{"role": "user"}],"max_tokens":5,"model":"served",'
         b'"stream_options":{"include_usage":true}}'),
        (b'{"messages": [{"role": "user"}], "stream_options": {"a": 1.0, "include_usage": false}}', CHAT_API,
         b'{"messages":[{"role": "user"}],"stream_options":{"a":1.0,"include_usage":true},'
         b'"model":"served","stream":true}'),
        (b'{"messages": [{"role": "user"}], "model": "m", "temperature": 1e0, "max_tokens": 3}',
         {**CHAT_API, "temperature": 0.5, "custom_output_len": 9},
         b'{"messages":[{"role": "user"}],"model":"m","temperature":0.5,"max_tokens":9,' + LAID_OVER + b"}"),
        (
            b'{"messages": [{"role": "user"}], "model": "m", "chat_template_kwargs": {"x": 1e400, "y": 1}}',
            {**CHAT_API, "chat_template_kwargs": {"y": 2}},
            b'{"messages":[{"role": "user"}],"model":"m","chat_template_kwargs":{"x":1e400,"y":2},'
            + LAID_OVER
            + b"}",
        ),
        (b'{"prompt": [1, 2],"model": "m"}', {"custom_output_len": 9},
         b'{"prompt":[1, 2],"model":"m","max_tokens":9,' + LAID_OVER + b"}"),
    ],
)  # fmt: skip
def test_a_body_is_sent_as_it_stands(tmp_path: Path, row: bytes, keys: dict[str, Any], sent: bytes) -> None:
    body = planned(jsonl(tmp_path, [row]), **keys).body(0)
    assert body == sent


def test_lengths_are_those_of_the_bodies(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": [1, 2, 3], "max_tokens": 5},
        {"prompt": "a", "model": "m"},
        {"prompt": "a", "max_tokens": None},
    ]
    requests = planned(jsonl(tmp_path, rows)).requests
    assert requests.input_lens.tolist() == [3, -1, -1]
    assert requests.output_lens.tolist() == [5, -1, -1]


@loop_over(
    ("row", "why"),
    [
        ({**CHAT, "n": 2}, "`n` is 2: one answer a request is measured: leave it out"),
        ({**CHAT, "best_of": 2}, "`best_of` is 2: one answer"),
        ({**CHAT, "use_beam_search": True}, "`use_beam_search` is true: one answer"),
        ({**CHAT, "max_tokens": 0}, "max_tokens is 0: give 1 or more"),
        ({**CHAT, "max_completion_tokens": "5"}, 'max_completion_tokens is "5": give a whole number'),
        ({**CHAT, "model": 1}, "model is 1: give a text"),
        ({**CHAT, "stream": "yes"}, 'stream is "yes": give true or false'),
        ({**CHAT, "stream_options": []}, "stream_options is []: give an object"),
        ({**CHAT, "tools": {}}, "tools is {}: give a list"),
        ({"messages": []}, "messages is []: it must not be empty"),
        ({"messages": "a"}, 'messages is "a": give a list'),
        ({"messages": [{"content": "a"}]}, "messages[0] has no role"),
    ],
)
def test_a_body_that_cannot_be_measured_is_refused(tmp_path: Path, row: dict[str, Any], why: str) -> None:
    path = jsonl(tmp_path, [CHAT, row])
    with pytest.raises(UsageError) as error:
        planned(path, **CHAT_API)
    assert str(error.value).startswith(f"--dataset-path {path} row 2: {why}")


@loop_over(
    ("row", "why"),
    [
        ({"prompt": "a", "echo": True}, "`echo` is true: the prompt would be counted as the answer"),
        ({"prompt": ["a", "b"], "model": "m"}, 'prompt[0] is "a": give a whole number'),
        ({"prompt": [[1], [2]], "model": "m"}, "prompt[0] is [1]: give a whole number"),
        ({"prompt": [-1], "model": "m"}, "prompt[0] is -1: give 0 or more"),
        ({"prompt": "", "model": "m"}, 'prompt is "": it must not be empty'),
    ],
)
def test_a_completion_that_cannot_be_measured(tmp_path: Path, row: dict[str, Any], why: str) -> None:
    path = jsonl(tmp_path, [row])
    with pytest.raises(UsageError) as error:
        planned(path)
    assert str(error.value).startswith(f"--dataset-path {path} row 1: {why}")


@loop_over("backend", ["openai-responses", "anthropic-messages"])
def test_chat_bodies_take_the_form_of_another_api_of_messages(backend: str, tmp_path: Path) -> None:
    of = planned(jsonl(tmp_path, [CHAT]), backend=backend, custom_output_len=7)
    body = of.payload(0)
    assert ("input" if backend == "openai-responses" else "messages") in body
    assert body["max_output_tokens" if backend == "openai-responses" else "max_tokens"] == 7
    assert "max_completion_tokens" not in body


@pytest.mark.parametrize(
    ("row", "keys", "why"),
    [
        (CHAT, {}, "holds chat bodies, and requests go to /v1/completions: use --backend openai-chat"),
        ({"prompt": "a", "n": 1}, CHAT_API,
         "holds completion bodies, and requests go to /v1/chat/completions"),
        ({"prompt": "a", "n": 1}, {"backend": "sglang"},
         "holds completion bodies, and requests go to /generate"),
    ],
)  # fmt: skip
def test_bodies_of_another_api_are_refused(
    tmp_path: Path, row: dict[str, Any], keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError) as error:
        planned(jsonl(tmp_path, [row]), **keys)
    assert why in str(error.value)


@loop_over(
    ("row", "names"),
    [
        (CHAT, ()),
        ({**CHAT, "tools": None}, ()),
        ({**CHAT, "tools": [{"type": "function"}]}, ("tools",)),
        ({**CHAT, "response_format": {"type": "json_object"}}, ("response_format",)),
        ({**CHAT, "guided_json": {}}, ("structured outputs",)),
        ({"messages": [USER, {"role": "user", "content": [IMAGE]}]}, ("images",)),
        ({"messages": [{"role": "user", "content": "image_url"}]}, ()),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, ("audio",)),
        ({"prompt": [1], "logprobs": 1}, ("logprobs", "token ids")),
    ],
)
def test_what_a_body_asks_of_a_server_is_named(row: dict[str, Any], names: tuple[str, ...]) -> None:
    raw = msgspec.json.decode(msgspec.json.encode(row), type=dict[str, msgspec.Raw])
    assert bodies.find_features(raw) == names


def test_each_feature_has_its_first_request(tmp_path: Path) -> None:
    tools = {**CHAT, "tools": [{"type": "function"}]}
    plan = planned(
        jsonl(tmp_path, [CHAT, tools, tools, {**CHAT, "logprobs": True}]), num_prompts=3, **CHAT_API
    )
    assert isinstance(plan.requests, bodies.WholeBodies)
    assert plan.requests.features == {"tools": 1}


@loop_over(
    ("roles", "note"),
    [
        (["user"], ""),
        (["system", "user", "assistant", "user"], ""),
        (["user", "assistant"], "2 of 2 bodies end in an assistant's message"),
        (["system", "user", "model"], "2 of 2 bodies end in an assistant's message"),
    ],
)
def test_a_recorded_answer_at_the_end_is_said(roles: list[str], note: str, tmp_path: Path) -> None:
    messages = [{"role": role, "content": "a"} for role in roles]
    plan = planned(jsonl(tmp_path, [{"messages": messages}] * 2), num_prompts=2, **CHAT_API)
    assert any("end in an assistant" in each for each in plan.notes) is bool(note)
    assert any(note in each for each in plan.notes) or not note

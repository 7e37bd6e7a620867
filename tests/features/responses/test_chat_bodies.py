"""Bodies of the chat API as those of /v1/responses: what each message, tool and limit becomes."""

from __future__ import annotations

from typing import Any

import msgspec

from builders.loops import loop_over
from loadgen.features.responses.chat_bodies import convert_body, select_new_items

USER = {"role": "user", "content": "hi"}
PART = {"type": "output_text", "text": "a", "annotations": []}
SAID = {"type": "message", "role": "assistant", "content": [PART]}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sun"}


@loop_over(
    ("messages", "given", "instructions"),
    [
        ([USER], "hi", None),
        ([{"role": "system", "content": "s"}, USER], "hi", "s"),
        ([{"role": "system", "content": [{"type": "text", "text": "s"}]}, USER],
         [{"role": "system", "content": [{"type": "input_text", "text": "s"}]}, USER], None),
        ([USER, {"role": "assistant", "content": "a"}, USER], [USER, SAID, USER], None),
        ([USER, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}], [USER, SAID], None),
        ([USER, {"role": "assistant", "content": "a", "reasoning": "r"}, USER],
         [USER, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
          SAID, USER], None),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
          {"role": "tool", "tool_call_id": "c1", "content": "sun"}], [USER, CALLED, RESULT], None),
        ([USER, {"role": "assistant", "content": ""}, USER],
         [USER, {**SAID, "content": [{**PART, "text": ""}]}, USER], None),
        ([{"role": "user", "content": [{"type": "text", "text": "t"},
                                       {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
                                       {"type": "input_audio", "input_audio": {}}]}],
         [{"role": "user", "content": [{"type": "input_text", "text": "t"},
                                       {"type": "input_image", "image_url": "data:x", "detail": "low"},
                                       {"type": "input_audio", "input_audio": {}}]}], None),
    ],
)  # fmt: skip
def test_messages_become_items(messages: list[Any], given: Any, instructions: str | None) -> None:
    request = convert_body({"model": "m", "messages": messages})
    assert request["input"] == given
    assert request.get("instructions") == instructions
    assert "messages" not in request


@loop_over(
    ("chat", "own"),
    [
        ({"max_tokens": 5}, {"max_output_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_output_tokens": 5}),
        ({"max_output_tokens": 5, "temperature": 0.5}, {"max_output_tokens": 5, "temperature": 0.5}),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
         {"tools": [{"type": "function", "name": "f", "parameters": {}}]}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}},
         {"tool_choice": {"type": "function", "name": "f"}}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
         {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}}),
        ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        ({"logprobs": True, "top_logprobs": 2},
         {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ({"stream_options": {"include_usage": True}, "logprobs": False}, {}),
    ],
)  # fmt: skip
def test_fields_have_their_other_names(chat: dict[str, Any], own: dict[str, Any]) -> None:
    assert convert_body({"messages": [USER], **chat}) == {"input": "hi", **own}


def test_values_that_are_json_already_are_read() -> None:
    raw = msgspec.Raw(msgspec.json.encode([USER]))
    assert convert_body({"messages": raw, "tools": msgspec.Raw(b"null")}) == {"input": "hi"}


@loop_over(
    ("given", "new"),
    [
        ("hi", "hi"),
        ([USER], [USER]),
        ([USER, {"role": "assistant", "content": "a"}, USER], [USER]),
        ([USER, CALLED, RESULT, USER], [RESULT, USER]),
    ],
)
def test_new_is_what_follows_the_last_answer(given: Any, new: Any) -> None:
    assert select_new_items(given) == new

"""Requests of conversations, written as Anthropic's messages."""

from __future__ import annotations

from typing import Any

import msgspec

from builders.loops import loop_over
from loadgen.features.messages.chat_bodies import convert_body

USER = {"role": "user", "content": "hi"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(name: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{name}", "content": content}


def used(name: str, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"call_{name}", "name": name, "input": given}


def given(name: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"call_{name}", "content": content}


@loop_over(
    ("chat", "messages"),
    [
        ({"messages": [USER]}, {"messages": [USER]}),
        (
            {
                "messages": [
                    {"role": "system", "content": "be"},
                    {"role": "developer", "content": "kind"},
                    USER,
                ]
            },
            {"system": "be\n\nkind", "messages": [USER]},
        ),
        (
            {"messages": [{"role": "system", "content": [{"type": "text", "text": "be"}]}, USER]},
            {"system": "be", "messages": [USER]},
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": "yes", "reasoning": "hm"}, USER]},
            {"messages": [USER, {"role": "assistant", "content": "yes"}, USER]},
        ),
        (
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": "so",
                        "tool_calls": [call("a", '{"x":1}'), call("b", "{")],
                    },
                    result("a", "1"),
                    result("b", [{"type": "text", "text": "2"}]),
                    {"role": "assistant", "content": None, "tool_calls": [call("c", {"y": 2})]},
                    result("c", "3"),
                ]
            },
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "text", "text": "so"},
                            used("a", {"x": 1}),
                            used("b", {"arguments": "{"}),
                        ],
                    },
                    {
                        "role": "user",
                        "content": [given("a", "1"), given("b", [{"type": "text", "text": "2"}])],
                    },
                    {"role": "assistant", "content": [used("c", {"y": 2})]},
                    {"role": "user", "content": [given("c", "3")]},
                ]
            },
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "what"},
                            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                            {"type": "image_url", "image_url": "http://h/a.png"},
                        ],
                    }
                ]
            },
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "what"},
                            {
                                "type": "image",
                                "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
                            },
                            {"type": "image", "source": {"type": "url", "url": "http://h/a.png"}},
                        ],
                    }
                ]
            },
        ),
        (
            {
                "messages": [USER],
                "model": "m",
                "max_completion_tokens": 9,
                "stop": "\n",
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 3,
                "seed": 3,
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": PARAMETERS, "description": "d"},
                    }
                ],
                "tool_choice": "required",
            },
            {
                "model": "m",
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 3,
                "max_tokens": 9,
                "messages": [USER],
                "stop_sequences": ["\n"],
                "tools": [{"name": "f", "description": "d", "input_schema": PARAMETERS}],
                "tool_choice": {"type": "any"},
            },
        ),
        (
            {"messages": [USER], "max_tokens": 4, "stop": ["a"], "tool_choice": call("f", "")},
            {
                "max_tokens": 4,
                "messages": [USER],
                "stop_sequences": ["a"],
                "tool_choice": {"type": "tool", "name": "f"},
            },
        ),
        (
            {"messages": [USER], "tools": [{"name": "f", "input_schema": PARAMETERS}], "tool_choice": None},
            None,
        ),
        ({"messages": msgspec.Raw(b'[{"role":"user","content":"hi"}]')}, {"messages": [USER]}),
    ],
)
def test_a_chat_body_is_one_of_messages(chat: dict[str, Any], messages: dict[str, Any] | None) -> None:
    assert convert_body(chat) == (
        {key: value for key, value in chat.items() if value is not None} if messages is None else messages
    )

"""Chat bodies: a request of OpenAI's chat API, written as one of Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from loadgen.base.untrusted import NOT_JSON, read_mapping
from loadgen.wire.openai import ANSWER_LIMITS, SYSTEM_ROLES

_SAME = ("model", "temperature", "top_p", "top_k", "metadata", "chat_template_kwargs", "thinking")
_DATA_URL = "data:"


def convert_body(body: dict[str, Any]) -> dict[str, Any]:
    """Convert a chat body; fields that have no counterpart are left out, and so is earlier reasoning.

    System messages become `system`, wherever they stand, and a tool's results blocks of a user's message.
    Reasoning of earlier turns is no part of the API's own prompts either.
    """
    chat: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
    messages: list[dict[str, Any]] = chat.get("messages") or []
    converted = {key: chat[key] for key in _SAME if chat.get(key) is not None}
    limit = next((chat[key] for key in ANSWER_LIMITS if chat.get(key) is not None), None)
    if limit is not None:
        converted["max_tokens"] = limit
    if system := "\n\n".join(_list_system(messages)):
        converted["system"] = system
    converted["messages"] = list(_convert_messages(messages))
    if (stop := chat.get("stop")) is not None:
        converted["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if tools := chat.get("tools"):
        converted["tools"] = [_convert_tool(tool) for tool in tools]
    if (choice := _convert_choice(chat.get("tool_choice"))) is not None:
        converted["tool_choice"] = choice
    return converted


def _list_system(messages: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the texts of system messages."""
    for message in messages:
        if message.get("role") in SYSTEM_ROLES:
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            yield from (text for part in parts if isinstance(text := read_mapping(part).get("text"), str))


def _convert_messages(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield messages of users and assistants; results of tools that follow one another are one message."""
    results: list[dict[str, Any]] = []
    for message in messages:
        role = message.get("role")
        if role == "tool":
            content = _convert_content(message.get("content"))
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id") or ""}
            results.append({**result, "content": content})
            continue
        if results:
            yield {"role": "user", "content": results}
            results = []
        if role not in SYSTEM_ROLES:
            yield {
                "role": role,
                "content": _convert_content(message.get("content"), message.get("tool_calls")),
            }
    if results:
        yield {"role": "user", "content": results}


def _convert_content(content: Any, calls: Any = None) -> str | list[dict[str, Any]]:
    """Convert a message's text, or its parts and tool calls, to text or blocks."""
    if isinstance(content, str) and not calls:
        return content
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    return [*map(_convert_part, parts), *map(_convert_call, calls or ())] or ""


def _convert_part(part: Any) -> dict[str, Any]:
    """Convert a part: an image by its URL, or the data in it; any other is kept."""
    if read_mapping(part).get("type") != "image_url":
        return {"type": "text", "text": part} if isinstance(part, str) else part
    image = part["image_url"]
    url = str(image["url"] if isinstance(image, dict) else image)
    if not url.startswith(_DATA_URL):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, _, data = url.removeprefix(_DATA_URL).partition(",")
    source = {"type": "base64", "media_type": kind.partition(";")[0], "data": data}
    return {"type": "image", "source": source}


def _convert_call(call: dict[str, Any]) -> dict[str, Any]:
    """Convert a tool call, whose arguments become an object; what is none is its only argument."""
    function = read_mapping(call.get("function"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(*NOT_JSON):
            arguments = msgspec.json.decode(arguments)
    given = arguments if isinstance(arguments, dict) else {"arguments": arguments} if arguments else {}
    return {"type": "tool_use", "id": call.get("id") or "", "name": function.get("name"), "input": given}


def _convert_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Convert the definition of a function; one of Anthropic's own form is kept."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    named = {key: function[key] for key in ("name", "description") if function.get(key) is not None}
    return {**named, "input_schema": function.get("parameters") or {"type": "object"}}


def _convert_choice(choice: Any) -> dict[str, Any] | None:
    """Convert which tool is to be called; None if that is not set."""
    if isinstance(choice, dict):
        return {"type": "tool", "name": read_mapping(choice.get("function")).get("name")}
    kinds = {"auto": "auto", "required": "any", "none": "none"}
    return {"type": kinds[choice]} if choice in kinds else None

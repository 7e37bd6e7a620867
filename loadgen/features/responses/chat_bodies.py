"""Chat bodies: those of the chat API, which conversations are made in, as bodies of `/v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from loadgen.base.untrusted import read_mapping
from loadgen.wire.openai import ANSWER_LIMITS, REASONING_FIELDS, SYSTEM_ROLES

# What is said with other fields there, or not at all.
_OTHERWISE: Final = (
    *ANSWER_LIMITS,
    "messages",
    "tools",
    "tool_choice",
    "response_format",
    "reasoning_effort",
    "stream_options",
    "logprobs",
)
# Items that an answer consists of: what follows the last of them is new in its turn.
_ANSWERED: Final = ("reasoning", "function_call")


def convert_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a chat body: messages to items, a system prompt before them to `instructions`, tools, limits.

    A single message of a user is text. Fields of the same name stay; parts of a content that chat does not
    have are passed on.
    """
    chat: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))  # values may be JSON already
    messages = chat.get("messages") or []
    request = {name: value for name, value in chat.items() if name not in _OTHERWISE}
    if messages and messages[0].get("role") in SYSTEM_ROLES and isinstance(messages[0].get("content"), str):
        request["instructions"] = messages[0]["content"]
        messages = messages[1:]
    items = [item for message in messages for item in _list_items(message)]
    first = items[0] if len(items) == 1 else {}
    is_text = first.get("role") == "user" and isinstance(first.get("content"), str)
    request["input"] = first["content"] if is_text else items
    for limit in ANSWER_LIMITS:
        if chat.get(limit) is not None:
            request["max_output_tokens"] = chat[limit]
    if chat.get("tools"):
        request["tools"] = [_lift(tool, "function") for tool in chat["tools"]]
    if chat.get("tool_choice") is not None:
        request["tool_choice"] = _lift(chat["tool_choice"], "function")
    if chat.get("response_format") is not None:
        request["text"] = {"format": _lift(chat["response_format"], "json_schema")}
    if chat.get("reasoning_effort") is not None:
        request["reasoning"] = {"effort": chat["reasoning_effort"]}
    if chat.get("logprobs"):
        request["include"] = ["message.output_text.logprobs"]
    return request


def select_new_items(given: Any) -> Any:
    """Return what of `input` follows the last item of an answer; all if there is none, or if it is text."""
    if not isinstance(given, list):
        return given
    answers = [at for at, item in enumerate(given) if _is_answer(item)]
    return given[answers[-1] + 1 :] if answers else given


def _is_answer(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in _ANSWERED


def _list_items(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the items of a message: reasoning, its content, calls of tools; or the result of a call."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message.get("tool_call_id"),
            "output": _convert(content),
        }
        return
    thought = next((message[key] for key in REASONING_FIELDS if message.get(key)), None)
    if isinstance(thought, str):
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}
    calls = message.get("tool_calls") or []
    if content or not (calls or thought):
        yield _make_answer(content) if role == "assistant" else {"role": role, "content": _convert(content)}
    for call in calls:
        function = read_mapping(call.get("function"))
        yield {
            "type": "function_call",
            "call_id": call.get("id"),
            "name": function.get("name"),
            "arguments": function.get("arguments") or "",
        }


def _make_answer(content: Any) -> dict[str, Any]:
    """Make the item of an answer in the form in which servers write them: llama.cpp takes no other."""
    texts: list[Any] = []
    for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
        is_text = part.get("type") == "text"
        text: dict[str, Any] = {"type": "output_text", "text": part.get("text", ""), "annotations": []}
        texts.append(text if is_text else part)
    return {"type": "message", "role": "assistant", "content": texts}


def _convert(content: Any) -> Any:
    """Convert a content's parts: texts and images; others, and what is no list, stay; None is ""."""
    if not isinstance(content, list):
        return "" if content is None else content
    parts = []
    for part in content:
        if part.get("type") == "text":
            parts.append({**part, "type": "input_text"})
        elif part.get("type") == "image_url":
            image = part.get("image_url")
            image = {"url": image} if isinstance(image, str) else read_mapping(image)
            detail = {"detail": image["detail"]} if image.get("detail") else {}
            parts.append({"type": "input_image", "image_url": image.get("url"), **detail})
        else:
            parts.append(part)
    return parts


def _lift(value: Any, name: str) -> Any:
    """Return an object with its own fields and those of its table `name`, as this API has them."""
    if not isinstance(value, dict) or not isinstance(value.get(name), dict):
        return value
    return {**{key: own for key, own in value.items() if key != name}, **value[name]}

"""Chat messages: the prompt and the answer of a model's call, as OpenAI's chat API has messages.

Spans hold them as JSON (`gen_ai.input.messages` with parts, `ai.prompt.messages`), or one attribute a field
(`llm.input_messages.0.message.content`, `gen_ai.prompt.0.content`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.base.untrusted import NOT_JSON
from loadgen.wire.openai import SYSTEM_ROLES

_INPUTS = ("gen_ai.input.messages", "ai.prompt.messages", "input.value")
_OUTPUTS = ("gen_ai.output.text", "ai.response.text", "gen_ai.completion.0.content", "ai.result.text")
_FLAT_INPUTS = ("llm.input_messages.", "gen_ai.prompt.")
_FLAT_FIELD = re.compile(r"(\d{1,6})\.(?:message\.)?(.+)")
_ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")
_TEXT_KINDS = ("text", "input_text", "output_text")


def has_messages(attributes: Mapping[str, Any]) -> bool:
    """Whether a span may hold the messages of its prompt."""
    named = any(attributes.get(name) for name in _INPUTS[:2])
    return named or any(f"{prefix}0.{field}" in attributes for prefix, field in _FLAT_NAMES)


_FLAT_NAMES = (
    ("llm.input_messages.", "message.role"),
    ("llm.input_messages.", "message.content"),
    ("gen_ai.prompt.", "role"),
    ("gen_ai.prompt.", "content"),
)


def read_prompt(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a call's prompt; [] where they cannot be read."""
    for name in _INPUTS:
        found = _decode(attributes.get(name))
        if isinstance(found, dict):
            found = found.get("messages")
        if isinstance(found, list) and (messages := list(_convert_all(found))):
            break
    else:
        messages = list(_convert_all(_gather_flat(attributes)))
    system = _join_text(_decode(attributes.get("gen_ai.system_instructions")))
    if system and messages and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return messages


def read_answer(attributes: Mapping[str, Any]) -> str:
    """Return the text of a call's answer; "" where it has none."""
    found = _decode(attributes.get("gen_ai.output.messages"))
    if isinstance(found, list) and (messages := list(_convert_all(found))):
        return str(messages[0].get("content") or "")
    for name in _OUTPUTS:
        if isinstance(text := attributes.get(name), str):
            return text
    flat = attributes.get("llm.output_messages.0.message.content")
    return flat if isinstance(flat, str) else ""


def read_tools(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools that a call offers, as OpenAI's functions; [] without any."""
    found = _decode(attributes.get("gen_ai.tool.definitions"))
    if found is None:
        schemas = (name for name in attributes if name.startswith("llm.tools."))
        found = [_decode(attributes[name]) for name in sorted(schemas)]
    tools = [tool for tool in found if isinstance(tool, dict)] if isinstance(found, list) else []
    named = [tool if isinstance(tool.get("function"), dict) else _make_tool(tool) for tool in tools]
    return [tool for tool in named if tool["function"].get("name")]


def _make_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
    return {"type": "function", "function": function}


def _decode(value: Any) -> Any:
    """Return the JSON in a text; the value itself where it is none."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return msgspec.json.decode(value)
    except NOT_JSON:
        return None


def _gather_flat(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Gather messages of which each field is an attribute, in the order of their numbers."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        prefix = next((prefix for prefix in _FLAT_INPUTS if name.startswith(prefix)), None)
        if prefix and (parts := _FLAT_FIELD.fullmatch(name[len(prefix) :])):
            found.setdefault(int(parts[1]), {})[parts[2]] = value
    return [_nest_flat(found[number]) for number in sorted(found)]


def _nest_flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return one message of flat fields, with its tool calls, and texts of several parts, as lists."""
    message: dict[str, Any] = {}
    calls: dict[str, dict[str, Any]] = {}
    texts: list[str] = []
    for name, value in fields.items():
        head, _, rest = name.partition(".")
        number, _, field = rest.partition(".")
        if head == "tool_calls":
            calls.setdefault(number, {})[field.rpartition(".")[2]] = value
        elif head == "contents" and field.endswith("text"):
            texts.append(str(value))
        elif not rest:
            message[name] = value
    if texts and not message.get("content"):
        message["content"] = "".join(texts)
    if calls:
        message["tool_calls"] = [calls[number] for number in sorted(calls)]
    return message


def _convert_all(found: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield messages in OpenAI's form; those without a known role are left out."""
    for message in found:
        if isinstance(message, dict) and message.get("role") in _ROLES:
            yield from _convert(message)


def _convert(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message in OpenAI's form: of one with several tools' results a message for each."""
    parts = message.get("parts", message.get("content"))
    listed = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    text, role = _join_text(parts), str(message["role"])
    results = [_make_result(part) for part in listed if str(part.get("type")).replace("-", "_") in _RESULTS]
    if results:
        yield from results
        return
    own = message.get("tool_calls")
    calls = [call for call in own if isinstance(call, dict)] if isinstance(own, list) else []
    calls += [part for part in listed if str(part.get("type")).replace("-", "_") == "tool_call"]
    made: dict[str, Any] = {"role": role, "content": text}
    if calls:
        made["tool_calls"] = [_make_call(call, number) for number, call in enumerate(calls)]
    if role == "tool":
        made["tool_call_id"] = str(message.get("tool_call_id") or message.get("id") or "")
    yield made


_RESULTS = ("tool_call_response", "tool_result")


def _make_result(part: Mapping[str, Any]) -> dict[str, Any]:
    """Make a tool's message of a part with its result."""
    given = next((part[key] for key in ("response", "result", "output", "content") if key in part), "")
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    named = part.get("id") or part.get("toolCallId") or part.get("tool_call_id") or ""
    return {"role": "tool", "tool_call_id": str(named), "content": text}


def _make_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Make a tool call in OpenAI's form, of that form, a part, or flat fields."""
    inside = call.get("function")
    function: Mapping[str, Any] = inside if isinstance(inside, dict) else call
    given = next((function[key] for key in ("arguments", "args", "input") if key in function), "{}")
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    name = function.get("name") or call.get("toolName") or "tool"
    named = call.get("id") or call.get("toolCallId") or f"call_{number}"
    return {"id": str(named), "type": "function", "function": {"name": str(name), "arguments": text}}


def _join_text(parts: Any) -> str:
    """Return the text of a message's content, or of its parts of text; "" without any."""
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        return ""
    texts = [
        part.get("content", part.get("text", ""))
        for part in parts
        if isinstance(part, dict) and part.get("type") in _TEXT_KINDS
    ]
    return "".join(text for text in texts if isinstance(text, str))

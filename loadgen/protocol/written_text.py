"""Written text: where in a message the words of a model may be, and which of them are its reasoning."""

from __future__ import annotations

from typing import Any, Final

import msgspec

Written = str | list[Any] | dict[str, Any] | None  # text, or parts of it (Mistral, Databricks, Anthropic)

# The keys of a part under which text lies; True: what is there is reasoning. Others are no text of a model's:
# ids, signatures, encrypted reasoning, data of pictures and sounds.
_KEYS: Final = {
    "text": False,
    "content": False,
    "refusal": False,
    "transcript": False,  # of audio
    "name": False,
    "function": False,
    "custom": False,
    "thinking": True,
    "reasoning": True,
    "reasoning_content": True,
    "summary": True,  # of reasoning
}
_OBJECTS: Final = frozenset(
    ("arguments", "input", "partial_json")
)  # of a tool call: text, or the object that it is
_OF_THOUGHT: Final = ("thinking", "reasoning", "thought", "redacted_thinking")  # types begin so


class WrittenText(msgspec.Struct, frozen=True, gc=False):
    """What a model wrote in a part of a message."""

    answer: str = ""
    reasoning: str = ""


_NOTHING: Final = WrittenText()


def read_written(value: Any, thought: bool = False) -> WrittenText:
    """The text in a value of any form; all of it is reasoning where `thought` is given."""
    if isinstance(value, str):
        return WrittenText(reasoning=value) if thought else WrittenText(answer=value)
    if isinstance(value, list):
        if len(value) == 1:
            return read_written(value[0], thought)
        return _joined([read_written(part, thought) for part in value])
    if isinstance(value, dict):
        return _joined(_of_part(value, thought or _is_thought(value)))
    return _NOTHING


def has_written(value: Any) -> bool:
    """Whether `read_written` finds any text in it; each message of a tool call is asked, so in loops."""
    if isinstance(value, dict):
        for key, part in value.items():
            if part and (key in _OBJECTS or (key in _KEYS and has_written(part))):
                return True
    elif isinstance(value, list):
        for part in value:
            if has_written(part):
                return True
    return isinstance(value, str) and value != ""


def _is_thought(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    return part.get("thought") is True or (kind.__class__ is str and kind.startswith(_OF_THOUGHT))


def _of_part(part: dict[str, Any], thought: bool) -> list[WrittenText]:
    found = []
    for key, value in part.items():
        if key in _KEYS:
            found.append(read_written(value, thought or _KEYS[key]))
        elif key in _OBJECTS and value:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            found.append(read_written(text, thought))
    return found


def _joined(parts: list[WrittenText]) -> WrittenText:
    if len(parts) == 1:
        return parts[0]
    return WrittenText("".join(part.answer for part in parts), "".join(part.reasoning for part in parts))

"""Written: the text that a model wrote in a message, in any JSON form, and which of it is reasoning."""

from __future__ import annotations

from typing import Any, Final

import msgspec

Written = str | list[Any] | dict[str, Any] | None  # text, or parts of it (Mistral, Databricks, Anthropic)

# The keys of a part under which text lies; True: what is there is reasoning. Others are not text of a model:
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
# Of a tool call: text, or the object that it is.
_OBJECTS: Final = frozenset(("arguments", "input", "partial_json"))
_OF_THOUGHT: Final = ("thinking", "reasoning", "thought", "redacted_thinking")  # types begin so


class WrittenText(msgspec.Struct, frozen=True, gc=False):
    """The text that a model wrote in a part of a message: the answer, and apart from it the reasoning."""

    answer: str = ""
    reasoning: str = ""


def read_written(value: Any, thought: bool = False) -> WrittenText:
    """Collect the text in a value of any JSON form; all of it is reasoning if `thought`.

    Raises RecursionError where it is too deep, as the parser does, which comes almost as far.
    """
    answer: list[str] = []
    reasoning: list[str] = []
    _append_text(value, thought, answer, reasoning)
    return WrittenText("".join(answer), "".join(reasoning))


def has_written(value: Any) -> bool:
    """Whether `read_written` finds any text; ends at the first: each message of a tool call is checked."""
    if isinstance(value, dict):
        for key, part in value.items():
            if part and (key in _OBJECTS or (key in _KEYS and has_written(part))):
                return True
    elif isinstance(value, list):
        for part in value:
            if has_written(part):
                return True
    return isinstance(value, str) and value != ""


def _append_text(value: Any, thought: bool, answer: list[str], reasoning: list[str]) -> None:
    """Append the texts in a value to `answer`, or to `reasoning` if `thought` or where it is marked so."""
    if isinstance(value, str):
        (reasoning if thought else answer).append(value)
    elif isinstance(value, list):
        for part in value:
            _append_text(part, thought, answer, reasoning)
    elif isinstance(value, dict):
        kind = value.get("type")
        is_kind_of_thought = kind.__class__ is str and kind.startswith(_OF_THOUGHT)
        thought = thought or is_kind_of_thought or value.get("thought") is True
        for key, part in value.items():
            if key in _KEYS:
                _append_text(part, thought or _KEYS[key], answer, reasoning)
            elif key in _OBJECTS and part:
                text = part if isinstance(part, str) else msgspec.json.encode(part).decode()
                _append_text(text, thought, answer, reasoning)

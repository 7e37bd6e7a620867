"""Live answer: what a server answered to a turn, as the message that the next turn's history has of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from loadgen.base.written_text import read_written
from loadgen.figures import streams
from loadgen.transport.capture import Capture
from loadgen.wire import sse
from loadgen.wire.openai import TOKEN, ChatChoice, Delta, Message

_REASONING = ("reasoning", "reasoning_content")  # vLLM; SGLang, llama.cpp, older vLLM


def message_of(messages: Iterable[Message]) -> dict[str, Any]:
    """The assistant's message of a chat answer: its content, and its reasoning under the server's own key.

    Its tool calls are left out: there are results for those of the recorded answer alone.
    """
    content, reasoning = "", dict.fromkeys(_REASONING, "")
    for delta in _deltas(messages):
        content += read_written(delta.content).answer
        for key in _REASONING:
            reasoning[key] += read_written(getattr(delta, key), True).reasoning
    given = {key: text for key, text in reasoning.items() if text}
    return {"role": "assistant", "content": content, **given}


def lines_of(capture: Capture, streamed: bool) -> bytes | bytearray:
    """The JSON of an answer, a line for each of its events."""
    answer = streams.unframed(capture)
    if not streamed:
        return sse.one_line(answer.body)
    return sse.read(answer.body, answer.complete).lines


def _deltas(messages: Iterable[Message]) -> Iterator[Delta]:
    begun = False
    for choice in (choice for message in messages for choice in message.choices or ()):
        if begun and choice.repeats():
            continue
        begun = begun or choice.carries() == TOKEN
        delta = choice.delta or choice.message if isinstance(choice, ChatChoice) else None
        if choice.index == 0 and delta is not None:
            yield delta

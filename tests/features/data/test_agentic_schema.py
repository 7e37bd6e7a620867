"""MLPerf's agentic schema: each property that it has goes where a server looks for it, or is a turn's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.data_files import jsonl, planned

SCHEMA = Path(__file__).parents[2] / "data" / "datasets" / "mlperf_agentic_schema.json"
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"x": 1.50}}}]
CALL = {"id": "bash:0", "type": "function", "function": {"name": "bash", "arguments": '{"a":  1}'}}
RESULT = {"tool_call_id": "bash:0", "content": "out"}
# A value of each property that a client's turn may have, and where in its request it stands.
OF_THE_REQUEST: dict[str, Any] = {
    "model": "lora",
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "seed": 42,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.1,
    "presence_penalty": -0.1,
    "stop": ["END"],
    "logit_bias": {"5": -1},
    "user": "somebody",
    "chat_template": "{{ messages }}",
    "tools": TOOLS,
}
LENGTHS = {"max_new_tokens": 1024, "max_completion_tokens": 1024}  # under the server's own name of it
OF_THE_MESSAGE: dict[str, Any] = {"role": "user", "content": "hi", "name": "Bob"}
OF_THE_SESSION: dict[str, Any] = {"conversation_id": "a", "turn": 1, "delay_seconds": 0.5}
OF_THE_RUN = {"stream": False}  # --disable-stream has answers whole: a row does not decide it
ONE = {"n": 1}  # no other value is accepted, and this one is every server's default
OF_OTHER_ROLES = {"system", "tool_calls", "tool_results"}


def properties(schema: Any) -> Iterator[str]:
    """The names of all properties of rows, at the first level of a definition."""
    if isinstance(schema, list):
        for part in schema:
            yield from properties(part)
    elif isinstance(schema, dict):
        yield from schema.get("properties", {})
        for key in ("oneOf", *(schema if "title" not in schema else ())):
            yield from properties(schema.get(key, []))


def test_every_property_of_the_schema_has_its_place() -> None:
    definitions = json.loads(SCHEMA.read_text("utf-8"))["definitions"]
    placed = {*OF_THE_REQUEST, *LENGTHS, *OF_THE_MESSAGE, *OF_THE_SESSION, *OF_THE_RUN, *ONE}
    assert set(properties(definitions)) == placed | OF_OTHER_ROLES


def rows(**more: Any) -> list[dict[str, Any]]:
    system = {"system": "be kind"}
    asking = {**OF_THE_SESSION, **OF_THE_MESSAGE, **OF_THE_REQUEST, **OF_THE_RUN, **ONE, **system, **more}
    calling = {"reasoning_content": "hm", "content": None, "tool_calls": [CALL]}
    return [
        asking,
        {"conversation_id": "a", "turn": 2, "role": "assistant", **calling},
        {"conversation_id": "a", "turn": 3, "role": "tool", "tool_results": [RESULT], "temperature": 0.1},
        {"conversation_id": "a", "turn": 4, "role": "assistant", "content": "done"},
    ]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_clients_turn_is_sent_with_all_that_it_has(tmp_path: Path, length: str) -> None:
    path = jsonl(tmp_path, rows(**{length: 1024}))
    made = planned(path, backend="openai-chat")
    first = made.payload(0)
    messages = first.pop("messages")
    assert first == {
        **OF_THE_REQUEST,
        "max_completion_tokens": 1024,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert messages == [{"role": "system", "content": "be kind"}, OF_THE_MESSAGE]
    assert made.turns is not None
    assert made.turns.delays_ns.tolist() == [500_000_000, 0]


def test_calls_reasoning_and_results_are_sent_back_as_they_were(tmp_path: Path) -> None:
    made = planned(jsonl(tmp_path, rows()), backend="openai-chat")
    second = made.payload(1)
    called = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]}
    assert second["messages"][2:] == [called, {"role": "tool", **RESULT}]
    assert (second["tools"], second["temperature"]) == (TOOLS, 0.1)
    assert json.dumps(TOOLS) in made.body(1).decode()

"""OTel: spans of agents and models as sessions, whoever wrote them; what cannot be read is one line."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from builders.required import require
from builders.traces import OTEL_FAN_IN, planned
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines
from loadgen.features.traces import otel_spans
from loadgen.features.traces.otel_sessions import read_otel

TABLES = read_tables("otel")
BEGIN_NS = 1_780_000_000_000_000_000


@loop_over(("attributes", "operation", "counts"), TABLES["operations"])
def test_writers_spell_the_same_in_their_own_way(
    attributes: dict[str, Any], operation: str, counts: list[int | None]
) -> None:
    assert otel_spans.find_operation(attributes) == operation
    names = (otel_spans.INPUT_TOKENS, otel_spans.OUTPUT_TOKENS)
    assert [otel_spans.read_count(attributes, each) for each in names] == counts


@loop_over(("attributes", "messages"), TABLES["messages"])
def test_messages_are_chats_whoever_wrote_them(
    attributes: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    assert otel_spans.read_prompt(attributes) == messages


def test_flat_tools_keep_their_order_beyond_ten() -> None:
    names = [f"f{number}" for number in range(12)]
    flat = {f"llm.tools.{at}.tool.json_schema": json.dumps({"name": name}) for at, name in enumerate(names)}
    assert [tool["function"]["name"] for tool in otel_spans.read_tools(flat)] == names
    calls = {f"llm.input_messages.0.message.tool_calls.{at}.tool_call.function.name": name
             for at, name in enumerate(names)}  # fmt: skip
    (message,) = otel_spans.read_prompt({"llm.input_messages.0.message.role": "assistant", **calls})
    assert [call["function"]["name"] for call in message["tool_calls"]] == names


def test_spans_with_messages_need_the_chat_api() -> None:
    with pytest.raises(UsageError, match="use --backend openai-chat"):
        planned(OTEL_FAN_IN)


_SPANS, _LETTERS, _BYTES_A_SPAN = 8_000, 8_000, 1_500


def _make_row(number: int) -> str:
    """A line with a trace of one call, whose messages are far longer than all that is kept of it."""
    begin_ns = BEGIN_NS + number * 10**9
    said = json.dumps([{"role": "user", "content": "x" * _LETTERS}])
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 2000,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.input.messages": said,
    }
    span = {"span_id": "a", "start_time": begin_ns, "end_time": begin_ns + 5, "attributes": attributes}
    return json.dumps({"trace_id": f"{number}", "spans": [span]}) + "\n"


@pytest.mark.long
def test_memory_is_that_of_the_spans_not_of_their_messages(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    with path.open("w") as out:
        out.writelines(_make_row(number) for number in range(_SPANS))
    tracemalloc.start()
    rows = read_otel(Lines.open(str(path), "--trace"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == _SPANS
    assert most < _SPANS * _BYTES_A_SPAN + (20 << 20)  # and the pieces in which the file is read
    attributes = require(rows.messages).read_attributes(_SPANS - 1)
    assert len(otel_spans.read_prompt(attributes)[0]["content"]) == _LETTERS

"""OTel: spans of agents and models as sessions, whoever wrote them; what cannot be read is one line."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from builders.required import require
from builders.traces import (
    OTEL_FAN_IN,
    OTEL_GENAI,
    OTEL_OPENINFERENCE,
    jsonl,
    list_waits,
    planned,
    prompts,
    waits_of,
)
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines
from loadgen.features.traces import otel_spans, trace_formats
from loadgen.features.traces.otel_sessions import read_otel
from loadgen.plan.plan import Plan

CHAT: dict[str, Any] = {"backend": "openai-chat"}
BEGIN_NS = 1_780_000_000_000_000_000
USED = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 40, "gen_ai.usage.output_tokens": 5}


def span(name: str, begin: float, end: float, parent: str | None = None, **attributes: Any) -> dict[str, Any]:
    """A flat span, of a call of a model unless it has attributes of its own; times in seconds."""
    times = {key: BEGIN_NS + round(at * 1e9) for key, at in (("start_time", begin), ("end_time", end))}
    own = attributes or USED
    return {"trace_id": "t", "span_id": name, "parent_span_id": parent, **times, "attributes": own}


def call(name: str, begin: float, end: float, parent: str | None = None, **more: Any) -> dict[str, Any]:
    return span(name, begin, end, parent, **{**USED, **more})


def agent(name: str, begin: float, end: float, parent: str | None = None) -> dict[str, Any]:
    return span(
        name, begin, end, parent, **{"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    )


def tool(name: str, begin: float, end: float, parent: str | None = None) -> dict[str, Any]:
    return span(name, begin, end, parent, **{"gen_ai.operation.name": "execute_tool"})


def made(tmp_path: Path, *spans: dict[str, Any], **keys: Any) -> Plan:
    return planned(jsonl(tmp_path, [{"trace_id": "t", "spans": list(spans)}]), **keys)


@loop_over("path", [OTEL_GENAI, OTEL_OPENINFERENCE])
def test_two_instrumentations_of_one_agent_are_one_tree(path: Path) -> None:
    assert trace_formats.open_trace("", str(path))[0] == "otel"
    plan = planned(path, **CHAT)
    before, waits = list_waits(plan), waits_of(plan)
    assert before[:4] == [[], [0], [1], [1]]
    assert sorted(before[4:6]) == [[2], [3]]
    assert before[6] == [4, 5]
    assert waits.depths.tolist() == [0, 0, 1, 1, 1, 1, 0]
    assert waits.role_names == ("main", "explorer")
    assert require(waits.tool_ns)[1] > 14e6
    body = plan.payload(6)
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert body["messages"][2]["tool_calls"][0]["function"]["name"] == "search"
    assert body["messages"][3]["tool_call_id"] == "call_1"
    assert plan.payload(0)["tools"][0]["function"]["name"] == "search"
    assert "tools" not in plan.payload(2)
    assert plan.requests.features == {"tools": 0, "system": 0}  # type: ignore[attr-defined]


def test_both_instrumentations_say_the_same() -> None:
    one, other = (planned(path, **CHAT) for path in (OTEL_GENAI, OTEL_OPENINFERENCE))
    for i in (0, 1, 6):
        said, also = (
            [(message["role"], message["content"]) for message in of.payload(i)["messages"]]
            for of in (one, other)
        )
        assert said == also


def test_a_live_answer_takes_the_place_of_the_recorded_one() -> None:
    plan = planned(OTEL_FAN_IN, **CHAT, assistant="live")
    lanes = waits_of(plan).lanes
    before = [i for i in range(3) if lanes[i] == lanes[3]]
    live = [{"role": "assistant", "content": f"live {i}"} for i in before]
    messages = json.loads(plan.body_after(3, live))["messages"]
    recorded = plan.payload(3)["messages"]
    changed = {place for place in range(7) if messages[place] != recorded[place]}
    assert [messages[place]["content"] for place in sorted(changed)] == [f"live {i}" for i in before]
    assert changed == {1 + 2 * i for i in before}


def test_without_chat_prompts_have_the_recorded_lengths(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use --backend openai-chat"):
        planned(OTEL_FAN_IN)
    plan = planned(OTEL_GENAI)
    assert [len(prompt) for prompt in prompts(plan)] == plan.requests.input_lens.tolist()
    assert any("--backend openai-chat sends them" in note for note in plan.notes)


def test_prompts_of_lengths_grow_along_a_lane(tmp_path: Path) -> None:
    cached: dict[str, Any] = {"gen_ai.usage.cache_read.input_tokens": 24}
    long: dict[str, Any] = {"gen_ai.usage.input_tokens": 60}
    plan = made(
        tmp_path,
        call("a", 0, 1),
        call("b", 2, 3, **long),
        call("c", 4, 5),  # shorter: nothing is known to be shared
        call("d", 6, 7, **cached),
    )
    found = [np.array(prompt) for prompt in prompts(plan)]
    assert [len(prompt) for prompt in found] == [40, 60, 40, 40]
    assert (found[0] == found[1][:40]).all()
    assert (found[1][:4] != found[2][:4]).any()
    assert (found[2][:24] == found[3][:24]).all()
    assert (found[2][24:28] != found[3][24:28]).any()
    assert plan.facts.reusable_tokens == 32 + 16


@loop_over(
    ("attributes", "operation", "counts"),
    [
        (USED, otel_spans.CALL, (40, 5)),
        (
            {"gen_ai.operation.name": "text_completion", "gen_ai.usage.prompt_tokens": 3,
             "gen_ai.usage.completion_tokens": "4"}, otel_spans.CALL, (3, 4),
        ),
        ({"openinference.span.kind": "LLM", "llm.token_count.prompt": 3, "llm.token_count.completion": 4},
         otel_spans.CALL, (3, 4)),
        ({"llm.request.type": "chat", "llm.usage.prompt_tokens": 3, "llm.usage.completion_tokens": 4},
         otel_spans.CALL, (3, 4)),
        (
            {"ai.operationId": "ai.generateText.doGenerate", "ai.usage.promptTokens": 3,
             "ai.usage.completionTokens": 4}, otel_spans.CALL, (3, 4),
        ),
        ({"ai.operationId": "ai.generateText", "ai.usage.inputTokens": 9}, otel_spans.AGENT, (9, None)),
        ({"ai.operationId": "ai.toolCall"}, otel_spans.TOOL, (None, None)),
        ({"traceloop.span.kind": "workflow"}, otel_spans.AGENT, (None, None)),
        ({"openinference.span.kind": "CHAIN", "llm.token_count.prompt": -1}, otel_spans.OTHER, (None, None)),
        ({}, otel_spans.OTHER, (None, None)),
    ],
)  # fmt: skip
def test_writers_spell_the_same_in_their_own_way(
    attributes: dict[str, Any], operation: str, counts: tuple[int | None, int | None]
) -> None:
    assert otel_spans.find_operation(attributes) is operation
    found = [
        otel_spans.read_count(attributes, names)
        for names in (otel_spans.INPUT_TOKENS, otel_spans.OUTPUT_TOKENS)
    ]
    assert tuple(found) == counts


HELLO = [{"role": "user", "content": "hello"}]


@loop_over(
    ("attributes", "messages"),
    [
        ({"gen_ai.input.messages": json.dumps(HELLO)}, HELLO),
        ({"gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]},
         HELLO),
        (
            {"gen_ai.input.messages": json.dumps(HELLO), "gen_ai.system_instructions":
             json.dumps([{"type": "text", "content": "be brief"}])},
            [{"role": "system", "content": "be brief"}, *HELLO],
        ),
        ({"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hello"}, HELLO),
        (
            {"llm.input_messages.0.message.role": "user",
             "llm.input_messages.0.message.contents.0.message_content.text": "hello"}, HELLO,
        ),
        (
            {"ai.prompt.messages": json.dumps(
                [{"role": "user", "content": [{"type": "text", "text": "hello"}]}])}, HELLO,
        ),
        ({"input.value": json.dumps({"messages": HELLO})}, HELLO),
        (
            {"gen_ai.input.messages": [{"role": "tool", "parts": [
                {"type": "tool_call_response", "id": "c", "response": {"rows": 2}}]}]},
            [{"role": "tool", "tool_call_id": "c", "content": '{"rows":2}'}],
        ),
        (
            {"gen_ai.input.messages": [{"role": "assistant", "parts": [
                {"type": "tool_call", "id": "c", "name": "f", "arguments": {"x": 1}}]}]},
            [{"role": "assistant", "content": "", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}]}],
        ),
        ({"gen_ai.input.messages": "[cut"}, []),
        ({}, []),
    ],
)  # fmt: skip
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

"""Sendable: what a server cannot take is found before anything is sent, and named by row and file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders.data_files import jsonl
from builders.data_files import planned as planned_file
from builders.loops import loop_over, read_tables
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.engines.engines import ENGINES, UNKNOWN
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import PromptRequests
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run import acceptance
from loadgen.server.control import ServerInfo

TABLES = read_tables("sendable")


class Rows(PromptRequests):
    """Requests that come from rows of a file."""

    format = "text"

    def __init__(self, input_lens: list[int], output_lens: list[int]) -> None:
        self.input_lens, self.output_lens = np.array(input_lens), np.array(output_lens)

    def name_row(self, i: int) -> str:
        return f"f.jsonl row {len(self.input_lens) - i}"  # shuffled

    def prompt(self, i: int) -> str:
        return f"prompt {i}"


def made(kind: str, input_lens: list[int], output_lens: list[int], **keys: Any) -> Plan:
    built = plan.make(profile.build({"num_prompts": 2, **keys}), ModelTarget(UNKNOWN, "m"), Seed(1))
    facts = replace(built.facts, kind=kind, file="f.jsonl")
    return replace(built, requests=Rows(input_lens, output_lens), count=len(input_lens), facts=facts)


@loop_over(
    ("kind", "lens", "limit", "message"),
    TABLES["too long"],
)
def test_a_request_longer_than_the_model_takes_is_named(
    kind: str, lens: list[list[int]], limit: int, message: str
) -> None:
    with pytest.raises(MeasureError) as raised:
        acceptance.check_lengths(made(kind, *lens), limit)
    assert str(raised.value) == message


def test_answers_shorter_than_the_least_are_named() -> None:
    with pytest.raises(UsageError) as raised:
        acceptance.check_lengths(made("file", [5, 5, 5], [-1, 8, 3], min_tokens=5), 0)
    assert isinstance(raised.value, LoadgenError)
    assert str(raised.value) == (
        "--min-tokens 5 is more than the 3 tokens that a request asks for (f.jsonl row 1): lower it, or have "
        "every response as long by --output-len"
    )
    acceptance.check_lengths(made("file", [5], [5], min_tokens=5), 0)


BODIES = [
    {"messages": [{"role": "user", "content": "a"}], **({} if model is None else {"model": model})}
    for model in (None, "base", "lora", "old", "lora")
]
TURNS = [
    {"conversation_id": "c", "turn": 1, "role": "user", "content": "a"},
    {"conversation_id": "c", "turn": 2, "role": "assistant", "content": "b"},
    {"conversation_id": "c", "turn": 3, "role": "user", "content": "a", "model": "lora"},
    {"conversation_id": "c", "turn": 4, "role": "assistant", "content": "b"},
]


@loop_over(
    ("rows", "models", "message"),
    [
        (
            BODIES,
            ("base",),
            "data.jsonl row 3 asks for the model 'lora', and 1 more model like it; vLLM serves base: change "
            "the name, or leave `model` out of the rows for 'served'",
        ),
        (BODIES, ("base", "lora"), "data.jsonl row 4 asks for the model 'old'; vLLM serves base, lora: "),
        (TURNS, ("base",), "data.jsonl row 3, conversation 'c' asks for the model 'lora'; vLLM serves base"),
    ],
)
def test_a_row_of_a_model_that_is_not_served_is_named(
    rows: list[dict[str, Any]], models: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    planned = planned_file(jsonl(tmp_path, rows), backend="openai-chat")
    with pytest.raises(MeasureError) as raised:
        acceptance.check_sendable(planned, ServerInfo(ENGINES[0], "1", "served", models=models))
    assert str(raised.value).startswith(f"{tmp_path}/{message}")


def test_a_conversation_too_long_is_named_by_row(tmp_path: Path) -> None:
    rows = [*TURNS[:2], {**TURNS[2], "max_tokens": 500}, TURNS[3]]
    planned = planned_file(jsonl(tmp_path, rows), backend="openai-chat")
    with pytest.raises(
        MeasureError, match=r"the longest 500 \(\S*data.jsonl row 3, conversation 'c'\): lower"
    ):
        acceptance.check_lengths(planned, 400)


@pytest.mark.parametrize(
    ("reported", "streams", "warning"),
    [
        ({"slots": 4}, 8, "the server has 4 slots for 8 requests at once: the others will wait"),
        ({"slots": 8}, 8, ""),
        ({}, 8, ""),
        ({"slots": 4}, None, ""),  # all at once: a queue is what was asked for
        ({"without_tools": True}, 1, ""),
        ({"max_model_len": 2048}, 1, "for a context of 4096 tokens (--context-len) and has 2048"),
        ({"max_model_len": 4096}, 1, ""),
        ({"max_model_len": 8192}, 1, ""),
    ],
)
def test_what_a_server_takes_otherwise_than_meant_is_warned_of(
    reported: dict[str, Any], streams: int | None, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that was started for a context of 4096 tokens."""
    sent = made("random", [5, 5], [5, 5], max_concurrency=streams)
    acceptance.check_sendable(sent, ServerInfo(ENGINES[0], "1", "m", **reported), started_context=4096)
    assert [warning in record.getMessage() for record in caplog.records] == [True] * bool(warning)


def test_tools_that_a_template_has_no_place_for_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    rows = [{"messages": [{"role": "user", "content": "hello"}], "tools": tools}]
    sent = planned_file(jsonl(tmp_path, rows), backend="openai-chat")
    acceptance.check_sendable(sent, ServerInfo(ENGINES[0], "1", "served", without_tools=True))
    assert "the model's chat template has no place for tools" in caplog.text

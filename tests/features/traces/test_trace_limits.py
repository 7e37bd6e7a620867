"""Traces of agents at their limits: a file far larger than its lengths, and files with anything in them."""

from __future__ import annotations

import copy
import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.required import require
from builders.traces import (
    OTEL_FAN_IN,
    OTEL_GENAI,
    OTEL_OPENINFERENCE,
    TRACELAB,
    WEKA_AGENTS,
    list_waits,
    planned,
)
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines
from loadgen.features.traces.otel_sessions import read_otel
from loadgen.features.traces.otel_spans import read_prompt

_SPANS, _LETTERS, _BYTES_A_SPAN = 8_000, 8_000, 1_500
_BEGIN_NS = 1_780_000_000_000_000_000
_ANYTHING: list[Any] = [None, True, -1, 0, 1e300, "", "x", [], [1], {}, {"a": 1}, 2**70, "\x00", "9" * 30]
# What is wrong with a file, or with several of its rows.
_OF_FILES = (
    "without their tokens",
    "no request has tokens",
    "its sessions have blocks of",
    "no span is a call",
)
_FILES = {
    OTEL_GENAI: "otel", OTEL_OPENINFERENCE: "otel", OTEL_FAN_IN: "otel", TRACELAB: "tracelab",
    WEKA_AGENTS: "weka",
}  # fmt: skip


def _make_row(number: int) -> str:
    """A line with a trace of one call, whose messages are far longer than all that is kept of it."""
    begin_ns = _BEGIN_NS + number * 10**9
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
    assert len(read_prompt(attributes)[0]["content"]) == _LETTERS


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _list_paths(inner, (*path, key))


def _mutate(row: Any, rng: random.Random) -> Any:
    """A row with some of its values removed, or anything in their place."""
    row = copy.deepcopy(row)
    for _ in range(rng.randint(1, 3)):
        *path, last = rng.choice([path for path in _list_paths(row) if path] or [("",)])
        inside = row
        for key in path:
            inside = inside[key]
        if isinstance(inside, dict) and rng.random() < 0.3:
            inside.pop(last, None)
        else:
            inside[last] = copy.deepcopy(rng.choice(_ANYTHING))
    return row


@pytest.mark.long
@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_whatever_a_file_holds_it_is_sent_or_refused_in_a_line(path: Path, tmp_path: Path) -> None:
    rng, content = random.Random(5), path.read_text()
    rows = [json.loads(content)] if path.suffix == ".json" else list(map(json.loads, content.splitlines()))
    file = tmp_path / path.name
    sent, lines, unnamed = 0, set[int](), list[str]()
    for _ in range(300):
        changed = list(rows)
        at = rng.randrange(len(rows))
        changed[at] = _mutate(rows[at], rng)
        file.write_text("".join(json.dumps(row) + "\n" for row in changed))
        try:
            made = planned(file, trace_format=_FILES[path], backend=rng.choice(["openai", "openai-chat"]))
        except UsageError as error:
            lines.add(len(str(error).splitlines()))
            unnamed += [str(error)] * (f"{file} row " not in str(error))
            continue
        list_waits(made)
        assert [made.payload(i)["model"] for i in range(len(made))] == ["m"] * len(made)
        sent += 1
    assert sent > 20
    assert lines == {1}
    assert [message for message in unnamed if not any(why in message for why in _OF_FILES)] == []

"""Files of rows: conversations whose rows become turns, and sheets of prompts and questions."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from builders.data_files import jsonl, planned
from builders.required import require
from loadgen.base.errors import UsageError
from loadgen.features.data.data_command import PlanPreview

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
CALL = {"id": "bash:0", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1}'}}
RESULT = {"tool_call_id": "bash:0", "content": "out"}
CHAT_API = {"backend": "openai-chat"}
MLPERF = os.environ.get("MLPERF_EDGE_AGENTIC", "")
SCHEMA = Path(__file__).parents[2] / "data" / "datasets" / "mlperf_agentic_schema.json"
AGENT_TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"x": 1.50}}}]
AGENT_CALL = {"id": "bash:0", "type": "function", "function": {"name": "bash", "arguments": '{"a":  1}'}}
# A value of each property that a client's turn may have, and where in its request it stands.
OF_THE_REQUEST: dict[str, Any] = {
    "model": "lora", "temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": 42, "repetition_penalty": 1.1,
    "frequency_penalty": 0.1, "presence_penalty": -0.1, "stop": ["END"], "logit_bias": {"5": -1},
    "user": "somebody", "chat_template": "{{ messages }}", "tools": AGENT_TOOLS,
}  # fmt: skip
LENGTHS = {"max_new_tokens": 1024, "max_completion_tokens": 1024}  # under the server's own name of it
OF_THE_MESSAGE: dict[str, Any] = {"role": "user", "content": "hi", "name": "Bob"}
OF_THE_SESSION: dict[str, Any] = {"conversation_id": "a", "turn": 1, "delay_seconds": 0.5}
OF_THE_RUN = {"stream": False}  # --disable-stream has answers whole: a row does not decide it
ONE = {"n": 1}  # no other value is accepted, and this one is every server's default
OF_OTHER_ROLES = {"system", "tool_calls", "tool_results"}


def row(turn: int, role: str, conversation: str = "a", **fields: Any) -> dict[str, Any]:
    return {"conversation_id": conversation, "turn": turn, "role": role, **fields}


USER = row(1, "user", content="hi", system="be kind", tools=TOOLS)
CALLING = row(2, "assistant", reasoning_content="hm", tool_calls=[CALL])
LAST = row(4, "assistant", content="done")


def bodies(path: str, **keys: Any) -> list[dict[str, Any]]:
    plan = planned(path, **CHAT_API, **keys)
    return [json.loads(plan.body(i)) for i in range(len(plan))]


def test_values_keep_their_bytes(tmp_path: Path) -> None:
    raw = b'{"conversation_id":"a","turn":1,"role":"user","content":"\\u00e9","tools":[{"x":  1.0}]}'
    answer = b'{"conversation_id":"a","turn":2,"role":"assistant","content":""}'
    body = planned(jsonl(tmp_path, [raw, answer]), **CHAT_API).body(0)
    assert b'"messages":[{"role":"user","content":"\\u00e9"}]' in body
    assert b'"tools":[{"x":  1.0}]' in body


def test_each_result_of_parallel_tools_is_a_message(tmp_path: Path) -> None:
    second = {**CALL, "id": "bash:1"}
    results = [{"tool_call_id": "bash:1", "content": "b"}, RESULT]
    rows = [USER, {**CALLING, "tool_calls": [CALL, second]}, row(3, "tool", tool_results=results), LAST]
    assert bodies(jsonl(tmp_path, rows))[1]["messages"][3:] == [{"role": "tool", **each} for each in results]


@pytest.mark.skipif(not MLPERF, reason="MLPERF_EDGE_AGENTIC does not name agentic_coding_2.5h.jsonl")
def test_mlperfs_edge_conversations_are_read_whole() -> None:
    made = planned(MLPERF, **CHAT_API)
    assert made.turns is not None
    assert (made.facts.rows, len(made.turns), len(made)) == (2014, 20, 1007)
    assert made.turns.delays_ns.sum() / 1e9 == pytest.approx(636.4, abs=0.05)
    assert int((made.turns.delays_ns > 0).sum()) == 987


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
    calling = {"reasoning_content": "hm", "content": None, "tool_calls": [AGENT_CALL]}
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
    assert require(made.turns).delays_ns.tolist() == [500_000_000, 0]


def test_calls_reasoning_and_results_are_sent_back_as_they_were(tmp_path: Path) -> None:
    made = planned(jsonl(tmp_path, rows()), backend="openai-chat")
    second = made.payload(1)
    called = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [AGENT_CALL]}
    assert second["messages"][2:] == [called, {"role": "tool", **RESULT}]
    assert (second["tools"], second["temperature"]) == (AGENT_TOOLS, 0.1)
    assert json.dumps(AGENT_TOOLS) in made.body(1).decode()


def written(directory: Path, text: str | bytes, name: str = "data.csv") -> str:
    path = directory / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def table(directory: Path, columns: dict[str, list[Any]]) -> str:
    path = directory / "data.parquet"
    parquet.write_table(pa.table(columns), path)
    return str(path)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('prompt,output_tokens\n"a, ""b""",1\n"c\nd",2\n', "data.csv"),
        ('prompt,output_tokens\r\n"a, ""b""",1\r\n\r\n"c\nd",2\r\n', "data.csv"),
        ('\ufeffid,prompt , output_tokens\n7,"a, ""b""", 1\n8,"c\nd",2\n', "data"),
        ('output_tokens\tprompt\n1\t"a, ""b"""\n2\t"c\nd"\n', "data.tsv"),
    ],
    ids=["plain", "CRLF and a blank line", "byte order mark, no suffix", "tabs"],
)
def test_csv_is_rows_of_prompts(tmp_path: Path, text: str, name: str) -> None:
    path = written(tmp_path, text, name)
    plan = planned(path)
    assert [plan.payload(i)["prompt"] for i in range(len(plan))] == ['a, "b"', "c\nd"]
    assert plan.requests.output_lens.tolist() == [1, 2]
    assert (plan.facts.kind, plan.facts.file, plan.facts.rows) == ("prompts", path, 2)


def test_a_long_cell_is_read_and_the_limit_put_back(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    plan = planned(written(tmp_path, f"prompt,output_tokens\n{'a' * 200_000},1\n"))
    assert len(plan.payload(0)["prompt"]) == 200_000
    with pytest.raises(UsageError) as error:
        planned(written(tmp_path, "prompt,output_tokens\na\n"))
    assert csv.field_size_limit() == before, error  # which holds on to all that was under way


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["prompt", *(f"x{i}" for i in range(150_000))], " row 2: has 1 cells, and the header 150001"),
        (["prompt", "", ""], " row 1: has the column '' twice"),
        (["x"] * 1_000_000,
         " row 1: its keys ('x', 'x', 'x', 'x', 'x', 'x', 'x', 'x' and 999992 more) are of"),
    ],
    ids=["all different", "two without a name", "all alike"],
)  # fmt: skip
def test_a_header_of_any_length_is_read_in_a_moment(tmp_path: Path, names: list[str], why: str) -> None:
    path = written(tmp_path, ",".join(names) + "\na\n")
    begin_s = time.process_time()
    with pytest.raises(UsageError) as error:
        planned(path)
    assert str(error.value).startswith(f"--dataset-path {path}{why}")
    assert time.process_time() - begin_s < 4


def test_parquet_has_rows_of_any_kind(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]
    plan = planned(table(tmp_path, {"messages": messages, "max_tokens": [3, None]}), **CHAT_API)
    assert [plan.payload(i)["messages"] for i in range(2)] == messages
    assert b'"messages":[{"role":"user","content":"b"}],"model":"served"' in plan.body(1)
    assert plan.requests.output_lens.tolist() == [3, -1]
    plan = planned(table(tmp_path, {"prompt": [[1, 2], [3]], "output_tokens": [4, 5]}))
    assert [plan.payload(i)["prompt"] for i in range(2)] == [[1, 2], [3]]


def test_parquet_that_cannot_be_sent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, {"prompt": ["a", "b"], "output_tokens": [1, None]})
    with pytest.raises(UsageError, match=r"data\.parquet row 2: has no `output_tokens`"):
        planned(path)
    Path(path).write_bytes(Path(path).read_bytes()[:40])
    with pytest.raises(UsageError, match=r"data\.parquet: is not valid Parquet: Parquet magic bytes"):
        planned(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"is Parquet, which needs pyarrow: in the clone, \.venv/bin/"):
        planned(path)


def question(category: str, number: int, more: int = 0) -> dict[str, Any]:
    """A row as Spec-Bench has it."""
    turns = [f"{category} {number}", *(f"and {k}" for k in range(more))]
    return {"question_id": number, "category": category, "turns": turns, "reference": ["x"]}


QUESTIONS = [question("a", i, more=i % 2) for i in range(2)] + [question("b", i) for i in range(6)]


def test_questions_of_parquet_are_the_same_requests(tmp_path: Path) -> None:
    columns = {key: [row[key] for row in QUESTIONS] for key in QUESTIONS[0]}
    parquet.write_table(pa.table(columns), tmp_path / "test.parquet")
    sheet, lines = (
        planned(str(tmp_path / "test.parquet"), custom_output_len=4),
        planned(jsonl(tmp_path, QUESTIONS), custom_output_len=4),
    )
    assert [sheet.body(i) for i in range(8)] == [lines.body(i) for i in range(8)]
    assert sheet.facts.categories == lines.facts.categories == ("b", "a")


def test_the_preview_counts_categories_and_names_what_is_not_sent(tmp_path: Path) -> None:
    shown = PlanPreview(planned(jsonl(tmp_path, QUESTIONS), num_prompts=16, custom_output_len=4))
    assert ("categories", "b 12, a 4") in [*shown.list_parts()]
    assert shown.made.notes == ("the first turn alone is sent; 1 row have more",)
    encoded = shown.json()
    assert encoded["categories"] == {"b": 12, "a": 4}
    assert "category_of_row" not in encoded

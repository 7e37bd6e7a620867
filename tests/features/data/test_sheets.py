"""Sheets: CSV and Parquet are sent as the rows that they stand for, and refused by file and row."""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from builders.data_files import jsonl, planned
from loadgen.base.errors import UsageError
from loadgen.features.data.data_command import PlanPreview

CHAT_API = {"backend": "openai-chat"}


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

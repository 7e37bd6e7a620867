"""Files of rows: conversations whose rows become turns, and sheets of prompts and questions."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyarrow import parquet

from builders.data_files import jsonl, planned
from builders.required import require
from builders.stored_plans import read_stored
from loadgen.base.errors import UsageError
from loadgen.engines.engines import ENGINES
from loadgen.features.data.data_command import PlanPreview
from loadgen.plan import plan, profile
from loadgen.plan.planned_requests import make_waits
from loadgen.plan.request_sources import ModelTarget, Seed

CHAT_API = {"backend": "openai-chat"}
QUESTIONS = {"category": [*"aabbbbbb"], "turns": [["q", "more"][: 1 + (i == 1)] for i in range(8)]}


def properties(schema: Any) -> Iterator[str]:
    """The names of all properties of rows, at the first level of a definition."""
    if isinstance(schema, list):
        for part in schema:
            yield from properties(part)
    elif isinstance(schema, dict):
        yield from schema.get("properties", {})
        for key in ("oneOf", *(schema if "title" not in schema else ())):
            yield from properties(schema.get(key, []))


def test_every_property_of_the_schema_is_in_a_stored_plan() -> None:
    schema = Path(__file__).parents[2] / "data" / "datasets" / "mlperf_agentic_schema.json"
    definitions = json.loads(schema.read_text("utf-8"))["definitions"]
    stored = "".join(row.get("text", "") for row in read_stored() if "a clients turn" in row["shows"])
    assert [name for name in properties(definitions) if f'"{name}"' not in stored] == []


def written(directory: Path, text: str | bytes, name: str = "data.csv") -> str:
    path = directory / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def table(directory: Path, columns: dict[str, list[Any]]) -> str:
    path = directory / "data.parquet"
    parquet.write_table(pa.table(columns), path)
    return str(path)


def test_a_long_cell_is_read_and_the_limit_put_back(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    made = planned(written(tmp_path, f"prompt,output_tokens\n{'a' * 200_000},1\n"))
    assert len(made.payload(0)["prompt"]) == 200_000
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
    made = planned(table(tmp_path, {"messages": messages, "max_tokens": [3, None]}), **CHAT_API)
    assert [made.payload(i)["messages"] for i in range(2)] == messages
    assert b'"messages":[{"role":"user","content":"b"}],"model":"served"' in made.body(1)
    assert made.requests.output_lens.tolist() == [3, -1]
    made = planned(table(tmp_path, {"prompt": [[1, 2], [3]], "output_tokens": [4, 5]}))
    assert [made.payload(i)["prompt"] for i in range(2)] == [[1, 2], [3]]
    assert planned(table(tmp_path, QUESTIONS), custom_output_len=4).facts.categories == ("b", "a")


def test_the_preview_counts_categories_and_names_what_is_not_sent(tmp_path: Path) -> None:
    rows = [dict(zip(QUESTIONS, row, strict=True)) for row in zip(*QUESTIONS.values(), strict=True)]
    shown = PlanPreview(planned(jsonl(tmp_path, rows), num_prompts=16, custom_output_len=4))
    assert ("categories", "b 12, a 4") in [*shown.list_parts()]
    assert shown.made.notes == ("the first turn alone is sent; 1 row have more",)
    encoded = shown.json()
    assert (encoded["categories"], "category_of_row" in encoded) == ({"b": 12, "a": 4}, False)


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


def test_a_tree_with_one_branch_has_a_conversations_digest_and_facts() -> None:
    keys = {"turns": 4, "num_sessions": 3, "input_len": 8, "output_len": 5, "max_concurrency": 2}
    plain = plan.make(profile.build(keys), ModelTarget(ENGINES[0], "m"), Seed(1, chosen=True))
    turns, before = require(plain.turns), [[i - 1] if i % 4 else [] for i in range(12)]
    waits = make_waits(before, [0] * 12, [0] * 12, [0] * 12, ("main",))
    chain = replace(plain, turns=replace(turns, waits=waits))
    assert chain.digest() == plain.digest()
    assert (require(chain.turns).describe_waits(), turns.describe_waits()) == (None, None)
    fork = make_waits([*before[:2], [0], *before[3:]], [0, 0, 1, 1, *[0] * 8], [0] * 12, [0] * 12, ("main",))
    assert replace(plain, turns=replace(turns, waits=fork)).digest() != plain.digest()

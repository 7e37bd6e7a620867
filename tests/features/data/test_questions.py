"""Questions: rows of Spec-Bench and SPEED-Bench, whose categories stay with the requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from builders.data_files import jsonl, planned
from builders.drop_in import TOKENIZER
from builders.loops import loop_over
from loadgen.engines.engines import ENGINES
from loadgen.features.data.data_command import PlanPreview
from loadgen.plan import plan, profile
from loadgen.plan.request_sources import ModelTarget, Seed

LONG: dict[str, Any] = {"custom_output_len": 4}
CHAT_API: dict[str, Any] = {"backend": "openai-chat", **LONG}


def question(category: str, number: int, more: int = 0) -> dict[str, Any]:
    """A row as Spec-Bench has it."""
    turns = [f"{category} {number}", *(f"and {k}" for k in range(more))]
    return {"question_id": number, "category": category, "turns": turns, "reference": ["x"]}


def prepared(category: str, number: int) -> dict[str, Any]:
    """A row as SPEED-Bench has it, once its own script has fetched the texts."""
    messages = [{"role": "user", "content": f"{category} {number}"}, {"role": "user", "content": "more"}]
    own = {"sub_category": "s", "source": "made", "src_id": "1", "difficulty": "easy", "multiturn": True}
    return {"question_id": f"q{number}", "category": category, "messages": messages, **own}


# As the files are: by category.
ROWS = [question("a", i, more=i % 2) for i in range(2)] + [question("b", i) for i in range(6)]


@loop_over(
    ("rows", "keys", "prompts"),
    [
        (ROWS, {}, ["b 0", "a 0", "b 1", "b 2", "b 3", "a 1", "b 4", "b 5"]),
        (ROWS, {"num_prompts": 4}, ["b 0", "a 0", "b 1", "b 2"]),
        (ROWS, {"num_prompts": 3, "dataset_category": "a"}, ["a 0", "a 1", "a 0"]),
        (ROWS, {"num_prompts": 3, "dataset_category": "a", "no_oversample": True}, ["a 0", "a 1"]),
        ([prepared("a", 1), prepared("b", 2)], {}, ["a 1", "b 2"]),
    ],
)
def test_categories_are_spread_over_the_plan(
    rows: list[dict[str, Any]], keys: dict[str, Any], prompts: list[str], tmp_path: Path
) -> None:
    made = planned(jsonl(tmp_path, rows), **LONG, **keys)
    assert [made.payload(i)["prompt"] for i in range(len(made))] == prompts
    numbers = np.arange(len(made))
    assert made.facts.list_categories(numbers) == [prompt[0] for prompt in prompts]
    assert made.facts.list_categories(numbers[::-1]) == [prompt[0] for prompt in reversed(prompts)]
    assert (made.facts.kind, made.facts.rows) == ("questions", len(rows))
    assert made.requests.output_lens.tolist() == [4] * len(made)


def test_over_chat_a_question_is_a_users_message(tmp_path: Path) -> None:
    made = planned(jsonl(tmp_path, ROWS), **CHAT_API)
    assert made.payload(1)["messages"] == [{"role": "user", "content": "a 0"}]


def test_parquet_has_the_same_requests(tmp_path: Path) -> None:
    columns = {key: [row[key] for row in ROWS] for key in ROWS[0]}
    parquet.write_table(pa.table(columns), tmp_path / "test.parquet")
    sheet, lines = planned(str(tmp_path / "test.parquet"), **LONG), planned(jsonl(tmp_path, ROWS), **LONG)
    assert [sheet.body(i) for i in range(8)] == [lines.body(i) for i in range(8)]
    assert sheet.facts.categories == lines.facts.categories == ("b", "a")


def test_the_preview_counts_categories_and_names_what_is_not_sent(tmp_path: Path) -> None:
    shown = PlanPreview(planned(jsonl(tmp_path, ROWS), num_prompts=16, **LONG))
    assert ("categories", "b 12, a 4") in [*shown.list_parts()]
    assert shown.made.notes == ("the first turn alone is sent; 1 row have more",)
    encoded = shown.json()
    assert encoded["categories"] == {"b": 12, "a": 4}
    assert "category_of_row" not in encoded


def test_prompts_are_counted_once_each(tmp_path: Path) -> None:
    encode = pytest.importorskip("tokenizers").Tokenizer.from_file(str(TOKENIZER / "tokenizer.json")).encode
    asked = profile.build({"dataset_path": jsonl(tmp_path, ROWS), "num_prompts": 10, **LONG})
    made = plan.make(asked, ModelTarget(ENGINES[0], "served", tokenizer=str(TOKENIZER)), Seed(1, chosen=True))
    texts = [made.payload(i)["prompt"] for i in range(10)]
    assert texts[8:] == texts[:2]
    assert made.requests.input_lens.tolist() == [len(encode(text).ids) for text in texts]

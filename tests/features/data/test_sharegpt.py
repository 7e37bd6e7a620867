"""ShareGPT: vLLM's filter, each row that it leaves out counted by why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.drop_in import DIRECTORY, TOKENIZER, planned
from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.features.data import sharegpt
from loadgen.plan.plan import Plan

GOOD = {"conversations": [{"value": "A question of some words"}, {"value": "An answer of some words"}]}


def made(file: Path, tokenizer: str | None = str(TOKENIZER), **keys: Any) -> Plan:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    return planned(["--dataset-name", "sharegpt", "--dataset-path", str(file)], tokenizer, **keys)


def test_a_batch_more_of_rows_is_counted_as_one() -> None:
    """Rows are counted in batches, which nothing of the result shows."""
    whole = made(DIRECTORY / "sharegpt.json", num_prompts=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharegpt, "_BATCH", 4)
        assert made(DIRECTORY / "sharegpt.json", num_prompts=60).digest() == whole.digest()


def test_without_a_tokenizer_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--dataset-name sharegpt counts and filters .* pass --tokenizer"):
        made(DIRECTORY / "sharegpt.json", tokenizer=None)


@loop_over(
    ("entries", "message"),
    [
        ({"a": 1}, 'is not a JSON array of conversations: is {"a": 1}: give a list'),
        ([GOOD, 5], "is not a JSON array of conversations: [1] is 5: give an object"),
        ([GOOD, {"conversations": [{"text": "x"}, {"value": "y"}]}],
         "row 2: a turn is no object with a text"),
        ([{"conversations": [{"value": "x"}, {"value": None}]}], "row 1: a turn is no object with a text"),
        ([GOOD | {"image": "a.png"}], "row 1 has an image: only text is read from ShareGPT"),
        ([{"conversations": []}], "no row is left to send: 1 with fewer than 2 turns"),
        ([], "no row is left to send: it holds none"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_sharegpt_is_named_with_its_row(
    tmp_path: Path, entries: object, message: str
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(entries), "utf-8")
    with pytest.raises(UsageError) as raised:
        made(file)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"--dataset-path {file}")


def test_a_file_that_cannot_be_read_whole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharegpt, "_MOST_BYTES", 10)
    with pytest.raises(UsageError, match=r"write it as JSONL"):
        made(DIRECTORY / "sharegpt.json")

"""Prompt tokens: a tokenizer that was given counts a file's prompts as the server will."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from builders.data_files import jsonl
from builders.drop_in import TOKENIZER
from loadgen.base.errors import MeasureError
from loadgen.engines.engines import ENGINES
from loadgen.features.data import file_prompts
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run import acceptance

TEXTS = ["One", "Two two of them", "", "A question of some words, and more of them"]
ROWS: list[dict[str, Any]] = [{"prompt": text or [1, 2, 3, 4, 5], "output_tokens": 10} for text in TEXTS]
CHAT_API: dict[str, Any] = {"backend": "openai-chat"}


def planned(path: str, tokenizer: Path | None = TOKENIZER, **keys: Any) -> Plan:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    asked = profile.build({"dataset_path": path, "max_concurrency": 1, **keys})
    subject = ModelTarget(ENGINES[0], "served", tokenizer=None if tokenizer is None else str(tokenizer))
    return plan.make(asked, subject, Seed(1, chosen=True))


def without_template(directory: Path) -> Path:
    """The tokenizer of the tests without its chat template."""
    directory.mkdir()
    for file in TOKENIZER.iterdir():
        fields = json.loads(file.read_text("utf-8"))
        fields.pop("chat_template", None)
        (directory / file.name).write_text(json.dumps(fields), "utf-8")
    return directory


@pytest.mark.parametrize(("prompts", "letters"), [(2, 1000), (1000, 20), (3, 1)])
def test_batches_count_as_one(
    tmp_path: Path, prompts: int, letters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jsonl(tmp_path, ROWS * 3)
    whole = planned(path).requests.input_lens.tolist()
    monkeypatch.setattr(file_prompts, "_BATCH_PROMPTS", prompts)
    monkeypatch.setattr(file_prompts, "_BATCH_LETTERS", letters)
    assert planned(path).requests.input_lens.tolist() == whole


@pytest.mark.parametrize(
    ("template", "keys", "why"),
    [
        (False, CHAT_API, "the tokenizer {} has no chat template"),
        (True, {**CHAT_API, "skip_chat_template": True}, "--skip-chat-template, and the server applies its"),
    ],
)
def test_what_cannot_be_counted_as_the_server_does_is_left_to_it(
    tmp_path: Path, template: bool, keys: dict[str, Any], why: str
) -> None:
    tokenizer = TOKENIZER if template else without_template(tmp_path / "t")
    made = planned(jsonl(tmp_path, ROWS[:2]), tokenizer, **keys)
    assert made.requests.input_lens.tolist() == [-1, -1]
    (note,) = [note for note in made.notes if note.startswith("the prompts are not counted before the run: ")]
    assert why.format(tokenizer) in note


def test_without_transformers_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = jsonl(tmp_path, ROWS[:2])
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name)
    )
    made = planned(path)
    assert made.requests.input_lens.tolist() == [-1, -1]
    assert "needs transformers" in made.notes[0]


def test_a_prompt_that_is_too_long_is_named_before_it_is_sent(tmp_path: Path) -> None:
    path = jsonl(tmp_path, [*ROWS, {"prompt": "many words " * 50, "output_tokens": 10}])
    with pytest.raises(MeasureError, match=r"1 request needs more tokens than the 90 .*data.jsonl row 5\)"):
        acceptance.check_lengths(planned(path), 90)

"""ShareGPT: vLLM's filter, each row that it leaves out counted by why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.drop_in import DIRECTORY, TOKENIZER, planned
from builders.loops import loop_over, loop_over_named
from loadgen.base.errors import UsageError
from loadgen.engines.engines import UNKNOWN
from loadgen.features.data import sharegpt
from loadgen.features.data.listed_texts import FileTexts
from loadgen.plan import profile
from loadgen.plan.plan import Plan
from loadgen.plan.plan import make as make_plan
from loadgen.plan.request_sources import ModelTarget, Seed

GOOD = {"conversations": [{"value": "A question of some words"}, {"value": "An answer of some words"}]}


def made(file: Path, tokenizer: str | None = str(TOKENIZER), **keys: Any) -> Plan:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    return planned(["--dataset-name", "sharegpt", "--dataset-path", str(file)], tokenizer, **keys)


def test_rows_that_are_left_out_are_counted_by_why() -> None:
    plan = made(DIRECTORY / "sharegpt.json", no_oversample=True)
    assert plan.facts.skipped == {
        "fewer than 2 turns": 3, "prompt of fewer than 4 tokens": 1, "answer of fewer than 4 tokens": 1,
        "prompt of more than 1024 tokens": 1, "prompt and answer of more than 2048 tokens": 2,
    }  # fmt: skip
    assert plan.facts.rows == plan.facts.sent + sum(plan.facts.skipped.values())
    assert plan.facts.sent == len(plan)
    assert not plan.profile.ignore_eos


def test_rows_after_the_last_that_is_sent_are_neither_sent_nor_left_out() -> None:
    plan = made(DIRECTORY / "sharegpt.json", num_prompts=1, disable_shuffle=True)
    assert (plan.facts.sent, plan.facts.repeated, plan.facts.skipped) == (1, 0, {"fewer than 2 turns": 3})


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


def test_a_request_knows_its_conversation_in_the_list(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    rows = [
        {"conversations": []},
        *({"conversations": [{"value": f"{i} of some words"}] * 2} for i in range(5)),
    ]
    file.write_text(json.dumps(rows), "utf-8")
    requests = made(file, num_prompts=8).requests
    assert isinstance(requests, FileTexts)
    assert [requests.name_row(i) for i in range(8)] == [
        f"{file} row {int(requests.prompt(i)[0]) + 2}" for i in range(8)
    ]


def spoken(*speakers: str) -> dict[str, Any]:
    """A conversation of these speakers, each with words of its own."""
    return {
        "conversations": [
            {"from": one, "value": f"{one} says {at} and some words"} for at, one in enumerate(speakers)
        ]
    }


@loop_over_named(
    ("speakers", "named", "prompt", "note"),
    {
        "as usual": (("human", "gpt"), False, "human says 0", ""),
        "a system turn": (("system", "human", "gpt"), False, "human says 1", "system in 3), left out"),
        "other words": (("system", "user", "assistant"), False, "user says 1", "left out"),
        "an answer first": (("gpt", "human", "gpt"), False, "human says 1", "gpt in 3"),
        "no speakers": (("", ""), False, " says 0", ""),
        "no person": (("a", "b"), False, "a says 0", ""),
        "by vLLM's rules": (("human", "gpt"), True, "human says 0", ""),
        "as vLLM": (("system", "human", "gpt"), True, "system says 0", "system in 3), sent as the prompt"),
    },
)
def test_a_prompt_is_what_a_person_says(
    speakers: tuple[str, ...], named: bool, prompt: str, note: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")
    file = tmp_path / "s.json"
    file.write_text(json.dumps([spoken(*speakers)] * 3))
    keys: dict[str, Any] = {"dataset_name": "sharegpt"} if named else {}
    asked = profile.build({"dataset_path": str(file), "num_prompts": 2, **keys})
    subject = ModelTarget(UNKNOWN, "any", tokenizer=str(TOKENIZER))
    plan = make_plan(asked, subject, Seed(1, chosen=True))
    assert isinstance(plan.requests, FileTexts)
    assert plan.requests.prompt(0).startswith(prompt)
    assert any("conversations begin" in each for each in plan.notes) is bool(note)
    assert any(note in each for each in plan.notes) or not note

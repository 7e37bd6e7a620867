"""The text that is scored, the shipped or the user's, and the quality that a run's own file has."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.made_qualities import quality
from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Cell
from loadgen.study.quality.arm_qualities import find_run_quality
from loadgen.study.quality.quality_record import Quality
from loadgen.study.quality.quality_text import QualityPlan, read_text


def test_another_text_is_read_and_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("ä" * 1000, "utf-8")
    assert read_text(path) == "ä" * 1000
    cases = {
        b"short": "has 5 bytes: give 2,000 to 16,777,216",
        b"\xff" * 3000: "is not UTF-8",
        b" \n" * 2000: "has nothing but",
    }
    for data, message in cases.items():
        path.write_bytes(data)
        with pytest.raises(UsageError, match=message):
            read_text(path)
    with pytest.raises(UsageError, match="No such file"):
        read_text(tmp_path / "none")


def test_prompts_are_spread_over_the_text_and_differ() -> None:
    text = read_text()
    plan = QualityPlan(text)
    prompts = [plan.cut_prompt(number) for number in range(300)]
    begins = [text.index(prompt) / len(text) for prompt in prompts]
    assert len(set(prompts)) > 150
    assert all(sum(part / 5 <= begin < (part + 1) / 5 for begin in begins) > 40 for part in range(5))
    assert max(map(len, prompts)) <= 240
    assert prompts == [QualityPlan(text).cut_prompt(number) for number in range(300)]


def test_a_plan_follows_the_settings_of_a_reference_file() -> None:
    plan = QualityPlan("text")
    assert plan.follow_settings(
        QualityPlan("text", answer_tokens=9, chat=True).list_settings()
    ) == QualityPlan("text", answer_tokens=9, chat=True)
    assert plan.follow_settings({"answer_tokens": "many", "chat": 1}) == plan


@pytest.mark.parametrize("text", [read_text(), "".join(map(chr, range(0x4E00, 0x6000)))])
def test_no_two_of_the_default_s_prompts_are_alike(text: str) -> None:
    plan = QualityPlan(text)
    assert len({plan.cut_prompt(number) for number in range(plan.tokens // plan.answer_tokens)}) == 1250


def stored(directory: Path, name: str, text: str) -> None:
    (directory / "quality").mkdir(exist_ok=True)
    (directory / "quality" / f"{name}-vllm-0.32.json").write_text(text, "utf-8")


def test_a_run_has_the_quality_of_its_arm_or_its_own(tmp_path: Path) -> None:
    arm, own = Quality(reference="a", candidate="b"), Quality(reference="a", candidate="c")
    cell = Cell(campaign="c", checkpoint="fp8", server="vllm 0.32", profile="p", repeat=0, start="r0")
    stored(tmp_path, "fp8", arm.model_dump_json())
    places = [tmp_path / "cells" / "r0-fp8", tmp_path / "cells" / "r0-fp8" / "20260101-000000-p"]
    alone = tmp_path / "alone"
    assert [find_run_quality(place, cell) for place in places] == [arm, arm]
    assert find_run_quality(places[0], None) is None
    assert find_run_quality(alone, cell) is None
    alone.mkdir()
    (alone / "quality.json").write_text(own.model_dump_json(), "utf-8")
    assert find_run_quality(alone, None) == own
    endless = quality(1e-3, 1e-4).model_dump_json().replace('"mean":0.941', '"mean":1e999')
    for damaged in ("{}", "[" * 100_000, endless):
        (alone / "quality.json").write_text(damaged, "utf-8")
        found = find_run_quality(alone, None)
        assert found is not None
        assert (found.kl, found.why["kl"]) == (
            None,
            "quality.json is damaged: measure it again with `loadgen quality --json`",
        )

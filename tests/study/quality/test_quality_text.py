"""The text that is scored, the one that is shipped or the user's, and what is cut from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.base.errors import UsageError
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

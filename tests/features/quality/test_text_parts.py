"""What is cut from a text: segments that have all of it, and prompts from all over it."""

from __future__ import annotations

from loadgen.features.quality.quality_text import read_text
from loadgen.features.quality.text_parts import QualityPlan


def test_segments_have_all_words_of_a_text() -> None:
    text = read_text()
    segments = QualityPlan(text).cut_segments()
    assert " ".join(segments).split() == text.split()
    assert max(map(len, segments)) <= 500
    assert min(map(len, segments)) > 0
    assert [segment.strip() for segment in segments] == segments


def test_a_text_without_blanks_is_cut_anywhere() -> None:
    segments = QualityPlan("語" * 1200).cut_segments()
    assert "".join(segments) == "語" * 1200
    assert max(map(len, segments)) <= 500


def test_prompts_are_spread_over_the_text_and_differ() -> None:
    text = read_text()
    plan = QualityPlan(text)
    prompts = [plan.cut_prompt(number) for number in range(300)]
    begins = [text.index(prompt) / len(text) for prompt in prompts]
    assert len(set(prompts)) > 150
    assert [sum(part / 5 <= begin < (part + 1) / 5 for begin in begins) > 40 for part in range(5)] == [
        True
    ] * 5
    assert max(map(len, prompts)) <= 240
    assert prompts == [QualityPlan(text).cut_prompt(number) for number in range(300)]


def test_a_plan_follows_the_settings_of_a_reference_file() -> None:
    plan = QualityPlan("text")
    assert plan.follow_settings(
        QualityPlan("text", answer_tokens=9, chat=True).list_settings()
    ) == QualityPlan("text", answer_tokens=9, chat=True)
    assert plan.follow_settings({"answer_tokens": "many", "chat": 1}) == plan

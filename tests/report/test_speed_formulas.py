"""Speed: the two published formulas, named, and what one is by the other."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.report.speed_formulas import FORMULAS, OUTPUT, TOTAL, converted


@pytest.mark.parametrize(
    ("name", "speed_tok_s"),
    [("output/time", 2048 / 8.0), ("(prompt+output)/time", (30720 + 2048) / 8.0)],
)
def test_each_formula_is_chosen_by_its_name(name: str, speed_tok_s: float) -> None:
    assert set(FORMULAS) == {OUTPUT, TOTAL}
    assert FORMULAS[name](30720, 2048, 8.0) == speed_tok_s


@loop_over(("prompt_tokens", "times"), [(0, 1), (6144, 4), (14336, 8), (30720, 16), (129024, 64)])
def test_the_formulas_differ_by_the_lengths_alone(prompt_tokens: int, times: int) -> None:
    assert FORMULAS[TOTAL](prompt_tokens, 2048, 3.0) == times * FORMULAS[OUTPUT](prompt_tokens, 2048, 3.0)


@pytest.mark.parametrize(
    ("input_length", "published", "output_only"),
    [(1, 414.17, 413.968), (6144, 1426.46, 356.615), (14336, 2478.02, 309.7525), (30720, 3577.42, 223.58875)],
)
def test_a_published_qwen3_speed_is_told_as_qwen2_5_tells_it(
    input_length: int, published: float, output_only: float
) -> None:
    again = converted(published, TOTAL, OUTPUT, input_length, 2048)
    assert again == pytest.approx(output_only, abs=1e-3)
    assert converted(again, OUTPUT, TOTAL, input_length, 2048) == pytest.approx(published, rel=1e-12)

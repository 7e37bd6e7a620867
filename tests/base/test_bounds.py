"""Bounds: a share is written as people write it, and what is none says which there are."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.base.parsing import parse_share


@loop_over(
    ("text", "part"),
    [("5%", 0.05), ("0.05", 0.05), (".5", 0.5), (" 2.5 % ", 0.025), ("100%", 1.0), ("0.1%", 0.001)],
)
def test_a_share_is_a_percentage_or_a_part_of_one(text: str, part: float) -> None:
    assert parse_share(text, 0.001) == pytest.approx(part)


@loop_over("text", ["", "%", "0", "0.05%", "101%", "5", "-5%", "nan", "inf%", "1e-2", "five"])
def test_what_is_no_share_in_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no share from 0\.1% to 100%: write 5% or 0\.05"):
        parse_share(text, 0.001)

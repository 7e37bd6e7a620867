"""Family: Holm's own arithmetic, and what is left of alpha for the next look."""

from __future__ import annotations

import math

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.study.compare.statistics import LOOKS, Estimate, Family, adjust_by_holm, judge_family

NAN = math.nan


@loop_over(
    ("p", "adjusted"),
    [
        # Holm 1979 as R's p.adjust(p, "holm") has it.
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.5, 0.6, 0.9], [1.0, 1.0, 1.0]),
        ([0.02], [0.02]),
        ([0.02, 0.02], [0.04, 0.04]),
        ([0.04, NAN, 0.01], [0.04, NAN, 0.02]),
        ([NAN, NAN], [NAN, NAN]),
    ],
)
def test_holms_examples(p: list[float], adjusted: list[float]) -> None:
    assert adjust_by_holm(np.array(p)).tolist() == pytest.approx(adjusted, rel=1e-12, nan_ok=True)


def test_families_are_adjusted_each_by_itself() -> None:
    p = np.array([[0.01, 0.04], [0.04, 0.01], [0.2, NAN]])
    assert adjust_by_holm(p).tolist() == [[0.02, 0.04], [0.04, 0.02], [0.2, pytest.approx(NAN, nan_ok=True)]]


@pytest.mark.parametrize(
    ("p", "p_equivalent", "said"),
    [
        ([0.01, 0.03, 0.5], [1.0, 0.01, 1.0], ["differs", "equivalent", "undecided"]),
        ([0.05, 0.0500001], [0.05000001, 1.0], ["differs", "undecided"]),
        ([1.0, NAN], [0.05, NAN], ["equivalent", ""]),
    ],
)
def test_each_row_is_one_of_three_or_was_not_tested(
    p: list[float], p_equivalent: list[float], said: list[str]
) -> None:
    rows = Family(np.array(p), np.array(p_equivalent), 0.05)
    words = ("differs", "equivalent", "undecided")
    found = ["".join(word for word in words if getattr(rows, word)[at]) for at in range(len(p))]
    assert found == said


@pytest.mark.parametrize(
    ("p", "left"),
    [([0.5, 0.6, 0.7], 3), ([0.01, 0.6, 0.7], 2), ([0.01, 0.01, NAN, 0.7], 1), ([0.01, 0.01], 1)],
)
def test_the_level_is_alpha_over_the_looks_and_the_rows_that_stand(p: list[float], left: int) -> None:
    rows = Family(np.array(p), np.ones(len(p)), 0.05)
    assert rows.level.tolist() == [pytest.approx(0.05 / LOOKS / left)]


def test_a_level_that_is_just_reached_is_a_verdict() -> None:
    """The adjusted p of rows and looks meets alpha exactly where a row's own p meets its level."""
    one = Estimate(np.array([0.0, 0.05]), np.array([0.01, 0.01]), np.array([4.0, 4.0]))
    rows = judge_family(one, 0.02, 0.05)
    assert rows.p.tolist() == pytest.approx([1.0, 2 * LOOKS * one.p[1]])
    strict = judge_family(one, 0.02, float(rows.p[1]))
    assert strict.differs.tolist() == [False, True]
    assert judge_family(one, 0.02, float(rows.p[1]) * (1 - 1e-9)).differs.tolist() == [False, False]

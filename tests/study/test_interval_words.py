"""Interval words: an interval or an effect that nothing bounds has no digits."""

from __future__ import annotations

import math

from builders.loops import loop_over
from loadgen.study import repeats


@loop_over(
    ("share", "words"),
    [
        (0.0251, "2.5 %"),
        (0.79, "79 %"),
        (0.996, "100 %"),
        (1.0, "2 times"),
        (2.4, "3.4 times"),
        (9.0, "10 times"),
        (9.01, ""),
        (235453038.54, ""),
        (math.inf, ""),
        (math.nan, ""),
    ],
)
def test_a_difference_of_any_size_is_none(share: float, words: str) -> None:
    assert repeats.format_difference(share) == words


@loop_over(
    ("mean", "half", "vague"),
    [
        (500.0, 2118.0, True),
        (500.0, 500.0, True),
        (500.0, 499.0, False),
        (500.0, math.nan, False),
        (0, 1, False),
    ],
)
def test_the_interval_of_a_mean_that_reaches_zero_is_vague(mean: float, half: float, vague: bool) -> None:
    assert repeats.is_vague(mean, half) is vague


@loop_over(
    ("low", "high", "bounded"),
    [(0.6, 1.4, True), (0.1, 10.0, True), (0.09, 1.1, False), (0.9, 10.1, False), (0.9, math.inf, False)],
)
def test_an_interval_of_ten_times_bounds_nothing(low: float, high: float, bounded: bool) -> None:
    assert repeats.is_bounded(1.0, low, high) is bounded

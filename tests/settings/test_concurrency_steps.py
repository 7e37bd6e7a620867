"""Concurrency steps: the limit at each time, and each process's part of it."""

from __future__ import annotations

import numpy as np

from builders.loops import loop_over
from loadgen.settings.load_schedule import ConcurrencySteps

STEPS = ConcurrencySteps(np.array([0, 10, 20], np.int64), np.array([3, 8, 1], np.int64))


@loop_over(
    ("elapsed_ns", "limit", "next_ns"),
    [(-5, 3, 0), (0, 3, 10), (9, 3, 10), (10, 8, 20), (20, 1, -1)],
)
def test_a_limit_holds_from_its_time_to_the_next(elapsed_ns: int, limit: int, next_ns: int) -> None:
    assert (STEPS.limit(elapsed_ns), STEPS.next_ns(elapsed_ns)) == (limit, next_ns)


@loop_over("of", [1, 2, 3, 5, 9])
def test_parts_have_the_whole_limit_at_each_time_evenly(of: int) -> None:
    parts = np.array([STEPS.part(number, of).limits for number in range(of)])
    assert parts.sum(0).tolist() == [3, 8, 1]
    assert (np.ptp(parts, axis=0) <= 1).all()


@loop_over(("number", "opens_ns"), [(0, 0), (2, 0), (3, 10), (7, 10), (8, 0)])
def test_a_part_opens_when_it_first_has_a_slot(number: int, opens_ns: int) -> None:
    assert STEPS.part(number, 9).opens_ns == opens_ns

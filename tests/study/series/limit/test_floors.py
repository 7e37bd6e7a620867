"""Searches for a floor of the output speed, on servers of many users whose limit is a formula."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bars import limits_floors
from builders.loops import loop_over
from loadgen.study.series.limit import search


@loop_over("case", limits_floors.CASES)
def test_at_the_true_limit_the_allowed_share_is_below_the_floor(case: limits_floors.Case) -> None:
    load = case.true_load + (0.5 if case.axis == "concurrency" else 0.0)  # the floor is between two numbers
    long = case.run(load, 400_000 / case.truth, np.random.default_rng(1))
    share, allowed = search.compute_share_over(long.objectives[0]), search.compute_allowed_share(case.objective)
    assert allowed == case.percentile / 100
    assert share == pytest.approx(allowed, rel=0.35)  # neighbours are alike: few count


def test_the_users_that_a_request_finds_are_the_rate_times_their_stay() -> None:
    case = limits_floors.Rate(5, 25)
    assert (case.users, round(case.true_load, 3)) == (23, 5.135)  # P(Poisson(20.5) > 23) = 0.25


@pytest.mark.parametrize(
    "seeds", [range(1000, 1001), pytest.param(range(1001, 1021), marks=pytest.mark.long)]
)
@pytest.mark.parametrize("case", limits_floors.CASES, ids=str)
def test_searches_find_the_limit_of_a_floor(case: limits_floors.Case, seeds: range) -> None:
    found = [limits_floors.searched(case, seed) for seed in seeds]
    assert [each.ratio for each in found] == pytest.approx([1.0] * len(seeds), rel=0.1)
    assert max(each.runs for each in found) <= 12

"""Dependence: what samples of known processes are worth, and that a bound is above the truth in 97 of 100."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.simulated.dependence import PROCESSES, count_false_bounds
from builders.loops import loop_over
from loadgen.figures.distribution import count_independent
from loadgen.figures.objectives import (
    Objective,
    ObjectiveEvidence,
    Standing,
    choose_slow_rank,
    measure_dispersion,
)

_N = 2000
Values = np.ndarray[tuple[int], np.dtype[np.float64]]


@loop_over(
    ("values", "least", "most"),
    [
        (np.zeros(0), 0, 0),
        (np.arange(6.0), 6, 6),
        (np.ones(500), 500, 500),
        (np.full(500, np.inf), 500, 500),
        (np.random.default_rng(1).pareto(1.1, _N), _N, _N),
        (np.arange(_N) % 2 * 1.0, _N, _N),
        (np.arange(_N) * 1.0, 1, 7),
        (np.repeat(np.random.default_rng(2).random(_N // 20), 20), 20, 130),
        (np.where(np.arange(_N) < 100, np.inf, np.random.default_rng(3).random(_N)), 1, 400),
    ],
)
def test_samples_are_worth_what_does_not_repeat(values: Values, least: int, most: int) -> None:
    assert least <= count_independent(values) <= most


@pytest.mark.parametrize("n", [10**5, 300_001])
def test_many_samples_are_compared_by_means(n: int) -> None:
    values = np.random.default_rng(4).random(n)
    assert count_independent(values) > 0.95 * n
    assert 0.1 * n / 50 < count_independent(np.repeat(values[: n // 50], 50)) < 1.1 * n / 50


def test_the_order_of_equal_samples_is_nothing() -> None:
    values = np.random.default_rng(5).integers(0, 3, _N)
    assert count_independent(values) == _N


@loop_over("name", sorted(PROCESSES))
def test_a_bound_is_above_the_truth(name: str) -> None:
    shown = count_false_bounds(PROCESSES[name], 500, 60)
    # Of 60 runs at 3 %, more than 6 are wrong once in 200.
    assert all(false <= 6 for _, false in shown.values())


def queue(runs: int, n: int) -> list[Values]:
    random = np.random.default_rng(8)
    return [PROCESSES["M/M/1 at 0.8"].draw(random, n) for _ in range(runs)]


@pytest.mark.parametrize("standing_of", ["dispersion", "independent"])
def test_an_objective_that_a_queue_misses_is_hardly_met(standing_of: str) -> None:
    truth = -math.log(0.1) * 5
    objective = Objective("ttft", 90, truth * 0.99)
    met = 0
    for waits in queue(60, _N):
        over = waits > objective.limit
        slow = waits > np.sort(waits)[math.ceil(choose_slow_rank(objective) * _N) - 1]
        parts = [[(len(part), int(part.sum())) for part in np.array_split(mark, 20)] for mark in (over, slow)]
        shown = ObjectiveEvidence(
            objective,
            _N,
            int(over.sum()),
            float(np.quantile(waits, 0.9)),
            bound=0.0,  # of one that does not know of it
            batches=tuple(parts[0]),
            dispersion=measure_dispersion(parts[1]),
        )
        if standing_of == "independent":
            met += shown.allows(count_independent(waits))
        else:
            met += shown.standing is Standing.MEETS
    assert met <= 5

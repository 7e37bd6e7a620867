"""The search: which loads it runs, how long, and why it ends, on servers that are formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from loadgen.campaign.limit.answer import estimate, highest_passing, lowest_failing
from loadgen.campaign.limit.search import NextRun, least_run, limiting, next_run
from loadgen.campaign.limit.trial import SearchSettings, Trial
from loadgen.metrics.objectives import Objective, ObjectiveEvidence
from loadgen.results.limit_record import LimitEstimate

TPOT = Objective("tpot", 99, 50)
RATE = SearchSettings("rate", (TPOT,), start=1, lowest=1 / 64, highest=4096, alone_s=1)
STREAMS = SearchSettings("concurrency", (TPOT,), start=1, lowest=1, highest=1024, alone_s=1)


def trial(run: NextRun, value_ms: float, **changes: object) -> Trial:
    """A run whose samples are all alike."""
    samples = 1000
    over = samples if value_ms > TPOT.limit_ms else 0
    evidence = ObjectiveEvidence(TPOT, samples, over, value_ms, value_ms, ((100, over // 10),) * 10)
    made = Trial(run.load, run.duration_s, run.duration_s, (evidence,), requests_per_s=run.load)
    return replace(made, **changes)


def searched(settings: SearchSettings, server: Callable[[NextRun], Trial]) -> tuple[list[Trial], str]:
    """All runs of a search, and why it ended."""
    trials: list[Trial] = []
    while not isinstance(step := next_run(settings, trials), str):
        trials.append(server(step))
    return trials, step


@pytest.mark.parametrize("limit", [1, 2, 7, 48, 300])
def test_the_last_concurrency_that_meets_the_objective_is_found(limit: int) -> None:
    trials, end = searched(STREAMS, lambda run: trial(run, 50.0 if run.load <= limit else 50.1))
    found = estimate(STREAMS, trials)
    assert end == "within"
    assert found is not None
    assert found.value == pytest.approx(limit, rel=0.05)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= limit <= found.high
    assert len(trials) <= 12


@pytest.mark.parametrize("limit", [0.05, 1.3, 50, 500])
def test_a_rate_above_which_all_is_late_is_found_within_5_percent(limit: float) -> None:
    trials, end = searched(RATE, lambda run: trial(run, 10.0 if run.load <= limit else 900.0))
    passing, failing = highest_passing(RATE, trials), lowest_failing(RATE, trials)
    assert end == "within"
    assert passing is not None
    assert failing is not None
    assert passing <= limit < failing <= passing * 1.11
    assert len(trials) <= 12


def test_an_objective_that_nothing_meets_ends_at_the_lowest_load() -> None:
    trials, end = searched(RATE, lambda run: trial(run, 51.0))
    assert end == "nothing-passes"
    assert trials[-1].load == RATE.lowest
    assert estimate(RATE, trials) == estimate(RATE, trials[-1:])
    assert highest_passing(RATE, trials) is None


def test_an_objective_that_everything_meets_ends_at_the_highest_load() -> None:
    trials, end = searched(RATE, lambda run: trial(run, 49.0))
    found = estimate(RATE, trials)
    assert end == "everything-passes"
    assert found is not None
    assert (found.value, found.low, found.high) == (None, RATE.highest, None)


def test_a_run_that_the_client_limited_never_fails_the_server() -> None:
    trials, end = searched(RATE, lambda run: trial(run, 49.0, client_limited=run.load > 10))
    assert end == "client-limited"
    assert lowest_failing(RATE, trials) is None
    assert highest_passing(RATE, trials) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("fault", ["invalid", "saturated"])
def test_an_invalid_or_saturated_run_never_passes(fault: str) -> None:
    trials, _ = searched(RATE, lambda run: trial(run, 49.0, **{fault: run.load > 10}))
    found = estimate(RATE, trials)
    assert found is not None
    assert found.value == pytest.approx(10, rel=0.06)
    assert not any(each.passed for each in trials if each.load > 10)


def test_runs_of_a_server_that_ended_give_a_bracket_but_no_estimate() -> None:
    fine, dead = trial(NextRun(4, 60), 10.0), trial(NextRun(16, 60), 10.0, invalid=True)
    assert estimate(RATE, [fine, dead]) == LimitEstimate(value=None, low=4, high=16)
    late = trial(NextRun(16, 60), 900.0)
    shown = estimate(RATE, [fine, late])
    assert shown is not None
    assert shown.value is not None


@pytest.mark.parametrize(
    ("rate", "percentile", "seconds"),
    [
        (0.05, 99, 524 / 0.05),  # 459 and three standard deviations: 2.9 h
        (0.05, 90, 64 / 0.05),  # 44 and as many: 21 min
        (100, 99, 60),
    ],
)
def test_a_run_has_at_least_the_samples_that_can_pass(rate: float, percentile: float, seconds: float) -> None:
    goal = Objective("ttft", percentile, 500)
    settings = replace(RATE, objectives=(goal,), start=rate, budget_s=4 * seconds)
    first = next_run(settings, [])
    assert isinstance(first, NextRun)
    assert first.duration_s == seconds


def test_a_run_lasts_ten_times_its_slowest_requests() -> None:
    first = next_run(replace(RATE, start=100, alone_s=30), [])
    assert first == NextRun(100, 300)


def test_a_run_is_long_enough_for_the_slowest_of_those_at_its_load() -> None:
    at_8 = [trial(NextRun(8, 60), 10.0, requests_per_s=rate) for rate in (10.0, 5.0)]
    assert least_run(STREAMS, at_8, 8) == (524 / 5, "524 requests")


def test_the_budget_is_never_exceeded() -> None:
    settings = replace(RATE, start=100, budget_s=200)
    trials, end = searched(settings, lambda run: trial(run, 10.0 if run.load <= 33 else 900.0))
    assert end == "budget"
    assert math.fsum(each.took_s for each in trials) <= 200
    assert limiting(settings, trials) is not None


def test_the_lowest_of_several_edges_is_the_limit() -> None:
    late = Objective("ttft", 99, 500)
    settings = replace(RATE, objectives=(TPOT, late))

    def server(run: NextRun) -> Trial:
        made = trial(run, 10.0 if run.load <= 40 else 900.0)
        over = 1000 if run.load > 20 else 0
        other = ObjectiveEvidence(late, 1000, over, 9.0, 900.0 if over else 9.0, ((100, over // 10),) * 10)
        return replace(made, objectives=(*made.objectives, other))

    trials, end = searched(settings, server)
    found = estimate(settings, trials)
    assert end == "within"
    assert found is not None
    assert found.value == pytest.approx(20, rel=0.05)

"""The search: which loads it runs, how long, and why it ends, on servers that are formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import get_args

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from loadgen.figures.objectives import Objective, ObjectiveEvidence
from loadgen.study.limit_record import LimitEstimate, SearchEnd
from loadgen.study.series.limit.limit_answer import (
    estimate_limit,
    find_binding,
    find_highest_passing,
    find_lowest_failing,
)
from loadgen.study.series.limit.search import (
    NextRun,
    SearchSettings,
    Trial,
    choose_next_run,
    estimate_needed_s,
    find_least_run,
    find_limiting_edge,
    is_narrow,
)

TPOT = Objective("tpot", 99, 50)
RATE = SearchSettings("rate", (TPOT,), start=1, lowest=1 / 64, highest=4096, alone_s=1)
STREAMS = SearchSettings("concurrency", (TPOT,), start=1, lowest=1, highest=1024, alone_s=1)


def trial(run: NextRun, value_ms: float, **changes: object) -> Trial:
    """A run whose samples are all alike."""
    samples = 1000
    over = samples if value_ms > TPOT.limit else 0
    batches = ((100, over // 10),) * 10
    evidence = ObjectiveEvidence(TPOT, samples, over, value_ms, value_ms, batches, fast_bound=value_ms)
    made = Trial(run.load, run.duration_s, run.duration_s, (evidence,), requests_per_s=run.load)
    return replace(made, **changes)


def searched(settings: SearchSettings, server: Callable[[NextRun], Trial]) -> tuple[list[Trial], str]:
    """All runs of a search, and why it ended."""
    trials: list[Trial] = []
    while not isinstance(step := choose_next_run(settings, trials), str):
        trials.append(server(step))
    return trials, step


def estimate(settings: SearchSettings, trials: list[Trial]) -> LimitEstimate:
    """The estimate, which there is."""
    found = estimate_limit(settings, trials)
    assert found is not None
    return found


def choose_run(settings: SearchSettings, trials: list[Trial]) -> NextRun:
    """The next run of a search that goes on."""
    step = choose_next_run(settings, trials)
    assert isinstance(step, NextRun)
    return step


@loop_over("limit", [1, 2, 7, 48, 300])
def test_the_last_concurrency_that_meets_the_objective_is_found(limit: int) -> None:
    trials, end = searched(STREAMS, lambda run: trial(run, 50.0 if run.load <= limit else 50.1))
    found = estimate(STREAMS, trials)
    assert end == "within"
    assert found.value == pytest.approx(limit, rel=0.05)
    assert (found.low or math.inf) <= limit <= (found.high or 0.0)
    assert len(trials) <= 12


@loop_over("limit", [0.05, 1.3, 50, 500])
def test_a_rate_above_which_all_is_late_is_found_within_5_percent(limit: float) -> None:
    trials, end = searched(RATE, lambda run: trial(run, 10.0 if run.load <= limit else 900.0))
    passing, failing = find_highest_passing(RATE, trials) or math.inf, find_lowest_failing(RATE, trials) or 0
    assert end == "within"
    assert passing <= limit < failing <= passing * 1.11
    assert len(trials) <= 12


def test_an_objective_that_nothing_meets_ends_at_the_lowest_load() -> None:
    trials, end = searched(RATE, lambda run: trial(run, 51.0))
    assert (end, trials[-1].load) == ("nothing-passes", RATE.lowest)
    assert estimate_limit(RATE, trials) == LimitEstimate(value=None, low=None, high=RATE.lowest)
    assert find_highest_passing(RATE, trials) is None


def test_an_objective_that_everything_meets_ends_at_the_highest_load() -> None:
    trials, end = searched(RATE, lambda run: trial(run, 49.0))
    found = estimate(RATE, trials)
    assert end == "everything-passes"
    assert (found.value, found.low, found.high) == (None, RATE.highest, None)


def test_a_run_that_the_client_limited_never_fails_the_server() -> None:
    trials, end = searched(RATE, lambda run: trial(run, 49.0, disturbed=run.load > 10))
    assert end == "client-limited"
    assert find_lowest_failing(RATE, trials) is None
    assert find_highest_passing(RATE, trials) == pytest.approx(10, rel=0.05)


@loop_over("fault", ["invalid", "saturated"])
def test_an_invalid_or_saturated_run_never_passes(fault: str) -> None:
    trials, _ = searched(RATE, lambda run: trial(run, 49.0, **{fault: run.load > 10}))
    found = estimate(RATE, trials)
    assert found.value == pytest.approx(10, rel=0.06)
    assert not any(each.passed for each in trials if each.load > 10)


def test_runs_of_a_server_that_ended_give_a_bracket_but_no_estimate() -> None:
    fine, dead = trial(NextRun(4, 60), 10.0), trial(NextRun(16, 60), 10.0, invalid=True)
    assert estimate_limit(RATE, [fine, dead]) == LimitEstimate(value=None, low=4, high=16)
    late = trial(NextRun(16, 60), 900.0)
    shown = estimate(RATE, [fine, late])
    assert shown.value is not None


@loop_over(
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
    first = choose_run(settings, [])
    assert first.duration_s == seconds


def test_a_run_lasts_ten_times_its_slowest_requests() -> None:
    first = choose_next_run(replace(RATE, start=100, alone_s=30), [])
    assert first == NextRun(100, 300)


def test_a_run_is_long_enough_for_the_slowest_of_those_at_its_load() -> None:
    at_8 = [trial(NextRun(8, 60), 10.0, requests_per_s=rate) for rate in (10.0, 5.0)]
    assert find_least_run(STREAMS, at_8, 8) == (524 / 5, "524 requests")


def test_the_budget_is_never_exceeded() -> None:
    settings = replace(RATE, start=100, budget_s=200)
    trials, end = searched(settings, lambda run: trial(run, 10.0 if run.load <= 33 else 900.0))
    assert end == "budget"
    took_s = math.fsum(each.took_s for each in trials)
    needs_s = estimate_needed_s(settings, trials)
    assert needs_s is not None
    assert took_s <= 200 < took_s + needs_s
    assert find_limiting_edge(settings, trials) is not None


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
    assert found.value == pytest.approx(20, rel=0.05)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 20), marks=pytest.mark.long)])
@loop_over("settings", [RATE, STREAMS])
@loop_over("spread", [0.05, 0.3, 1.0])
def test_a_noisy_edge_gives_the_limit_or_no_answer(
    settings: SearchSettings, spread: float, seeds: range
) -> None:
    """Each run has samples of a lognormal law whose median goes with the load, and drifts from run to run."""
    limit, sigma = 40.0, 0.5

    def server(rng: np.random.Generator, run: NextRun) -> Trial:
        count = max(10, int(run.duration_s * run.load))
        median_ms = TPOT.limit * run.load / limit / math.exp(2.326 * sigma)  # P99 is at its limit there
        drift = rng.normal(0, spread * 0.1)
        share = NormalDist().cdf((math.log(median_ms / TPOT.limit) + drift) / sigma)
        counts = [(size, int(rng.binomial(size, share))) for size in [count // 10] * 10]
        samples, over = sum(size for size, _ in counts), sum(over for _, over in counts)
        bound_ms = TPOT.limit * (0.99 if over == 0 or over < 0.005 * samples else 1.01)
        evidence = ObjectiveEvidence(TPOT, samples, over, bound_ms, bound_ms, tuple(counts), fast_bound=0.0)
        return Trial(run.load, run.duration_s, run.duration_s, (evidence,), requests_per_s=run.load)

    for seed in seeds:
        trials, end = searched(settings, partial(server, np.random.default_rng(seed)))
        assert len(trials) <= settings.most_runs
        assert end in get_args(SearchEnd)
        found = estimate_limit(settings, trials)
        if found is not None and found.value is not None:
            assert found.value == pytest.approx(limit, rel=0.25 + spread / 2)
        highest = find_highest_passing(settings, trials)
        assert highest is None or highest < limit * (1 + spread)


def test_a_search_that_is_done_at_its_last_run_ends_as_done() -> None:
    trials, _ = searched(STREAMS, lambda run: trial(run, 50.0 if run.load <= 7 else 50.1))
    assert choose_next_run(replace(STREAMS, most_runs=len(trials)), trials) == "within"


def test_no_load_is_above_the_highest_though_the_last_run_was() -> None:
    unsure = trial(NextRun(10, 60), 49.0)
    evidence = replace(unsure.objectives[0], bound=60.0)  # not above, not shown to be met
    step = choose_run(replace(RATE, highest=5), [replace(unsure, objectives=(evidence,))])
    assert step.load == 5


def test_what_passed_below_does_not_make_the_highest_load_pass() -> None:
    top = trial(NextRun(4, 60), 49.0)
    unsure = replace(top, objectives=(replace(top.objectives[0], bound=60.0),))
    step = choose_run(replace(STREAMS, highest=4), [trial(NextRun(1, 60), 49.0), unsure])
    assert step.load == 4
    assert step.duration_s > 60 * 4  # what did not tell enough is run longer


def test_the_first_part_of_a_run_decides_nothing() -> None:
    def cold(run: NextRun) -> Trial:
        """A server that is slow to begin with, at any load."""
        made = trial(run, 49.0 if run.load <= 100 else 51.0)
        batches = ((100, 100), *made.objectives[0].batches[1:])
        evidence = replace(made.objectives[0], over=sum(over for _, over in batches), batches=batches)
        return replace(made, objectives=(evidence,))

    trials, _ = searched(RATE, cold)
    found = estimate(RATE, trials)
    assert found.value == pytest.approx(100, rel=0.05)


def test_a_run_without_samples_of_an_objective_shows_nothing_of_it() -> None:
    empty = trial(NextRun(1, 60), 49.0)
    none = replace(empty, objectives=(replace(empty.objectives[0], samples=0, over=0, batches=()),))
    trials = [none, trial(NextRun(2, 60), 49.0), trial(NextRun(4, 60), 51.0)]
    assert find_limiting_edge(RATE, trials) == find_limiting_edge(RATE, trials[1:])


@loop_over(("percentile", "over", "beyond"), [(90, 100, False), (99, 10, False), (90, 101, True)])
def test_the_share_that_a_percentile_allows_is_not_above_it(percentile: int, over: int, beyond: bool) -> None:
    evidence = ObjectiveEvidence(Objective("tpot", percentile, 50), 1000, over, 49.0, 49.0)
    assert Trial(1, 60, 60, (evidence,)).beyond is beyond


@loop_over("settings", [RATE, STREAMS])
def test_a_search_goes_no_higher_than_the_client_could_send(settings: SearchSettings) -> None:
    def server(run: NextRun) -> Trial:
        """It is saturated from 1600 on; the client can send 400."""
        limited = 400 < run.load < 1600
        value_ms = 49.0 if run.load < 1600 else 51.0
        return trial(run, value_ms, disturbed=limited, saturated=run.load >= 1600)

    trials, end = searched(replace(settings, start=1600, highest=4096), server)
    assert end == "client-limited"
    assert find_highest_passing(settings, trials) == pytest.approx(400, rel=0.06)
    limited = [run.load for run in trials if run.disturbed]
    assert limited == sorted(limited, reverse=True)


def few(run: NextRun, samples: int, metric: str = "tpot") -> Trial:
    """A run of too few samples for a bound, each of them within the limit."""
    evidence = ObjectiveEvidence(Objective(metric, 99, 50), samples, 0, 10.0, None)
    rate = samples / run.duration_s if metric != "itl" else samples / run.duration_s / 100
    return Trial(run.load, run.duration_s, run.duration_s, (evidence,), requests_per_s=rate)


@loop_over(
    ("metric", "samples", "seconds"),
    [
        pytest.param("tpot", 131, 240.0, id="requests"),  # 524 of 131 in 60 s
        pytest.param("itl", 13100, 240.0, id="gaps, of which those of one answer count once"),
        pytest.param("tpot", 0, 60.0, id="none at all"),
    ],
)
def test_a_run_that_is_only_short_of_samples_goes_on_at_its_load(
    metric: str, samples: int, seconds: float
) -> None:
    settings = replace(RATE, objectives=(Objective(metric, 99, 50),), start=100, alone_s=0.01)
    first = few(NextRun(100, 60), samples, metric)
    assert (first.standing, first.short, first.beyond) == ("not shown", samples > 0, samples == 0)
    step = choose_run(settings, [first])
    if samples:
        assert step.load == 100
        assert step.duration_s == pytest.approx(seconds, abs=0.2)
        assert step.why == "longer: its samples were too few"
        assert choose_run(settings, [first, few(step, samples, metric)]).load == 400
        small = replace(settings, budget_s=200)
        assert choose_run(small, [first]).load == 400  # what still fits
    else:
        assert step.load < 100


def test_a_load_that_was_short_of_samples_is_not_one_that_fails() -> None:
    short = few(NextRun(1, 60), 100)
    assert (find_lowest_failing(STREAMS, [short]), find_highest_passing(STREAMS, [short])) == (None, None)
    missed = trial(NextRun(1, 60), 51.0)
    assert find_lowest_failing(STREAMS, [missed]) == 1
    open_ended = replace(missed, objectives=(replace(missed.objectives[0], fast_bound=49.0),))
    assert open_ended.standing == "not shown"
    assert find_lowest_failing(STREAMS, [open_ended]) is None


@loop_over("settings", [RATE, STREAMS])
def test_one_disturbed_run_is_made_again_and_ends_no_search(settings: SearchSettings) -> None:
    loads: list[float] = []

    def server(run: NextRun) -> Trial:
        """Every second and third run is disturbed, of those that are at a new load."""
        loads.append(run.load)
        disturbed = len(loads) in (2, 5) and loads.count(run.load) == 1
        return trial(run, 49.0 if run.load <= 48 else 51.0, disturbed=disturbed)

    trials, end = searched(settings, server)
    assert end == "within"
    assert [each.load for each in trials if each.disturbed] == [loads[1], loads[4]]
    assert (loads[1], loads[4]) == (loads[2], loads[5])
    found = estimate(settings, trials)
    assert found.value == pytest.approx(48, rel=0.05)
    assert len(trials) <= 12


def test_a_disturbed_run_is_made_again_within_bounds() -> None:
    late = trial(NextRun(4, 60), 49.0, disturbed=True)
    again = choose_next_run(RATE, [late])
    assert again == NextRun(4, 131, "again: it was disturbed")  # 524 requests
    assert choose_run(RATE, [late, late]).load == 1  # given up
    assert choose_next_run(replace(RATE, budget_s=100), [late]) == "budget"
    assert choose_next_run(replace(RATE, most_runs=1), [late]) == "most-runs"


def test_a_client_that_could_send_no_load_says_nothing_of_the_server() -> None:
    _, end = searched(RATE, lambda run: trial(run, 49.0, disturbed=True))
    assert end == "client-limited"


def test_a_load_that_the_client_sent_in_another_run_is_no_bound() -> None:
    late = trial(NextRun(4, 60), 49.0, disturbed=True)
    step = choose_run(RATE, [late, trial(NextRun(4, 60), 49.0)])
    assert step.load == 16


@loop_over(("over_at_1", "high"), [(30, 1.0), (900, None)])
def test_a_limit_below_one_user_is_not_one_user(over_at_1: int, high: float | None) -> None:
    def at(load: float, over: int) -> Trial:
        made = trial(NextRun(load, 60), 51.0)
        evidence = replace(made.objectives[0], over=over, batches=((100, over // 10),) * 10)
        return replace(made, objectives=(evidence,))

    found = estimate(STREAMS, [at(1, over_at_1), at(2, 950)])
    assert (found.value, found.low) == (None, None)
    assert found.high == high or high is None


def test_a_server_that_ended_shows_no_objective_to_be_the_limit() -> None:
    killed = replace(trial(NextRun(12, 60), 51.0), invalid=True)
    assert find_binding(STREAMS, [trial(NextRun(8, 60), 49.0), killed]) is None
    saturated = trial(NextRun(12, 60), 51.0, saturated=True)
    assert find_binding(STREAMS, [trial(NextRun(8, 60), 49.0), saturated]) == 0


def test_runs_that_contradict_leave_all_loads_between_them_open() -> None:
    """Another program took the machine during the second run at 16; its server is that of the others."""
    over_of = ((8, 0), (32, 1000), (16, 0), (23, 200), (21, 300), (18, 0), (20, 90), (21, 180), (16, 970))
    p90 = replace(STREAMS, objectives=(Objective("e2el", 90, 1000),))

    def at(load: int, over: int) -> Trial:
        batches = tuple((50, min(50, round(over / 20) + shift)) for shift in (0, 1) * 10)
        total = sum(above for _, above in batches) if over else 0
        counts = batches if over else ((50, 0),) * 20
        evidence = ObjectiveEvidence(p90.objectives[0], 1000, total, 900.0, 950.0, counts, dispersion=3.0)
        return Trial(load, 20, 20, (evidence,), requests_per_s=20.0)

    trials = [at(load, over) for load, over in over_of]
    found = estimate(p90, trials)
    low, high = found.low or math.inf, found.high or 0.0
    assert low <= 8 < 19 <= high
    assert low <= (found.value or 0.0) <= high
    edge = find_limiting_edge(p90, trials)
    assert edge is not None
    assert not is_narrow(p90, edge)

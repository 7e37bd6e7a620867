"""The search: which loads it runs, how long, why it ends, and the load at which a share crosses the limit."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from builders import made_searches
from builders.loops import loop_over, read_tables
from builders.made_searches import RATE, STREAMS, trial
from loadgen.figures.objectives import Objective, ObjectiveEvidence
from loadgen.study.limit_record import LimitEstimate, SearchEnd
from loadgen.study.series.limit.edge import EdgeFit, EdgePoint, fit_edge
from loadgen.study.series.limit.search import NextRun, Search, Trial

TABLES = read_tables("search")

STORED = made_searches.read_stored()


def search_after(search: Search, *trials: Trial) -> Search:
    return replace(search, trials=trials)


def choose_run(search: Search, *trials: Trial) -> NextRun:
    """The next run of a search that goes on."""
    step = search_after(search, *trials).choose_next_run()
    assert isinstance(step, NextRun)
    return step


def estimate(search: Search, *trials: Trial) -> LimitEstimate:
    """The estimate, which there is."""
    found = search_after(search, *trials).limit
    assert found is not None
    return found


@pytest.mark.parametrize("name", STORED)
def test_a_search_goes_as_it_is_stored(name: str) -> None:
    found, ended = made_searches.make_runs(*made_searches.list_searches()[name])
    assert made_searches.describe_search(found, ended) == STORED[name]
    assert ended in get_args(SearchEnd)


@loop_over(("name", "truth"), TABLES["truths"].items())
def test_what_is_stored_is_near_the_truth(name: str, truth: list[Any]) -> None:
    found, (ended, limit, near) = STORED[name], truth
    value, low, high = found["limit"]
    assert found["ended"] == ended
    if ended == "client-limited":
        assert found["passing"] == pytest.approx(limit, rel=near)
    else:
        assert value == pytest.approx(limit, rel=near)
        assert low <= limit <= high
    assert len(found["runs"]) <= 12


def test_runs_of_a_server_that_ended_give_a_bracket_but_no_estimate() -> None:
    fine, dead = trial(NextRun(4, 60), 10.0), trial(NextRun(16, 60), 10.0, invalid=True)
    assert estimate(RATE, fine, dead) == LimitEstimate(value=None, low=4, high=16)
    assert estimate(RATE, fine, trial(NextRun(16, 60), 900.0)).value is not None


@loop_over(
    ("rate", "percentile", "alone_s", "seconds"),
    [
        (0.05, 99, 1, 524 / 0.05),  # 459 and three standard deviations: 2.9 h
        (0.05, 90, 1, 64 / 0.05),  # 44 and as many: 21 min
        (100, 99, 1, 60),
        (100, 99, 30, 300),  # ten times its slowest requests
    ],
)
def test_a_run_has_at_least_the_samples_that_can_pass(
    rate: float, percentile: float, alone_s: float, seconds: float
) -> None:
    goal = Objective("ttft", percentile, 500)
    asked = replace(RATE, objectives=(goal,), start=rate, alone_s=alone_s, budget_s=4 * seconds)
    assert choose_run(asked) == NextRun(rate, seconds)


def test_a_run_is_long_enough_for_the_slowest_of_those_at_its_load() -> None:
    at_8 = [trial(NextRun(8, 60), 10.0, requests_per_s=rate) for rate in (10.0, 5.0)]
    assert search_after(STREAMS, *at_8).find_least_run(8) == (524 / 5, "524 requests")


def test_no_load_is_above_the_highest_though_the_last_run_was() -> None:
    unsure = trial(NextRun(10, 60), 49.0)
    evidence = replace(unsure.objectives[0], bound=60.0)  # not above, not shown to be met
    assert choose_run(replace(RATE, highest=5), replace(unsure, objectives=(evidence,))).load == 5


def test_a_run_without_samples_of_an_objective_shows_nothing_of_it() -> None:
    empty = trial(NextRun(1, 60), 49.0)
    none = replace(empty, objectives=(replace(empty.objectives[0], samples=0, over=0, batches=()),))
    trials = trial(NextRun(2, 60), 49.0), trial(NextRun(4, 60), 51.0)
    assert search_after(RATE, none, *trials).edge == search_after(RATE, *trials).edge


@loop_over(("percentile", "over", "beyond"), [(90, 100, False), (99, 10, False), (90, 101, True)])
def test_the_share_that_a_percentile_allows_is_not_above_it(percentile: int, over: int, beyond: bool) -> None:
    evidence = ObjectiveEvidence(Objective("tpot", percentile, 50), 1000, over, 49.0, 49.0)
    assert Trial(1, 60, 60, (evidence,)).beyond is beyond


def test_a_load_that_was_short_of_samples_is_not_one_that_fails() -> None:
    missed = trial(NextRun(1, 60), 51.0)
    assert search_after(STREAMS, missed).lowest_failing == 1
    unsure = replace(missed, objectives=(replace(missed.objectives[0], fast_bound=49.0),))
    assert unsure.standing == "not shown"
    assert search_after(STREAMS, unsure).lowest_failing is None


def test_a_disturbed_run_is_made_again_within_bounds() -> None:
    late = trial(NextRun(4, 60), 49.0, disturbed=True)
    assert choose_run(RATE, late) == NextRun(4, 131, "again: it was disturbed")  # 524 requests
    assert choose_run(RATE, late, late).load == 1  # given up
    assert search_after(replace(RATE, budget_s=100), late).choose_next_run() == "budget"
    assert search_after(replace(RATE, most_runs=1), late).choose_next_run() == "most-runs"
    assert choose_run(RATE, late, trial(NextRun(4, 60), 49.0)).load == 16  # it did send as much


@loop_over(("over_at_1", "high"), [(30, 1.0), (900, None)])
def test_a_limit_below_one_user_is_not_one_user(over_at_1: int, high: float | None) -> None:
    def at(load: float, over: int) -> Trial:
        made = trial(NextRun(load, 60), 51.0)
        evidence = replace(made.objectives[0], over=over, batches=((100, over // 10),) * 10)
        return replace(made, objectives=(evidence,))

    found = estimate(STREAMS, at(1, over_at_1), at(2, 950))
    assert (found.value, found.low) == (None, None)
    assert found.high == high or high is None


@loop_over(("fault", "binding"), [({"invalid": True}, None), ({"saturated": True}, 0)])
def test_a_server_that_ended_shows_no_objective_to_be_the_limit(
    fault: dict[str, Any], binding: int | None
) -> None:
    late = trial(NextRun(12, 60), 51.0, **fault)
    assert search_after(STREAMS, trial(NextRun(8, 60), 49.0), late).find_binding() == binding


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
    found = estimate(p90, *trials)
    low, high = found.low or math.inf, found.high or 0.0
    assert low <= 8 < 19 <= high
    assert low <= (found.value or 0.0) <= high
    assert not search_after(p90, *trials).is_narrow


def point(load: float, samples: int, over: int, dispersion: float | None = 1.0) -> EdgePoint:
    """A run whose samples above the limit are spread evenly over ten parts."""
    part = samples // 10
    return EdgePoint(
        load, tuple((part, over * (i + 1) // 10 - over * i // 10) for i in range(10)), dispersion
    )


def fit(points: list[EdgePoint], allowed: float, is_s_shaped: bool = False) -> EdgeFit:
    """The edge, which there is."""
    found = fit_edge(points, allowed, is_s_shaped)
    assert found is not None
    return found


@loop_over("runs", [[], [(8, 0), (9, 5)], [(8, 500), (9, 700)]])  # none, none above, none below
def test_there_is_no_edge_without_a_run_on_each_side(runs: list[tuple[float, int]]) -> None:
    assert fit_edge([point(load, 1000, over) for load, over in runs], 0.01) is None


def test_a_share_that_stays_at_a_third_does_not_move_the_edge() -> None:
    runs = [point(51, 1400, 0), point(52, 1400, 390), point(64, 2100, 620)]
    found = fit([point(4, 1700, 0), point(16, 2500, 0), *runs], 0.01)
    assert 51 <= found.low < found.high <= 52.1


def test_runs_that_contradict_each_other_widen_the_interval() -> None:
    beside = [point(7, 1200, 12), point(9, 1300, 269)]
    alike = fit([*beside, point(8, 1040, 52), point(8, 1040, 52)], 0.05)
    contrary = fit([*beside, point(8, 1040, 76), point(8, 1040, 28)], 0.05)
    assert contrary.width > 3 * alike.width


def test_a_run_far_above_does_not_pull_at_the_edge() -> None:
    """Where all samples are above, the load may be any: it must not put the edge at the lowest bound."""
    runs = [point(0.55, 15_000, 0), point(0.77, 15_000, 1), point(1.09, 20_000, 17_000)]
    near, far = (fit([*runs, point(load, 10_000, 10_000)], 0.5) for load in (1.3, 40))
    assert far.load == pytest.approx(near.load, rel=0.01)
    assert far.high > 1.0


@loop_over("allowed", [0.1, 0.25, 0.5])
def test_a_share_like_a_normal_law_is_fitted_by_its_logit(allowed: float) -> None:
    law = NormalDist()
    at_edge = law.inv_cdf(allowed)
    shares = {load: law.cdf(at_edge + 10 * math.log(load / 40)) for load in (36.0, 38.5, 41.5, 46.0)}
    points = [point(load, 40_000, round(40_000 * share)) for load, share in shares.items()]
    curved, straight = (fit(points, allowed, is_s_shaped=shape) for shape in (True, False))
    assert curved.load == pytest.approx(40, rel=0.005)
    assert abs(curved.load - 40) < abs(straight.load - 40)
    assert curved.slope == pytest.approx(10 * law.pdf(at_edge) / (allowed * (1 - allowed)), rel=0.1)

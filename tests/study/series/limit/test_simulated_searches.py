"""Searches on servers whose limit is a formula, or that are the embedded engine in virtual time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.bars import limits_floors
from benchmarks.bars.limits import CASES, Case, search_virtually, searched
from benchmarks.simulated.engine import Engine, trial
from builders.loops import loop_over
from loadgen.figures.objectives import Objective
from loadgen.study.series.limit import search
from loadgen.study.series.limit.search import NextRun, Search
from loadgen_servers.engine.scheduler import Limits
from loadgen_servers.engine.step_times import FittedTiming


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rate_per_s:g}")
def test_searches_find_the_limit_of_the_queue(case: Case) -> None:
    found = [searched(case, seed) for seed in range(1000, 1004)]
    assert [each.ratio for each in found] == pytest.approx([1.0] * 4, rel=0.1)
    assert max(each.runs for each in found) <= 12


@pytest.mark.long
@pytest.mark.parametrize("floor", [0.02, 0.05, 0.08])
def test_prompts_over_the_limit_at_any_load_do_not_bend_the_curve(floor: float) -> None:
    """Near the percentile itself, 8 of 10 %, a search may end wide: its interval says so."""
    found = [searched(Case(10, 90, 10.0, floor), seed) for seed in range(1000, 1006)]
    assert float(np.median([each.ratio for each in found])) == pytest.approx(1.0, rel=0.2)
    narrow = [each.ratio for each in found if each.ended == "within"]
    assert narrow == pytest.approx([1.0] * len(narrow), rel=0.2)
    assert sum(not each.covered for each in found) <= 2


@loop_over("case", limits_floors.CASES)
def test_at_the_true_limit_the_allowed_share_is_below_the_floor(case: limits_floors.Case) -> None:
    load = case.true_load + (0.5 if case.axis == "concurrency" else 0.0)  # the floor is between two numbers
    long = case.run(load, 400_000 / case.truth, np.random.default_rng(1))
    share = search.compute_share_over(long.objectives[0])
    allowed = search.compute_allowed_share(case.objective)
    assert allowed == case.percentile / 100
    assert share == pytest.approx(allowed, rel=0.35)  # neighbours are alike: few count


@pytest.mark.long
@pytest.mark.parametrize("case", limits_floors.CASES, ids=str)
def test_searches_find_the_limit_of_a_floor(case: limits_floors.Case) -> None:
    found = [limits_floors.searched(case, seed) for seed in range(1000, 1021)]
    assert [each.ratio for each in found] == pytest.approx([1.0] * 21, rel=0.1)
    assert max(each.runs for each in found) <= 12


# That of the preset jetson-thor/qwen3-8b-bf16, 128 tokens in and 16 out.
ENGINE = Engine(
    Limits(max_num_batched_tokens=2048, kv_cache_tokens=600_000, prefix_caching=False),
    FittedTiming(weights_ms=62.36, compute_us=188.4, sequence_us=130, kv_us=0.54, pair_ns=8.4),
    prompt=128,
    output=16,
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("metric", "rank", "limit"),
    [("tpot", 90, 95), ("tpot", 99, 120), ("e2el", 95, 2500), ("tps_user", 10, 10.5)],
)
def test_the_default_budget_is_enough_for_a_limit_of_streams(metric: str, rank: float, limit: float) -> None:
    objective, random = Objective(metric, rank, limit), np.random.default_rng(1)
    asked = Search("concurrency", (objective,), 1, 1, 65536, budget_s=1800, alone_s=1.0)
    done, ended = search_virtually(
        asked,
        lambda run: trial(run, ENGINE.in_flight(int(run.load), run.duration_s, random), (objective,)),
    )
    found = done.limit
    assert (ended, len(done.trials) <= 12) == ("within", True)
    assert math.fsum(each.took_s for each in done.trials) <= 1800
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert not beyond(found.low, objective)
    assert beyond(found.high + 1, objective)


def beyond(streams: float, objective: Objective) -> bool:
    """Whether a long run of so many at a time misses the objective."""
    sent = ENGINE.in_flight(int(streams), 600, np.random.default_rng(2))
    return search.is_above(trial(NextRun(streams, 600), sent, (objective,)).objectives[0])

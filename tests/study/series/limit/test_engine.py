"""Searches on the embedded engine's scheduler in virtual time: its records, judged as those of a real run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.simulated.engine import Engine, trial
from loadgen.figures.objectives import Objective
from loadgen.study.series.limit.limit_answer import estimate_limit
from loadgen.study.series.limit import search
from loadgen.study.series.limit.search import NextRun, SearchSettings, Trial
from loadgen_servers.engine.scheduler import Limits
from loadgen_servers.engine.step_times import FittedTiming

# That of the preset jetson-thor/qwen3-8b-bf16, 128 tokens in and 16 out.
ENGINE = Engine(
    Limits(max_num_batched_tokens=2048, kv_cache_tokens=600_000, prefix_caching=False),
    FittedTiming(weights_ms=62.36, compute_us=188.4, sequence_us=130, kv_us=0.54, pair_ns=8.4),
    prompt=128,
    output=16,
)


@pytest.mark.long
@pytest.mark.parametrize(
    "objective",
    [
        Objective("tpot", 90, 95),
        Objective("tpot", 99, 120),
        Objective("e2el", 95, 2500),
        Objective("tps_user", 10, 10.5),
    ],
    ids=str,
)
def test_the_default_budget_is_enough_for_a_limit_of_streams(objective: Objective) -> None:
    random = np.random.default_rng(1)
    settings = SearchSettings("concurrency", (objective,), 1, 1, 65536, budget_s=1800, alone_s=1.0)
    trials: list[Trial] = []
    while not isinstance(step := search.choose_next_run(settings, trials), str):
        sent = ENGINE.in_flight(int(step.load), step.duration_s, random)
        trials.append(trial(step, sent, settings.objectives))
    found = estimate_limit(settings, trials)
    assert (step, len(trials) <= 12) == ("within", True)
    assert math.fsum(each.took_s for each in trials) <= 1800
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert not beyond(found.low, objective)
    assert beyond(found.high + 1, objective)


def beyond(streams: float, objective: Objective) -> bool:
    """Whether a long run of so many at a time misses the objective."""
    sent = ENGINE.in_flight(int(streams), 600, np.random.default_rng(2))
    return search.is_above(trial(NextRun(streams, 600), sent, (objective,)).objectives[0])

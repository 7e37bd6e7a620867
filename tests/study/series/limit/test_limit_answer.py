"""What a search answers: where the evidence of a run that fails points to, and its limit per kilowatt."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.made_limits import limit_run, speed_run
from builders.made_runs import run
from loadgen.facts.run_facts import Client
from loadgen.figures.objectives import Objective, ObjectiveEvidence
from loadgen.server.server_counters import ServerLatency, ServerSample, ServerWindow
from loadgen.study.limit_record import LimitEstimate, LimitRun
from loadgen.study.series.limit.limit_search import (
    divide_by_power,
    estimate_power,
    find_bottleneck,
    make_answer,
    measure_headroom,
)
from loadgen.study.series.limit.search import Search, Trial

TABLES = read_tables("limit_answer")


def window(
    waiting: float | None = None, usage: float = 0.4, queue_ms: float | None = None, **changes: Any
) -> ServerWindow:
    """The server's figures, of requests that waited `queue_ms`; TTFT is about 80 ms, E2EL 380 ms."""
    sample = ServerSample(at_s=1.0, running=3.0, waiting=waiting, kv_cache_usage=usage)
    if queue_ms is not None:
        changes["queue"] = ServerLatency(count=24, mean_ms=queue_ms, brackets_ms={})
    return ServerWindow(names="vllm", samples=(sample, sample), **changes)


@loop_over_named(("objective", "counters", "cause"), TABLES["causes"])
def test_the_figures_of_the_server_name_the_cause(
    objective: list[Any], counters: dict[str, Any] | None, cause: str
) -> None:
    read = ServerWindow if counters and "error" in counters else window
    found = None if counters is None else read(**counters)
    assert find_bottleneck(run(window=found), Objective(*objective))[0] == cause


def test_headroom_without_a_self_test_is_by_the_busiest_cpu() -> None:
    client = Client(
        transport="wire", cpu_s=1.0, wall_s=2.0, clock_step_ms=0.0, late_bodies=0, backlog_bytes=0,
        busiest_cpu_s=0.5,
    )  # fmt: skip
    assert measure_headroom(run(client=client)) == {"headroom": 4.0, "headroom_at_least": False}


LIMIT = LimitEstimate(value=40, low=36, high=44)
POWER = LimitEstimate(value=500, low=480, high=525)


def at(load: float, watts: float | None, **changes: Any) -> LimitRun:
    return limit_run(1, load, 100, 110, power_w=watts, **changes)


@loop_over(("runs", "watts"), TABLES["powers"])
def test_power_is_that_of_whole_runs_near_the_limit(runs: list[list[Any]], watts: float | None) -> None:
    measured = [at(load, power_w, **dict.fromkeys(flags, True)) for load, power_w, *flags in runs]
    found = estimate_power(measured, LIMIT)
    assert (None if found is None else found.value) == (None if watts is None else pytest.approx(watts))
    assert estimate_power(measured, LimitEstimate(value=None, low=36, high=44)) is None


def test_one_run_has_power_without_an_interval() -> None:
    power_w = estimate_power([at(40, 500)], LIMIT)
    assert power_w == LimitEstimate(value=500, low=None, high=None)
    assert divide_by_power(LIMIT, power_w) == LimitEstimate(value=80, low=None, high=None)


def test_the_interval_covers_the_truth() -> None:
    random, covered, times = np.random.default_rng(1), 0, 1000
    for _ in range(times):
        value = 40 * math.exp(random.normal(0, 0.02))
        limit = LimitEstimate(value=value, low=value * math.exp(-0.0392), high=value * math.exp(0.0392))
        power_w = estimate_power([at(value, 500 * math.exp(random.normal(0, 0.01))) for _ in range(4)], limit)
        made = divide_by_power(limit, power_w or POWER)
        covered += made is not None and (made.low or 99) <= 80 <= (made.high or 0)
    assert 0.93 <= covered / times <= 0.99


def test_a_searchs_answer_has_the_limit_per_kilowatt() -> None:
    goal = Objective("tps_user", 10, 30)
    runs, trials = [], []
    for load, over in ((36, 0), (38, 0), (39, 0), (40, 0), (41, 1200), (42, 1200), (44, 1200)):
        runs.append(speed_run(load, load, 35, 31 if over == 0 else 25).model_copy(update={"power_w": 400.0}))
        (figures,) = runs[-1].objectives
        evidence = ObjectiveEvidence(
            goal, figures.samples, over, 35, figures.bound, ((120, over // 10),) * 10
        )
        trials.append(Trial(load, 60, 60, (evidence,), requests_per_s=load))
    answer = make_answer(Search("concurrency", (goal,), 1, 1, 1024, trials=tuple(trials)), runs)
    assert answer["limit"].value == 40
    assert [getattr(answer["power_w"], end) for end in ("value", "low", "high")] == pytest.approx([400.0] * 3)
    assert answer["per_kw"].value == pytest.approx(100)
    assert answer["per_kw"].low == pytest.approx(100 * answer["limit"].low / 40)

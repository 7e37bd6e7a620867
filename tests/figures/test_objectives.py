"""Objectives as they are written: what is read, and what is refused in which words."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.figures.objectives import (
    PUBLISHED,
    Objective,
    ObjectiveEvidence,
    find_goodput_limits,
    parse_objectives,
)

TTFT = Objective("ttft", 99.0, 500.0)


@loop_over(
    ("text", "objectives"),
    [
        ("", ()),
        ("ttft p99 < 500ms", (TTFT,)),
        (" TTFT  P99<=0.5s ", (TTFT,)),
        ("tpot p95 < 50000 us", (Objective("tpot", 95.0, 50.0),)),
        ("itl p99.9 < 20ms, e2el median < 9s", (Objective("itl", 99.9, 20), Objective("e2el", 50, 9000))),
        ("ttft p50 < 100ms, ttft p99 < 500ms", (Objective("ttft", 50, 100), TTFT)),
        ("mlperf/llama3.1-8b", (Objective("ttft", 99, 2000), Objective("tpot", 99, 100))),
        ("mlperf/qwen3-vl, ttft p99 < 500ms", (Objective("e2el", 99, 12_000), TTFT)),
    ],
)
def test_objectives_are_read_from_clauses_and_names(text: str, objectives: tuple[Objective, ...]) -> None:
    assert parse_objectives(text) == objectives


@pytest.mark.parametrize(
    "text", ["e2el p99 < 1000s", "e2el p99 < 1234.5678ms", "ttft p99.99999 < 1e9s", "tpot p50 < 1e-3ms"]
)
def test_an_objective_reads_as_it_prints(text: str) -> None:
    (objective,) = parse_objectives(text)
    assert parse_objectives(str(objective)) == (objective,)


@loop_over("name", sorted(PUBLISHED))
def test_a_published_set_reads_as_it_prints(name: str) -> None:
    objectives = parse_objectives(name)
    assert parse_objectives(", ".join(map(str, objectives))) == objectives


@loop_over(
    ("text", "said"),
    [
        ("ttft", "not an objective: write it as 'ttft p90 < 500ms'"),
        ("ttft p99 < 500ms,", "not an objective"),
        ("ttft < 500ms", "not an objective"),
        ("ttft p99 > 500ms", "not an objective"),
        ("tftt p99 < 500ms", "unknown figure 'tftt', did you mean 'ttft'?"),
        ("speed p99 < 500ms", "unknown figure 'speed': choose from ttft, tpot, itl, e2el,"),
        ("user_tps p99 < 500ms", "user_tps is a speed, not a latency: use tpot or ttft"),
        ("ttft mean < 500ms", "a mean has no bound"),
        ("ttft q99 < 500ms", "'q99' is not a percentile"),
        ("ttft p100 < 500ms", "must lie between 0 and 100"),
        ("ttft p0 < 500ms", "must lie between 0 and 100"),
        ("ttft p99 < 500", "the limit has no unit: write us, ms or s"),
        ("ttft p99 < 500 sec", "unknown unit 'sec'"),
        ("ttft p99 < 5.0.0ms", "'5.0.0' is not a number"),
        ("ttft p99 < 0ms", "the limit must be above 0"),
        ("ttft p99 < 1e300s", "the limit must be above 0 and at most 1e\\+09 s"),
        ("ttft p99 < 500ms, ttft p99 < 400ms", "are of the same percentile"),
        ("ttft p99 < 500ms, ttft p50 < 600ms", "ttft p50 < 600 ms follows from ttft p99 < 500 ms"),
        ("mlperf", "no such set; those of MLPerf Inference: mlperf/llama2-70b"),
        ("mlperf/lama3.1-8b", "did you mean 'mlperf/llama3.1-8b'?"),
        ("p99 ttft < 500ms", "the latency comes before its percentile: write 'ttft p99 < 500ms'"),
        ("Median TPOT<=50 ms", "the latency comes before its percentile: write 'TPOT Median < 50ms'"),
        ("p99.9 e2el < 2s", "the latency comes before its percentile: write 'e2el p99.9 < 2s'"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_objectives(text)


def test_a_request_is_held_to_the_limit_of_the_highest_percentile() -> None:
    objectives = parse_objectives("ttft p99 < 500ms, ttft p50 < 100ms, itl p99 < 20ms, e2el p90 < 9s")
    assert find_goodput_limits(objectives) == {"ttft": 500.0, "e2el": 9000.0}


@loop_over(
    ("bound_ms", "lower_ms", "standing"),
    [
        (500.0, 400.0, "meets"),
        (501.0, 499.0, "not shown"),
        (501.0, 500.0, "not shown"),
        (600.0, 500.5, "fails"),
        (None, None, "not shown"),
        (None, 501.0, "fails"),
    ],
)
def test_an_objective_stands_by_its_bounds(
    bound_ms: float | None, lower_ms: float | None, standing: str
) -> None:
    evidence = ObjectiveEvidence(TTFT, 1000, 1, 450.0, bound_ms, (), lower_ms)
    assert (evidence.standing, evidence.passes) == (standing, standing == "meets")

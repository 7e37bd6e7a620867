"""Objectives as they are written: what is read, and what is refused in which words."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.figures.objectives import (
    PUBLISHED,
    Objective,
    ObjectiveEvidence,
    encode_evidence,
    find_goodput_limits,
    parse_objectives,
)

TTFT, SPEED = Objective("ttft", 99.0, 500.0), Objective("tps_user", 10.0, 30.0)


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
        ("tps_user p10 > 30", (SPEED,)),
        ("TPS_user P10>=30 tok/s", (SPEED,)),
        ("tps_user p10 > 30 tokens/s, tps_user median > 60", (SPEED, Objective("tps_user", 50, 60))),
        ("prefill_speed p1 > 1e3 tps, ttft p99 < 500ms", (Objective("prefill_speed", 1, 1000), TTFT)),
        ("agentperf/gpt-oss-120b-4", (Objective("tps_user", 25, 2000), Objective("ttft", 95, 1000))),
    ],
)
def test_objectives_are_read_from_clauses_and_names(text: str, objectives: tuple[Objective, ...]) -> None:
    assert parse_objectives(text) == objectives


@pytest.mark.parametrize(
    "text",
    [
        "e2el p99 < 1000s",
        "e2el p99 < 1234.5678ms",
        "ttft p99.99999 < 1e9s",
        "tpot p50 < 1e-3ms",
        "tps_user p10 > 30",
        "tps_user p0.1 > 1e9",
        "prefill_speed p50 > 0.001",
    ],
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
        ("ttft p99 > 500ms", "ttft is a latency, which has no floor: write 'ttft p99 < …', or a floor of a"),
        ("ttft p99 = 500ms", "not an objective: write it as 'ttft p90 < 500ms' or 'tps_user p10 > 30'"),
        ("tftt p99 < 500ms", "unknown figure 'tftt', did you mean 'ttft'?"),
        ("speed p99 < 500ms", "unknown figure 'speed': choose from ttft, tpot, itl, e2el,"),
        ("tps_user p10 < 30", "a higher one is better: write 'tps_user p10 > 30' for 90 % of the requests"),
        ("tps_user p10 > 30ms", "tps_user is in tokens per second: leave out 'ms'"),
        (
            "tps_user p90 > 30",
            "the fast tail, which 10 % of the requests reach: write 'tps_user p10 > 30' to ask",
        ),
        ("tps_user p0 > 30", "must lie between 0 and 100"),
        ("tps_user q10 > 30", "'q10' is not a percentile"),
        ("tps_user mean > 30", "a mean has no bound"),
        ("tps_user p10 > 0", "the floor must be above 0"),
        ("tps_user p10 > 1e400", "the floor must be above 0 and at most 1e\\+09 tok/s"),
        ("tps_user p10 > 3.0.0", "'3.0.0' is not a number"),
        ("tps_user > 30", "not an objective"),
        ("p10 tps_user > 30", "the figure comes before its percentile: write 'tps_user p10 > 30'"),
        ("tps p10 > 30", "unknown figure 'tps'"),
        ("tps_user p10 > 30, tps_user p10 > 20", "are of the same percentile"),
        ("tps_user p10 > 30, tps_user p50 > 20", "tps_user p50 > 20 tok/s follows from tps_user p10 > 30"),
        (
            "agentperf/deepseek",
            "no such set, did you mean|no such set; those of AA-AgentPerf: agentperf/deep",
        ),
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
        ("p99 ttft < 500ms", "the figure comes before its percentile: write 'ttft p99 < 500ms'"),
        ("Median TPOT<=50 ms", "the figure comes before its percentile: write 'TPOT Median < 50ms'"),
        ("p99.9 e2el < 2s", "the figure comes before its percentile: write 'e2el p99.9 < 2s'"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_objectives(text)


def test_a_request_is_held_to_the_limit_of_the_highest_percentile() -> None:
    objectives = parse_objectives("ttft p99 < 500ms, ttft p50 < 100ms, itl p99 < 20ms, e2el p90 < 9s")
    assert find_goodput_limits(objectives) == {"ttft": 500.0, "e2el": 9000.0}
    assert find_goodput_limits(parse_objectives("tps_user p50 > 60, tps_user p5 > 20")) == {"tps_user": 20.0}


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
def test_a_ceiling_stands_by_its_bounds(
    bound_ms: float | None, lower_ms: float | None, standing: str
) -> None:
    evidence = ObjectiveEvidence(TTFT, 1000, 1, 450.0, bound_ms, (), lower_ms)
    assert (evidence.standing, evidence.passes) == (standing, standing == "meets")


@loop_over(
    ("bound", "fast_bound", "standing"),
    [
        (30.0, 40.0, "meets"),
        (29.0, 31.0, "not shown"),
        (29.0, 30.0, "not shown"),
        (20.0, 29.9, "fails"),
        (None, None, "not shown"),
        (None, 29.0, "fails"),
    ],
)
def test_a_floor_stands_by_its_bounds(bound: float | None, fast_bound: float | None, standing: str) -> None:
    evidence = ObjectiveEvidence(SPEED, 1000, 1, 35.0, bound, (), fast_bound)
    assert (evidence.standing, evidence.passes) == (standing, standing == "meets")


@loop_over(
    ("objective", "most", "eased"),
    [
        (TTFT, 90, 90),
        (TTFT, 99.9, 99),
        (SPEED, 90, 10),
        (SPEED, 80, 20),
        (Objective("tps_user", 1, 9), 90, 10),
    ],
)
def test_an_objective_is_eased_towards_the_median(objective: Objective, most: float, eased: float) -> None:
    assert objective.ease(most).percentile == eased


@loop_over(("value", "times"), [(15.0, 2.0), (60.0, 0.5), (0.0, float("inf"))])
def test_half_a_floor_is_twice_too_slow(value: float, times: float) -> None:
    assert SPEED.measure_excess(value) == times


def test_the_numbers_in_json_carry_their_unit() -> None:
    floor, ceiling = (
        encode_evidence(ObjectiveEvidence(objective, 9, 2, 25.0, None, (), 28.0))
        for objective in (SPEED, TTFT)
    )
    assert floor["objective"] == {"metric": "tps_user", "percentile": 10.0, "limit_tok_s": 30.0}
    assert (floor["value_tok_s"], floor["bound_tok_s"], floor["upper_tok_s"]) == (25.0, None, 28.0)
    assert ceiling["objective"] == {"metric": "ttft", "percentile": 99.0, "limit_ms": 500.0}
    assert (ceiling["value_ms"], ceiling["bound_ms"], ceiling["lower_ms"]) == (25.0, None, 28.0)

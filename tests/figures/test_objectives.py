"""Objectives as they are written: what is read, and what is refused in which words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import astuple

from builders.loops import loop_over, read_tables
from builders.made_records import make_record
from builders.required import require
from loadgen.figures.objectives import (
    Objective,
    ObjectiveEvidence,
    encode_evidence,
    find_goodput_limits,
    judge_objectives,
    parse_objectives,
)
from loadgen.figures.per_request import MetricOptions
from loadgen.records.record import Record, Records
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("objectives")

K = FailureKind
TTFT, SPEED = Objective("ttft", 99.0, 500.0), Objective("tps_user", 10.0, 30.0)
MS = 1_000_000


@loop_over(("text", "objectives"), TABLES["read"])
def test_objectives_are_read_from_clauses_and_names(text: str, objectives: list[list[Any]]) -> None:
    assert [[*astuple(each)] for each in parse_objectives(text)] == objectives


def test_a_request_is_held_to_the_limit_of_the_highest_percentile() -> None:
    objectives = parse_objectives("ttft p99 < 500ms, ttft p50 < 100ms, itl p99 < 20ms, e2el p90 < 9s")
    assert find_goodput_limits(objectives) == {"ttft": 500.0, "e2el": 9000.0}
    assert find_goodput_limits(parse_objectives("tps_user p50 > 60, tps_user p5 > 20")) == {"tps_user": 20.0}


@loop_over(("objective", "bound", "other_bound", "standing"), TABLES["standings"])
def test_an_objective_stands_by_its_bounds(
    objective: list[Any], bound: float | None, other_bound: float | None, standing: str
) -> None:
    evidence = ObjectiveEvidence(Objective(*objective), 1000, 1, 450.0, bound, (), other_bound)
    assert (evidence.standing, evidence.passes) == (standing, standing == "meets")


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


def answer(index: int, at_ms: Sequence[float], failure: FailureKind | None = None, sent: int = -1) -> Record:
    """A request sent at `sent` seconds (its index where that is -1), with messages so long after."""
    sent_ns = (1 + index if sent < 0 else sent) * 1000 * MS
    return make_record(
        sent_ns, [sent_ns + int(at * MS) for at in at_ms], index, intended_ns=sent_ns - 5 * MS,
        end_ns=sent_ns + int(max(at_ms, default=0) * MS), planned_output=4, output_tokens=len(at_ms),
        failure=None if failure is None else Failure(failure),
    )  # fmt: skip


def evidence(slo: str, *records: Record) -> ObjectiveEvidence:
    (shown,) = judge_objectives(Records.from_records(records), parse_objectives(slo), MetricOptions())
    return shown


def mixed(n: int) -> list[int]:
    """The times of sending of n requests that have nothing to do with their order, in seconds."""
    return [int(at) for at in np.random.default_rng(5).permutation(n)]


def steadily(n: int, *failures: FailureKind) -> list[Record]:
    """So many answers whose TTFT is 1, 2, 3 … ms in a mixed order, then the failures."""
    good = [answer(index, [index + 1, index + 2], sent=sent) for index, sent in enumerate(mixed(n))]
    return [*good, *(answer(n + index, [], failure) for index, failure in enumerate(failures))]


@loop_over(("slo", "n", "over", "value_ms", "bound_ms"), TABLES["judged"])
def test_a_percentile_is_judged_with_its_bound(
    slo: str, n: int, over: int, value_ms: float, bound_ms: float | None
) -> None:
    shown = evidence(slo, *steadily(n))
    assert (shown.samples, shown.over, round(shown.value, 6)) == (n, over, value_ms)
    assert shown.bound == bound_ms


FAILED = answer(1, [], K.STALL)  # of three gaps that were planned


@loop_over(
    ("slo", "records", "samples", "over", "value", "bound", "standing"),
    [
        ("ttft p99 < 10s", steadily(700, K.TIMEOUT, K.HTTP_STATUS), 702, 2, 694.99, math.inf, "not shown"),
        ("ttft p99 < 10s", steadily(10, *[K.CONNECT] * 20), 30, 20, math.inf, None, "fails"),
        ("ttft p99 < 10s", steadily(5, K.CANCELLED, K.CANCELLED), 5, 0, 4.96, None, "not shown"),
        ("ttft p99 < 10s", steadily(5, K.LOST, K.LOST), 5, 0, 4.96, None, "not shown"),
        ("tpot p50 < 10ms", [answer(0, [5]), answer(1, [5, 8])], 1, 0, 3.0, None, "not shown"),  # one token
        ("itl p50 < 43ms", [answer(0, [1, 2, 3, 4]), FAILED], 6, 3, math.inf, None, "not shown"),
    ],
)
def test_a_failed_request_is_above_any_limit_and_one_of_ours_no_sample(
    slo: str, records: list[Record], samples: int, over: int, value: float, bound: float | None, standing: str
) -> None:
    shown = evidence(slo, *records)
    assert (shown.samples, shown.over, shown.bound, shown.standing) == (samples, over, bound, standing)
    assert shown.value == pytest.approx(value)


def test_requests_that_queue_are_worth_few() -> None:
    # Waits that rise to 100 ms and fall again, ten times: what is seen of the tail are ten waves.
    waits = [answer(n, [abs(n % 100 - 50) + 1, 200]) for n in range(1000)]
    shown = evidence("ttft p90 < 51ms", *waits)
    assert (shown.samples, shown.over, shown.bound, shown.standing) == (1000, 0, None, "not shown")
    assert shown.independent is not None
    assert shown.independent < 44
    mixed_up = [answer(n, [abs(n % 100 - 50) + 1, 200], sent=sent) for n, sent in enumerate(mixed(1000))]
    shown = evidence("ttft p90 < 51ms", *mixed_up)
    assert (shown.bound, shown.independent, shown.standing) == (47.0, 1000, "meets")


def test_gaps_are_samples_and_requests_the_observations() -> None:
    # 44 requests with gaps of 1, 2, … 44 ms, three each: the bound is of the greatest request's.
    records = [answer(n, [1, 2 + n, 3 + 2 * n, 4 + 3 * n], sent=sent) for n, sent in enumerate(mixed(44))]
    shown = evidence("itl p90 < 43ms", *records)
    assert (shown.samples, shown.over, shown.bound, shown.independent) == (132, 3, 44.0, 44)
    assert evidence("itl p90 < 43ms", *records[:43]).bound is None


def test_batches_are_parts_of_the_run_by_time_of_sending() -> None:
    # The first half is sent last, and is above the limit.
    records = [answer(n, [100 if n < 100 else 5], sent=1000 - n) for n in range(200)]
    shown = evidence("ttft p99 < 50ms", *records)
    assert shown.batches == ((10, 0),) * 10 + ((10, 10),) * 10
    assert evidence("ttft p99 < 50ms", *records[:25]).batches == ((13, 13), (12, 12))
    assert evidence("ttft p99 < 50ms", *records[99:108]).batches == ((9, 1),)
    assert evidence("ttft p99 < 50ms", *records[80:105]).batches == ((13, 8), (12, 12))
    assert sum(n for n, _ in evidence("ttft p99 < 50ms", *steadily(1003)).batches) == 1003


@loop_over(("percentile", "dispersed"), [(50, True), (80, False), (90, False), (99, False)])
def test_waits_of_a_median_are_dispersed_as_half_of_them_are(percentile: int, dispersed: bool) -> None:
    # Waits are 1 ms, and 2 ms late in the run; one of each ten lasts longer, all the time.
    waits = [9 if n % 10 == 4 else 1 + (n >= 120) for n in range(200)]
    shown = evidence(f"ttft p{percentile} < 9s", *(answer(n, [wait]) for n, wait in enumerate(waits)))
    assert (shown.dispersion > 2) is dispersed


def test_token_time_shares_a_gap_by_its_tokens() -> None:
    record = answer(0, [10, 40])
    record.tokens = np.array([1, 3], np.int64)
    shown = evidence("token_time p50 < 9ms", record)
    assert (shown.samples, shown.over, shown.value) == (3, 3, 10.0)


def at_speed(index: int, gap_ms: float, sent: int = -1) -> Record:
    """Three tokens, two of them after the first chunk, `gap_ms` apart."""
    return answer(index, [10, 10 + gap_ms, 10 + 2 * gap_ms], sent=sent)


@loop_over(
    ("slo", "over", "value", "bound"),
    [
        ("tps_user p10 > 21", 3, 100 / 46 + 900 / 45, 1000 / 50),
        ("tps_user p10 > 20", 0, 100 / 46 + 900 / 45, 1000 / 50),
        ("tps_user p50 > 40", 25, 500 / 26 + 500 / 25, 1000 / 35),
    ],
)
def test_a_floor_is_judged_by_the_slow_tail(slo: str, over: int, value: float, bound: float) -> None:
    # Gaps of 1 to 50 ms, so speeds of 20 to 1,000 tokens per second.
    records = [at_speed(index, index + 1, sent) for index, sent in enumerate(mixed(50))]
    shown = evidence(slo, *records)
    assert (shown.samples, shown.over, shown.bound) == (50, over, bound)
    assert shown.value == pytest.approx(value)
    assert bound < shown.value < require(shown.fast_bound)


def test_a_failed_request_has_no_speed_at_all() -> None:
    sent = mixed(400)
    failed = [answer(200 + index, [], FailureKind.TIMEOUT, sent[200 + index]) for index in range(200)]
    shown = evidence("tps_user p10 > 8", *(at_speed(index, 1, sent[index]) for index in range(200)), *failed)
    assert (shown.samples, shown.over, shown.value, shown.bound, shown.standing) == (400, 200, 0, 0, "fails")
    assert not str(shown.value).startswith("-")


def test_the_first_message_counts_for_no_speed() -> None:
    record = answer(0, [10, 20, 30])
    record.tokens, record.output_tokens = np.array([4, 1, 1], np.int64), 6
    assert evidence("tps_user p50 > 8", record).value == 100.0  # two tokens in 20 ms
    single = answer(1, [10])
    single.tokens, single.output_tokens = np.array([4], np.int64), 4
    assert evidence("tps_user p50 > 8", single).samples == 0

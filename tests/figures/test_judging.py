"""What the requests of a run show of its objectives: which samples count, bounds, and parts of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.figures.objectives import ObjectiveEvidence, judge_objectives, parse_objectives
from loadgen.figures.per_request import MetricOptions
from loadgen.records.record import Record, Records
from loadgen.transport.failure import Failure, FailureKind

MS = 1_000_000


def answer(index: int, at_ms: Sequence[float], failure: FailureKind | None = None, sent: int = -1) -> Record:
    """A request sent at `sent` seconds (its index where that is -1), with messages so long after."""
    sent_ns = (1 + index if sent < 0 else sent) * 1000 * MS
    return Record(
        index,
        0,
        sent_ns - 5 * MS,
        sent_ns,
        sent_ns + int(max(at_ms, default=0) * MS),
        arrival_ns=sent_ns + np.array([at * MS for at in at_ms], np.int64),
        tokens=np.ones(len(at_ms), np.int64),
        planned_output=4,
        output_tokens=len(at_ms),
        failure=None if failure is None else Failure(failure),
    )


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


@loop_over(
    ("slo", "n", "over", "value_ms", "bound_ms"),
    [
        ("ttft p99 < 700ms", 700, 0, 693.01, 700.0),
        ("ttft p99 < 500ms", 459, 0, 454.42, 459.0),
        ("ttft p99 < 458ms", 459, 1, 454.42, 459.0),
        ("ttft p99 < 458ms", 458, 0, 453.43, None),
        ("ttft p50 < 3ms", 5, 2, 3.0, None),
        ("tpot p90 < 1ms", 44, 0, 1.0, 1.0),
        ("e2el p90 < 1ms", 44, 44, 40.7, 45.0),
        ("e2el_including_client_queue p90 < 9ms", 44, 41, 45.7, 50.0),
        ("client_queue_time p90 < 4ms", 44, 44, 5.0, 5.0),
    ],
)
def test_a_percentile_is_judged_with_its_bound(
    slo: str, n: int, over: int, value_ms: float, bound_ms: float | None
) -> None:
    shown = evidence(slo, *steadily(n))
    assert (shown.samples, shown.over, round(shown.value, 6)) == (n, over, value_ms)
    assert shown.bound == bound_ms


def test_a_failed_request_is_above_any_limit() -> None:
    shown = evidence("ttft p99 < 10s", *steadily(700, FailureKind.TIMEOUT, FailureKind.HTTP_STATUS))
    assert (shown.samples, shown.over, shown.bound) == (702, 2, math.inf)
    assert shown.standing == "not shown"


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


def test_a_run_of_failures_surely_misses() -> None:
    shown = evidence("ttft p99 < 10s", *steadily(10, *[FailureKind.CONNECT] * 20))
    assert (shown.value, shown.fast_bound, shown.standing) == (math.inf, math.inf, "fails")


@pytest.mark.parametrize("kind", [FailureKind.CANCELLED, FailureKind.LOST])
def test_what_the_client_ended_or_lost_is_no_sample(kind: FailureKind) -> None:
    assert evidence("ttft p99 < 10s", *steadily(5, kind, kind)).samples == 5


def test_an_answer_of_one_token_has_no_tpot() -> None:
    shown = evidence("tpot p50 < 10ms", answer(0, [5]), answer(1, [5, 8]))
    assert (shown.samples, shown.over, shown.value) == (1, 0, 3.0)


def test_gaps_are_samples_and_requests_the_observations() -> None:
    # 44 requests with gaps of 1, 2, … 44 ms, three each: the bound is of the greatest request's.
    records = [answer(n, [1, 2 + n, 3 + 2 * n, 4 + 3 * n], sent=sent) for n, sent in enumerate(mixed(44))]
    shown = evidence("itl p90 < 43ms", *records)
    assert (shown.samples, shown.over, shown.bound, shown.independent) == (132, 3, 44.0, 44)
    assert evidence("itl p90 < 43ms", *records[:43]).bound is None


def test_a_failed_request_misses_the_gaps_that_were_planned() -> None:
    shown = evidence("itl p50 < 43ms", answer(0, [1, 2, 3, 4]), answer(1, [], FailureKind.STALL))
    assert (shown.samples, shown.over) == (6, 3)


def test_batches_are_parts_of_the_run_by_time_of_sending() -> None:
    # The first half is sent last, and is above the limit.
    records = [answer(n, [100 if n < 100 else 5], sent=1000 - n) for n in range(200)]
    shown = evidence("ttft p99 < 50ms", *records)
    assert shown.batches == ((10, 0),) * 10 + ((10, 10),) * 10
    assert evidence("ttft p99 < 50ms", *records[:25]).batches == ((13, 13), (12, 12))
    assert sum(n for n, _ in evidence("ttft p99 < 50ms", *steadily(1003)).batches) == 1003


def test_nothing_shows_nothing() -> None:
    shown = evidence("itl p99 < 50ms", answer(0, [], FailureKind.CANCELLED))
    assert (shown.samples, shown.over, shown.bound, shown.batches) == (0, 0, None, ())
    assert math.isnan(shown.value)


def test_token_time_shares_a_gap_by_its_tokens() -> None:
    record = answer(0, [10, 40])
    record.tokens = np.array([1, 3], np.int64)
    shown = evidence("token_time p50 < 9ms", record)
    assert (shown.samples, shown.over, shown.value) == (3, 3, 10.0)


def at_speed(index: int, gap_ms: float, sent: int = -1) -> Record:
    """Three tokens, two of them after the first message, `gap_ms` apart."""
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
    assert shown.fast_bound is not None
    assert bound < shown.value < shown.fast_bound


def test_a_floor_is_the_mirrored_ceiling() -> None:
    records = [at_speed(index, index + 1, sent) for index, sent in enumerate(mixed(200))]
    floor, ceiling = evidence("tps_user p10 > 8", *records), evidence("tpot p90 < 125ms", *records)
    assert floor.bound is not None
    assert ceiling.bound is not None
    assert floor.fast_bound is not None
    assert ceiling.fast_bound is not None
    assert (1000 / floor.bound, 1000 / floor.fast_bound) == pytest.approx((ceiling.bound, ceiling.fast_bound))
    assert (floor.samples, floor.over, floor.batches, floor.dispersion, floor.standing) == (
        ceiling.samples, ceiling.over, ceiling.batches, ceiling.dispersion, ceiling.standing
    )  # fmt: skip


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

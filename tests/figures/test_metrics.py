""""""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from builders.made_records import make_record
from loadgen.base.arrays import Int64
from loadgen.figures.distribution import Distribution, RateDistribution
from loadgen.figures.figure_table import (
    FIGURES,
    LATENCY,
    SELECTABLE,
    SPEED,
    Figure,
    find_figure,
    parse_metrics,
    parse_percentiles,
)
from loadgen.figures.metrics import Metrics, compute_metrics, peak_concurrency, peak_tokens
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.records.record import Record, Records
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("metrics")

MS = 1_000_000


def answer(
    index: int = 0, sent_ms: int = 1000, at_ms: Sequence[int] = (), tokens: Sequence[int] = (), **more: object
) -> Record:
    """A successful request; its messages come `at_ms` after it was sent, one token each unless told."""
    carried = np.array(tokens or [1] * len(at_ms), np.int64)
    ended_ns = (sent_ms + max(at_ms, default=0)) * MS
    usual = {"end_ns": ended_ns, "input_tokens": 10, "output_tokens": int(carried.sum()), "usage": True}
    arrival_ns = [(sent_ms + at) * MS for at in at_ms]
    return make_record(sent_ms * MS, arrival_ns, index, tokens=carried, **(usual | more))


def measured(*records: Record, **ask: object) -> Metrics:
    return compute_metrics(Records.from_records(records), MetricOptions(**ask))  # type: ignore[arg-type]


def test_latencies_of_two_requests_are_the_ones_worked_out_by_hand() -> None:
    run = measured(
        answer(0, 1000, [100, 110, 130], end_ns=1140 * MS),
        answer(1, 1100, [200, 240], end_ns=1350 * MS),
        metric_percentiles=(50.0, 75.0),
    )
    assert (run.ttft.mean_ms, run.ttft.std_ms, run.ttft.n) == (150.0, 50.0, 2)
    assert (run.tpot.min_ms, run.tpot.max_ms) == (15.0, 40.0)
    assert (run.itl.n, run.itl.median_ms, run.itl.max_ms) == (3, 20.0, 40.0)
    assert run.itl.percentiles_ms == {50.0: 20.0, 75.0: 30.0}
    assert (run.e2el.min_ms, run.e2el.max_ms) == (130.0, 240.0)
    assert run.token_time == run.itl


def test_rates_are_over_first_sent_to_last_end() -> None:
    run = measured(
        answer(0, 1000, [500, 1000]),
        answer(1, 2000, [500, 1000], end_ns=3000 * MS, input_tokens=30),
        answer(2, 4000, [], failure=Failure(FailureKind.TIMEOUT), end_ns=5000 * MS),
        answer(3, 0, [], failure=Failure(FailureKind.CONNECT), end_ns=9000 * MS),
    )
    assert (run.requests, run.completed, run.failed, run.duration_s) == (4, 2, 2, 4.0)
    assert (run.total_input_tokens, run.total_output_tokens) == (40, 4)
    assert (run.request_throughput_per_s, run.output_throughput_per_s) == (0.5, 1.0)
    assert run.total_throughput_per_s == 11.0
    assert run.mean_concurrency == 0.75


@loop_over(
    ("at_ms", "tokens", "gaps_ms", "times_ms"),
    [
        ([100, 130, 140], [2, 3, 1], [30, 10], [10] * 4),
        ([100, 130, 190], [1, 3, 1], [30, 60], [10, 10, 10, 60]),
        ([100, 130, 150], [1, 0, 1], [30, 20], [20]),
    ],
)
def test_time_per_token_weighs_each_gap_by_its_tokens(
    at_ms: list[int], tokens: list[int], gaps_ms: list[int], times_ms: list[int]
) -> None:
    run = measured(answer(at_ms=at_ms, tokens=tokens))
    for found, of_ms in ((run.itl, gaps_ms), (run.token_time, times_ms)):
        assert (found.n, found.mean_ms, found.max_ms) == (
            len(of_ms),
            float(np.mean(of_ms)),
            float(max(of_ms)),
        )
        assert (found.median_ms, found.std_ms) == pytest.approx((np.median(of_ms), np.std(of_ms)))
    assert run.tpot.mean_ms == (at_ms[-1] - at_ms[0]) / (sum(tokens) - 1)
    assert run.total_output_tokens == sum(tokens)


def test_no_gap_reaches_from_one_request_to_another_nor_into_a_failed_one() -> None:
    run = measured(
        answer(0, 1000, [10, 12]),
        answer(1, 1000, []),
        answer(2, 1000, [10, 500], failure=Failure(FailureKind.TRUNCATED)),
        answer(3, 9000, [10, 14, 18]),
    )
    assert (run.itl.n, run.itl.max_ms) == (3, 4.0)
    assert run.total_output_tokens == 5


def test_an_answer_of_one_token_has_no_tpot_but_meets_its_objective() -> None:
    run = measured(answer(at_ms=[100]), goodput_limits={"tpot": 1.0, "tps_user": 1000.0})
    assert (run.tpot.n, run.itl.n, run.ttft.n) == (0, 0, 1)
    assert math.isnan(run.tpot.mean_ms)
    assert math.isnan(run.tpot.percentiles_ms[99.0])
    assert run.good == 1


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([], id="no requests"),
        pytest.param([answer(0, 0, [], failure=Failure(FailureKind.CONNECT))]),
    ],
)
def test_nothing_sent_is_no_duration(records: list[Record]) -> None:
    run = measured(*records, goodput_limits={"e2el": 5.0})
    assert (run.duration_s, run.request_throughput_per_s, run.peak_concurrency) == (0.0, 0.0, 0)
    assert (run.goodput_per_s, run.slo_attainment) == (0.0, 0.0)


@loop_over(("slo_ms", "good"), TABLES["goodput"])
def test_goodput_counts_what_meets_every_objective_exactly_or_better(
    slo_ms: dict[str, float], good: int
) -> None:
    run = measured(
        answer(0, 1000, [100, 110, 120]),
        answer(1, 1000, [200, 220], end_ns=2000 * MS),
        answer(2, 1000, [1], failure=Failure(FailureKind.ABORTED)),
        answer(3, 1000, [1], failure=Failure(FailureKind.ABORTED)),
        goodput_limits=slo_ms,
    )
    assert (run.good, run.goodput_per_s, run.slo_attainment) == (good, float(good), good / 4)


def test_token_counts_say_where_they_come_from() -> None:
    uncounted = {"input_tokens": -1, "output_tokens": -1, "usage": False, "exact_tokens": False}
    run = measured(
        answer(0, at_ms=[1, 2], input_tokens=12),
        answer(2, at_ms=[1, 2], tokens=[1, 3], planned_input=9, **uncounted),
    )
    assert (run.total_input_tokens, run.planned_inputs, run.unknown_inputs) == (21, 1, 0)
    assert (run.total_output_tokens, run.counted_by_usage, run.exact_tokens) == (6, 1, 1)
    unplanned = measured(answer(0, at_ms=[1], input_tokens=-1))
    assert (unplanned.total_input_tokens, unplanned.planned_inputs, unplanned.unknown_inputs) == (0, 0, 1)


def test_failures_are_tallied_by_kind_with_what_the_first_said() -> None:
    run = measured(
        answer(0, failure=Failure(FailureKind.STALL, "late")),
        answer(1, failure=Failure(FailureKind.HTTP_STATUS, "429 slow down")),
        answer(2, failure=Failure(FailureKind.HTTP_STATUS, "500")),
    )
    assert [(kind, tally.count, tally.detail) for kind, tally in run.failures.items()] == [
        ("http-status", 2, "429 slow down"),
        ("stall", 1, "late"),
    ]


@pytest.mark.parametrize("kind", [FailureKind.CANCELLED, FailureKind.LOST])
def test_what_this_side_ended_is_neither_a_failure_nor_a_missed_objective(kind: FailureKind) -> None:
    run = measured(
        answer(0, at_ms=[10]),
        answer(1, at_ms=[10], failure=Failure(FailureKind.TIMEOUT)),
        answer(2, at_ms=[10], failure=Failure(kind)),
        answer(3, at_ms=[10], failure=Failure(FailureKind.USER_CANCELLED)),
        goodput_limits={"ttft": 20.0},
    )
    assert (run.requests, run.completed, run.failed, run.cut_off, run.cancelled) == (4, 1, 1, 1, 1)
    assert run.slo_attainment == 1 / 2
    assert {kind: tally.count for kind, tally in run.failures.items()} == {"timeout": 1, kind.value: 1}


def test_client_health_adds_up_every_request() -> None:
    health = measured(
        answer(0, at_ms=[1, 2, 3, 4], shared_reads=1, reads=4, lag_sum_ns=6 * MS, lag_max_ns=4 * MS),
        answer(1, reads=2, unstamped_reads=3, lag_max_ns=2 * MS, resends=1, connect_ns=5),
    ).health
    assert (health.messages, health.shared_reads, health.shared_share) == (4, 1, 0.25)
    assert (health.reads, health.unstamped_reads, health.resends, health.connects) == (6, 3, 1, 1)
    assert (health.lag_mean_ms, health.lag_max_ms) == (2.0, 4.0)


@loop_over(
    ("answers", "excess"),
    [
        ([[1, 2, 3, 4]], 0.0),
        ([[1, 2, 4, 4]], 1 - 1.0 / (1 + 0.98)),  # 1 2 0 were 1 1 1
        ([[1, 4, 4, 4], [5, 6]], 1 - 1.0 / (1 + 2 * 0.97)),  # 3 0 0 were 1 1 1, beside 1
        ([[3, 3, 4], [9, 9, 9, 10]], 0.0),  # with a first one: its wait is TTFT
        ([[5], [5, 5]], 0.0),
        ([[]], 0.0),
    ],
)
def test_coalesced_messages_spread_over_the_wait_bound_the_p99_itl(
    answers: list[list[int]], excess: float
) -> None:
    rows = [answer(i, at_ms=at_ms, shared_reads=1) for i, at_ms in enumerate(answers)]
    assert measured(*rows).health.p99_gap_excess == pytest.approx(excess, abs=1e-12)


def test_a_run_shorter_than_a_second_peaks_at_its_average() -> None:
    run = measured(answer(0, 1000, [100, 200]), answer(1, 1000, [150, 250]))
    assert (run.duration_s, run.peak_output_throughput_per_s, run.output_throughput_per_s) == (0.25, 16, 16)


@loop_over("count", [1, 40, 64, 65, 1000])
@loop_over("seed", range(20))
def test_peak_tokens_is_that_of_every_window_tried_by_hand(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    arrival_ns, tokens = rng.integers(0, 60, count), rng.integers(1, 5, count)
    window_ns = int(rng.integers(1, 30))
    inside = [
        int(tokens[(arrival_ns > edge - window_ns) & (arrival_ns <= edge)].sum())
        for edge in range(-1, 61 + window_ns)
    ]
    assert peak_tokens(arrival_ns, tokens, window_ns) == max(inside)


@pytest.mark.parametrize(
    ("spans", "peak"),
    [
        pytest.param([(0, 3), (3, 6), (6, 9)], 1, id="three in a row inside one second"),
        pytest.param([(0, 5), (1, 3), (2, 4), (4, 6)], 3, id="overlapping"),
        pytest.param([(2, 9), (2, 9), (2, 3)], 3, id="started together"),
        pytest.param([], 0, id="none"),
    ],
)
def test_peak_concurrency_is_exact(spans: list[tuple[int, int]], peak: int) -> None:
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    assert peak_concurrency(starts, ends) == peak


def test_percentiles_and_metrics_are_read_in_order_and_once() -> None:
    assert parse_percentiles("50,90, 99.9,90") == (50.0, 90.0, 99.9)
    assert parse_metrics("e2el, ttft,e2el") == ("e2el", "ttft")


def test_every_distribution_of_the_metrics_is_a_row_of_the_table() -> None:
    named = {figure.field: figure.kind for figure in FIGURES if figure.kind in (LATENCY, SPEED)}
    kinds = {"Distribution": LATENCY, "RateDistribution": SPEED}
    types = Metrics.__annotations__.items()
    assert named == {field: kinds[kind] for field, kind in types if kind in kinds}
    assert {figure.field for figure in FIGURES} <= set(Metrics.__struct_fields__)


def test_each_row_is_of_its_own_key_and_names_rows_that_there_are() -> None:
    keys = [figure.key for figure in FIGURES]
    assert len(set(keys)) == len(keys)
    for figure in FIGURES:
        assert {figure.same_as, figure.compared} <= {"", *keys}, figure.key
        assert not figure.compared or SELECTABLE[figure.compared].compared == figure.compared
    assert [figure.key for figure in SELECTABLE.values() if not figure.title] == []


@pytest.mark.parametrize(("key", "expected"), TABLES["keys"])
def test_a_key_of_a_result_leads_to_its_figure(key: str, expected: str | None) -> None:
    found = find_figure(key)
    assert (found.key if found else None) == expected


def _records() -> Records:
    """Two requests: of three tokens, and of one."""
    rows = [
        Record(0, 0, 90, 100, 700, arrival_ns=_ns(300, 500, 700), tokens=_ns(1, 1, 1), input_tokens=8),
        Record(1, 0, 800, 900, 950, arrival_ns=_ns(950), tokens=_ns(1), visible_ns=950),
    ]
    for row in rows:
        row.output_tokens = len(row.tokens)
    return Records.from_records(rows)


def _ns(*values: int) -> Int64:
    return np.array(values, np.int64)


@pytest.mark.parametrize("figure", SELECTABLE.values(), ids=SELECTABLE)
def test_samples_are_those_that_the_metrics_have(figure: Figure) -> None:
    records, ask = _records(), MetricOptions()
    values, has = figure.samples(PerRequest.from_records(records, ask))
    found: Distribution | RateDistribution = getattr(compute_metrics(records, ask), figure.field)
    assert values.shape == has.shape == (len(records),)
    if figure.of == "requests":
        assert found.n == has.sum()
        mean = figure.words_of({name: getattr(found, name) for name in found.__struct_fields__})["mean"]
        scale = 1e6 if figure.kind == LATENCY else 1
        assert mean == pytest.approx(values[has].mean() / scale)
    else:
        assert not has.any()

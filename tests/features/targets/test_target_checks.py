"""Several servers that share a load: the figures of each, and when one is called unlike the others."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.made_cases import OUTPUT, REQUESTS, TARGETS, TPOT_MS, TTFT_MS, Rows, changed, closed, run
from loadgen.base.tables import render_text_table
from loadgen.features.targets import target_figures
from loadgen.features.targets.target_checks import number_targets, targets_unequal
from loadgen.report.run_directory import Result
from loadgen.transport.failure import Failure, FailureKind

RESET = Failure(FailureKind.TRUNCATED, "cut")


def of_target(number: int, **fields: object) -> Rows:
    """A clean run with these fields on every request of one of two targets."""
    return [replace(row, **fields) if row.slot % 2 == number else row for row in closed()]


def failing(first: int, second: int) -> Rows:
    """A run in which so many requests of each target failed."""
    left, rows = [first, second], []
    for row in closed():
        fails = left[row.slot % 2] > 0
        left[row.slot % 2] -= fails
        rows.append(replace(row, failure=RESET) if fails else row)
    return rows


def noisy(seed: int) -> Rows:
    """Two equal servers, whose TTFT varies as much as its mean."""
    draw = np.random.default_rng(seed)
    ttft = draw.exponential(TTFT_MS, REQUESTS)
    return closed(ttft_ms=lambda index: float(ttft[index]))


SLOWER = closed(slower_ms=lambda slot: 30.0 * (slot % 2))
LONGER = [replace(row, input_tokens=row.input_tokens + 50 * (row.slot % 2)) for row in SLOWER]


@loop_over(
    ("rows", "words"),
    [
        (closed(), None),
        (closed(slower_ms=lambda slot: 12.0 * (slot % 2)), None),  # less than a quarter
        (closed(slower_ms=lambda slot: 14.0 * (slot % 2)), "median TTFT of http://b:8000 is 64 ms"),
        (closed(slower_ms=lambda slot: 14.0 * (slot % 2 == 0)), "median TTFT of http://a:8000 is 64 ms"),
        (LONGER, None),  # its prompts explain it
        (closed(ttft_ms=lambda i: 2.0, slower_ms=lambda slot: 4.0 * (slot % 2)), None),  # of 4 ms
        (failing(0, 8), None),  # by chance in 1 of 128 runs
        (failing(0, 14), "14 of 160 requests to http://b:8000 failed, 0 of all others"),
        (failing(20, 20), None),
        (changed(closed(), failure=RESET), None),
    ],
)
def test_a_target_is_unlike_the_others_only_for_a_reason(rows: Rows, words: str | None) -> None:
    found = targets_unequal.find(run(rows, targets=TARGETS))
    assert (found is None) if words is None else words in (found or "")
    assert targets_unequal.find(run(rows)) is None  # one target


def test_two_equal_servers_are_not_told_apart_by_chance() -> None:
    found = [targets_unequal.find(run(noisy(seed), targets=TARGETS)) for seed in range(100)]
    assert found == [None] * 100


def test_figures_of_the_targets_are_those_of_their_requests() -> None:
    judged = run(failing(0, 2), targets=TARGETS)
    result = Result(judged.facts, judged.records)
    rows = target_figures.divide_by_target(result)
    assert [(row.url, row.requests, row.failed) for row in rows] == [
        (TARGETS[0], 160, 0),
        (TARGETS[1], 160, 2),
    ]
    rates = [tokens * OUTPUT / result.whole.duration_s for tokens in (160, 158)]
    assert [row.output_throughput_per_s for row in rows] == rates
    latencies = (rows[1].mean_ttft_ms, rows[1].p99_ttft_ms, rows[1].mean_tpot_ms, rows[1].p99_tpot_ms)
    assert latencies == pytest.approx((TTFT_MS, TTFT_MS, TPOT_MS, TPOT_MS))
    alone = run(failing(0, 2), targets=TARGETS[:1])
    assert target_figures.divide_by_target(Result(alone.facts, alone.records)) == []


def test_a_request_that_died_with_the_client_is_no_targets() -> None:
    lost = Failure(FailureKind.LOST)
    judged = run(of_target(1, failure=lost, slot=0), targets=TARGETS)
    assert set(number_targets(TARGETS, judged.records).tolist()) == {0, -1}
    assert set(target_figures.name_targets(Result(judged.facts, judged.records))) == {TARGETS[0], None}
    assert targets_unequal.find(judged) is None


@pytest.mark.parametrize("url", ["http://a:8000", "https://" + "x" * 40 + ":8000"])
def test_the_table_has_a_row_for_each_target(url: str) -> None:
    judged = run(targets=(url, TARGETS[1]))
    table = target_figures.make_target_table(Result(judged.facts, judged.records))
    assert [row[0] for row in table.body] == [each.partition("://")[2] for each in (url, TARGETS[1])]
    assert max(map(len, render_text_table(table).splitlines())) <= 80
    alone = run()
    assert target_figures.make_target_table(Result(alone.facts, alone.records)).body == ()

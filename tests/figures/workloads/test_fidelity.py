"""Fidelity: distances of distributions, and what a copy, a sample and a faster version differ in."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from builders.required import require
from loadgen.base.clock import SECOND_NS
from loadgen.figures.workloads import (
    NO_DELAY,
    Fidelity,
    LengthCount,
    LoadColumns,
    compare_measured,
    correlate_ranks,
    find_ks_distance,
    measure_lengths,
    measure_workload,
)


def compare_workloads(first: LoadColumns, second: LoadColumns) -> Fidelity:
    return compare_measured((first, measure_workload(first)), (second, measure_workload(second)))


def make_load(requests: int = 4000) -> LoadColumns:
    """Poisson arrivals of sessions of four turns, each with all blocks of the one before and one more."""
    rng = np.random.default_rng(1)
    places = np.arange(requests)
    turns = places % 4
    counts = turns + 1
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    depth = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    return LoadColumns(
        "log",
        counts * 64 + 1,
        rng.integers(1, 500, requests),
        np.cumsum(rng.exponential(SECOND_NS / 10, requests)).astype(np.int64),
        np.repeat(places // 4 * 4, counts) + depth,
        starts,
        64,
        places // 4,
        np.where(turns == 0, NO_DELAY, turns * SECOND_NS),
        (turns == 3).astype(np.int64),
    )


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ([1, 2, 3, 4], [3, 4, 5, 6], 0.5),
        ([1, 1, 2], [2, 1, 1], 0.0),
        ([1], [2], 1.0),
        ([0, 0, 0, 9], [0, 9], 0.25),
        ([], [1], None),
    ],
)
def test_the_distance_of_two_distributions(own: list[int], other: list[int], expected: float | None) -> None:
    assert find_ks_distance(np.array(own), np.array(other)) == expected


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ([1, 5, 7], [2, 3, 900], 1.0),
        ([1, 5, 7], [9, 3, 1], -1.0),
        ([1, 2, 2, 3], [1, 2, 3, 4], 0.9486832980505138),
        ([4, 4], [1, 2], None),
        ([1], [1], None),
    ],
)
def test_the_rank_correlation_of_lengths(own: list[int], other: list[int], expected: float | None) -> None:
    found = correlate_ranks(np.array(own), np.array(other))
    assert found == (None if expected is None else pytest.approx(expected))


def test_lengths_are_counted_together_by_powers_of_two() -> None:
    found = measure_lengths(np.array([1, 2, 3, 8, -1]), np.array([4, 7, 4, 1, 9]))
    assert found.counts == (LengthCount(1, 4, 1), LengthCount(2, 4, 2), LengthCount(8, 1, 1))
    assert require(found.input).known == 4


def test_a_copy_differs_in_nothing() -> None:
    log = make_load()
    found = compare_workloads(log, replace(log, name="copy"))
    assert {figure.apart for figure in found.figures} == {0.0, 1.0}
    assert {figure.apart for figure in found.figures if figure.measure in ("KS", "points")} == {0.0}
    assert found.remarks == ()


def apart(first: LoadColumns, second: LoadColumns, *labels: str) -> list[float | None]:
    found = {figure.label: figure.apart for figure in compare_workloads(first, second).figures}
    return [found[label] for label in labels]


def test_a_faster_version_has_the_gaps_over_their_mean() -> None:
    log = make_load()
    faster = replace(log, times_ns=require(log.times_ns) // 3)
    rate, gaps, relative = apart(log, faster, "requests/s", "gaps", "gaps / their mean")
    assert rate == pytest.approx(3)
    assert gaps == pytest.approx(3**-0.5 - 3**-1.5, abs=0.02)  # of two exponentials, one three times faster
    assert require(relative) < 0.001
    assert "3 times as high" in compare_workloads(log, faster).remarks[0]


def test_every_second_request_of_a_log_reuses_less() -> None:
    log = make_load()
    assert log.starts is not None
    kept = np.arange(0, len(log), 2)
    counts = np.diff(log.starts)[kept]
    at = np.concatenate([np.arange(log.starts[i], log.starts[i + 1]) for i in kept.tolist()])
    half = LoadColumns(
        "half",
        log.input_lens[kept],
        log.output_lens[kept],
        require(log.times_ns)[kept],
        require(log.blocks)[at],
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        64,
    )
    found = compare_workloads(log, half)
    reuse = require(found.find("prefix reuse (%)"))
    # Of four turns 1, 2 and 3 blocks of 10 are in the turn before; of the first and third, 1 of 4.
    assert reuse.first == pytest.approx(100 * 6 * 64 / 644)
    assert reuse.second == pytest.approx(100 * 64 / 258)
    assert "1 + ratio × (index − 1)" in found.remarks[1]


def test_a_load_of_lengths_alone_is_measured_by_them() -> None:
    bare = LoadColumns("bare", np.array([3, 4]), np.array([-1, -1]))
    found = measure_workload(bare)
    assert (found.arrivals, found.reuse, found.sessions, found.lengths.output) == (None,) * 4
    labels = [figure.label for figure in compare_workloads(bare, bare).figures]
    assert labels == ["requests", "prompt tokens, mean", "prompt tokens"]


def test_sessions_are_measured_by_requests_pauses_and_depth() -> None:
    shape = require(measure_workload(make_load()).sessions)
    assert (shape.sessions, shape.requests.least, shape.requests.most) == (1000, 4, 4)
    assert shape.delays_s == (1.0, 2.0, 3.0)
    assert (shape.delay_sum_s, shape.by_depth) == (6000.0, (3000, 1000))


def test_json_has_every_figure() -> None:
    log = make_load()
    found = compare_workloads(log, make_load(2000))
    assert len(found.json()["figures"]) == len(found.figures)
    assert measure_workload(log).json()["reuse"]["shares"]

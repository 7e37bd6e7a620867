"""Weighted numbers, and numbers in pieces, have the figures of all of them written out one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.simulated.dependence import PROCESSES, count_false_bounds
from builders import made_runs
from builders.loops import loop_over, read_tables
from builders.required import require
from loadgen.base.arrays import sum_exactly
from loadgen.figures import distribution, metrics
from loadgen.figures.distribution import (
    Distribution,
    Piece,
    count_allowed_over,
    count_independent,
    find_upper_index,
)
from loadgen.figures.objectives import (
    Objective,
    ObjectiveEvidence,
    Standing,
    choose_slow_rank,
    measure_dispersion,
)
from loadgen.records import record
from loadgen.records.record import Record, Records
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("distribution")

WANTED = (0.0, 0.1, 25.0, 50.0, 90.0, 99.0, 99.9, 100.0)
GAPS = st.integers(0, 2**40) | st.integers(0, 5) | st.integers(-(2**62), 2**62)
WEIGHED = st.lists(st.tuples(GAPS, st.integers(0, 7)), max_size=40)
_N = 2000
Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def expanded(found: Distribution, values_ns: NDArray[Any]) -> None:
    """Compare with numpy's figures of every value: what is no sum exactly."""
    assert found.n == len(values_ns)
    if not len(values_ns):
        assert np.isnan([found.mean_ms, found.std_ms, *found.percentiles_ms.values()]).all()
        return
    assert list(found.percentiles_ms.values()) == [
        value / 1e6 for value in np.percentile(values_ns, WANTED).tolist()
    ]
    assert found.median_ms == float(np.percentile(values_ns, 50)) / 1e6
    assert (found.min_ms, found.max_ms) == (values_ns.min() / 1e6, values_ns.max() / 1e6)
    scale = float(np.abs(values_ns).max())
    assert found.mean_ms * 1e6 == pytest.approx(values_ns.mean(), rel=1e-13, abs=1e-13 * scale)
    assert found.std_ms * 1e6 == pytest.approx(values_ns.std(), rel=1e-12, abs=1e-13 * scale)


@given(WEIGHED)
def test_weights_are_as_many_values(weighed: list[tuple[int, int]]) -> None:
    gap_ns, tokens = (np.array([pair[at] for pair in weighed], np.int64) for at in range(2))
    values_ns = gap_ns / np.maximum(tokens, 1)
    expanded(Distribution.from_weighted(values_ns, tokens, WANTED), np.repeat(values_ns, tokens))


@given(WEIGHED, st.integers(1, 7), st.booleans(), st.sampled_from([1, 3, 1000]), st.sampled_from([2, 16]))
def test_pieces_are_one_run(
    weighed: list[tuple[int, int]], size: int, by_token: bool, held: int, bits: int
) -> None:
    gap_ns, tokens = (np.array([pair[at] for pair in weighed], np.int64) for at in range(2))
    values_ns = gap_ns / np.maximum(tokens, 1)

    def pieces() -> Iterator[Piece]:
        for at in range(0, len(weighed), size):
            part = slice(at, at + size)
            yield (values_ns[part], tokens[part]) if by_token else (gap_ns[part], None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribution, "_HELD", held)
        patch.setattr(distribution, "_BIN_BITS", bits)
        found = Distribution.from_pieces(pieces, WANTED)
    whole = np.repeat(values_ns, tokens) if by_token else gap_ns
    if by_token or not len(gap_ns):
        expanded(found, whole)
    else:
        assert list(found.percentiles_ms.values()) == [
            value / 1e6 for value in np.percentile(gap_ns, WANTED).tolist()
        ]
        assert (found.n, found.min_ms) == (len(gap_ns), float(gap_ns.min()) / 1e6)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_a_total_never_wraps(values: list[int]) -> None:
    assert sum_exactly(np.array(values, np.int64)) == sum(values)


def odd_run(draw: np.random.Generator, per_message: int) -> Result:
    """Requests of any length, some failed, some of nothing, some never sent, over 30 seconds."""
    of = made_runs.run(requests=60, tokens=40, concurrency=6, failed=5)
    rows = []
    for i in range(60):
        count = int(draw.choice([0, 1, 2, 40, 300]))
        begin_ns = 10**12 + int(draw.integers(0, 30 * 10**9))
        at_ns = begin_ns + np.cumsum(draw.choice([0, 10**6, 2 * 10**7], count))
        sent = i % 17 != 3
        rows.append(
            Record(
                i, i % 6, begin_ns - 50, (begin_ns - 9) * sent, int(at_ns[-1]) if count else begin_ns,
                arrival_ns=at_ns * 1, tokens=draw.integers(1, per_message + 1, count), planned_input=9,
                output_tokens=count if i % 5 else -1, usage=True, reads=count + 1, shared_reads=count // 3,
                failure=None if sent and i % 11 else Failure(FailureKind.STALL, "none"),
            )
        )  # fmt: skip
    return Result(of.facts, Records.from_records(rows))


def roughly(value: object) -> object:
    """The same to eleven digits: a sum's last depend on its order."""
    if isinstance(value, dict):
        return {key: roughly(one) for key, one in value.items()}
    if isinstance(value, list):
        return [roughly(one) for one in value]
    return float(f"{value:.11g}") if isinstance(value, float) else value


@loop_over("block", [1, 7, 100, 3000])
@loop_over("per_message", [1, 5])
def test_blocks_change_no_figure(block: int, per_message: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = odd_run(np.random.default_rng(per_message), per_message)
    whole = Result(run.facts, run.records)
    expected, text = roughly(encode_run(whole, detailed=True)), report.render_report(whole)
    for module in (record, metrics):
        monkeypatch.setattr(module, "BLOCK", block)
    assert roughly(encode_run(run, detailed=True)) == expected
    assert report.render_report(run) == text


def spans_of(counts: list[int]) -> list[tuple[int, int]]:
    rows = [
        Record(i, 0, 1, 1, 1, arrival_ns=np.zeros(n, np.int64), tokens=np.zeros(n, np.int64))
        for i, n in enumerate(counts)
    ]
    return Records.from_records(rows).spans()


@loop_over(("counts", "spans"), TABLES["blocks"])
def test_a_block_holds_so_many_messages_or_one_request(
    counts: list[int], spans: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "BLOCK", 10)
    assert [list(span) for span in spans_of(counts)] == spans


@loop_over(("n", "percentile", "index"), TABLES["bounds"])
def test_the_bound_is_this_sample_in_order(n: int, percentile: float, index: int | None) -> None:
    assert find_upper_index(n, percentile) == index


def exact_allowed(n: int, chance: float, alpha: float = 0.01) -> int:
    total = 0.0
    for k in range(n + 1):
        total += comb(n, k) * chance**k * (1 - chance) ** (n - k)
        if total > alpha:
            return k - 1
    return n


@loop_over("percentile", [1, 10, 50, 90, 95, 99])
def test_sums_of_the_tail_are_those_of_the_plain_formula(percentile: float) -> None:
    sizes = (1, 2, 5, 43, 44, 90, 300, 459, 900)
    assert [count_allowed_over(n, percentile) for n in sizes] == [
        exact_allowed(n, 1 - percentile / 100) for n in sizes
    ]


@pytest.mark.parametrize("n", [459, 700, 2000])
def test_a_percentile_lies_below_its_bound_in_99_of_100_runs(n: int) -> None:
    samples = np.sort(np.random.default_rng(7).exponential(size=(4000, n)), axis=1)
    truth, index = -np.log(0.01), find_upper_index(n, 99)
    assert (samples[:, require(index)] >= truth).mean() >= 0.99 - 3 * (0.0099 / 4000) ** 0.5


@loop_over(
    ("values", "least", "most"),
    [
        (np.zeros(0), 0, 0),
        (np.arange(6.0), 6, 6),
        (np.ones(500), 500, 500),
        (np.full(500, np.inf), 500, 500),
        (np.random.default_rng(1).pareto(1.1, _N), _N, _N),
        (np.arange(_N) % 2 * 1.0, _N, _N),
        (np.arange(_N) * 1.0, 1, 7),
        (np.repeat(np.random.default_rng(2).random(_N // 20), 20), 20, 130),
        (np.where(np.arange(_N) < 100, np.inf, np.random.default_rng(3).random(_N)), 1, 400),
    ],
)
def test_samples_are_worth_what_does_not_repeat(values: Values, least: int, most: int) -> None:
    assert least <= count_independent(values) <= most


@pytest.mark.parametrize("n", [10**5, 300_001])
def test_many_samples_are_compared_by_means(n: int) -> None:
    values = np.random.default_rng(4).random(n)
    assert count_independent(values) > 0.95 * n
    assert 0.1 * n / 50 < count_independent(np.repeat(values[: n // 50], 50)) < 1.1 * n / 50


@loop_over("name", sorted(PROCESSES))
def test_a_bound_is_above_the_truth(name: str) -> None:
    shown = count_false_bounds(PROCESSES[name], 500, 60)
    # Of 60 runs at 3 %, more than 6 are wrong once in 200.
    assert all(false <= 6 for _, false in shown.values())


def queue(runs: int, n: int) -> list[Values]:
    random = np.random.default_rng(8)
    return [PROCESSES["M/M/1 at 0.8"].draw(random, n) for _ in range(runs)]


@pytest.mark.parametrize("standing_of", ["dispersion", "independent"])
def test_an_objective_that_a_queue_misses_is_hardly_met(standing_of: str) -> None:
    truth = -math.log(0.1) * 5
    objective = Objective("ttft", 90, truth * 0.99)
    met = 0
    for waits in queue(60, _N):
        over = waits > objective.limit
        slow = waits > np.sort(waits)[math.ceil(choose_slow_rank(objective) * _N) - 1]
        parts = [[(len(part), int(part.sum())) for part in np.array_split(mark, 20)] for mark in (over, slow)]
        shown = ObjectiveEvidence(
            objective,
            _N,
            int(over.sum()),
            float(np.quantile(waits, 0.9)),
            bound=0.0,  # of one that does not know of it
            batches=tuple(parts[0]),
            dispersion=measure_dispersion(parts[1]),
        )
        if standing_of == "independent":
            met += shown.allows(count_independent(waits))
        else:
            met += shown.standing is Standing.MEETS
    assert met <= 5

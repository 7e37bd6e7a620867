"""Workloads: arrivals and reuse have the values of a closed form or of play, and copies differ in nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders.required import require
from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.figures.workloads import (
    NO_DELAY,
    ArrivalFigures,
    Fidelity,
    LengthCount,
    LoadColumns,
    ReuseFigures,
    compare_measured,
    correlate_ranks,
    count_arrivals,
    find_ks_distance,
    measure_arrivals,
    measure_lengths,
    measure_reuse,
    measure_workload,
)

RATE_PER_S, REQUESTS = 20.0, 200_000


def measure_times(times_ns: Int64) -> ArrivalFigures:
    found = measure_arrivals(times_ns)
    assert found is not None
    return found


def draw_poisson(requests: int = REQUESTS) -> Int64:
    gaps_s = np.random.default_rng(5).exponential(1 / RATE_PER_S, requests)
    return np.cumsum(gaps_s * SECOND_NS).astype(np.int64)


def test_a_poisson_process_has_an_index_of_1_at_all_scales() -> None:
    found = measure_times(draw_poisson())
    assert [scale.window for scale in found.scales] == ["1 ms", "10 ms", "100 ms", "1 s", "10 s", "1 min"]
    for scale in found.scales:
        assert abs(scale.index - 1) < 5 * (2 / (scale.windows - 1)) ** 0.5, scale.window
    assert found.gap_cv == pytest.approx(1, abs=0.01)
    assert found.rate_per_s == pytest.approx(RATE_PER_S, rel=0.01)


def test_even_gaps_have_an_index_of_0_over_their_multiples() -> None:
    found = measure_times(np.arange(4001, dtype=np.int64) * SECOND_NS // 10)
    assert {scale.window: scale.index for scale in found.scales} == pytest.approx(
        {"100 ms": 0, "1 s": 0, "10 s": 0}
    )
    assert (found.gap_cv, found.grid_s, found.instants) == (0, 0.1, 4001)


@pytest.mark.parametrize(
    ("times_ns", "rate", "scales"),
    [([0, 0, 0], None, 0), ([0, SECOND_NS], 1.0, 2), ([5, 5 + 30 * MS_NS], 1000 / 30, 1)],
    ids=["at once", "two", "thirty windows"],
)
def test_few_requests_have_few_figures(times_ns: list[int], rate: float | None, scales: int) -> None:
    found = measure_times(np.array(times_ns, np.int64))
    assert (found.rate_per_s, len(found.scales)) == (rate, scales)


@pytest.mark.parametrize("times_ns", [[], [7]])
def test_fewer_than_two_requests_have_no_arrivals(times_ns: list[int]) -> None:
    assert measure_arrivals(np.array(times_ns, np.int64)) is None


def test_arrivals_over_time_add_up_to_all() -> None:
    times_ns = draw_poisson(1000)
    begins_s, rates = count_arrivals(times_ns, 40)
    assert (rates * (begins_s[1] - begins_s[0])).sum() == pytest.approx(1000)
    assert [len(column) for column in count_arrivals(times_ns[:1], 40)] == [0, 0]


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


BLOCK = 512


def load_of(
    prompts: Sequence[Sequence[int]], lens: Sequence[int] | None = None, block: int = BLOCK
) -> LoadColumns:
    """Requests a second apart with these blocks, one token longer than they are if no length is given."""
    input_lens = np.array([block * len(ids) + 1 for ids in prompts] if lens is None else lens, np.int64)
    return LoadColumns(
        "made",
        input_lens,
        np.ones(len(prompts), np.int64),
        SECOND_NS * np.arange(len(prompts), dtype=np.int64),
        np.array([one for ids in prompts for one in ids], np.int64),
        np.concatenate(([0], np.cumsum([len(ids) for ids in prompts]))).astype(np.int64),
        block,
    )


def measure_cache(made: LoadColumns, most_blocks: int = 1 << 24) -> ReuseFigures:
    found = measure_reuse(made, most_blocks)
    return require(found)


def play(made: LoadColumns, blocks: int) -> float:
    """The share of the prompt tokens that an LRU cache of this many blocks serves."""
    assert made.starts is not None
    cache: dict[tuple[int, ...], None] = {}
    saved = 0
    for i, length in enumerate(made.input_lens.tolist()):
        ids = require(made.blocks)[made.starts[i] : made.starts[i + 1]].tolist()[
            : -(-length // made.block_tokens)
        ]
        prefixes = [tuple(ids[: depth + 1]) for depth in range(len(ids))]
        hits = next((depth for depth, prefix in enumerate(prefixes) if prefix not in cache), len(prefixes))
        saved += min(min(length, hits * made.block_tokens) // 16 * 16, (length - 1) // 16 * 16)
        for prefix in reversed(prefixes):
            cache.pop(prefix, None)
            cache[prefix] = None
        for prefix in list(cache)[: max(0, len(cache) - blocks)]:
            del cache[prefix]
    return saved / int(made.input_lens.sum())


# Three prompts of two blocks, the third as the first: two blocks are used in between, so four must be kept,
# or three for the first block, since the second is dropped before it.
@pytest.mark.parametrize(
    ("size", "expected"), [(1024, 0.0), (1448, 0.0), (2048, 1024 / 3075), (1 << 20, 1024 / 3075)]
)
def test_a_prompt_that_returns_needs_a_cache_for_what_came_between(size: int, expected: float) -> None:
    found = measure_cache(load_of([(1, 2), (3, 4), (1, 2)]))
    assert (found.find_share(size), found.unique_tokens) == (expected, 4 * BLOCK)
    assert (found.distances, found.gaps_s) == ((1536.0, 1536.0, 2048.0), (2.0,) * 3)


@pytest.mark.parametrize(
    "without",
    [LoadColumns("x", np.ones(2, np.int64), np.ones(2, np.int64)), load_of([]), load_of([(1,)], [-1])],
)
def test_what_is_unknown_is_not_measured(without: LoadColumns) -> None:
    assert measure_reuse(without) is None


prompt_lists = st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=30)


@given(prompts=prompt_lists, cut=st.integers(0, 600))
def test_shares_at_all_sizes_are_those_of_a_cache(prompts: list[list[int]], cut: int) -> None:
    lens = [max(1, BLOCK * len(ids) + 60 - cut) for ids in prompts]
    made = load_of(prompts, lens)
    found = measure_cache(made)
    played = [play(made, int(size // BLOCK)) for size in found.sizes.tolist()]
    np.testing.assert_allclose(found.shares, played, atol=1e-12)
    assert found.share == pytest.approx(play(made, 10_000))


def make_conversations(sessions: int, turns: int) -> LoadColumns:
    """Conversations with a common first block, begun one after another, that go on in turn."""
    live = [
        (session, turn) for turn in range(turns) for session in range(turn * sessions, (turn + 1) * sessions)
    ]
    ids = [
        [0, *range(1 + session * turns, 1 + session * turns + turn + 1)]
        for first in range(0, len(live), sessions)
        for turn in range(turns)
        for session, _ in live[first : first + sessions]
    ]
    return load_of(ids)


def test_a_sample_of_blocks_gives_the_shares_of_all() -> None:
    made = make_conversations(200, 8)
    exact, sampled = measure_cache(made), measure_cache(made, most_blocks=8000)
    assert exact.measured == 1.0
    assert sampled.measured < 0.15
    at_all = [(exact.find_share(size), sampled.find_share(size)) for size in exact.sizes.tolist()]
    assert max(abs(own - other) for own, other in at_all) < 0.03
    assert sampled.unique_tokens == pytest.approx(exact.unique_tokens, rel=0.05)

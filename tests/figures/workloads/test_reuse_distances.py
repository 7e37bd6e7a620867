"""Reuse distances: hit shares at every size are those of a cache that is played block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.required import require
from loadgen.base.clock import SECOND_NS
from loadgen.figures.workloads import LoadColumns, ReuseFigures, measure_reuse

BLOCK = 512


def load(
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


def measure(made: LoadColumns, most_blocks: int = 1 << 24) -> ReuseFigures:
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
    found = measure(load([(1, 2), (3, 4), (1, 2)]))
    assert (found.find_share(size), found.unique_tokens) == (expected, 4 * BLOCK)
    assert (found.distances, found.gaps_s) == ((1536.0, 1536.0, 2048.0), (2.0,) * 3)


def test_a_shared_beginning_is_kept_by_the_smallest_cache() -> None:
    found = measure(load([(1, 10), (1, 11), (1, 12), (1, 13)]))
    assert found.shares.tolist() == [3 * BLOCK / (4 * 1025)]
    assert found.gaps_s == (1.0,) * 3


def test_a_block_counts_with_all_before_it() -> None:
    assert measure(load([(1, 2), (3, 2)])).share == 0.0


def test_the_last_token_of_a_prompt_is_never_reused() -> None:
    assert measure(load([(1,), (1,)], [512, 512])).share == 496 / 1024


@pytest.mark.parametrize(
    "without", [LoadColumns("x", np.ones(2, np.int64), np.ones(2, np.int64)), load([]), load([(1,)], [-1])]
)
def test_what_is_unknown_is_not_measured(without: LoadColumns) -> None:
    assert measure_reuse(without) is None


prompt_lists = st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=30)


@given(prompts=prompt_lists, cut=st.integers(0, 600))
def test_shares_at_all_sizes_are_those_of_a_cache(prompts: list[list[int]], cut: int) -> None:
    lens = [max(1, BLOCK * len(ids) + 60 - cut) for ids in prompts]
    made = load(prompts, lens)
    found = measure(made)
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
    return load(ids)


def test_a_sample_of_blocks_gives_the_shares_of_all() -> None:
    made = make_conversations(200, 8)
    exact, sampled = measure(made), measure(made, most_blocks=8000)
    assert exact.measured == 1.0
    assert sampled.measured < 0.15
    at_all = [(exact.find_share(size), sampled.find_share(size)) for size in exact.sizes.tolist()]
    assert max(abs(own - other) for own, other in at_all) < 0.03
    assert sampled.unique_tokens == pytest.approx(exact.unique_tokens, rel=0.05)

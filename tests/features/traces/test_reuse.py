"""Reuse: as a cache of whole blocks would hold it, against a plain simulation of one on the tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.features.traces.trace_blocks import SERVER_BLOCK, BlockContent, find_prefix_reuse


def reuse(lists: Sequence[Sequence[int]], lens: Sequence[int], block: int) -> tuple[list[int], int]:
    flat = np.array([value for row in lists for value in row], np.int32)
    counts = np.array([len(row) for row in lists], np.int64)
    begins = np.cumsum(counts) - counts
    made = find_prefix_reuse(flat, begins, counts, np.array(lens, np.int64), block)
    return made.tokens.tolist(), made.repeated


def simulated(lists: Sequence[Sequence[int]], lens: Sequence[int], block: int) -> tuple[list[int], int]:
    """A prefix cache as vLLM's: blocks of 16 known by all tokens up to their end, the last never served."""
    content = BlockContent(block, 1, 2, np.arange(1000, 5000))
    known: set[tuple[int, ...]] = set()
    prompts: set[tuple[int, ...]] = set()
    held, repeated = [], 0
    for row, (hashes, length) in enumerate(zip(lists, lens, strict=True)):
        tokens = tuple(content.prompt(np.array(hashes, np.int64), length, row).tolist())
        hit = 0
        while hit + SERVER_BLOCK < length and tokens[: hit + SERVER_BLOCK] in known:
            hit += SERVER_BLOCK
        held.append(hit)
        known |= {tokens[:end] for end in range(SERVER_BLOCK, length + 1, SERVER_BLOCK)}
        repeated += tokens in prompts
        prompts.add(tokens)
    return held, repeated


@loop_over(
    ("lists", "lens", "block", "held", "repeated"),
    [
        pytest.param([[1, 2], [1, 3]], [32, 32], 16, [0, 16], 0, id="first-block"),
        pytest.param([[1, 2], [1, 2]], [32, 32], 16, [0, 16], 1, id="last-token-is-never-served"),
        pytest.param([[1, 2], [1, 2]], [33, 33], 16, [0, 32], 0, id="a-token-beyond-the-hashes"),
        pytest.param([[1, 2], [1, 2]], [40, 64], 32, [0, 32], 0, id="whole-server-blocks-of-a-cut-block"),
        pytest.param([[1, 2], [1, 2], [1, 2]], [60, 64, 64], 32, [0, 48, 48], 1, id="the-longest-so-far"),
        pytest.param([[1, 2], [3, 2]], [32, 32], 16, [0, 0], 0, id="the-same-hash-after-another"),
        pytest.param([[1], [1, 2], [1, 2]], [512, 1024, 700], 512, [0, 512, 688], 0, id="growing"),
        pytest.param([[], []], [100, 100], 16, [0, 0], 0, id="no-hashes"),
        pytest.param([[1, 2, 3], [1, 2, 3]], [17, 16], 16, [0, 0], 0, id="hashes-that-are-not-used"),
    ],
)
def test_reuse_by_hand(
    lists: list[list[int]], lens: list[int], block: int, held: list[int], repeated: int
) -> None:
    assert reuse(lists, lens, block) == (held, repeated)
    assert simulated(lists, lens, block) == (held, repeated)


@loop_over("block", [16, 24, 64])
@loop_over("seed", range(8))
def test_reuse_is_that_of_a_simulated_cache(block: int, seed: int) -> None:
    rng = random.Random(seed)
    lists = [[rng.randrange(3) for _ in range(rng.randrange(6))] for _ in range(60)]
    lens = [rng.randrange(1, block * 6) for _ in lists]
    assert reuse(lists, lens, block) == simulated(lists, lens, block)


def test_reuse_counts_no_blocks_where_a_trace_has_none() -> None:
    assert reuse([[]] * 3, [5, 5, 5], 0) == ([0, 0, 0], 0)

"""The content of hashed blocks: pinned, the same in every process, shared where hashes are."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.base.block_hashes import SERVER_BLOCK
from loadgen.features.traces.trace_blocks import BlockContent, IdTexts, find_prefix_reuse


@pytest.mark.parametrize("allowed", [[0], [0, 9, 10, 99, 100], [7, 1234567], [999, 1000]])
def test_the_json_of_ids_is_that_of_the_list(allowed: list[int]) -> None:
    places = [*range(len(allowed)), 0, *range(len(allowed))]
    written = msgspec.json.encode(IdTexts(np.array(allowed)).prompt(np.array(places)))
    assert json.loads(written) == [allowed[place] for place in places]


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
        tokens = tuple(content.places(np.array(hashes, np.int64), length, row).tolist())
        hit = 0
        while hit + SERVER_BLOCK < length and tokens[: hit + SERVER_BLOCK] in known:
            hit += SERVER_BLOCK
        held.append(hit)
        known |= {tokens[:end] for end in range(SERVER_BLOCK, length + 1, SERVER_BLOCK)}
        repeated += tokens in prompts
        prompts.add(tokens)
    return held, repeated


@loop_over("block", [16, 24, 64])
@loop_over("seed", range(8))
def test_reuse_is_that_of_a_simulated_cache(block: int, seed: int) -> None:
    rng = random.Random(seed)
    lists = [[rng.randrange(3) for _ in range(rng.randrange(6))] for _ in range(60)]
    lens = [rng.choice([rng.randrange(1, block * 6), block * rng.randrange(1, 6)]) for _ in lists]
    assert reuse(lists, lens, block) == simulated(lists, lens, block)

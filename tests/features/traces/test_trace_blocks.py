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
from loadgen.features.traces.trace_blocks import BlockContent, IdTexts, find_prefix_reuse, make_block_places

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
ALLOWED = np.arange(1000, 5000)
PINNED = [4088, 2526, 3823, 3406, 4506, 2840, 4516, 3554]


def mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


def expected(hashes: list[int], seed: int, block: int, allowed: list[int]) -> list[int]:
    """The definition of the module, in Python's own integers."""
    tokens = []
    for hashed in hashes:
        state = mix((hashed + mix((seed + GOLDEN) % WORD)) % WORD)
        for j in range(block):
            output = mix((state + (j + 1) * GOLDEN) % WORD)
            tokens.append(allowed[(output >> 32) * len(allowed) >> 32])
    return tokens


@loop_over(
    ("hashes", "seed", "block"),
    [
        ([0], 0, 16),
        ([1, 2, 3], 42, 512),
        ([2**63 - 1, -1, -(2**63)], 2**64 - 1, 7),
        ([5, 5], 2**127 + 3, 64),
        ([], 0, 16),
    ],
)
def test_blocks_follow_the_definition(hashes: list[int], seed: int, block: int) -> None:
    tokens = ALLOWED[make_block_places(np.array(hashes, np.int64), seed, block, len(ALLOWED))]
    assert tokens.dtype == np.int64
    assert tokens.tolist() == expected(hashes, seed, block, ALLOWED.tolist())


def test_pinned_tokens_stay_for_ever() -> None:
    assert ALLOWED[make_block_places(np.array([0, 7]), 42, 4, len(ALLOWED))].tolist() == PINNED


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

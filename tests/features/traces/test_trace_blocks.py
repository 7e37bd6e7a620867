"""The content of hashed blocks: pinned, the same in every process, shared where hashes are."""

from __future__ import annotations

import json
import random
import subprocess
import sys
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


def test_the_generator_is_splitmix64() -> None:
    # The first outputs of its reference implementation from the state 1234567.
    outputs = [mix((1234567 + (j + 1) * GOLDEN) % WORD) for j in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


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


@pytest.mark.whole
def test_another_process_with_another_hash_seed_has_the_same_tokens() -> None:
    code = (
        "import numpy as np; from loadgen.features.traces.trace_blocks import make_block_places;"
        "print((1000 + make_block_places(np.array([0, 7]), 42, 4, 4000)).tolist())"
    )
    for hash_seed in ("1", "2"):
        made = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, check=True
        )
        assert made.stdout.decode().strip() == str(PINNED)


def content(block: int = 16) -> BlockContent:
    return BlockContent(block, seed=1, own_seed=2, allowed=ALLOWED)


def test_a_shared_hash_is_a_shared_prefix_of_exactly_its_block() -> None:
    one = content().prompt(np.array([1, 2, 3]), 48, row=0)
    other = content().prompt(np.array([1, 2, 4]), 48, row=1)
    assert one[:32].tolist() == other[:32].tolist()
    assert one[32] != other[32]


def test_the_last_block_is_cut_to_the_input_length() -> None:
    whole = content().prompt(np.array([1, 2, 3]), 48, row=0)
    assert content().prompt(np.array([1, 2, 3]), 40, row=5).tolist() == whole[:40].tolist()


def test_hashes_beyond_the_input_length_are_not_used() -> None:
    assert content().prompt(np.array([1, 2, 3]), 17, row=0).tolist() == (
        content().prompt(np.array([1, 2]), 17, row=0).tolist()
    )


def test_tokens_without_a_hash_are_the_requests_own() -> None:
    one = content().prompt(np.array([1]), 100, row=0)
    other = content().prompt(np.array([1]), 100, row=1)
    assert len(one) == len(other) == 100
    assert one[:16].tolist() == other[:16].tolist()
    assert one[16:32].tolist() != other[16:32].tolist()
    assert one.tolist() == content().prompt(np.array([1]), 100, row=0).tolist()


def test_seeds_have_no_block_in_common() -> None:
    a, b = (make_block_places(np.arange(64), seed, 16, len(ALLOWED)).reshape(64, 16) for seed in (1, 2))
    rows = {tuple(row) for row in (*a.tolist(), *b.tolist())}
    assert len(rows) == 128


def test_every_allowed_id_is_about_as_likely() -> None:
    counts = np.bincount(make_block_places(np.arange(1000), 3, 64, 64), minlength=64)
    assert counts.sum() == 64_000
    assert abs(counts - 1000).max() < 150  # five standard deviations


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


def test_reuse_counts_no_blocks_where_a_trace_has_none() -> None:
    assert reuse([[]] * 3, [5, 5, 5], 0) == ([0, 0, 0], 0)

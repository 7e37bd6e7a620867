"""Reuse: how many prompt tokens a prefix cache holds already when each request of a trace comes.

The cache is empty at the start, has no limit, and knows a prompt as soon as it was sent. It holds whole
blocks of the server's, 16 tokens, and as vLLM's never serves a prompt's last token: what a request reuses is
its longest common prefix with an earlier prompt, rounded down to 16 tokens, at most length − 1 so rounded.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.features.traces.blocks import chained
from loadgen.features.traces.trace_rows import Hashes

SERVER_BLOCK = 16  # vLLM's on GPUs; SGLang's pages are of one token


class PrefixReuse(msgspec.Struct, frozen=True):
    """What requests have in common with those before them."""

    tokens: Int64  # int64[requests]: that the cache holds of each prompt
    repeated: int  # requests whose whole prompt is that of an earlier one


def prefix_reuse(hashes: Hashes, begins: Int64, counts: Int64, input_lens: Int64, block: int) -> PrefixReuse:
    """The reuse between requests in the order in which they are sent.

    `begins`, `counts` and `input_lens` are int64[requests]; the blocks of request i are
    `hashes[begins[i] : begins[i] + counts[i]]`, each `block` tokens but for the last, which is cut. Tokens
    that no hash covers are shared with no other.

    Prompts with the same first k blocks are found for k = 1, 2, … by sorting a hash of each prompt's first k.
    One that is alone with them is left out from then on, so the work is that of the shared blocks.
    """
    shared = np.zeros(len(input_lens), np.int64)
    depth, repeated = 0, 0
    used = np.minimum(counts, -(-input_lens // max(block, 1)))
    alive = np.flatnonzero(used > 0)  # ascending, so in the order of sending
    chain = np.zeros(len(alive), np.int64)
    while len(alive):
        chain = chained(chain, hashes[begins[alive] + depth].astype(np.int64))
        order = np.argsort(chain, kind="stable")
        alive, chain = alive[order], chain[order]
        first = np.concatenate([np.ones(1, np.bool_), chain[1:] != chain[:-1]])
        alone = first & np.append(first[1:], True)
        alive, chain, first = alive[~alone], chain[~alone], first[~alone]
        lens = np.minimum(input_lens[alive], (depth + 1) * block)
        shared[alive] = np.maximum(shared[alive], np.minimum(lens, _longest_before(lens, first)))
        ends = input_lens[alive] <= (depth + 1) * block
        repeated += _repeats(chain[ends], input_lens[alive[ends]])
        depth += 1
        deeper = used[alive] > depth
        alive, chain = alive[deeper], chain[deeper]
        order = np.argsort(alive)
        alive, chain = alive[order], chain[order]
    most = (input_lens - 1) // SERVER_BLOCK * SERVER_BLOCK
    return PrefixReuse(np.minimum(shared // SERVER_BLOCK * SERVER_BLOCK, most), repeated)


def _longest_before(lens: Int64, first: Bool) -> Int64:
    """For each row the greatest of `lens` before it in its group, 0 for the first of a group."""
    if not len(lens):
        return lens
    step = int(lens.max()) + 1
    group = np.cumsum(first) * step
    running = np.maximum.accumulate(group + lens)
    before = np.concatenate([np.zeros(1, np.int64), running[:-1]]) - group
    before[first] = 0
    longest: Int64 = np.maximum(before, 0)
    return longest


def _repeats(chain: Int64, lens: Int64) -> int:
    """How many prompts equal an earlier one in blocks and length."""
    return len(lens) - len(np.unique(chained(chain, lens)))

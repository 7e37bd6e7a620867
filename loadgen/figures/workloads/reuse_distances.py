"""Reuse distances: how much lies between two uses of a block, and what a cache of any size would reuse.

The cache is that of an engine with prefix caching: blocks by their whole prefix, evicted by last use (LRU),
of one prompt the last blocks first, so that a block is there only if all before it are. A prompt is looked up
when it is sent, and in the cache as a whole before the next one. Its hit share at all sizes follows from one
pass (Mattson, Gecsei, Slutz, Traiger 1970): a block is a hit of every cache that holds more blocks than
different ones were used since its own last use, its stack distance.

Distances are counted for runs of blocks that two prompts have in common, whose distances go down by one from
block to block: O(n) for n blocks but for two sorts, and O(r log r) for r runs. Of more than 16 Mi blocks
those are measured whose hash falls below a threshold, and distances and counts are scaled up (SHARDS-adj;
Waldspurger, Park, Garthwaite, Ahmad 2015).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Float64, Int64
from loadgen.base.block_hashes import chain_hashes, find_savings, mix_words
from loadgen.base.clock import SECOND_NS
from loadgen.figures.workloads.load_columns import LoadColumns

MOST_BLOCKS = 1 << 24  # uses that are measured: 1 GiB of memory meanwhile
_WORD_BITS = 64
_ROOT = np.int64(0x1E37_79B9_7F4A_7C15)  # before any block; with 0, blocks of the hash 0 would all be equal
_SHARES = (0.1, 0.5, 0.9)
# Sizes of caches in tokens: 1,024 × 2^(k / 2), so that those of two workloads are the same.
_FIRST_SIZE, _PER_OCTAVE, _MOST_SIZES = 1024, 2, 80


class ReuseFigures(msgspec.Struct, frozen=True):
    """What a prefix cache would reuse of the prompts' tokens, in the order of sending, empty at first.

    `sizes` (tokens) and `shares` (of all prompt tokens, 0 to 1) are float64, up to the first size that holds
    all that is reused.
    """

    block_tokens: int
    prompt_tokens: int  # of all requests
    unique_tokens: int  # in blocks, as many as a cache needs that drops none
    share: float  # without a limit of size
    sizes: Float64
    shares: Float64
    distances: tuple[float, ...]  # tokens used between two uses: P10, P50, P90 by reused token; () if none is
    gaps_s: tuple[float, ...]  # seconds between two uses, the same; () without times
    measured: float  # share of the blocks that were measured

    def find_share(self, size: float) -> float:
        """Return the reused share of a cache of `size` tokens: of the next size down; 0 below the first."""
        at = int(np.searchsorted(self.sizes, size, "right"))
        return float(self.shares[at - 1]) if at else 0.0


class _Uses(msgspec.Struct, frozen=True):
    """Uses of blocks in the order in which a cache sees them: of each prompt the last block first."""

    before: Int64  # the index of the last use of the same block with all before it; -1 of a first use
    requests: NDArray[Any]  # int32
    tokens: Int64  # that its reuse saves: of whole blocks of the server's, and never a prompt's last token
    scale: float  # uses of the workload for each of these


def measure_reuse(load: LoadColumns, most_blocks: int = MOST_BLOCKS) -> ReuseFigures | None:
    """Measure what a prefix cache would reuse; None where blocks are unknown or no prompt has a token.

    Of more than `most_blocks` uses of blocks a share is measured.
    """
    if load.blocks is None or load.starts is None or load.block_tokens < 1:
        return None
    total = int(load.input_lens[load.input_lens > 0].sum())
    if not total:
        return None
    uses = _list_uses(load, most_blocks)
    scale, reused = uses.scale, uses.before >= 0
    gaps_s: tuple[float, ...] = ()
    saved = uses.tokens[reused]
    if load.times_ns is not None:  # between two uses of each reused block
        gaps_ns = load.times_ns[uses.requests[reused]]
        gaps_ns -= load.times_ns[uses.requests[uses.before[reused]]]
        gaps_s = tuple(gap / SECOND_NS for gap in _find_quantiles(*_sort_weighted(gaps_ns, saved)))
        del gaps_ns
    distances = _find_distances(uses)
    distances *= scale * load.block_tokens
    excess = 0.0
    if scale > 1:  # what the sample has too few of is as near as can be: blocks that nearly all share
        in_all = int(_find_savings(load, np.arange(len(load)), _count_used(load)).sum())
        excess = in_all - scale * int(uses.tokens.sum())
    del uses  # the arrays of this function are most of the memory that a workload takes
    ordered, grown = _sort_weighted(distances, saved)
    del distances, saved
    grown *= scale
    sizes = _FIRST_SIZE * 2.0 ** (np.arange(_MOST_SIZES) / _PER_OCTAVE)
    # Up to the first that holds the farthest.
    sizes = sizes[: int(np.searchsorted(sizes, ordered[-1] if len(ordered) else 0.0)) + 1]
    reached = np.searchsorted(ordered, sizes, "right")
    shares = (np.append(grown, 0.0)[reached - 1] + excess) / total  # none reached: the last
    share = float(np.clip(((grown[-1] if len(grown) else 0.0) + excess) / total, 0.0, 1.0))
    return ReuseFigures(
        load.block_tokens,
        total,
        round(int((~reused).sum()) * scale) * load.block_tokens,
        share,
        sizes,
        np.clip(shares, 0.0, 1.0),
        _find_quantiles(ordered, grown),
        gaps_s,
        1 / scale,
    )


def _find_distances(uses: _Uses) -> Float64:
    """Find the stack distance of each use that is not a first one, in blocks that were measured.

    By runs of one prompt's successive uses whose last uses are successive uses of one earlier prompt.
    """
    requests, before = uses.requests, uses.before
    reused = np.flatnonzero(before >= 0)
    rows, origins = requests[reused], requests[before[reused]]
    breaks = (
        (np.diff(reused) != 1)
        | (np.diff(before[reused]) != 1)
        | (np.diff(rows) != 0)
        | (np.diff(origins) != 0)
    )
    runs = np.concatenate(([0], np.flatnonzero(breaks) + 1))[: len(reused)]
    lens = np.diff(runs, append=len(reused)).astype(np.int64)
    firsts, last_uses = reused[runs], before[reused[runs]]
    del reused, rows, origins, breaks, runs
    begins = np.searchsorted(requests, requests[firsts])
    deepest = _count_distances(last_uses, lens, begins, np.concatenate(([0], np.cumsum(before < 0))))
    distances = np.repeat(deepest + 1 + np.cumsum(lens) - lens, lens).astype(np.float64)
    distances -= np.arange(len(distances))
    return distances


def _count_used(load: LoadColumns) -> Int64:
    """Return how many blocks of each prompt are in it, int64[requests], without those behind its end."""
    assert load.starts is not None
    used: Int64 = np.minimum(np.diff(load.starts), -(-np.maximum(load.input_lens, 0) // load.block_tokens))
    return used


def _find_savings(load: LoadColumns, rows: NDArray[Any], counts: NDArray[Any]) -> Int64:
    """Return the tokens that a cache with the first `counts` blocks of these rows saves, int64[rows]."""
    return find_savings(counts * load.block_tokens, load.input_lens[rows])


def _list_uses(load: LoadColumns, most: int) -> _Uses:
    """List the uses of blocks in a cache's order: all, or those of about `most` uses, sampled by block."""
    assert load.blocks is not None
    assert load.starts is not None
    used = _count_used(load)
    scale = max(1.0, int(used.sum()) / most)
    threshold = np.uint64(min(2**_WORD_BITS - 1, int(2**_WORD_BITS / scale)))
    alive = np.argsort(-used, kind="stable")
    chain, ids, rows, depths = np.full(len(used), _ROOT), [], [], []
    live = np.searchsorted(-used[alive], -np.arange(int(used.max(initial=0))), "left").tolist()
    for depth, count in enumerate(live):
        own = alive[:count]
        chain = chain_hashes(chain[:count], load.blocks[load.starts[own] + depth].astype(np.int64))
        # By its hash the same id is always or never in the sample.
        kept = mix_words(chain.view(np.uint64) + np.uint64(1)) < threshold if scale > 1 else slice(None)
        ids.append(chain[kept])
        rows.append(own[kept].astype(np.int32))
        depths.append(np.full(len(rows[-1]), depth, np.int32))
    if not ids:
        return _Uses(empty := np.zeros(0, np.int64), empty.astype(np.int32), empty, 1.0)
    row, depth_of = np.concatenate(rows), np.concatenate(depths)
    del rows, depths
    order = np.argsort(np.cumsum(used)[row] - depth_of)
    row, depth_of = row[order], depth_of[order]
    all_ids = np.concatenate(ids)[order]
    del ids, order
    before = np.full(len(all_ids), -1, np.int64)
    order = np.argsort(all_ids, kind="stable")
    again = np.flatnonzero(np.diff(all_ids[order]) == 0)
    before[order[again + 1]] = order[again]
    del all_ids, order, again
    tokens = _find_savings(load, row, depth_of + 1) - _find_savings(load, row, depth_of)
    return _Uses(before, row, tokens, scale)


def _count_distances(last_uses: Int64, lens: Int64, begins: Int64, firsts: Int64) -> Int64:
    """Count the different blocks between each run's last use and its prompt's begin, int64[runs].

    `begins` is the first use of each run's prompt; `firsts`, int64[uses + 1], counts first uses up to each
    index. A use since the last one, p, is of a new block if it is a first use or its own last use is not
    after p: uses before the prompt that have a last use up to p, less p + 1, which all do.
    """
    n = len(lens)
    if not n:
        return np.zeros(0, np.int64)
    # Of one prompt those with later last uses first, so that none counts another of the same prompt.
    order = np.lexsort((-last_uses, begins))
    weights, keys = lens[order], last_uses[order]
    repeated = np.empty(n, np.int64)
    repeated[order] = _sum_before(keys, weights)
    counted: Int64 = firsts[begins] + repeated - last_uses - 1
    return counted


def _sum_before(keys: Int64, weights: Int64) -> Int64:
    """Sum, for each item, the weights of the items before it with smaller keys, int64[items].

    No two keys are equal. From all items down to blocks of two, sums go from the left half of each block to
    the right, in the order of keys.
    """
    n = len(keys)
    order, sums = np.argsort(keys), np.zeros(n, np.int64)
    for level in reversed(range(max(n - 1, 0).bit_length())):
        # `order` has blocks of 2^(level + 1) items one after another, each in the order of keys.
        right = (order >> level & 1).astype(np.bool_)
        grown = np.cumsum(np.where(right, 0, weights[order]))
        begin = order >> (level + 1) << (level + 1)
        base = np.where(begin > 0, grown[begin - 1], 0)
        late = order[right]
        sums[late] += (grown - base)[right]
        rights = np.cumsum(right)
        lefts = np.arange(1, n + 1) - rights
        rank = np.where(
            right,
            rights - np.where(begin > 0, rights[begin - 1], 0),
            lefts - np.where(begin > 0, lefts[begin - 1], 0),
        )
        divided = np.empty_like(order)
        divided[(order >> level << level) + rank - 1] = order
        order = divided
    return sums


def _sort_weighted(values: Float64 | Int64, weights: Int64) -> tuple[Float64 | Int64, Float64]:
    """Return the values ascending, and the running sum of their weights."""
    order = np.argsort(values, kind="stable")
    return values[order], np.cumsum(weights[order], dtype=np.float64)


def _find_quantiles(values: Float64 | Int64, grown: Float64) -> tuple[float, ...]:
    """Return the P10, P50 and P90 of ascending values by the sums of their weights; () if there are none."""
    if not len(values) or not grown[-1]:
        return ()
    return tuple(float(values[int(np.searchsorted(grown, share * grown[-1]))]) for share in _SHARES)

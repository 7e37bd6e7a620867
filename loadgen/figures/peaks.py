"""Peaks: the busiest second in tokens and the most requests at once, exact, without buckets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.records.record import BLOCK, MessageBlock, Records

_BLOCK = 64  # arrivals whose windows are counted together, or not at all
_AT_ONCE = 256  # blocks
_BINS = 1 << 16  # of time, in which the arrivals of a long run are counted


def peak_tokens(arrival_ns: Int64, tokens: Int64, window_ns: int) -> int:
    """Count the most tokens that arrive in any half-open window (t - window_ns, t].

    Exact: any window can be moved until it ends at an arrival without losing one, so only those are counted.
    Half-open, because tokens exactly one window apart belong to two windows. No window that ends in a block
    of arrivals holds more than came after the first one's begin and up to the block's end: the blocks that
    may hold most are searched first, and those that cannot hold more never.
    """
    if not len(arrival_ns):
        return 0
    if (tokens == 1).all():  # as nearly always; to sort alone takes a fifth of finding the order
        ordered_ns, before = np.sort(arrival_ns), np.arange(len(arrival_ns) + 1)
    else:
        order = np.argsort(arrival_ns)
        ordered_ns, before = arrival_ns[order], np.append(0, np.cumsum(tokens[order]))

    def begins(ends: Int64) -> Int64:
        """Count the arrivals before each window that ends at one of these indices."""
        return ordered_ns.searchsorted(ordered_ns[ends] - window_ns, side="right")

    count = len(ordered_ns)
    blocks = np.arange(0, count, _BLOCK)
    most = before[np.minimum(blocks + _BLOCK, count)] - before[begins(blocks)]
    order = np.argsort(-most)
    best = 0
    for at in range(0, len(order), _AT_ONCE):
        promising = order[at : at + _AT_ONCE]
        promising = promising[most[promising] > best]
        if not len(promising):
            break
        ends = np.minimum(np.add.outer(blocks[promising], np.arange(_BLOCK)).ravel(), count - 1)
        best = max(best, int((before[ends + 1] - before[begins(ends)]).max()))
    return best


def peak_of(records: Records, ok: Bool, window_ns: int) -> int:
    """Count the most tokens in any window over the messages of the requests in `ok`, bool[requests].

    Columns that do not fit into memory are cut by time: a window lies whole in a slab and the window before
    it.
    """
    if records.in_one_block:
        arrival_ns, tokens = records.arrival_ns, records.tokens
        if not ok.all():
            of_success = np.repeat(ok, np.diff(records.start))
            arrival_ns, tokens = arrival_ns[of_success], tokens[of_success]
        return peak_tokens(arrival_ns, tokens, window_ns)
    spans = records.spans()
    arrivals = (block.arrival_ns for block in records.blocks(spans))
    # Of none, an interval that contains nothing.
    reach = [(int(at_ns.min()), int(at_ns.max())) if len(at_ns) else (0, -1) for at_ns in arrivals]
    best = 0
    for begin_ns, end_ns in pairwise(_cut_slabs(records, reach)):
        from_ns = begin_ns - window_ns
        touched = [
            span for span, (low, high) in zip(spans, reach, strict=True) if low < end_ns and high > from_ns
        ]
        parts = [_select_between(block, ok, (from_ns, end_ns)) for block in records.blocks(touched)]
        if parts:
            arrival_ns, tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
            best = max(best, peak_tokens(arrival_ns, tokens, window_ns))
    return best


def _cut_slabs(records: Records, reach: Sequence[tuple[int, int]]) -> list[int]:
    """List the ascending moments (ns) to cut a run at, its ends too, about a block of messages apart."""
    low, high = min(first for first, _ in reach), max(last for _, last in reach) + 1
    width = max(1, -(-(high - low) // _BINS))
    counts = np.zeros(_BINS, np.int64)
    for block in records.blocks():
        counts += np.bincount((block.arrival_ns - low) // width, minlength=_BINS)
    full = np.diff((np.cumsum(counts) - 1) // BLOCK, prepend=0) > 0
    return [low, *(low + width * np.flatnonzero(full)).tolist(), high]


def _select_between(block: MessageBlock, ok: Bool, window_ns: tuple[int, int]) -> tuple[Int64, Int64]:
    """Select arrivals and their tokens of some requests, strictly between the two moments."""
    inside = np.repeat(ok[block.first : block.last], np.diff(block.start))
    inside &= (block.arrival_ns > window_ns[0]) & (block.arrival_ns < window_ns[1])
    return block.arrival_ns[inside], block.tokens[inside]


def peak_concurrency(sent_ns: Int64, end_ns: Int64) -> int:
    """Count the most requests in flight at once; one that ends as another starts is over by then."""
    if not len(sent_ns):
        return 0
    starts, ends = np.sort(sent_ns), np.sort(end_ns)
    over = np.searchsorted(ends, starts, side="right")
    return int((np.arange(1, len(starts) + 1) - over).max())

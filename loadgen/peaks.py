"""Peaks: the busiest second in tokens and the most requests at once, exact, without buckets."""

from __future__ import annotations

import numpy as np

from loadgen.arrays import Int64

_BLOCK = 64  # arrivals whose windows are looked at together, or not at all
_AT_ONCE = 256  # blocks


def peak_tokens(arrival_ns: Int64, tokens: Int64, window_ns: int) -> int:
    """The most tokens in any half-open window (t - window_ns, t].

    Exact: any window can be moved until it ends at an arrival without losing one, so only those are
    looked at. Half-open, because tokens exactly one window apart belong to two windows. No window that
    ends in a block of arrivals holds more than came after the first one's begin and up to the block's
    end: the blocks that may hold most are looked into first, and those that cannot hold more never.
    """
    if not len(arrival_ns):
        return 0
    ordered_ns, before = _in_order(arrival_ns, tokens)

    def begins(ends: Int64) -> Int64:
        """How many arrivals are before each of the windows that end at these."""
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


def _in_order(arrival_ns: Int64, tokens: Int64) -> tuple[Int64, Int64]:
    """The arrivals sorted, and how many tokens came before each position, int64[arrivals + 1]."""
    if (tokens == 1).all():  # as nearly always; to sort alone takes a fifth of finding the order
        return np.sort(arrival_ns), np.arange(len(arrival_ns) + 1)
    order = np.argsort(arrival_ns)
    before = np.zeros(len(order) + 1, np.int64)
    np.cumsum(tokens[order], out=before[1:])
    return arrival_ns[order], before


def peak_concurrency(sent_ns: Int64, end_ns: Int64) -> int:
    """The most requests under way at once; one that ends as another starts is over by then."""
    if not len(sent_ns):
        return 0
    starts, ends = np.sort(sent_ns), np.sort(end_ns)
    over = np.searchsorted(ends, starts, side="right")
    return int((np.arange(1, len(starts) + 1) - over).max())

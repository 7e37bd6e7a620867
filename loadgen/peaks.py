"""Peaks: the busiest second in tokens and the most requests at once, exact, without buckets."""

from __future__ import annotations

import numpy as np

from loadgen.record import Int64

_CHUNK = 1 << 20  # positions looked up at once: the temporaries stay small beside ten million tokens


def peak_tokens(arrival_ns: Int64, tokens: Int64, window_ns: int) -> int:
    """The most tokens in any half-open window (t - window_ns, t].

    Exact: any window can be moved until it ends at an arrival without losing one, so only those
    are looked at. Half-open, because tokens exactly one window apart belong to two windows.
    """
    if not len(arrival_ns):
        return 0
    ordered_ns, before = _in_order(arrival_ns, tokens)
    best = 0
    for start in range(0, len(ordered_ns), _CHUNK):
        ends_ns = ordered_ns[start : start + _CHUNK]
        first = np.searchsorted(ordered_ns, ends_ns - window_ns, side="right")
        inside = before[start + 1 : start + 1 + len(ends_ns)] - before[first]
        best = max(best, int(inside.max()))
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

"""Interval words: how an interval is written, and what stands in its place where it bounds nothing.

Two runs that lie far apart have an interval of any size by Student's t, 12.7 times their standard error. Its
digits would look like a result.
"""

from __future__ import annotations

import math

WIDE = 10.0  # times the estimate, or a part of it: an interval that reaches further bounds nothing
UNBOUNDED = "not bounded"
VAGUE = "±>100%"
VAGUE_LEGEND = f"{VAGUE}: the runs lie too far apart to bound their mean"


def is_vague(mean: float, half: float) -> bool:
    """Whether the interval of a mean of figures above zero reaches zero."""
    return math.isfinite(half) and 0 < abs(mean) <= half


def is_bounded(estimate: float, low: float, high: float) -> bool:
    """Whether both ends of a ratio's, or a load's, interval are within ten times of it."""
    return math.isfinite(low) and math.isfinite(high) and estimate / WIDE <= low <= high <= estimate * WIDE


def difference(share: float) -> str:
    """A difference of this size, as 79 %, or 3.4 times from 100 % on; "" of one that says nothing."""
    percent = 100 * share
    if share < 1:
        return f"{percent:.{0 if percent >= 10 else 1}f} %"
    return f"{1 + share:.2g} times" if 1 + share <= WIDE else ""

"""Confidence: what n samples show of a percentile, by order statistics, whatever their distribution.

How many of n independent samples lie above percentile p is binomial, with a chance of 1 − p/100 each. If the
percentile were above a value, more than `allowed_over` of the samples would exceed that value in a share C of
all runs; where no more do, the percentile is not above it at confidence C. This is the test of MLPerf LoadGen
(early_stopping.cc). It assumes independent samples, and nothing of their distribution.
"""

from __future__ import annotations

import math

import numpy as np

CONFIDENCE = 0.99
_PIECE = 4096  # terms of a tail that are summed at once


def least_passing(over: int, percentile: float, confidence: float = CONFIDENCE) -> int:
    """The least number of samples within a limit which, with `over` above it, show the percentile to meet it.

    459 with 0 over for P99 at 99 %, 44 for P90; with 1 over 661 for P99, 662 samples together. The percentile
    lies between 0 and 100, both excluded.
    """
    low, high = 0, 1
    while not _shown(over, over + high, percentile, confidence):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _shown(over, over + middle, percentile, confidence):
            high = middle
        else:
            low = middle
    return high


def allowed_over(n: int, percentile: float, confidence: float = CONFIDENCE) -> int:
    """How many of n samples may exceed a limit that the percentile is still shown to meet; -1: n is too few.

    The largest k with P(X ≤ k) ≤ 1 − C for X binomial of n and 1 − p/100; C is above one half.
    """
    chance = 1 - percentile / 100
    if n * math.log1p(-chance) > math.log(1 - confidence):
        return -1
    # A normal start, and exact steps from there.
    k = max(int(n * chance - 2.5 * math.sqrt(n * chance * (1 - chance))), 0)
    tail = _tail(n, k, chance)
    while tail > 1 - confidence:
        tail -= _term(n, k, chance)
        k -= 1
    while (more := tail + _term(n, k + 1, chance)) <= 1 - confidence:
        tail, k = more, k + 1
    return k


def upper_index(n: int, percentile: float, confidence: float = CONFIDENCE) -> int | None:
    """Which of n samples in ascending order, from 0, is the percentile's upper bound; None: n is too few.

    n − k for k = `allowed_over`, as in LoadGen: the bound is itself counted among those over it, so that it
    would pass as a limit with < too. Of 10,000 it is 9923 for P99 at 99 %. Where none may be over (459 to 661
    samples for P99) it is the greatest, which bounds the percentile at that confidence.
    """
    if not 0 < percentile < 100 or n < 1:
        return None
    allowed = allowed_over(n, percentile, confidence)
    return None if allowed < 0 else n - max(allowed, 1)


def lower_index(n: int, percentile: float, confidence: float = CONFIDENCE) -> int | None:
    """Which of n samples in ascending order, from 0, is the percentile's lower bound; None: n is too few.

    The upper bound of the mirrored percentile of the mirrored samples.
    """
    index = upper_index(n, 100 - percentile, confidence)
    return None if index is None else n - 1 - index


def _shown(over: int, n: int, percentile: float, confidence: float) -> bool:
    """Whether n samples with `over` above a limit show the percentile to meet it."""
    chance = 1 - percentile / 100
    # From the mean on the tail is one half at least, and its first terms may be too small for a float.
    return over < n * chance and _tail(n, over, chance) <= 1 - confidence


def _tail(n: int, k: int, chance: float) -> float:
    """P(X ≤ k) for X binomial of n and a chance between 0 and 1, k below the mean: summed down from k."""
    term, total = _term(n, k, chance), 0.0
    while k >= 0 and term > 0:
        below = np.arange(k, max(k - _PIECE, -1), -1, dtype=np.float64)
        # From one term to the next below it.
        terms = term * np.cumprod(np.r_[1.0, below * (1 - chance) / ((n - below + 1) * chance)])
        total += float(terms[:-1].sum())
        if terms[-1] < 1e-17 * total:
            break
        term, k = float(terms[-1]), k - len(below)
    return total


def _term(n: int, k: int, chance: float) -> float:
    """P(X = k) for X binomial of n and a chance between 0 and 1."""
    if not 0 <= k <= n:
        return 0.0
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(chance) + (n - k) * math.log1p(-chance))

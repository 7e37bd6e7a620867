"""Ranks: percentiles and medians as numpy has them, without what numpy imports on its way to them.

Its own import numpy.ma, for which every run would pay a tenth of its start-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.arrays import Float64


def percentiles(values: NDArray[Any], wanted: Sequence[float]) -> list[float]:
    """The percentiles of numbers, linear between closest ranks; the numbers are reordered in place.

    Equal to `numpy.percentile(values, wanted)`: of n numbers in order, percentile p lies at
    (n − 1) · p / 100, counted from 0.
    """
    last = len(values) - 1
    ranks = [last * (percentile / 100) for percentile in wanted]
    values.partition(sorted({at for rank in ranks for at in (int(rank), min(int(rank) + 1, last))}))
    return [_between(values, rank, last) for rank in ranks]


def median(values: NDArray[Any]) -> Float64:
    """The median along the last axis, equal to `numpy.median(values, -1)`."""
    ordered, n = np.sort(values, axis=-1), values.shape[-1]
    middle: Float64 = (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2
    return middle


def _between(values: NDArray[Any], rank: float, last: int) -> float:
    below = int(rank)
    share = rank - below
    low, high = values[below].item(), values[min(below + 1, last)].item()
    # From the nearer of the two, so that the result never lies beyond either.
    found = low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)
    return float(found)

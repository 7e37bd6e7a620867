"""Arrays: the names of their types in signatures; nanoseconds and counts are all int64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


def sum_exactly(values: Int64) -> int:
    """Sum the values, exactly even where an int64 cannot hold the sum."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())

"""Arrays: how their types are called in signatures; nanoseconds and counts are all int64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


def sum_exactly(values: Int64) -> int:
    """Their sum, exact where it is more than an int64 holds."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())

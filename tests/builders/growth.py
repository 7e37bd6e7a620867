"""Growth: a reader's CPU time against the length of what it reads, whatever the machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_S = 20.0  # of the processor, on a slow machine
_QUICK_S = 0.5  # too short for a ratio
_MOST_GROWTH = 3.2  # of twice the length: 2 where time grows with it, 4 where it grows with its square


def hold_linear(read: Callable[[int], object], length: int) -> None:
    """Assert that reading `length` characters takes about twice as long as half of them, not four times."""
    half_s, whole_s = _time(read, length // 2), _time(read, length)
    assert whole_s < MOST_S
    assert whole_s < max(_QUICK_S, _MOST_GROWTH * half_s)


def _time(read: Callable[[int], object], length: int) -> float:
    began_s = time.process_time()
    read(length)
    return time.process_time() - began_s

"""Memory probe: the memory bandwidth of this machine, measured in a moment by copying."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadgen.base import clock

_ARRAY_BYTES, _LEAST_BYTES = 128 << 20, 16 << 20  # more than most caches have
_SHARE = 100  # the copy takes two hundredths of the available memory: the server may need the rest
_PASSES = 7
_MOST_S = 2.0


def measure_copy_gb_per_s(
    available_bytes: int | None, most_s: float = _MOST_S, now_ns: Callable[[], int] = clock.now_ns
) -> float | None:
    """Measure GB/s read and written by one thread that copies 128 MiB: the best of 7 passes, or of `most_s`.

    With little available memory it copies less, and returns None below 16 MiB, or if that is unknown.
    """
    size = min(_ARRAY_BYTES, (available_bytes or 0) // _SHARE)
    if size < _LEAST_BYTES:
        return None
    source, target = (
        np.ones(size // 8, np.float64) for _ in range(2)
    )  # every page is there before the first
    end_ns, fastest_ns = now_ns() + int(most_s * 1e9), 0
    for _ in range(_PASSES):
        began_ns = now_ns()
        np.copyto(target, source)
        took_ns = max(now_ns() - began_ns, 1)
        fastest_ns = min(fastest_ns or took_ns, took_ns)
        if now_ns() + took_ns > end_ns:
            break
    return 2 * source.nbytes / fastest_ns

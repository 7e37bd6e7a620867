"""The one clock: CLOCK_MONOTONIC in int64 nanoseconds, and the way to it from the kernel's stamps."""

from __future__ import annotations

import time
from collections import deque

_STEP_NS = 1_000_000  # a change of less is how well it can be measured on a busy machine
_MOST_STEPS = 16  # that are remembered

now_ns = time.monotonic_ns


def realtime_offset_ns() -> int:
    """CLOCK_REALTIME − CLOCK_MONOTONIC, from the tightest of five brackets.

    Both clocks are slewed alike, so this changes only when the wall clock is stepped.
    """
    best_width, offset = None, 0
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if best_width is None or after - before < best_width:
            best_width, offset = after - before, wall - (before + after) // 2
    return offset


class WallOffset:
    """CLOCK_REALTIME − CLOCK_MONOTONIC over a run, in nanoseconds; `step_ns` is its largest change."""

    def __init__(self) -> None:
        self.now_ns = self.first_ns = realtime_offset_ns()
        self.step_ns = 0
        self._earlier: deque[tuple[int, int]] = deque(maxlen=_MOST_STEPS)  # when it ended, what it was

    def measure(self) -> None:
        """Measure it: 3 µs."""
        found_ns = realtime_offset_ns()
        self.step_ns = max(self.step_ns, abs(found_ns - self.first_ns))
        if abs(found_ns - self.now_ns) > _STEP_NS:
            self._earlier.append((now_ns(), self.now_ns))
        self.now_ns = found_ns

    def check(self) -> None:
        """Measure it if it seems to have been stepped: 0.2 µs where it was not."""
        if abs(time.time_ns() - time.monotonic_ns() - self.now_ns) > _STEP_NS:
            self.measure()

    def earlier(self, since_ns: int) -> tuple[int, ...]:
        """What it was at some time since then, and is no more."""
        return tuple(offset_ns for until_ns, offset_ns in self._earlier if until_ns >= since_ns)

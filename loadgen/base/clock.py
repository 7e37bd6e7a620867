"""Clock: CLOCK_MONOTONIC in int64 nanoseconds, kernel timestamps on it, and steps of the wall clock."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime
from typing import Protocol

US_NS, MS_NS, SECOND_NS = 1_000, 1_000_000, 1_000_000_000

_STEP_NS = MS_NS  # a change of less is how well it can be measured on a busy machine
_MOST_STEPS = 16  # that are remembered

now_ns = time.monotonic_ns


class Clock(Protocol):
    """The two clocks of a machine, in nanoseconds."""

    def now_ns(self) -> int:
        """Read CLOCK_MONOTONIC (ns)."""

    def wall_ns(self) -> int:
        """Read CLOCK_REALTIME (ns)."""


class ProcessClock(Clock, Protocol):
    """A machine's clocks and the CPU time of this process, in nanoseconds."""

    def cpu_ns(self) -> int:
        """Read CLOCK_PROCESS_CPUTIME_ID (ns)."""


class SystemClock:
    """This machine's clocks."""

    now_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)
    cpu_ns = staticmethod(time.process_time_ns)


SYSTEM_CLOCK = SystemClock()


def measure_realtime_offset_ns(clock: Clock = SYSTEM_CLOCK) -> int:
    """Measure CLOCK_REALTIME − CLOCK_MONOTONIC in ns, by the tightest of five readings.

    Both clocks are slewed alike, so this changes only when the wall clock is stepped.
    """
    brackets = ((clock.now_ns(), clock.wall_ns(), clock.now_ns()) for _ in range(5))
    before, wall, after = min(brackets, key=lambda bracket: bracket[2] - bracket[0])
    return wall - (before + after) // 2


def read_wall_clock() -> datetime:
    """Return the date and time in UTC, for people; nothing is measured by it."""
    return datetime.now(UTC)


class WallOffset:
    """CLOCK_REALTIME − CLOCK_MONOTONIC (ns): the last is `now_ns`; `step_ns` the farthest from the first."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.now_ns = self.first_ns = measure_realtime_offset_ns(clock)
        self.step_ns = 0
        self._earlier: deque[tuple[int, int]] = deque(maxlen=_MOST_STEPS)  # when it ended, what it was

    def measure(self) -> None:
        """Measure the offset again; the one before is kept as replaced if over 1 ms apart; takes 3 µs."""
        offset_ns = measure_realtime_offset_ns(self.clock)
        self.step_ns = max(self.step_ns, abs(offset_ns - self.first_ns))
        if abs(offset_ns - self.now_ns) > _STEP_NS:
            self._earlier.append((self.clock.now_ns(), self.now_ns))
        self.now_ns = offset_ns

    def check(self) -> None:
        """Measure the offset again if the wall clock seems to have been stepped; else takes 0.2 µs."""
        if abs(self.clock.wall_ns() - self.clock.now_ns() - self.now_ns) > _STEP_NS:
            self.measure()

    def list_replaced_ns(self, since_ns: int) -> tuple[int, ...]:
        """List the offsets (ns), 16 at most, in force at some time since `since_ns` and no longer."""
        return tuple(offset_ns for until_ns, offset_ns in self._earlier if until_ns >= since_ns)

"""Start: when a capturing process that is ready may send its first request."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Protocol

_SPIN_NS = 1_200_000  # a poll sleeps whole milliseconds, rounded up
_TURN_S = 0.001
_READY_NS = 20_000_000  # from the moment that all are ready to the start: each learns of it in time


class RunStart(Protocol):
    """The instant from which a plan's times count, CLOCK_MONOTONIC in nanoseconds."""

    def begin_ns(self, now_ns: int) -> int:
        """That instant, for a process that is ready now; 0 while it is not known."""
        ...


class AtOnce:
    """A start as soon as the process is ready."""

    def begin_ns(self, now_ns: int) -> int:
        return now_ns


class At:
    """A start at an instant, also one that has passed: what is due then is late, and its times show it."""

    def __init__(self, instant_ns: int) -> None:
        self.instant_ns = instant_ns

    def begin_ns(self, now_ns: int) -> int:
        return self.instant_ns


class Together:
    """A start at one instant, once all of several processes are ready; make it before the fork.

    The process that forked them calls `release`, a few hundred times a second, and counts as ready what has
    ended.
    """

    def __init__(self, processes: int, earliest_ns: int = 0) -> None:
        self.processes, self.earliest_ns = processes, earliest_ns
        self._view = memoryview(mmap.mmap(-1, 8 * (1 + processes))).cast("q")

    def make_start(self, process: int) -> TogetherStart:
        """Make the start that one of the processes, counted from 0, waits for."""
        return TogetherStart(self._view, process)

    def is_ready(self, process: int) -> bool:
        """Whether one of the processes is ready."""
        return bool(self._view[1 + process])

    def release(self, now_ns: int, ended: set[int]) -> bool:
        """Set the instant once every process is ready or has ended; whether it is set."""
        if not self._view[0] and all(
            self._view[1 + process] or process in ended for process in range(self.processes)
        ):
            self._view[0] = max(now_ns + _READY_NS, self.earliest_ns)
        return self._view[0] > 0


class TogetherStart:
    """One process's part of `Together`."""

    def __init__(self, view: memoryview, process: int) -> None:
        self._view, self._process = view, process

    def begin_ns(self, now_ns: int) -> int:
        self._view[1 + self._process] = 1
        return int(self._view[0])


def wait_for_start(start: RunStart, now_ns: Callable[[], int], turn: Callable[[float], bool]) -> int:
    """Wait for the start, and return when it was (ns).

    `turn` is called with how long it may take, in seconds; once it gives True this returns at once.
    """
    while True:
        ready_ns = now_ns()
        begin_ns = start.begin_ns(ready_ns)
        if 0 < begin_ns <= ready_ns or turn(0.0 if 0 < begin_ns < ready_ns + _SPIN_NS else _TURN_S):
            return begin_ns or ready_ns

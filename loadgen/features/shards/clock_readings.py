"""Clock readings: how this machine's CLOCK_MONOTONIC stands to a clock that others have too."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from loadgen.base import clock
from loadgen.base.clock import SYSTEM_CLOCK, Clock
from loadgen.verdict.run_facts import ClockReading

UNKNOWN_NS = -1
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/timens_offsets")
_TIME_ERROR, _UNSYNCHRONIZED = 5, 0x0040  # adjtimex(2): the clock's state, and STA_UNSYNC of its status
_TRIPS = 8


class _Timex(ctypes.Structure):
    """struct timex of Linux, as adjtimex(2) has it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),  # µs
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def boot_id(boot: Path = _BOOT, namespace: Path = _TIME_NAMESPACE) -> str:
    """Processes with the same one, of a boot and a time namespace, share CLOCK_MONOTONIC; "": unknown."""
    try:
        started = boot.read_text("ascii").strip()
    except (OSError, UnicodeError):
        return ""
    try:
        offsets = {words[0]: words[1:] for words in map(str.split, namespace.read_text("ascii").splitlines())}
    except (OSError, UnicodeError, IndexError):
        offsets = {}
    shifted = any(map(int, offsets.get("monotonic", ())))
    return f"{started} {' '.join(offsets['monotonic'])}" if shifted else started


def wall_error_ns() -> int:
    """By how much the wall clock is off at most, as the kernel has it from who sets it; -1: no one does."""
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (AttributeError, OSError):  # no Linux
        return UNKNOWN_NS
    if state < 0 or state == _TIME_ERROR or timex.status & _UNSYNCHRONIZED:
        return UNKNOWN_NS
    return int(timex.maxerror) * 1000


def reading(
    clocks: Clock = SYSTEM_CLOCK,
    boot: Callable[[], str] = boot_id,
    error_ns: Callable[[], int] = wall_error_ns,
) -> ClockReading:
    """How CLOCK_MONOTONIC stands to the wall clock now."""
    offset_ns = clock.realtime_offset_ns(clocks)
    return ClockReading(boot=boot(), offset_ns=offset_ns, error_ns=error_ns())


class RoundTrips:
    """How another process's CLOCK_MONOTONIC stands to this one's, from questions and answers.

    `ask` returns the other's clock, in nanoseconds, between its call and its return. Of all trips together
    the shortest way there and the shortest way back count: the offset lies between the two bounds that they
    give, so it is the middle, and off by half of what is between them at most.
    """

    def __init__(self, ask: Callable[[], int], clocks: Clock = SYSTEM_CLOCK) -> None:
        self.ask, self.clocks = ask, clocks

    def reading(self, boot: str, reference: str, trips: int = _TRIPS) -> ClockReading:
        """The other's clock: what this one's is ahead of it; `boot` is the other's."""
        least_ns, most_ns = -(2**62), 2**62
        for _ in range(trips):
            asked_ns = self.clocks.now_ns()
            theirs_ns = self.ask()
            least_ns, most_ns = (
                max(least_ns, asked_ns - theirs_ns),
                min(most_ns, self.clocks.now_ns() - theirs_ns),
            )
        # A clock that was slewed meanwhile can have the bounds cross, by little.
        half_ns = (abs(most_ns - least_ns) + 1) // 2
        offset_ns = (least_ns + most_ns) // 2
        return ClockReading(boot=boot, offset_ns=offset_ns, error_ns=half_ns, reference=reference)

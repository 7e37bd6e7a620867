"""Shard clocks: how CLOCK_MONOTONIC of a machine stands to another clock, and to that of the first shard.

No latency needs it: each is a difference of two times of one clock. What does are the start, the edges of
windows, the peaks, and all that is divided by the duration of the whole.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadgen.base import clock
from loadgen.base.clock import SYSTEM_CLOCK, Clock
from loadgen.facts.run_facts import ClockReading, ShardFacts

UNKNOWN_NS = -1  # of an error
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/timens_offsets")
_TIME_ERROR, _UNSYNCHRONIZED = 5, 0x0040  # adjtimex(2): the clock's state, and STA_UNSYNC of its status
_TRIPS = 8
_DRIFT = 1e-4  # of the time, where no second reading shows it: quartz is off by less


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


def find_boot_id(boot: Path = _BOOT, namespace: Path = _TIME_NAMESPACE) -> str:
    """Return the boot's id, and the time namespace's offset if it has one; "" if unknown.

    Processes with the same id share CLOCK_MONOTONIC.
    """
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


def read_wall_error_ns() -> int:
    """Return the kernel's bound on the wall clock's error (ns); -1: no program sets it, or no Linux."""
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (AttributeError, OSError):  # no Linux
        return UNKNOWN_NS
    if state < 0 or state == _TIME_ERROR or timex.status & _UNSYNCHRONIZED:
        return UNKNOWN_NS
    return int(timex.maxerror) * 1000


def read_clock(
    clocks: Clock = SYSTEM_CLOCK,
    boot: Callable[[], str] = find_boot_id,
    error_ns: Callable[[], int] = read_wall_error_ns,
) -> ClockReading:
    """Read how CLOCK_MONOTONIC stands to the wall clock now."""
    offset_ns = clock.measure_realtime_offset_ns(clocks)
    return ClockReading(boot=boot(), offset_ns=offset_ns, error_ns=error_ns())


def measure_offset(
    ask: Callable[[], int], boot: str, reference: str, clocks: Clock = SYSTEM_CLOCK, trips: int = _TRIPS
) -> ClockReading:
    """Measure how far this clock is ahead of another process's, by round trips, and the error (ns).

    `ask` returns the CLOCK_MONOTONIC of the other (ns), `boot` is its id, and `reference` names this clock.
    Of all trips together the shortest way there and the shortest way back count: the offset lies between the
    two bounds that they give, so it is the middle, and off by half of what is between them at most.
    """
    least_ns, most_ns = -(2**62), 2**62
    for _ in range(trips):
        asked_ns = clocks.now_ns()
        theirs_ns = ask()
        least_ns = max(least_ns, asked_ns - theirs_ns)
        most_ns = min(most_ns, clocks.now_ns() - theirs_ns)
    # A clock that was slewed meanwhile can have the bounds cross, by little.
    half_ns = (abs(most_ns - least_ns) + 1) // 2
    offset_ns = (least_ns + most_ns) // 2
    return ClockReading(boot=boot, offset_ns=offset_ns, error_ns=half_ns, reference=reference)


class ClockShift(msgspec.Struct, frozen=True):
    """The ns to add to a shard's times, which may be off by `error_ns`; -1: unknown."""

    offset_ns: int = 0
    error_ns: int = 0
    reference: str = ""  # "": it is the same clock


class ClockSpan(msgspec.Struct, frozen=True):
    """A shard's clock readings, and its first and last time (ns); both 0 if it sent nothing."""

    shard: ShardFacts
    begin_ns: int = 0
    end_ns: int = 0


def find_shifts(spans: Sequence[ClockSpan]) -> list[ClockShift]:
    """Find the shift of each shard onto the clock of the first one that sent anything."""
    first = next((span for span in spans if span.begin_ns), spans[0])
    return [_find_shift(first, span) for span in spans]


def _find_shift(first: ClockSpan, span: ClockSpan) -> ClockShift:
    """Return a shard's shift onto the first one's clock, none on one boot.

    Of unrelated clocks it makes both begin at once, with an unknown error.
    """
    one, other = first.shard.before, span.shard.before
    if one.boot and one.boot == other.boot:
        return ClockShift()
    if one.reference != other.reference:  # nothing says how they stand to each other: let both begin at once
        both = f"{one.reference} and {other.reference}"
        return ClockShift(first.begin_ns - span.begin_ns, UNKNOWN_NS, both)
    (to_ns, to_error_ns), (from_ns, from_error_ns) = _estimate_offset(first), _estimate_offset(span)
    known = UNKNOWN_NS not in (to_error_ns, from_error_ns)
    error_ns = to_error_ns + from_error_ns if known else UNKNOWN_NS
    return ClockShift(from_ns - to_ns, error_ns, other.reference)


def _estimate_offset(span: ClockSpan) -> tuple[int, int]:
    """Return (reference − this clock) in the middle of the run, and its error (ns; -1: unknown).

    A drift of 10⁻⁴ is assumed without a second reading.
    """
    before, after = span.shard.before, span.shard.after
    if after is None or after.reference != before.reference:
        drift_ns = round(_DRIFT * (span.end_ns - span.begin_ns))
        return before.offset_ns, _join_errors(before, before, drift_ns)
    apart_ns = abs(after.offset_ns - before.offset_ns)
    return compute_middle_ns(before, after), _join_errors(before, after, -(-apart_ns // 2))


def compute_middle_ns(before: ClockReading, after: ClockReading | None) -> int:
    """Return the offset (ns) in the middle of a run, from one or two readings."""
    return before.offset_ns if after is None else (before.offset_ns + after.offset_ns) // 2


def _join_errors(before: ClockReading, after: ClockReading, more_ns: int) -> int:
    errors = before.error_ns, after.error_ns
    return UNKNOWN_NS if min(errors) < 0 else max(errors) + more_ns

"""Start at: the instant at which all shards of a plan begin, from the wall clock to CLOCK_MONOTONIC."""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.clock import SECOND_NS, SYSTEM_CLOCK, Clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.text import quote_value
from loadgen.run.measure import TransportOptions
from loadgen.run.progress import Display
from loadgen.run.signals import Interrupts
from loadgen.transport.sending.share import At

FLAG = "--start-at"
MOST_AHEAD_S = 86_400
_EPOCH = re.compile(r"(\+?)(\d{1,12})(?:\.(\d{1,9})\d*)?", re.ASCII)
_LEAST_LEAD_S, _MOST_LEAD_S = 1.0, 30.0
_CONNECTED_PER_S = 2_000  # on a machine that has other work
_POLL_S = 0.1


class PlannedStart(msgspec.Struct, frozen=True):
    """When requests are to begin, CLOCK_REALTIME in nanoseconds."""

    wall_ns: int
    relative: bool = False  # to when this command began: no other command has the same

    def __str__(self) -> str:
        """The instant in local time, to the millisecond, with its zone; beyond the calendar in seconds."""
        try:
            at = datetime.fromtimestamp(self.wall_ns / SECOND_NS, UTC).astimezone()
        except (ValueError, OverflowError, OSError):
            return f"{self.wall_ns / SECOND_NS:.3f} s since 1970"
        return at.isoformat(" ", "milliseconds")

    def check(self, wall_ns: int) -> None:
        """Raises UsageError where the instant has passed, or is more than a day ahead."""
        ahead_s = (self.wall_ns - wall_ns) / SECOND_NS
        if ahead_s <= 0:
            raise UsageError(
                f"{FLAG} {self} was {abs(ahead_s):.1f} s ago: give a later instant, the same to all shards"
            )
        if ahead_s > MOST_AHEAD_S:
            raise UsageError(f"{FLAG} {self} is {ahead_s / 3600:.0f} hours ahead: give one within a day")

    def instant_ns(self, clocks: Clock = SYSTEM_CLOCK) -> int:
        """The same on CLOCK_MONOTONIC, as the wall clock stands now."""
        return self.wall_ns - clock.realtime_offset_ns(clocks)


def read(text: str, clocks: Clock = SYSTEM_CLOCK) -> PlannedStart:
    """The instant of `--start-at`; raises ValueError that says how to write one."""
    if match := _EPOCH.fullmatch(text):
        plus, seconds, fraction = match.groups()
        time_ns = int(seconds) * SECOND_NS + int((fraction or "").ljust(9, "0"))
        return PlannedStart(time_ns + clocks.wall_ns(), True) if plus else PlannedStart(time_ns)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise ValueError(
            f"{quote_value(text)} is no instant: give seconds since 1970 (date +%s), ISO 8601 with its zone "
            "(2026-01-31T12:00:00Z), or +SECONDS from now"
        )
    whole_s = int((when.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    return PlannedStart(whole_s * SECOND_NS + when.microsecond * 1000)


class Punctual(At):
    """At a given instant, in a process that is ready by then; else never: `late_ns` says how late it was.

    Make it before the fork, in the process that is to read `late_ns`: it sends nothing itself, and is not
    judged. Of several processes the latest counts.
    """

    def __init__(self, instant_ns: int) -> None:
        super().__init__(instant_ns)
        self._late = memoryview(mmap.mmap(-1, 8)).cast("q")
        self._maker, self._ready = os.getpid(), False

    @property
    def late_ns(self) -> int:
        """How long after the instant a process was ready; 0: in time, or not yet ready."""
        return int(self._late[0])

    def begin_ns(self, now_ns: int) -> int:
        if not self._ready and os.getpid() != self._maker:
            self._ready = True
            if now_ns > self.instant_ns:
                self._late[0] = max(self._late[0], now_ns - self.instant_ns)
        return 0 if self._late[0] else self.instant_ns


def lead_s(connections: int) -> float:
    """How long before the start connections begin to be opened, in seconds."""
    return min(_LEAST_LEAD_S + connections / _CONNECTED_PER_S, _MOST_LEAD_S)


class StartWait:
    """The wait for an instant at which a run is to begin; where there is none nothing waits.

    The wall clock may be set meanwhile: what it shows in the end counts.
    """

    def __init__(
        self,
        start: PlannedStart | None,
        connections: int,
        display: Display,
        interrupts: Interrupts,
        clocks: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.start, self.display, self.interrupts = start, display, interrupts
        self.lead_s = lead_s(connections)
        self.clocks, self.sleep = clocks, sleep

    def until(self, before_s: float = 0.0) -> None:
        """Return that long before the connections are to be opened; at once where that has passed."""
        ahead_s = self.lead_s + before_s
        if self.start is None or self._left_s <= ahead_s:
            return
        with self.display.waiting(f"waiting for the start at {self.start}", self._left_s):
            while (left_s := self._left_s - ahead_s) > 0:
                self.interrupts.poll()
                self.sleep(min(left_s, _POLL_S))

    def begun(self, options: TransportOptions) -> TransportOptions:
        """The options with the start, once it is so near that the connections are to be opened.

        Raises MeasureError where the instant has passed; so does `gone` of what is returned, where the
        capturing process was not ready in time.
        """
        if self.start is None:
            return options
        self.until()
        instant_ns = self.start.instant_ns(self.clocks)
        self._check(self.clocks.now_ns() - instant_ns)
        start, gone = Punctual(instant_ns), options.gone

        def late_or_gone() -> bool:
            self._check(start.late_ns)
            return gone()

        return replace(options, part=replace(options.part, start=start), gone=late_or_gone)

    @property
    def _left_s(self) -> float:
        """How long it is until the instant, in seconds; negative where it has passed."""
        assert self.start is not None
        return (self.start.instant_ns(self.clocks) - self.clocks.now_ns()) / SECOND_NS

    def _check(self, late_ns: int) -> None:
        if late_ns > 0:
            raise MeasureError(
                f"not ready until {late_ns / SECOND_NS:.2g} s after {FLAG} {self.start}: nothing was "
                "measured; give a later instant, the same to all shards"
            )

"""Start at: instants as they are written, the wait for them, and processes that are late."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.signals import SIGNALS, Interrupts, Stopped, StopRequest
from loadgen.features.shards.shard_sender import Punctual, ShardSender
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.firing import TransportOptions
from loadgen.settings import shard_settings
from loadgen.settings.shard_settings import PlannedStart
from loadgen.transport.sending.job import Target

S = 1_000_000_000
NOW_S = 1_800_000_000
OPTIONS = TransportOptions(Target("http", "127.0.0.1", 1, "/", (2, ("127.0.0.1", 1)), ()))


class Clocks:
    """A machine's clocks, which go on only while something sleeps."""

    def __init__(self, wall_s: float = NOW_S, on_sleep: Callable[[], None] = lambda: None) -> None:
        self.mono_ns, self.ahead_ns, self.on_sleep = 5 * S, int(wall_s * S) - 5 * S, on_sleep

    def now_ns(self) -> int:
        return self.mono_ns

    def wall_ns(self) -> int:
        return self.mono_ns + self.ahead_ns

    def sleep(self, seconds: float) -> None:
        self.mono_ns += max(round(seconds * S), 1)
        self.on_sleep()


@loop_over("text", ["", "soon", "-5", "1e9", "2027-01-15T08:01:00", "inf", "nan", "+", "9" * 30])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an instant: give seconds since 1970"):
        shard_settings.read_instant(text, Clocks())


@loop_over(
    ("text", "message"),
    [
        ("0001-01-01T00:00:00+23:59", "-62135683140.000 s since 1970 was 63935683140.0 s ago"),
        ("9999-12-31T23:59:59-23:59", "253402387139.000 s since 1970 is 69889552 hours ahead"),
        ("9" * 12, "999999999999.000 s since 1970 is 277277778 hours ahead"),
        ("2608-01-01T00:00:00Z", "is 5092576 hours ahead: give one within a day"),
        ("0001-01-01T00:00:00Z", "s ago: give a later instant"),
        (f"{NOW_S - 3}", "was 3.0 s ago: give a later instant, the same to all shards"),
        (f"{NOW_S}", "was 0.0 s ago"),
        (f"{NOW_S + 86_401}", "is 24 hours ahead: give one within a day"),
        (f"{NOW_S + 10**9}", "is 277778 hours ahead"),
    ],
)
def test_an_instant_past_or_absurd_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        shard_settings.read_instant(text, Clocks()).check(NOW_S * S)


def in_a_child(do: Callable[[], list[int]]) -> list[int]:
    """What a forked process returns."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, " ".join(map(str, do())).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        return [int(word) for word in pipe.read().split()]


def sender(start_s: float, clocks: Clocks, interrupts: Interrupts = SIGNALS) -> ShardSender:
    start = PlannedStart(round((NOW_S + start_s) * S))
    return ShardSender(Options(start_at=start), interrupts, clocks, clocks.sleep)


def begun(start_s: float, clocks: Clocks, options: TransportOptions = OPTIONS) -> TransportOptions:
    return sender(start_s, clocks).begin(plan_of(0), options, Display())


def plan_of(connections: int) -> Any:
    return SimpleNamespace(streams=connections)


def test_the_start_is_the_instant_on_the_monotonic_clock() -> None:
    clocks = Clocks()
    options = begun(60, clocks)
    assert clocks.mono_ns == 64 * S
    assert isinstance(options.part.start, Punctual)
    assert (options.part.start.instant_ns, options.gone()) == (65 * S, False)


def test_without_an_instant_nothing_waits_or_changes() -> None:
    clocks = Clocks()
    free = ShardSender(Options(), SIGNALS, clocks, clocks.sleep)
    free.wait(plan_of(1), 10, Display())
    assert free.begin(plan_of(1), OPTIONS, Display()) is OPTIONS
    assert clocks.mono_ns == 5 * S


def test_a_stop_ends_the_wait() -> None:
    stop, clocks = StopRequest(), Clocks()
    clocks.on_sleep = lambda: stop.request_stop(2)
    with pytest.raises(Stopped):
        sender(60, clocks, stop).wait(plan_of(0), 1, Display())
    assert clocks.mono_ns < 6 * S


def test_an_instant_that_has_passed_is_an_error() -> None:
    clocks = Clocks(NOW_S + 3.25)
    with pytest.raises(
        MeasureError, match=r"not ready until 3\.2 s after --start-at .*: nothing was measured"
    ):
        begun(0, clocks)


@pytest.mark.whole
@loop_over(("ready_s", "late"), [(64.9, False), (65.0, False), (66.5, True)])
def test_a_process_that_is_late_never_begins_and_ends_the_run(ready_s: float, late: bool) -> None:
    options = begun(60, Clocks(), replace(OPTIONS, gone=lambda: True))
    assert options.gone()  # as before
    start = options.part.start
    assert start.begin_ns(99 * S) == 65 * S  # of the parent, which sends nothing
    asked_ns = (int(ready_s * S), int(ready_s * S) + 9 * S)
    assert in_a_child(lambda: [start.begin_ns(ns) for ns in asked_ns]) == [0 if late else 65 * S] * 2
    if late:
        with pytest.raises(MeasureError, match=r"not ready until 1\.5 s after"):
            options.gone()
    else:
        assert options.gone()


@pytest.mark.whole
def test_the_parent_learns_that_its_child_is_late() -> None:
    start = Punctual(10)
    for ready_ns, late_ns in ((9, 0), (10, 0), (25, 15), (12, 15), (9, 15), (30, 20)):
        assert in_a_child(partial(lambda ns: [start.begin_ns(ns)], ready_ns)) == [0 if late_ns else 10]
        assert start.late_ns == late_ns

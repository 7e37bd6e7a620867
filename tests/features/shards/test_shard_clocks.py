"""A shard's clock and start: readings, instants as they are written, the wait, and late processes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import made_cases
from builders.loops import loop_over, loop_over_named
from builders.made_cases import open_loop, rate
from builders.shard_runs import HERE, elsewhere, named, part, shard
from fakes.virtual_time import VirtualTime
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.signals import SIGNALS, Interrupts, Stopped, StopRequest
from loadgen.facts.run_facts import ClockReading, ShardFacts
from loadgen.features.shards import merge, shard_clocks
from loadgen.features.shards.merge import shift_records
from loadgen.features.shards.shard_clocks import (
    ClockShift,
    ClockSpan,
    find_boot_id,
    find_shifts,
    measure_offset,
    read_clock,
)
from loadgen.features.shards.shard_sender import Punctual, ShardSender
from loadgen.records.record import Records
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.firing import TransportOptions
from loadgen.settings import shard_settings
from loadgen.settings.shard_settings import PlannedStart
from loadgen.transport.sending.job import Target


def test_this_machine_has_a_reading() -> None:
    found = read_clock()
    assert found.boot == find_boot_id() != ""
    assert found.error_ns >= shard_clocks.UNKNOWN_NS


@loop_over(
    ("boot", "namespace", "expected"),
    [
        ("a-b\n", None, "a-b"),
        ("a-b\n", "monotonic           0         0\nboottime            0         0\n", "a-b"),
        ("a-b\n", "monotonic       86400         5\nboottime            0         0\n", "a-b 86400 5"),
        ("a-b\n", "monotonic          -2         0\n", "a-b -2 0"),
        ("a-b\n", "", "a-b"),
        (None, None, ""),
    ],
)
def test_a_time_namespace_has_a_clock_of_its_own(
    tmp_path: Path, boot: str | None, namespace: str | None, expected: str
) -> None:
    for name, text in (("boot", boot), ("namespace", namespace)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert find_boot_id(tmp_path / "boot", tmp_path / "namespace") == expected


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=12),
    st.integers(-(10**15), 10**15),
)
def test_round_trips_bound_the_offset(ways_ns: list[tuple[int, int]], ahead_ns: int) -> None:
    clocks, trips = VirtualTime(), iter(ways_ns)

    def ask() -> int:
        there_ns, back_ns = next(trips)
        clocks.ns += there_ns
        theirs_ns = clocks.ns + ahead_ns
        clocks.ns += back_ns
        return theirs_ns

    found = measure_offset(ask, "boot", "the driver's clock", clocks, len(ways_ns))
    assert abs(found.offset_ns + ahead_ns) <= found.error_ns
    least_ns = min(there for there, _ in ways_ns) + min(back for _, back in ways_ns)
    assert found.error_ns == (least_ns + 1) // 2
    assert (found.boot, found.reference) == ("boot", "the driver's clock")


MS, S = 10**6, 10**9
WALL, DRIVER = "wall clock", "the driver's clock"


def reading(offset_ns: int, error_ns: int = 0, reference: str = WALL, boot: str = "b") -> ClockReading:
    return ClockReading(boot=boot, offset_ns=offset_ns, error_ns=error_ns, reference=reference)


def of_clock(before: ClockReading, after: ClockReading | None, number: int = 1) -> ShardFacts:
    return shard(number, 2, before=before, after=after)


FIRST = of_clock(reading(10 * S, 2 * MS, boot="a"), reading(10 * S, 1 * MS, boot="a"), 0)


@loop_over_named(
    ("before", "after", "shift"),
    {
        "of the same boot: the same": (reading(5 * S, boot="a"), reading(6 * S, boot="a"), ClockShift()),
        "another, that did not drift": (
            reading(7 * S, 3 * MS),
            reading(7 * S, 1 * MS),
            ClockShift(-3 * S, 5 * MS, WALL),
        ),
        "one that drifted: the middle, and half of it": (
            reading(7 * S, 3 * MS),
            reading(7 * S + 8 * MS, 3 * MS),
            ClockShift(-3 * S + 4 * MS, 9 * MS, WALL),
        ),
        "killed: it may have drifted": (reading(7 * S, 3 * MS), None, ClockShift(-3 * S, 15 * MS, WALL)),
        "not known how well": (reading(7 * S, 3 * MS), reading(7 * S, -1), ClockShift(-3 * S, -1, WALL)),
        "another reference: both begin at once": (
            reading(7 * S, 3 * MS, DRIVER),
            None,
            ClockShift(150 * S, -1, "wall clock and the driver's clock"),
        ),
    },
)
def test_clocks_are_compared_by_their_readings(
    before: ClockReading, after: ClockReading | None, shift: ClockShift
) -> None:
    spans = [ClockSpan(FIRST, 200 * S, 300 * S), ClockSpan(of_clock(before, after), 50 * S, 150 * S)]
    assert find_shifts(spans) == [ClockShift(), shift]


def test_a_shard_without_requests_moves_no_other() -> None:
    empty, other = of_clock(reading(7 * S, reference=DRIVER), None, 0), of_clock(reading(9 * S), None)
    moved = find_shifts(
        [ClockSpan(empty), ClockSpan(other, 50 * S, 60 * S), ClockSpan(FIRST, 49 * S, 59 * S)]
    )
    assert moved[1] == ClockShift()
    assert moved[2] == ClockShift(1 * S, 3 * MS, WALL)


def merged(run: Result, ahead_ns: int, **shards: ShardFacts) -> Result:
    """Two shards, of which the second begins so much later by its own clock."""
    second = part(run, 1, 2, **shards)
    moved = Result(second.facts, Records.join(shift_records(second.records, ahead_ns)))
    return merge.merge_results(named([part(run, 0, 2), moved]))


CASE = made_cases.run(open_loop(), rate(100))
RUN = Result(CASE.facts, CASE.records)


def test_shards_of_two_clocks_are_the_run_of_one() -> None:
    both = merged(RUN, 5 * S, shard=elsewhere(1, 2, 5 * S, error_ns=MS))
    assert both.records.pack() == RUN.records.pack()
    assert both.metrics == RUN.metrics
    row = both.facts.shards[1]
    assert (row.offset_ns, row.error_ns, row.reference) == (-5 * S, MS + HERE.error_ns, WALL)
    assert [finding.rule.code for finding in both.verdict.findings] == []
    said = " ".join(report.render_report(both).split())
    assert (
        "merged from 2 of 2 shards; times of 1 moved to the clock of the first shard by wall clock, "
        "± 1 ms at most; no latency depends on it"
    ) in said
    explained = " ".join(report.render_report(both, explain=True).split())
    assert "shard 1/2: 160 requests, 0.01 of a core busy, times moved by -5.000000 s ± 1 ms" in explained


def test_a_clock_that_is_not_known_is_doubted_and_no_latency_is() -> None:
    both = merged(RUN, 5 * S, shard=elsewhere(1, 2, 5 * S, error_ns=-1))
    (finding,) = both.verdict.grave
    assert finding.rule.code == "clock-offset"
    begin = "shard 1/2 at an unknown offset to the clock of the first one: duration, throughput, conc"
    assert finding.evidence.startswith(begin)
    assert "latencies are not" in finding.evidence
    assert both.metrics.ttft == RUN.metrics.ttft


@pytest.mark.parametrize(("began_ms", "apart"), [(2000, []), (3500, ["shards-started-apart"])])
def test_a_shard_may_begin_with_the_stage_that_has_its_first_slot(began_ms: int, apart: list[str]) -> None:
    stages = {"schedule": "concurrency 1 for 2s, 8 for 1m", "max_concurrency": None, "num_prompts": None}
    staged = made_cases.run(workload=stages)
    run = Result(staged.facts, staged.records)
    codes = [finding.rule.code for finding in merged(run, began_ms * MS).verdict.grave]
    assert [code for code in codes if code == "shards-started-apart"] == apart


NOW_S = 1_800_000_000
OPTIONS = TransportOptions(Target("http", "127.0.0.1", 1, "/", (2, ("127.0.0.1", 1)), ()))


def make_clocks(wall_s: float = NOW_S) -> VirtualTime:
    """A machine's clocks, which go on only while something sleeps."""
    return VirtualTime(5 * S, int(wall_s * S) - 5 * S)


@loop_over("text", ["", "soon", "-5", "1e9", "2027-01-15T08:01:00", "inf", "nan", "+", "9" * 30])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an instant: give seconds since 1970"):
        shard_settings.read_instant(text, make_clocks())


@loop_over(
    ("text", "message"),
    [
        ("0001-01-01T00:00:00+23:59", "-62135683140.000 s since 1970 was 63935683140.0 s ago"),
        ("9999-12-31T23:59:59-23:59", "253402387139.000 s since 1970 is 69889552 hours ahead"),
        ("9" * 12, "999999999999.000 s since 1970 is 277277778 hours ahead"),
        ("2608-01-01T00:00:00Z", "is 5092576 hours ahead: give one within a day"),
        (f"{NOW_S - 3}", "was 3.0 s ago: give a later instant, the same to all shards"),
        (f"{NOW_S}", "was 0.0 s ago"),
        (f"{NOW_S + 86_401}", "is 24 hours ahead: give one within a day"),
        (f"{NOW_S + 10**9}", "is 277778 hours ahead"),
    ],
)
def test_an_instant_past_or_absurd_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        shard_settings.read_instant(text, make_clocks()).check(NOW_S * S)


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


def sender(start_s: float, clocks: VirtualTime, interrupts: Interrupts = SIGNALS) -> ShardSender:
    start = PlannedStart(round((NOW_S + start_s) * S))
    return ShardSender(Options(start_at=start), interrupts, clocks, clocks.sleep)


def begun(start_s: float, clocks: VirtualTime, options: TransportOptions = OPTIONS) -> TransportOptions:
    return sender(start_s, clocks).begin(plan_of(0), options, Display())


def plan_of(connections: int) -> Any:
    return SimpleNamespace(streams=connections)


def test_the_start_is_the_instant_on_the_monotonic_clock() -> None:
    clocks = make_clocks()
    options = begun(60, clocks)
    assert clocks.ns == 64 * S
    assert isinstance(options.part.start, Punctual)
    assert (options.part.start.instant_ns, options.gone()) == (65 * S, False)


def test_without_an_instant_nothing_waits_or_changes() -> None:
    clocks = make_clocks()
    free = ShardSender(Options(), SIGNALS, clocks, clocks.sleep)
    free.wait(plan_of(1), 10, Display())
    assert free.begin(plan_of(1), OPTIONS, Display()) is OPTIONS
    assert clocks.ns == 5 * S


def test_a_stop_ends_the_wait() -> None:
    stop, clocks = StopRequest(), make_clocks()
    clocks.after(1, lambda: stop.request_stop(2))
    with pytest.raises(Stopped):
        sender(60, clocks, stop).wait(plan_of(0), 1, Display())
    assert clocks.ns < 6 * S


def test_an_instant_that_has_passed_is_an_error() -> None:
    clocks = make_clocks(NOW_S + 3.25)
    with pytest.raises(
        MeasureError, match=r"not ready until 3\.2 s after --start-at .*: nothing was measured"
    ):
        begun(0, clocks)


@pytest.mark.whole
@loop_over(("ready_s", "late"), [(64.9, False), (65.0, False), (66.5, True)])
def test_a_process_that_is_late_never_begins_and_ends_the_run(ready_s: float, late: bool) -> None:
    options = begun(60, make_clocks(), replace(OPTIONS, gone=lambda: True))
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

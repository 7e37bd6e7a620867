"""Clock readings: by the wall clock, and by round trips to a clock of another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import made_cases, shard_runs
from builders.loops import loop_over, loop_over_named
from builders.made_cases import open_loop, rate
from builders.shard_runs import HERE, elsewhere, named, part, shard
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
from loadgen.records.record import Records
from loadgen.report import report
from loadgen.report.run_directory import Result


class Clocks:
    """A machine's two clocks, which stand still unless moved."""

    def __init__(self, mono_ns: int = 1_000_000, ahead_ns: int = 0) -> None:
        self.mono_ns, self.ahead_ns = mono_ns, ahead_ns

    def now_ns(self) -> int:
        return self.mono_ns

    def wall_ns(self) -> int:
        return self.mono_ns + self.ahead_ns


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
    clocks, trips = Clocks(), iter(ways_ns)

    def ask() -> int:
        there_ns, back_ns = next(trips)
        clocks.mono_ns += there_ns
        theirs_ns = clocks.mono_ns + ahead_ns
        clocks.mono_ns += back_ns
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


def on(run: Result, number: int, ahead_ns: int, **reading: Any) -> Result:
    """One of two shards, on a machine whose clock is ahead by so much."""
    mine = part(run, number, 2, shard=elsewhere(number, 2, ahead_ns, **reading))
    return Result(mine.facts, Records.join(shift_records(mine.records, ahead_ns)))


def merged(run: Result, ahead_ns: int, **reading: Any) -> Result:
    return merge.merge_results(named([part(run, 0, 2), on(run, 1, ahead_ns, **reading)]))


CASE = made_cases.run(open_loop(), rate(100))
RUN = Result(CASE.facts, CASE.records)


def test_shards_of_two_clocks_are_the_run_of_one() -> None:
    both = merged(RUN, 5 * S, error_ns=MS)
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


@pytest.mark.parametrize(
    ("error_ns", "evidence"),
    [
        (25 * MS, "shard 1/2 at an offset that is known to ± 25 ms to the clock of the first one: duration"),
        (-1, "shard 1/2 at an unknown offset to the clock of the first one: duration, throughput, conc"),
    ],
)
def test_a_clock_that_is_not_known_well_is_doubted_and_no_latency_is(error_ns: int, evidence: str) -> None:
    both = merged(RUN, 5 * S, error_ns=error_ns)
    (finding,) = both.verdict.grave
    assert finding.rule.code == "clock-offset"
    assert finding.evidence.startswith(evidence)
    assert "latencies are not" in finding.evidence
    assert both.metrics.ttft == RUN.metrics.ttft


@pytest.mark.parametrize(("began_ms", "apart"), [(2000, []), (3500, ["shards-started-apart"])])
def test_a_shard_may_begin_with_the_stage_that_has_its_first_slot(began_ms: int, apart: list[str]) -> None:
    stages = {"schedule": "concurrency 1 for 2s, 8 for 1m", "max_concurrency": None, "num_prompts": None}
    staged = made_cases.run(workload=stages)
    run = Result(staged.facts, staged.records)
    second = shard_runs.part(run, 1, 2)
    moved = Result(second.facts, Records.join(shift_records(second.records, began_ms * MS)))
    both = merge.merge_results(named([shard_runs.part(run, 0, 2), moved]))
    codes = [finding.rule.code for finding in both.verdict.grave]
    assert [code for code in codes if code == "shards-started-apart"] == apart

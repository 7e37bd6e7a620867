"""Load schedules: what is written is what is planned, and what cannot be planned says what to write."""

from __future__ import annotations

import math

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.parsing import parse_seconds
from loadgen.plan.planned_requests import ConcurrencySteps
from loadgen.settings.load_schedule import parse_schedule

TABLES = read_tables("load_schedule")

NS = 1_000_000_000


@loop_over(("text", "concurrency", "stages"), TABLES["stages"])
def test_a_schedule_is_the_stages_it_writes(
    text: str, concurrency: bool, stages: list[list[float | bool]]
) -> None:
    made = parse_schedule(text)
    assert made.concurrency == concurrency
    assert [[s.span_s, s.begin, s.end, s.exponential] for s in made.stages] == stages
    assert made.duration_s == sum(stage[0] for stage in stages)


def test_a_time_needs_its_unit() -> None:
    assert [parse_seconds(text) for text in ("60s", "2m", "1.5h", "500 ms")] == [60.0, 120.0, 5400.0, 0.5]
    with pytest.raises(ValueError, match="units ms, s, m, h"):
        parse_seconds("60")


@loop_over(
    "text",
    [
        "rate 2 for 60s, 8 for 120s",
        "rate 0 to 16 over 60s",
        "rate 16 to 0 over 60s, 3 for 10s",
        "rate 0.01 to 100 over 60s exponentially, 100 to 0.01 over 60s exponentially",
        "rate 1 for 10s, 0 for 10s, 1 to 2 over 10s",
        "rate 5 to 5.000000001 over 60s",
    ],
)
def test_offsets_are_the_inverse_of_the_integral_of_the_rate(text: str) -> None:
    schedule = parse_schedule(text)
    counts = np.linspace(0.0, sum(stage.count for stage in schedule.stages), 1001)[:-1]
    offsets_s = schedule.find_offsets_s(counts)
    assert (np.diff(offsets_s) > 0).all()
    begins = np.cumsum([0.0, *(stage.span_s for stage in schedule.stages)])
    integral = []
    for offset_s in offsets_s.tolist():
        at = min(int(np.searchsorted(begins, offset_s, "right")) - 1, len(schedule.stages) - 1)
        before = sum(stage.count for stage in schedule.stages[:at])
        integral.append(before + schedule.stages[at].integrate(offset_s - begins[at]))
    np.testing.assert_allclose(integral, counts, rtol=1e-9, atol=1e-7)


def test_a_count_reached_as_a_pause_begins_is_due_at_its_end() -> None:
    schedule = parse_schedule("rate 2 for 2s, 0 for 3s, 1 for 2s")
    assert schedule.find_offsets_s(np.arange(8.0)).tolist() == [0.0, 0.5, 1.0, 1.5, 5.0, 6.0, 7.0, 7.0]


@loop_over(
    ("text", "from_s", "limits"),
    [
        ("concurrency 8 for 60s", [0], [8]),
        ("concurrency 1 to 4 over 8s, 64 for 2s", [0, 2, 4, 6, 8], [1, 2, 3, 4, 64]),
        ("concurrency 4 to 1 over 8s", [0, 2, 4, 6], [4, 3, 2, 1]),
        ("concurrency 2 for 3s, 2 to 3 over 2s", [0, 4], [2, 3]),
        ("concurrency 1 to 3 over 2s exponentially", [0, 1, 2 * math.log(3) / math.log(4)], [1, 2, 3]),
        ("concurrency 3 to 1 over 2s exponentially", [0, 2 - 2 * math.log(3) / math.log(4), 1], [3, 2, 1]),
    ],
)
def test_a_ramp_of_concurrency_goes_through_every_whole_number(
    text: str, from_s: list[float], limits: list[int]
) -> None:
    steps = ConcurrencySteps(*parse_schedule(text).list_steps())
    assert steps.from_ns.tolist() == [round(at_s * NS) for at_s in from_s]
    assert steps.limits.tolist() == limits


STEPS = ConcurrencySteps(np.array([0, 10, 20], np.int64), np.array([3, 8, 1], np.int64))


@loop_over(("elapsed_ns", "limit", "next_ns"), [(-5, 3, 0), (0, 3, 10), (9, 3, 10), (10, 8, 20), (20, 1, -1)])
def test_a_limit_holds_from_its_time_to_the_next(elapsed_ns: int, limit: int, next_ns: int) -> None:
    assert (STEPS.limit(elapsed_ns), STEPS.next_ns(elapsed_ns)) == (limit, next_ns)


@loop_over("of", [1, 2, 3, 5, 9])
def test_parts_have_the_whole_limit_at_each_time_evenly(of: int) -> None:
    parts = np.array([STEPS.divide(number, of).limits for number in range(of)])
    assert parts.sum(0).tolist() == [3, 8, 1]
    assert (np.ptp(parts, axis=0) <= 1).all()


@loop_over(("number", "opens_ns"), [(0, 0), (2, 0), (3, 10), (7, 10), (8, 0)])
def test_a_part_opens_when_it_first_has_a_slot(number: int, opens_ns: int) -> None:
    assert STEPS.divide(number, 9).opens_ns == opens_ns

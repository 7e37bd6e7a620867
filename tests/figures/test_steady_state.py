"""The steady part: where it begins and ends, and what is counted in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over, read_tables
from builders.made_records import make_record
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.steady_state import (
    Steady,
    Trim,
    Unsteady,
    describe_run_out,
    describe_steady_state,
    find_held_ns,
    find_steady_state,
)
from loadgen.plan import profile
from loadgen.records.record import Record, Records
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("steady_state")

MS = 1_000_000
WHOLE = Trim()


def answer(slot: int, sent_ms: int, end_ms: int, at_ms: Sequence[int] = (), **more: Any) -> Record:
    """A request of a slot; its messages of one token come at these times."""
    usual = {"index": sent_ms * 10 + slot, "input_tokens": 5, "output_tokens": len(at_ms), "usage": True}
    arrival_ns = [at * MS for at in at_ms]
    return make_record(sent_ms * MS, arrival_ns, slot=slot, end_ns=end_ms * MS, **(usual | more))


def found(rows: Sequence[Record], concurrency: int | None, trim: Trim = WHOLE, **ask: Any) -> Steady:
    window = find_steady_state(Records.from_records(rows), concurrency, trim, MetricOptions(**ask))
    assert isinstance(window, Steady), window
    return window


def bounds_ms(window: Steady, first_ms: int = 1000) -> tuple[int, int]:
    return round(window.begin_s * 1000) + first_ms, round(window.end_s * 1000) + first_ms


# Two slots: the second begins at 1100; the first ends for good at 1900, the second at 2300.
TWO = [
    answer(0, 1000, 1400, [1100, 1200, 1400]),
    answer(1, 1100, 1500, [1300, 1400, 1500]),
    answer(0, 1410, 1900, [1600, 1800, 1900]),
    answer(1, 1520, 2300, [1700, 2000, 2300]),
]


def test_steady_from_last_slots_first_request_to_first_slots_last() -> None:
    window = found(TWO, 2)
    assert bounds_ms(window) == (1100, 1900)
    assert (window.duration_s, window.share) == (0.8, 800 / 1300)
    # 1100 is the begin itself, 2000 and 2300 are after the end; the first and the last straddle an edge.
    assert (window.output_tokens, window.completed, window.whole) == (9, 3, 2)
    assert window.output_throughput_per_s == pytest.approx(9 / 0.8)
    assert window.requests == pytest.approx(300 / 400 + 1 + 1 + 380 / 780)
    assert window.request_throughput_per_s == pytest.approx(window.requests / 0.8)
    # Of requests that were sent and ended inside.
    assert (window.ttft.min_ms, window.ttft.max_ms) == (190.0, 200.0)
    assert (window.tpot.min_ms, window.tpot.max_ms) == (100.0, 150.0)
    assert (window.itl.n, window.itl.max_ms) == (4, 200.0)
    assert (window.e2el.min_ms, window.e2el.max_ms) == (400.0, 490.0)
    # Turnaround lowers it, and does not end the window.
    assert window.mean_concurrency == pytest.approx((2 * 800 - 10 - 20) / 800)


def test_waves_that_end_together_do_not_hide_an_idle_slot() -> None:
    """Both end together, and the last prompt goes to one of them a little later."""
    rows = [answer(0, 1000, 1400), answer(1, 1000, 1400), answer(0, 1405, 1900)]
    assert find_held_ns(Records.from_records(rows), 2) == (1000 * MS, 1400 * MS)


LOST = Failure(FailureKind.TRUNCATED, "closed without a byte")
UNCONNECTED = Failure(FailureKind.CONNECT, "refused")
CANCELLED = Failure(FailureKind.CANCELLED, "stopped")


@loop_over(
    ("last", "queues", "end_ms"),
    [
        ([answer(1, 1400, 1450, failure=LOST)], 1, 1800),
        ([answer(1, 1400, 1450)], 1, 1450),
        ([answer(1, 1400, 1430), replace(answer(1, 1430, 1450, failure=UNCONNECTED), sent_ns=0)], 1, 1800),
        ([answer(1, 1400, 1450, failure=LOST)], 2, 1450),
        ([answer(1, 1400, 1450, failure=CANCELLED)], 1, 1450),
    ],
)
def test_a_slot_that_connects_again_ends_no_steady_state(
    last: Sequence[Record], queues: int, end_ms: int
) -> None:
    """Slot 0 goes on sending, its last request at 1800, while slot 1 has no connection."""
    rows = [answer(0, begin, begin + 200) for begin in range(1000, 2000, 200)]
    rows += [answer(1, 1000, 1400), *last]
    records = Records.from_records(sorted(rows, key=lambda row: row.index))
    assert find_held_ns(records, 2, None, queues) == (1000 * MS, end_ms * MS)


def closed(lasts: Callable[[int], Sequence[int]], slots: int, waves: int) -> list[Record]:
    """Slots that turn around in no time; `lasts` gives a request's messages by its number, in ms."""
    free_ms, rows = [1000] * slots, list[Record]()
    for index in range(slots * waves):
        slot = min(range(slots), key=free_ms.__getitem__)
        sent_ms, at_ms = free_ms[slot], lasts(index)
        free_ms[slot] = sent_ms + at_ms[-1]
        rows.append(answer(slot, sent_ms, free_ms[slot], [sent_ms + at for at in at_ms], index=index))
    return rows


STEPS = range(40, 360, 10)  # 32 tokens, the first after 40 ms


@loop_over("waves", [2, 3, 5, 30])
@loop_over("slots", [1, 4, 16])
def test_requests_and_tokens_have_one_rate_where_answers_are_alike(slots: int, waves: int) -> None:
    """Slots are staggered: the window begins with one and ends with another."""
    staggered = [
        answer(slot, 1000 + 20 * slot + 350 * wave, 1350 + 20 * slot + 350 * wave,
               [1000 + 20 * slot + 350 * wave + at for at in STEPS], index=wave * slots + slot)
        for wave in range(waves)
        for slot in range(slots)
    ]  # fmt: skip
    window = found(staggered, slots)
    assert window.request_throughput_per_s == pytest.approx(slots / 0.35)
    assert window.request_throughput_per_s * 32 == pytest.approx(
        window.output_throughput_per_s, rel=0.1 / waves
    )


def test_a_failed_request_adds_concurrency_but_no_tokens_or_latency() -> None:
    rows = [*TWO[:2], answer(0, 1410, 1900, [1600, 1800], failure=Failure(FailureKind.TRUNCATED)), TWO[3]]
    window = found(rows, 2)
    assert bounds_ms(window) == (1100, 1900)
    assert window.mean_concurrency == found(TWO, 2).mean_concurrency
    assert (window.output_tokens, window.completed, window.whole) == (6, 2, 1)


def test_whole_answers_count_by_the_share_of_their_time_inside() -> None:
    rows = [answer(s, sent, end, output_tokens=8) for s, sent, end in [(0, 1000, 1400), (0, 1400, 1900)]]
    window = found(rows, 1, streamed=False)
    assert (window.output_tokens, window.whole, window.ttft.n, window.e2el.n) == (16, 2, 0, 2)
    half = found(rows, 1, Trim.parse("0.2s", "0.25s"), streamed=False)
    assert (half.requests, half.output_tokens, half.whole) == (1.0, 8, 0)


def test_an_answer_that_took_no_time_counts_where_it_ended() -> None:
    rows = [answer(0, 1000, 1400, [1400]), answer(0, 1400, 1400, [1400]), answer(0, 1400, 1900, [1900])]
    for end, requests in (("0.5s", 2.0), ("0.6s", 0.75)):
        assert found(rows, 1, Trim.parse("", end)).requests == requests


def test_an_open_loop_is_steady_from_its_first_request_to_its_last() -> None:
    window = found([*TWO, answer(9, 1950, 1990, [1980])], None)
    assert bounds_ms(window) == (1000, 1950)
    assert (window.completed, window.whole, window.output_tokens) == (3, 3, 10)


# A number is of requests: the first that end inside, the last that are sent inside.
@loop_over(("warmup", "cooldown", "expected"), TABLES["narrowed"])
def test_warm_up_and_cool_down_narrow_it_by_requests_or_seconds(
    warmup: str, cooldown: str, expected: list[int]
) -> None:
    assert list(bounds_ms(found(TWO, 2, Trim.parse(warmup, cooldown)))) == expected


@loop_over(
    ("rows", "concurrency", "trim", "why"),
    [
        ([], 1, WHOLE, "no request was sent"),
        ([answer(0, 0, 9, failure=Failure(FailureKind.CONNECT))], 1, WHOLE, "no request was sent"),
        (TWO, 3, WHOLE, "concurrency 3 was requested and 2 was reached"),
        ([answer(0, 1000, 1100), answer(1, 1200, 1300)], 2, WHOLE, "a slot ran out of requests before all 2"),
        ([answer(0, 1000, 1100), answer(1, 1000, 1300)], None, WHOLE, "at the same moment"),
        ([answer(0, 1000, 1100), answer(1, 1003, 1300)], None, WHOLE, "was sent before the first one ended"),
        (TWO, 2, Trim.parse("2", "2"), "leave nothing"),
        (TWO, 2, Trim.parse("0.4s", "0.4s"), "leave nothing"),
        (TWO, 2, Trim.parse("4", ""), "leave nothing"),
        (TWO, 2, Trim.parse("", "4"), "leave nothing"),
        (TWO, 2, Trim.parse("", "9999s"), "leave nothing"),
    ],
)
def test_where_there_is_none_it_says_why(
    rows: list[Record], concurrency: int | None, trim: Trim, why: str
) -> None:
    window = find_steady_state(Records.from_records(rows), concurrency, trim, MetricOptions())
    assert isinstance(window, Unsteady)
    assert why in window.why
    assert describe_steady_state(window)[0].startswith("steady state: none: ")


TIMED: dict[str, Any] = {"max_concurrency": 2, "num_prompts": 4}


@loop_over(
    ("keys", "told"),
    [
        ({**TIMED, "duration": 2.0}, "all 4 prompts were sent and the load fell 0.9 s into the 2 s"),
        ({**TIMED, "duration": 0.9}, ""),  # the first slot came free as the time was up
        ({**TIMED, "num_prompts": 5, "duration": 2.0}, ""),
        ({**TIMED}, ""),
        ({**TIMED, "duration": 2.0, "request_rate": 5.0}, ""),  # the schedule was known before
    ],
)
def test_prompts_that_run_out_before_the_time_is_up_are_told(keys: dict[str, Any], told: str) -> None:
    said = describe_run_out(Records.from_records(TWO), profile.build(keys))
    assert told in said
    assert bool(said) == bool(told)

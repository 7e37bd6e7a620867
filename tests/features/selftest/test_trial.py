"""A run is compared with the null server's log: what differs is counted, the rest measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.features.selftest.capacity import Sent, compare
from loadgen.records.record import Record, Records
from loadgen.transport.failure import Failure, FailureKind

CUT = Failure(FailureKind.TRUNCATED, "x")
US = 1000
MS = 1000 * US


def record(index: int, sent_ns: int, arrival_ns: list[int], **changes: object) -> Record:
    found = Record(index, 0, sent_ns, sent_ns, arrival_ns[-1] if arrival_ns else sent_ns)
    found.arrival_ns = np.array(arrival_ns, np.int64)
    found.tokens = np.ones(len(arrival_ns), np.int64)
    found.output_tokens = len(arrival_ns)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def logged(*rows: tuple[int, list[int]]) -> Mapping[int, Sent]:
    return {i: Sent(f"r{i}", received_ns, wrote_ns) for i, (received_ns, wrote_ns) in enumerate(rows)}


def test_each_figure_is_set_beside_the_true_one() -> None:
    records = Records.from_records(
        [
            record(0, 1 * MS, [10 * MS, 20 * MS, 31 * MS]),
            record(1, 2 * MS, [12 * MS, 22 * MS, 32 * MS], shared_reads=1),
        ]
    )
    wrote = [9 * MS, 20 * MS, 30 * MS]
    seen = compare(records, logged((1 * MS, wrote), (3 * MS, [ns + MS for ns in wrote])))
    assert [figure.tolist() for figure in seen.ttft] == [[9 * MS, 10 * MS], [8 * MS, 7 * MS]]
    assert [figure.tolist() for figure in seen.gap] == [
        [10 * MS, 11 * MS, 10 * MS, 10 * MS],
        [11 * MS, 10 * MS, 11 * MS, 10 * MS],
    ]
    assert [figure.tolist() for figure in seen.later_gap] == [[11 * MS, 10 * MS], [10 * MS, 10 * MS]]
    assert [figure.tolist() for figure in seen.e2e] == [[30 * MS, 30 * MS], [29 * MS, 28 * MS]]
    assert (seen.requests, seen.failed, seen.unlike) == (2, 0, 0)
    assert (seen.tokens, seen.messages, seen.streams) == (6, 6, 2)
    assert seen.tokens_per_s == pytest.approx(6 / 0.022)
    assert seen.events_per_read == 6 / 5


@loop_over(
    ("found", "counts"),
    [
        (record(0, MS, [5 * MS, 6 * MS]), (0, 0, 2)),
        (record(0, MS, [5 * MS]), (0, 1, 0)),  # a message was not seen
        (record(0, MS, [5 * MS, 6 * MS, 7 * MS]), (0, 1, 0)),
        (record(9, MS, [5 * MS, 6 * MS]), (0, 1, 0)),  # the server knows nothing of it
        (record(0, MS, [5 * MS, 6 * MS], failure=Failure(FailureKind.TIMEOUT, "late")), (1, 0, 0)),
    ],
)
def test_what_differs_from_the_log_is_counted_and_not_measured(
    found: Record, counts: tuple[int, int, int]
) -> None:
    seen = compare(Records.from_records([found]), logged((MS, [5 * MS, 6 * MS])))
    assert (seen.failed, seen.unlike, seen.messages) == counts
    assert seen.first_error == ("timeout: late" if seen.failed else "")
    assert len(seen.gap[0]) == len(seen.gap[1]) == max(0, seen.messages - 1)


def stream(index: int, off_ns: int, wrote_ns: list[int]) -> Record:
    """A record whose last arrival is off."""
    return record(index, MS, [*wrote_ns[:-1], wrote_ns[-1] + off_ns])


@loop_over(
    ("off_us", "streams", "held"),
    [(0, 2, True), (400, 2, True), (600, 2, False), (-600, 2, False), (0, 1, True), (0, 3, False)],
)
def test_streams_are_held_while_all_are_there_and_their_gaps_are_true(
    off_us: int, streams: int, held: bool
) -> None:
    wrote = [20 * MS, 30 * MS, 40 * MS]
    found = Records.from_records([stream(i, off_us * US, wrote) for i in range(2)])
    assert compare(found, logged((MS, wrote), (MS, wrote))).is_held(streams) is held


WROTE_NS = [20 * MS, 30 * MS, 40 * MS]


@loop_over(
    ("found", "held"),
    [
        ([record(0, MS, [24 * MS, 30 * MS, 40 * MS])], True),  # only later gaps decide
        ([record(0, MS, WROTE_NS), record(1, MS, WROTE_NS[:2])], False),
        ([record(0, MS, WROTE_NS), record(1, MS, WROTE_NS, failure=CUT)], False),
    ],
)
def test_a_late_first_message_is_held_a_failure_or_a_missing_one_not(found: list[Record], held: bool) -> None:
    assert compare(Records.from_records(found), logged(*[(MS, WROTE_NS)] * 2)).is_held(1) is held


def test_nothing_seen_is_nothing_held() -> None:
    seen = compare(Records.from_records([]), {})
    assert (seen.requests, seen.messages, seen.tokens_per_s, seen.events_per_read) == (0, 0, 0.0, 0.0)
    assert not seen.is_held(0)

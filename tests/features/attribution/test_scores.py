"""The proof's own arithmetic: what was found of a stall, and what the path did to which bytes."""

from __future__ import annotations

import struct

from benchmarks.harness.impaired_path import Carrier, ImpairedPath, Impairment, Segment, read_stalls
from benchmarks.harness.scores import Score, Wait, merge_scores, score_row
from benchmarks.harness.stalled_run import Truth
from builders.loops import loop_over, loop_over_named, read_tables
from loadgen_servers.engine.stalling import RequestRow

TABLES = read_tables("scores")

MS = 1_000_000


@loop_over_named(("natural", "injected", "found", "scores"), TABLES["rows"])
def test_a_row_is_scored_by_what_is_missing(
    natural: dict[str, int], injected: dict[str, int], found: dict[str, int], scores: dict[str, list[int]]
) -> None:
    made: dict[str, Score] = {}
    score_row(made, Wait(natural, injected), found)
    assert made == {part: Score(*score) for part, score in scores.items()}


def test_what_the_machine_was_late_with_may_be_in_any_step() -> None:
    for part in ("decode_step", "slow_step", "others_prefill"):
        scores: dict[str, Score] = {}
        found = {"decode_step": 10, "preemption": 60, "unknown": 20}
        score_row(
            scores, Wait({"decode_step": 10}, {"preemption": 80}, 7), {**found, part: found.get(part, 0) + 7}
        )
        assert scores == {"preemption": Score(80, 60, 0, 1)}


def test_scores_of_several_runs_are_added() -> None:
    one, other = {"queue": Score(50, 20, 30, 2)}, {"queue": Score(50, 50, 0, 1), "http": Score(9, 9, 0, 1)}
    merged = merge_scores([one, other])
    assert merged == {"queue": Score(100, 70, 30, 3), "http": Score(9, 9, 0, 1)}
    assert (merged["queue"].found, merged["queue"].wrong) == (0.7, 0.3)


ASKED = b"POST / HTTP/1.1\r\nX-Request-Id: r-7\r\n\r\n"
HUNDRED = bytes(100)


def sent(at_ms: float, begin: int, fate: str = "", given_ms: float = 0.0) -> Segment:
    """A segment of a response on a path of 5 ms."""
    given_ns = [round((given_ms or at_ms + 5) * MS)] if fate != "lost" else []
    return Segment(40_000, True, begin, HUNDRED, round(at_ms * MS), fate, given_ns, given_ns)


PATHS: dict[str, tuple[list[Segment], list[tuple[str, float, float]]]] = {
    "nothing": ([sent(10, 0), sent(20, 100)], []),
    "one was lost": (
        [sent(10, 0), sent(20, 100, "lost"), sent(30, 200), sent(45, 100)],
        [("retransmission", 25, 50)],
    ),
    "one was overtaken": ([sent(10, 0), sent(20, 100, "late", 60), sent(30, 200)], [("reordering", 25, 60)]),
    "one was late, alone": (
        [sent(10, 0), sent(20, 100, "late", 33), sent(50, 200)],
        [("path_delay", 25, 33)],
    ),
    "one was lost twice, and the next one waits on": (
        [sent(10, 0, "lost"), sent(12, 100, "late", 90), sent(40, 0, "lost"), sent(60, 0)],
        [("retransmission", 15, 65), ("path_delay", 65, 90)],
    ),
}


@loop_over(("segments", "stalls"), PATHS.values())
def test_the_path_knows_what_waited_for_what(
    segments: list[Segment], stalls: list[tuple[str, float, float]]
) -> None:
    path = ImpairedPath(Impairment(delay_ms=5.0))
    path.segments = [Segment(40_000, False, 0, ASKED, 1 * MS, "", [6 * MS], [6 * MS]), *segments]
    truth = Truth([], {"r-7": RequestRow(3, "r-7", 6 * MS, 6 * MS, 6 * MS, [])}, 10.0)
    rows = read_stalls(path, truth)
    assert [(row.kind, row.from_ns / MS, row.to_ns / MS) for row in rows] == stalls
    assert {number for row in rows for number in row.requests} <= {3}


def test_a_lost_request_is_one_that_was_sent_again() -> None:
    path = ImpairedPath(Impairment(delay_ms=5.0))
    path.segments = [
        Segment(40_000, False, 0, ASKED, 1 * MS, "lost"),
        Segment(40_000, False, 0, ASKED, 201 * MS, "", [206 * MS], [206 * MS]),
    ]
    truth = Truth([], {"r-7": RequestRow(3, "r-7", 206 * MS, 206 * MS, 206 * MS, [])}, 10.0)
    (row,) = read_stalls(path, truth)
    assert (row.kind, row.from_ns, row.to_ns, row.requests) == ("request_resent", 6 * MS, 206 * MS, [3])


def packet(seq: int, payload: bytes, flags: int = 0) -> bytes:
    """An IPv4 packet with TCP, to the client."""
    network = struct.pack(">BxHxxxxxB10x", 0x45, 40 + len(payload), 6)
    return network + struct.pack(">HHIxxxxBB6x", 80, 40_000, seq, 0x50, flags) + payload


def test_the_path_follows_sequence_numbers_that_begin_again() -> None:
    carrier = Carrier(0, 0, Impairment())
    for sent_packet in (packet(2**32 - 101, b"", 2), packet(2**32 - 100, HUNDRED), packet(0, HUNDRED)):
        carrier.meet(sent_packet, 0, to_client=True)
    assert [(segment.begin, segment.end) for segment in carrier.segments] == [(0, 100), (100, 200)]

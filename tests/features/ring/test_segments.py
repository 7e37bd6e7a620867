"""Which bytes of a response came with which segment, and the log that keeps segments by port."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders.loops import loop_over, loop_over_named, read_tables
from builders.required import require
from fakes.packet_filters import packet
from fakes.virtual_ring import frame, frames
from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS
from loadgen.features.ring.packet_filter import HEADERS
from loadgen.features.ring.packet_ring import Frames
from loadgen.features.ring.ring_transport import Arrivals
from loadgen.features.ring.segments import (
    SEGMENT,
    TAIL,
    Rows,
    SegmentLog,
    count_held_back,
    find_pieces,
    measure_payload,
    order_segments,
)

TABLES = read_tables("segments")
SERVER = ("127.0.0.1", 8000)
WRAP = 1 << 32
Pieces = Sequence[tuple[int, int]]  # of segments: where each begins in the response, and how long it is


def rows_of(pieces: Pieces, begin_seq: int) -> tuple[Rows, Int64]:
    """Segments, and their sizes."""
    rows = np.zeros(len(pieces), SEGMENT)
    rows["seq"] = [(begin_seq + begin) % WRAP for begin, _ in pieces]
    return rows, np.array([size for _, size in pieces], np.int64)


def found(pieces: Pieces, total: int, begin_seq: int = 1000) -> list[tuple[int, int]] | None:
    """How much there was after which segment."""
    arrived = order_segments(*rows_of(pieces, begin_seq), begin_seq, total)
    return None if arrived is None else list(zip(*map(np.ndarray.tolist, arrived), strict=True))


def by_bytes(pieces: Pieces, total: int) -> list[tuple[int, int]] | None:
    """The same of a simple model: a set of bytes, and how many from the first on are in it."""
    have: set[int] = set()
    there, arrived = 0, []
    for index, (begin, size) in enumerate(pieces):
        have.update(range(max(begin, 0), min(begin + size, total)))
        before = there
        while there in have:
            there += 1
        if there > before:
            arrived.append((there, index))
    return arrived if there == total else None


# What waited for an acknowledgement.

MS = 1_000_000


@loop_over_named(("came_ms", "read_ms", "of_reads", "rtt_ms", "count"), TABLES["held back"])
def test_segments_that_wait_for_a_late_read_are_counted(
    came_ms: Sequence[float], read_ms: Sequence[float], of_reads: Sequence[int], rtt_ms: float, count: int
) -> None:
    """Segments of ten bytes each; a read takes some of them."""
    came_ns, read_ns = ((np.array(times) * MS).astype(np.int64) for times in (came_ms, read_ms))
    ends = 10 * np.arange(1, len(came_ms) + 1)
    held = count_held_back(came_ns, ends, read_ns, 10 * np.cumsum(of_reads), round(rtt_ms * MS))
    assert held == count


# Arrivals.


PIECES = st.lists(st.tuples(st.integers(-8, 40), st.integers(0, 16)), max_size=24)


@given(PIECES, st.integers(1, 36), st.sampled_from([0, 5, WRAP - 7, WRAP // 2 - 7]))
@example([(0, 5), (0, 9), (5, 9)], 5, 0)
def test_any_segments_are_as_if_bytes_were_counted(pieces: Pieces, total: int, begin_seq: int) -> None:
    assert found(pieces, total, begin_seq) == by_bytes(pieces, total)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.randoms(), st.integers(0, 6))
def test_all_segments_in_any_order_are_a_whole_response(
    sizes: list[int], shuffling: random.Random, again: int
) -> None:
    ends = np.cumsum(sizes).tolist()
    pieces = [(end - size, size) for end, size in zip(ends, sizes, strict=True)]
    pieces += pieces[:again]
    shuffling.shuffle(pieces)
    arrived = found(pieces, ends[-1], WRAP - 20)
    assert arrived == by_bytes(pieces, ends[-1])
    assert require(arrived)[-1][0] == ends[-1]


def test_a_long_response_whose_first_segment_is_late_is_found_in_time() -> None:
    pieces = [(10 * i, 10) for i in range(1, 2000)]
    assert found([*pieces, (0, 10)], 20000) == [(20000, 1999)]


# Pieces.


@given(PIECES, st.integers(1, 36), st.sampled_from([0, 5, WRAP - 7, WRAP // 2 - 7]), st.randoms())
def test_pieces_are_as_if_bytes_were_counted(
    pieces: Pieces, total: int, begin_seq: int, drawn: random.Random
) -> None:
    """Each byte by what brought it first, from when on it could be read, and its copies' earliest clock."""
    if by_bytes(pieces, total) is None:
        return
    clocks = [(WRAP - 3 + drawn.randrange(9)) % WRAP for _ in pieces]
    rows, sizes = rows_of(pieces, begin_seq)
    rows["option"], rows["tcp_words"], rows["sent"] = 0x0101080A, 0x80, clocks  # TCP's timestamps
    found = find_pieces(rows, sizes, begin_seq, total)
    assert found is not None
    numbers = [i for i, (begin, size) in enumerate(pieces) if max(begin, 0) < min(begin + size, total)]
    first, readable, least = [], list[int](), []
    for byte in range(total):
        copies = [at for at, i in enumerate(numbers) if pieces[i][0] <= byte < sum(pieces[i])]
        first.append(copies[0])
        readable.append(max([copies[0], *readable[-1:]]))
        least.append(min((clocks[numbers[at]] - WRAP + 3) % WRAP for at in copies))
    of_byte = found.ends.searchsorted(np.arange(total), side="right")
    assert found.brought_by[of_byte].tolist() == first
    assert found.readable_by[of_byte].tolist() == readable
    zero = (int(found.rows["sent"][0]) - WRAP + 3) % WRAP
    assert (found.least[of_byte] + zero).tolist() == least
    assert int(found.ends[-1]) == total


def test_without_timestamps_there_are_no_pieces() -> None:
    rows, sizes = rows_of([(10, 5), (0, 10)], 1000)
    assert find_pieces(rows, sizes, 1000, 15) is None


# Payload.


@loop_over_named(("total", "words", "seen", "v6", "sizes"), TABLES["payload"])
def test_payload_is_what_headers_leave(
    total: list[int], words: list[int], seen: list[int], v6: bool, sizes: list[int]
) -> None:
    rows = np.zeros(len(total), SEGMENT)
    rows["ip_length"], rows["length"] = total, seen
    rows["tcp_words"] = [count << 4 | 0x0F for count in words]
    assert measure_payload(rows, HEADERS[socket.AF_INET6 if v6 else socket.AF_INET]).tolist() == sizes


# The log.


def segment(port: int, seq: int, data: bytes = b"data", flags: int = 0x10) -> bytes:
    return packet(SERVER, ("127.0.0.1", port), data, seq, flags)


def taken(*segments: tuple[int, int]) -> Frames:
    """Frames of segments, each with its port and sequence number; the latter is its time (ns) too."""
    return frames([frame(segment(port, seq), 36, seq) for port, seq in segments])


def add(log: SegmentLog, some: Frames, seen_ns: int = 5) -> None:
    log.add(some, some["port"].astype(np.uint16), seen_ns)


def seqs(rows: Rows) -> list[int]:
    return [int(seq) for seq in rows["seq"]]


@pytest.mark.parametrize("at_once", [1, 1000, TAIL - 1, TAIL])
def test_more_segments_than_the_tail_holds_are_all_kept(at_once: int) -> None:
    count, ports = TAIL + 2 * at_once + 5 if at_once > 1 else 40, (1, 500, 65535)
    log = SegmentLog()
    for port in ports:
        log.open(port)
    if at_once == 1:
        add(log, taken(*[(9, i) for i in range(TAIL - 20)]))  # of a port that is not open
    whole = [frame(segment(ports[i * i % 3], i), 36, i) for i in range(count)]
    for begin in range(0, count, at_once):
        add(log, frames(whole[begin : begin + at_once]))
    for k, port in enumerate(ports):
        assert seqs(log.take(port)) == [i for i in range(count) if i * i % 3 == k]
    assert seqs(log.take(9)) in ([], [*range(TAIL - 20)])


CLOCK = 1 << 32
SENT_NS, END_NS = 5_000_400_000, 9_000_000_000
UNKNOWN = -1


def arrivals(echoed_ms: int, ahead_ms: int, kept: int = 52, sent: tuple[int, ...] = (7, 8)) -> Arrivals:
    """Two segments, the first of which echoes our clock at an instant; that clock is so far ahead."""
    rows = np.zeros(len(sent), SEGMENT)
    rows["echoed"], rows["kept"], rows["sent"] = (echoed_ms + ahead_ms) % CLOCK, kept, sent
    return Arrivals(np.arange(1, len(sent) + 1), rows, timed=True)


@loop_over("ahead_ms", [0, 12345, CLOCK - 5001, CLOCK - 5000, CLOCK - 1, -4_000])
@loop_over(
    ("echoed_ms", "delay_ms"),
    [
        (5000, 0),
        (5001, 0),
        (4999, 0),  # the kernel clears the clock's last bit
        (5002, 1.5),
        (5300, 299.5),
        (4998, UNKNOWN),  # before it was sent: of another clock
        (9000, 3999.5),
        (9010, UNKNOWN),  # after the answer's end
    ],
)
def test_a_request_was_late_by_what_is_echoed(ahead_ms: int, echoed_ms: int, delay_ms: float) -> None:
    found_ns = arrivals(echoed_ms, ahead_ms).measure_request_delay_ns(SENT_NS, END_NS, ahead_ms)
    assert found_ns == (UNKNOWN if delay_ms == UNKNOWN else delay_ms * MS_NS)


def test_a_clock_that_cannot_be_read_says_nothing() -> None:
    late = 5300
    assert arrivals(late, 0).measure_request_delay_ns(SENT_NS, END_NS, None) == UNKNOWN
    odd = arrivals(late, 0, kept=51)  # without the last byte
    assert odd.measure_request_delay_ns(SENT_NS, END_NS, 0) == UNKNOWN
    again = arrivals(late, 0, sent=(9, 8))  # the first one was sent again, after the second
    assert again.measure_request_delay_ns(SENT_NS, END_NS, 0) == UNKNOWN
    alone = arrivals(late, 0, sent=(9,))
    assert alone.measure_request_delay_ns(SENT_NS, END_NS, 0) == 299.5 * MS_NS

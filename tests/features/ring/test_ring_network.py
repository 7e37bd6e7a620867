"""What a ring costs and when it acts: few reads, an end seen in time, ports that run out, stray hints."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from builders.loops import loop_over
from fakes.scripted_server import (
    HEAD,
    LAST,
    Answer,
    End,
    chunk,
    drive,
    events,
    job_of,
    kinds,
    records,
    stream,
    token,
    whole,
)
from fakes.tapped_server import FIRST_NS, GAP_NS, GAP_S, Tapped, driven_by, exact
from fakes.virtual_network import VirtualPoller, VirtualSocket
from loadgen.features.ring import source_ports
from loadgen.features.ring.ring_transport import RingSocket, RingTransport, _Ring
from loadgen.features.ring.segments import Rows
from loadgen.transport.failure import FailureKind
from loadgen.transport.network import Received
from loadgen.transport.sending.job import Limits

MS = 1_000_000
SECOND = 1000 * MS
CLOSING = Answer([HEAD, *(part for event in events(3) for part in (GAP_S, chunk(event))), LAST], End.CLOSE)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read asked for."""
    asked: list[int] = []
    recvmsg = VirtualSocket.recvmsg

    def counted(self: VirtualSocket, size: int, ancillary_size: int) -> Received:
        asked.append(size)
        return recvmsg(self, size, ancillary_size)

    monkeypatch.setattr(VirtualSocket, "recvmsg", counted)
    return asked


# Reads.


def test_many_segments_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    polls: list[float] = []
    poll = VirtualPoller.poll

    def counted(self: VirtualPoller, timeout_s: float, most_events: int) -> list[tuple[int, int]]:
        polls.append(timeout_s)
        return poll(self, timeout_s, most_events)

    monkeypatch.setattr(VirtualPoller, "poll", counted)
    server = Tapped(lambda _: stream(1200, 0.0005))
    driven = driven_by(server, 16, 16)  # 31,000 segments per second
    assert kinds(driven) == [None] * 16
    assert {*np.concatenate([np.diff(record.arrival_ns) for record in records(driven)])} == {510_000}
    assert len(polls) < 16 * 1200 // 8


BODY = b"".join(events(5))
LENGTH = whole(BODY, kind="text/event-stream")
ENDINGS = {
    "a last chunk": stream(5, GAP_S),
    "a last chunk in pieces": Answer([HEAD, chunk(BODY), LAST[:2], GAP_S, LAST[2:4], GAP_S, LAST[4:]]),
    "a length": Answer([LENGTH[:-300], GAP_S, LENGTH[-300:-1], GAP_S, LENGTH[-1:]]),
    "a length, in long pieces": Answer([LENGTH[:-100], GAP_S, LENGTH[-100:]]),
    "a close": Answer([HEAD.replace(b"transfer-encoding: chunked\r\n", b""), GAP_S, BODY], End.CLOSE),
    "trailers": Answer([HEAD, GAP_S, chunk(BODY), GAP_S, b"0\r\nx-took: 5 ms\r\n\r\n"]),
    "a head in pieces": Answer([HEAD[:30], GAP_S, HEAD[30:-2], GAP_S, HEAD[-2:], chunk(BODY), LAST]),
}


@loop_over("ending", ENDINGS)
def test_however_a_response_ends_that_is_seen_at_once(ending: str) -> None:
    driven = driven_by(Tapped(lambda _: ENDINGS[ending]), 160, 40)
    assert kinds(driven) == [None] * 160
    assert driven.health.fallen_back == 0
    late_ns = [capture.sent_ns - capture.intended_ns for capture in driven.captures if not capture.connect_ns]
    assert max(late_ns) < MS


# Ports.


@pytest.mark.parametrize("spare", [4, 70])
def test_connections_beyond_our_ports_are_read_as_any_other(
    spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128 + spare, 128 + spare))
    driven = driven_by(Tapped(lambda _: CLOSING), 100, 4)
    assert kinds(driven) == [None] * 100
    assert (driven.health.fallen_back > 0) == (spare < 64)
    assert driven.health.fallen_back < 100
    for record in records(driven):
        assert np.diff(record.arrival_ns).tolist() == [GAP_NS] * 2


def test_ports_that_others_have_are_no_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_ports, "read_local_ports", lambda: (40000, 40003))
    server = Tapped(lambda _: stream(5, GAP_S))
    assert "no 5 source ports" in drive(job_of(server.target(), 5, 5), "ring", server).health.instead


def test_a_port_used_again_while_its_last_bytes_wait_gives_up_neither() -> None:
    """Many responses end in one poll, so that bytes are joined later, each with its connection closed."""
    server = Tapped(lambda _: CLOSING, poll_ns=20 * MS)
    driven = driven_by(server, 900, 30)
    assert kinds(driven) == [None] * 900
    assert driven.health.fallen_back == 0
    for record in records(driven):
        assert np.diff(record.arrival_ns).tolist() == [GAP_NS] * 2


def test_segments_taken_in_two_steps_leave_the_next_answers_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer's first segment is taken alone, and then the others with those of the next answers."""
    rows_of, late = _Ring._take_rows, set[int]()

    def in_two_steps(ring: _Ring, sock: RingSocket) -> Rows:
        rows = rows_of(ring, sock)
        if sock.port in late or sock.rows is not None:
            late.discard(sock.port)
            return rows
        late.add(sock.port)
        ring.poller.log.put_back(sock.port, rows[1:])
        return rows[:1]

    monkeypatch.setattr(_Ring, "_take_rows", in_two_steps)
    flush = RingTransport._flush

    def when_many_wait(transport: RingTransport, most: int = 1) -> None:
        if len(transport.outbox._waiting) > 20:
            flush(transport, most)

    monkeypatch.setattr(RingTransport, "_flush", when_many_wait)
    driven = driven_by(Tapped(lambda _: stream(3, GAP_S)), 200, 5)
    assert kinds(driven) == [None] * 200
    assert driven.health.fallen_back == 0
    assert exact(driven, 3) == [True] * 200


# What is given up.


@pytest.mark.parametrize("slots", [2, 40])
def test_an_answer_given_up_keeps_what_had_come_to_its_last_byte(slots: int) -> None:
    server = Tapped(lambda _: stream(2000, GAP_S))
    driven = driven_by(server, slots, slots, limits=Limits(request_timeout_ns=SECOND))
    assert kinds(driven) == [FailureKind.TIMEOUT] * slots
    assert exact(driven) == [True] * slots
    for capture, record in zip(driven.captures, records(driven), strict=True):
        came = (capture.end_ns - capture.sent_ns - FIRST_NS) // GAP_NS + 1
        assert abs(len(record.arrival_ns) - came) <= 1


@pytest.mark.parametrize("slots", [1, 60])
def test_tokens_that_wait_in_sockets_are_no_stall(slots: int) -> None:
    answer = Answer(
        [HEAD, *(part for _ in range(30) for part in (0.1, chunk(token()))), *stream(2).pieces[1:]]
    )
    server = Tapped(lambda _: answer)
    driven = driven_by(server, slots, slots, limits=Limits(stall_timeout_ns=400 * MS))
    assert kinds(driven) == [None] * slots


# The counts.

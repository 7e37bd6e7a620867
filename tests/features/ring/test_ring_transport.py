"""The ring transport in virtual time: every token has its own instant, however late or seldom it is read."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from fakes.scripted_server import (
    HEAD,
    LAST,
    Answer,
    Asked,
    Driver,
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
from fakes.tapped_server import FIRST_NS, GAP_NS, GAP_S, See, Tapped, driven_by, exact
from fakes.virtual_network import VirtualPoller
from loadgen.features.ring import packet_ring
from loadgen.features.ring.ring_transport import RingSocket, RingTransport, _Ring
from loadgen.features.ring.segments import Rows
from loadgen.records.record import REORDERING, RETRANSMISSION
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Limits

MS = 1_000_000
SECOND = 1000 * MS


# Every token's own instant.


@loop_over("slots", [4, 20])
@loop_over("poll_ns", [2_000, 700_000, 5 * MS, 50 * MS, 333 * MS])
def test_every_token_has_its_own_instant_though_the_client_sleeps(poll_ns: int, slots: int) -> None:
    server = Tapped(lambda _: stream(20, GAP_S), poll_ns=poll_ns)
    driven = driven_by(server, 3 * slots, slots)
    assert kinds(driven) == [None] * 3 * slots
    assert exact(driven, 20) == [True] * 3 * slots
    assert all(capture.segments for capture in driven.captures)
    assert all(capture.end_ns == capture.kernel_ns()[-1] for capture in driven.captures)
    assert (driven.health.dropped_segments, driven.health.fallen_back) == (0, 0)
    assert driven.health.segments == driven.counters.reads == slots * (3 * 24 + 1)
    assert not server.poller().sockets  # all are closed


CRLF_EVENTS = [chunk(event.replace(b"\n", b"\r\n")) for event in events(20)]
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
LENGTH = b"content-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(b"".join(events(20)))


def paced(head: bytes, pieces: list[bytes], last: bytes = b"", end: End = End.KEEP) -> Answer:
    timed: list[bytes | float] = [part for piece in pieces for part in (GAP_S, piece)]
    return Answer([head, *timed, *([last] if last else [])], end)


@loop_over("poll_ns", [2_000, 50 * MS])
@loop_over(
    "answer",
    [
        pytest.param(paced(HEAD, CRLF_EVENTS, LAST), id="events that end as the response does"),
        pytest.param(paced(UNTIL_CLOSE, [*events(20)], end=End.CLOSE), id="until close"),
        pytest.param(paced(b"HTTP/1.1 200 OK\r\n" + LENGTH, [*events(20)]), id="a content length"),
        pytest.param(paced(HEAD, [*map(chunk, events(20))], LAST, End.CLOSE), id="a close after the end"),
    ],
)
def test_every_framing_keeps_every_instant(answer: Answer, poll_ns: int) -> None:
    driven = driven_by(Tapped(lambda _: answer, poll_ns=poll_ns), 6, 2)
    assert kinds(driven) == [None] * 6
    assert exact(driven, 20) == [True] * 6
    assert driven.health.fallen_back == 0


def test_a_server_that_closes_after_each_answer_uses_ports_again() -> None:
    server = Tapped(lambda _: paced(HEAD, [*map(chunk, events(3))], LAST, End.CLOSE))
    driven = driven_by(server, 600, 4)
    assert kinds(driven) == [None] * 600
    assert exact(driven, 3) == [True] * 600
    assert server.connections >= 600
    (ring,) = [transport.ring for transport in server.made if transport.ring]
    assert len(ring.ports.ports) < 600


# What the ring lacks.


@pytest.mark.parametrize(("room", "all_fall"), [(0, True), (4, True), (11, False), (45, False)])
def test_what_a_small_ring_has_no_room_for_falls_back_and_is_counted(room: int, all_fall: bool) -> None:
    lengths = [30, 3, 3]
    server = Tapped(lambda asked: stream(lengths[asked.number % 3], GAP_S), poll_ns=5 * MS, room=room)
    driven = driven_by(server, 60, 6 if room < 20 else 30)
    assert kinds(driven) == [None] * 60
    assert driven.health.dropped_segments > 0
    assert (driven.health.fallen_back == 60) == all_fall
    assert driven.health.fallen_back > 0
    for capture, right in zip(driven.captures, exact(driven), strict=True):
        assert right or not capture.segments
    assert max(capture.sent_ns - capture.intended_ns for capture in driven.captures) <= 50 * MS


def test_a_connection_that_the_ring_does_not_show_is_read_as_any_other() -> None:
    first: list[int] = []

    def tamper(see: See, port: int, *segment: Any, **opens: Any) -> None:
        first.extend([] if first else [port])
        if port != first[0]:
            see(port, *segment, **opens)

    driven = driven_by(Tapped(lambda _: stream(20, GAP_S), tamper=tamper), 12, 4)
    assert exact(driven, 20) == [True] * 12
    fallen = [capture for capture in driven.captures if not capture.segments]
    assert len({capture.slot for capture in fallen}) == 1
    assert driven.health.fallen_back == len(fallen) == 3
    assert driven.health.dropped_segments == 0


# What the network does to segments.


def test_a_token_before_which_one_was_late_arrives_with_that_one() -> None:
    held: dict[int, tuple[Any, ...]] = {}
    first = chunk(token("b"))

    def tamper(see: See, *segment: Any, **opens: Any) -> None:
        if segment[2] == first:
            held[segment[0]] = segment
            return
        see(*segment, **opens)
        if segment[0] in held:
            see(*held.pop(segment[0]))

    texts = [*map(chunk, events(20))]
    texts[4] = first
    driven = driven_by(Tapped(lambda _: paced(HEAD, texts, LAST), tamper=tamper, poll_ns=10 * MS), 4, 2)
    script = [FIRST_NS + i * GAP_NS for i in range(20)]
    script[4] = script[5]
    for record in records(driven):
        assert (record.arrival_ns - record.sent_ns).tolist() == script
    assert driven.health.fallen_back == 0


@loop_over("again", [True, False])
def test_what_a_token_waited_for_on_its_way_is_known(again: bool) -> None:
    """The first of three that come with the last was sent again with that, or was overtaken."""
    held: list[tuple[tuple[Any, ...], int]] = []
    count = 0

    def tamper(see: See, *segment: Any, **opens: Any) -> None:
        nonlocal count
        count, sent_ms = count + 1, server.time.ns // MS
        if count == 6:
            held.append((segment, sent_ms))
            return
        see(*segment, timestamps=(sent_ms, 0), **opens)
        if count == 8:
            late, first_ms = held.pop()
            see(*late, timestamps=(sent_ms if again else first_ms, 0))

    server = Tapped(lambda _: stream(20, GAP_S), tamper=tamper, poll_ns=MS)
    (found,) = records(driven_by(server, 1, 1))
    delays_ms = (found.delay_us / 1000).tolist()
    at = next(i for i, ms in enumerate(delays_ms) if ms)
    cause = RETRANSMISSION if again else REORDERING
    assert found.delay_cause.tolist() == [0] * at + [cause] * 2 + [0] * (18 - at)
    assert delays_ms[at : at + 2] == pytest.approx([6, 3], abs=1.5)


@pytest.mark.parametrize("far", [1 << 20, 1 << 31, -5000])
def test_a_segment_that_tcp_refuses_costs_neither_instants_nor_the_end(far: int) -> None:
    def tamper(see: See, port: int, seq: int, data: bytes, **opens: Any) -> None:
        see(port, seq, data, **opens)
        if data == HEAD:
            see(port, seq + far, b"forged\r\n\r\n")

    driven = driven_by(Tapped(lambda _: stream(20, GAP_S), tamper=tamper, poll_ns=MS), 4, 2)
    assert kinds(driven) == [None] * 4
    assert exact(driven, 20) == [True] * 4


# What ends early.

CUT = [HEAD, *[part for _ in range(10) for part in (GAP_S, chunk(token()))]]


@pytest.mark.parametrize("poll_ns", [2_000, 20 * MS])
@pytest.mark.parametrize("end", [End.CLOSE, End.RESET])
def test_a_response_that_is_cut_keeps_what_had_come_and_when(end: End, poll_ns: int) -> None:
    server = Tapped(lambda asked: stream(10, GAP_S) if asked.number else Answer(CUT, end), poll_ns=poll_ns)
    driven = driven_by(server, 3, 1)
    assert kinds(driven) == [FailureKind.TRUNCATED, None, None]
    assert exact(driven, 10) == [True] * 3


@pytest.mark.parametrize("poll_ns", [2_000, 50 * MS])
def test_a_stop_keeps_all_that_had_arrived_and_when(poll_ns: int) -> None:
    arrived: dict[int, bytes] = {}
    driver: list[Driver] = []

    def tamper(see: See, port: int, seq: int, data: bytes, **opens: Any) -> None:
        see(port, seq, data, **opens)
        arrived[port] = arrived.get(port, b"") + data
        if len(arrived) == 3 and all(text.count(b"data:") == 7 for text in arrived.values()):
            driver[0].inbox.stop()

    server = Tapped(lambda _: stream(2000, GAP_S), tamper=tamper, poll_ns=poll_ns)
    driver.append(Driver(job_of(server.target(), 3, 3), "ring", server))
    driven = driver[0].run()
    assert kinds(driven) == [FailureKind.CANCELLED] * 3
    assert sorted(capture.raw for capture in driven.captures) == sorted(arrived.values())
    for record in records(driven):
        count = len(record.arrival_ns)
        assert count >= 7
        assert (record.arrival_ns - record.sent_ns).tolist() == [FIRST_NS + i * GAP_NS for i in range(count)]


@loop_over("step_ns", [2 * SECOND, -2 * SECOND, 3600 * SECOND])
@loop_over("poll_ns", [2_000, 20 * MS])
def test_a_clock_that_is_set_in_mid_run_moves_no_arrival(step_ns: int, poll_ns: int) -> None:
    server = Tapped(lambda _: stream(60, GAP_S), poll_ns=poll_ns)

    def step() -> None:
        server.time.wall_offset_ns += step_ns

    server.time.after(90 * MS, step)
    driven = driven_by(server, 6, 3)
    assert exact(driven, 60) == [True] * 6
    assert abs(driven.health.clock_step_ns) == abs(step_ns)


def test_a_closed_idle_connection_costs_a_resend_and_no_instant() -> None:
    def script(asked: Asked) -> Answer:
        return paced(HEAD, [*map(chunk, events(3))], LAST, End.RESET)

    driven = driven_by(Tapped(script, poll_ns=MS), 6, 1)
    assert kinds(driven) == [None] * 6
    assert [capture.segments for capture in driven.captures] == [True] * 6


CLOSING = Answer([HEAD, *(part for event in events(3) for part in (GAP_S, chunk(event))), LAST], End.CLOSE)


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
WITH_LENGTH = whole(BODY, kind="text/event-stream")
ENDINGS = {
    "a last chunk": stream(5, GAP_S),
    "a last chunk in pieces": Answer([HEAD, chunk(BODY), LAST[:2], GAP_S, LAST[2:4], GAP_S, LAST[4:]]),
    "a length": Answer([WITH_LENGTH[:-300], GAP_S, WITH_LENGTH[-300:-1], GAP_S, WITH_LENGTH[-1:]]),
    "a length, in long pieces": Answer([WITH_LENGTH[:-100], GAP_S, WITH_LENGTH[-100:]]),
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
    monkeypatch.setattr(packet_ring, "read_local_ports", lambda: (40000, 40003))
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

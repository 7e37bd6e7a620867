"""The ring transport in virtual time: every token has its own instant, however late it is read."""

from __future__ import annotations

from typing import Any

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
    events,
    job_of,
    kinds,
    records,
    stream,
    token,
)
from fakes.tapped_server import FIRST_NS, GAP_NS, GAP_S, See, Tapped, driven_by, exact
from loadgen.records.record import REORDERING, RETRANSMISSION
from loadgen.transport.failure import FailureKind

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

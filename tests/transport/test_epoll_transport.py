"""The wire transport against a scripted server: framings, failures, connections, sizes, stamps."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from builders.loops import loop_over, loop_over_named
from fakes.scripted_server import (
    DONE,
    HEAD,
    LAST,
    PING,
    Answer,
    Asked,
    Driver,
    End,
    ScriptedServer,
    chunk,
    closed_port,
    drive,
    events,
    job_of,
    kinds,
    records,
    stream,
    target_of,
    token,
    usage,
    whole,
)
from fakes.virtual_network import VirtualServer
from fakes.virtual_time import START_NS
from loadgen.transport.epoll_transport import EpollTransport
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Limits
from loadgen.transport.tcp_connection import SO_TIMESTAMPNS, Slot
from loadgen.wire.openai import Chat, Completions

MS = 1_000_000
SECOND = 1000 * MS
linux = pytest.mark.skipif(sys.platform != "linux", reason="kernel stamps are asked for on Linux only")


def joined(pieces: list[bytes | float]) -> bytes:
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))


WHOLE = joined(list(stream(3).pieces))
BODY = b"".join(events(3))
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + BODY
LENGTH = whole(BODY, kind="text/event-stream")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SAYS_CLOSE = HEAD[:-2] + b"connection: close\r\n\r\n" + WHOLE[len(HEAD) :]
HTTP10 = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + BODY


@loop_over_named(
    ("answer", "connections"),
    {
        "each event a write": (stream(3), 1),
        "one write": (Answer([WHOLE]), 1),
        "the end mark split in two": (Answer([WHOLE[:-3], 0.001, WHOLE[-3:]]), 1),
        "and in three": (Answer([WHOLE[:-5], 0.001, WHOLE[-5:-4], 0.001, WHOLE[-4:]]), 1),
        "the head split": (Answer([WHOLE[:9], 0.001, WHOLE[9:]]), 1),
        "a content length": (Answer([LENGTH]), 1),
        "a content length in two": (Answer([LENGTH[:-7], 0.001, LENGTH[-7:]]), 1),
        "a 100 first": (Answer([CONTINUE, 0.001, WHOLE]), 1),
        "a 100 in the same read": (Answer([CONTINUE + WHOLE]), 1),
        "until close": (Answer([UNTIL_CLOSE], End.CLOSE), 3),
        "HTTP/1.0": (Answer([HTTP10], End.CLOSE), 3),
        "connection: close": (Answer([SAYS_CLOSE], End.CLOSE), 3),
        "connection: close, yet left open": (Answer([SAYS_CLOSE], End.HANG), 3),
    },
)
def test_every_framing_is_read_to_its_end(epoll: str, answer: Answer, connections: int) -> None:
    server = VirtualServer(lambda _: answer)
    driven = drive(job_of(server.target(), 3, 1), epoll, server)
    assert (server.connections, len(server.asked)) == (connections, 3)
    assert kinds(driven) == [None] * 3
    assert [record.output_tokens for record in records(driven)] == [3] * 3
    assert [capture.resends for capture in driven.captures] == [0] * 3
    assert [capture.connect_ns > 0 for capture in driven.captures] == [
        connections > 1 and i > 0 for i in range(3)
    ]


def test_a_request_is_sent_as_its_body_with_a_name_and_a_length(epoll: str) -> None:
    server = VirtualServer(lambda _: stream())
    job = job_of(server.target(), 2, 1, body=lambda i: b'{"n":%d}' % i, request_id_prefix="me-")
    drive(job, epoll, server)
    first, second = server.asked
    assert (first.body, second.body) == (b'{"n":0}', b'{"n":1}')
    assert first.head.splitlines() == [
        "POST /v1/completions HTTP/1.1",
        f"host: 127.0.0.1:{job.target.port}",
        "content-type: application/json",
        "content-length: 7",
        "x-request-id: me-0",
    ]


# Connections.


@loop_over("concurrency", [1, 8, None])
def test_a_refused_port_fails_every_request_without_delay(epoll: str, concurrency: int | None) -> None:
    job = job_of(target_of("127.0.0.1", closed_port()), 600, concurrency)
    driven = drive(job, epoll)
    assert kinds(driven) == [FailureKind.CONNECT] * 600
    assert all(capture.sent_ns == 0 for capture in driven.captures)
    assert all(capture.failure and "cannot connect" in capture.failure.detail for capture in driven.captures)


def test_an_address_that_no_connection_can_be_begun_to_fails_each_request(epoll: str) -> None:
    driven = drive(job_of(target_of("255.255.255.255", 80), 3, 2), epoll)
    assert kinds(driven) == [FailureKind.CONNECT] * 3


def test_a_server_that_limits_connections_serves_the_whole_plan(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.005), accepts=lambda number: number <= 2)
    driven = drive(job_of(server.target(), 40, 4), epoll, server)
    found = kinds(driven)
    assert len(found) == 40
    assert found.count(None) >= 30
    assert set(found) <= {None, FailureKind.CONNECT, FailureKind.TRUNCATED}


def test_a_server_that_closes_every_connection_fails_the_run(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(), accepts=lambda number: False)
    driven = drive(job_of(server.target(), 20, 8), epoll, server)
    assert server.connections <= 20 + 2 * 8
    assert len(driven.captures) == 20
    assert set(kinds(driven)) <= {FailureKind.TRUNCATED, FailureKind.CONNECT}


UNASKED = [
    pytest.param(b"garbage", id="garbage"),
    pytest.param(whole(b"", "408 Request Timeout", more="connection: close\r\n"), id="a 408"),
    pytest.param(WHOLE, id="an answer"),
]


@loop_over("unasked", UNASKED)
def test_bytes_nobody_asked_for_on_an_idle_connection_answer_no_request(epoll: str, unasked: bytes) -> None:
    def script(asked: Asked) -> Answer:
        return Answer([WHOLE, 0.05, unasked]) if asked.number == 0 else stream()

    server = VirtualServer(script)
    offsets_ns = np.array([0, 200 * MS, 210 * MS])
    driven = drive(job_of(server.target(), 3, 1, offsets_ns=offsets_ns, rate_per_s=5.0), epoll, server)
    assert len(server.asked) == 3
    assert [capture.index for capture in driven.captures] == [0, 1, 2]
    assert kinds(driven) == [None] * 3


def test_bytes_before_the_first_request_answer_none(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(), greeting=b"220 mail.example ESMTP\r\n")
    offsets_ns = np.array([100 * MS, 150 * MS])
    job = job_of(
        server.target(), 2, 1, offsets_ns=offsets_ns, rate_per_s=5.0, limits=Limits(request_timeout_ns=SECOND)
    )
    driven = drive(job, epoll, server)
    assert [capture.index for capture in driven.captures] == [0, 1]


def test_an_answer_before_the_request_is_written_costs_the_connection(epoll: str) -> None:
    early = whole(b'{"detail":"too large"}', "413 Payload Too Large")
    body = b"x" * (8 << 20)

    with ScriptedServer(lambda _: stream(), greeting=early) as server:
        # The greeting stands in for an answer given after the head alone.
        driven = drive(job_of(server.target(), 2, 1, body=lambda _: body), epoll)
    assert [capture.index for capture in driven.captures] == [0, 1]


def test_ipv6_is_spoken(epoll: str) -> None:
    try:
        with ScriptedServer(lambda _: stream(), host="::1") as server:
            driven = drive(job_of(server.target(), 2, 1), epoll)
            assert f"host: [::1]:{server.port}" in server.asked[0].head
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error.strerror}")
    assert kinds(driven) == [None, None]


# Sizes.


def test_a_large_request_goes_out_in_the_pieces_that_a_slow_reader_takes(epoll: str) -> None:
    body = bytes(range(256)) * 2800
    with ScriptedServer(lambda _: stream(), read_bytes=16384, read_pause_s=0.0005) as server:
        driven = drive(job_of(server.target(), 2, 1, body=lambda _: body), epoll)
        assert [asked.body == body for asked in server.asked] == [True, True]
    assert kinds(driven) == [None, None]


def test_a_huge_answer_is_kept_whole(epoll: str) -> None:
    padding = chunk(b": " + b"x" * 100_000 + b"\n\n")
    answer = Answer([HEAD, *[padding] * 60, *(chunk(event) for event in events(2)), LAST])
    with ScriptedServer(lambda _: answer) as server:
        driven = drive(job_of(server.target(), 2, 2), epoll)
    assert kinds(driven) == [None, None]
    assert [len(capture.raw) for capture in driven.captures] == [len(joined(list(answer.pieces)))] * 2


@loop_over("end", [End.KEEP, End.CLOSE])
@loop_over("size", [65535, 65536, 65537, 2 * 65536, 16 * 65536, 16 * 65536 + 1])
def test_an_answer_that_fills_reads_to_the_last_byte_is_read_to_its_end(
    epoll: str, size: int, end: End
) -> None:
    def padded(more: int) -> bytes:
        return whole(b": " + b"x" * more + b"\n\n" + BODY, kind="text/event-stream")

    answer = Answer([padded(2 * size - len(padded(size)))], end)
    server = VirtualServer(lambda _: answer)
    driven = drive(job_of(server.target(), 3, 1), epoll, server)
    assert kinds(driven) == [None] * 3
    assert [len(capture.raw) for capture in driven.captures] == [size] * 3


def test_a_reader_that_comes_late_delays_no_request(epoll: str) -> None:
    padding = chunk(b": " + b"x" * 400_000 + b"\n\n")
    answer = Answer([HEAD, padding, *(chunk(event) for event in events(2)), LAST])
    with ScriptedServer(lambda _: answer) as server:
        job = job_of(server.target(), 100, 4)
        driven = Driver(job, epoll, read_after=threading.Event()).run()
    assert kinds(driven) == [None] * 100
    assert driven.health.backlog_bytes > 30 << 20


# Stamps.


@linux
def test_every_read_has_a_kernel_stamp_no_later_than_the_clients_own(epoll: str) -> None:
    with ScriptedServer(lambda _: stream(20, 0.001)) as server:
        driven = drive(job_of(server.target(), 4, 2), epoll)
    for capture in driven.captures:
        kernel_ns, user_ns = capture.kernel_ns(), capture.user_ns()
        assert (kernel_ns > 0).all()
        assert (kernel_ns <= user_ns).all()
        assert (np.diff(kernel_ns) >= 0).all()
        assert capture.sent_ns <= kernel_ns[0]
        assert capture.segments or capture.end_ns == kernel_ns[-1]


def test_two_messages_in_one_read_share_its_stamp(epoll: str) -> None:
    pieces: list[bytes | float] = [HEAD, chunk(token()) + chunk(token()), 0.01, chunk(token("z", "length"))]
    server = VirtualServer(lambda _: Answer([*pieces, chunk(usage(3)), chunk(DONE), LAST]))
    (record,) = records(drive(job_of(server.target(), 1, 1), epoll, server))
    assert record.arrival_ns[0] == record.arrival_ns[1] < record.arrival_ns[2]
    assert record.shared_reads == 1


@linux
def test_the_kernels_option_for_stamps_has_the_number_we_use() -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        assert sock.getsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS) == 1


def test_the_kernel_is_told_once_a_response_to_acknowledge_less_often() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        slot = Slot(0)
        slot.sock = sock
        slot.delay_acks()
        assert slot.acks_delayed
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 0
        slot.clear()
        assert not slot.acks_delayed


# Deadlines.


LATE_NS = 200 * MS  # of two sweeps


def role() -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'


def repeated(event: bytes, times: int, gap_s: float) -> list[bytes | float]:
    return [piece for _ in range(times) for piece in (chunk(event), gap_s)]


def halves(event: bytes, times: int, gap_s: float) -> list[bytes | float]:
    """Each read has the end of one event and the beginning of the next."""
    half = len(event) // 2
    middle = [piece for _ in range(times) for piece in (chunk(event[half:] + event[:half]), gap_s)]
    return [chunk(event[:half]), *middle, chunk(event[half:])]


FINISH: list[bytes | float] = [chunk(token("z", "length")), chunk(usage(2)), chunk(DONE), LAST]


@loop_over_named(
    ("pieces", "kind"),
    {
        "silence": ([], FailureKind.STALL),
        "a head alone": ([HEAD], FailureKind.STALL),
        "pings alone": ([HEAD, *repeated(PING, 100, 0.02)], FailureKind.STALL),
        "a token, then pings": ([HEAD, chunk(token()), *repeated(PING, 100, 0.02)], FailureKind.STALL),
        "slow tokens": ([HEAD, *repeated(token(), 10, 0.15), *FINISH], None),
        "tokens split over reads": ([HEAD, *halves(token(), 20, 0.08), *FINISH], None),
        "slow tokens among pings": ([HEAD, *repeated(token() + PING * 3, 10, 0.15), *FINISH], None),
    },
)
def test_a_stall_is_the_absence_of_tokens_whatever_else_comes(
    pieces: list[bytes | float], kind: FailureKind | None, transport: str
) -> None:
    limits = Limits(stall_timeout_ns=1000 * MS)
    server = VirtualServer(lambda _: Answer(pieces, End.HANG if kind else End.KEEP))
    job = job_of(server.target(), 1, 1, limits=limits, token_seen=Completions().has_token)
    driven = drive(job, transport, server)
    assert kinds(driven) == [kind]
    if kind:
        (capture,) = driven.captures
        assert 1000 * MS < capture.end_ns - capture.sent_ns < 1000 * MS + 2 * LATE_NS


@loop_over_named(
    ("gap_s", "found"),
    {
        "queued behind an answer that goes on": (0.2, [None, None]),
        "nobody gets a token": (2.5, [FailureKind.STALL, FailureKind.STALL]),
    },
)
def test_a_request_waits_for_its_first_token_as_long_as_others_get_theirs(
    gap_s: float, found: list[FailureKind | None], transport: str
) -> None:
    """The second request's first byte comes after twice the stall timeout."""
    going_on = Answer([HEAD, *repeated(token(), 12, gap_s), *FINISH], End.KEEP)
    queued = Answer([2.2, HEAD, chunk(token()), *FINISH], End.KEEP)
    limits = Limits(stall_timeout_ns=1000 * MS)
    server = VirtualServer(lambda asked: queued if asked.number else going_on)
    job = job_of(server.target(), 2, 2, limits=limits, token_seen=Completions().has_token)
    assert kinds(drive(job, transport, server)) == found


def test_a_role_is_no_token(transport: str) -> None:
    limits = Limits(stall_timeout_ns=1000 * MS)
    server = VirtualServer(lambda _: Answer([HEAD, *repeated(role(), 100, 0.02)]))
    job = job_of(server.target(), 1, 1, limits=limits, token_seen=Chat().has_token)
    assert kinds(drive(job, transport, server)) == [FailureKind.STALL]


def test_a_timeout_ends_a_request_that_gets_tokens_and_the_next_is_served(transport: str) -> None:
    slow = Answer([HEAD, *repeated(token(), 200, 0.02)])
    limits = Limits(request_timeout_ns=200 * MS)
    server = VirtualServer(lambda asked: stream() if asked.number else slow)
    driven = drive(job_of(server.target(), 2, 1, limits=limits), transport, server)
    assert kinds(driven) == [FailureKind.TIMEOUT, None]
    timed_out = records(driven)[0]
    assert 200 * MS < timed_out.end_ns - timed_out.sent_ns < 200 * MS + LATE_NS
    assert 10 <= timed_out.output_tokens <= 16


def test_deadlines_hold_while_other_streams_never_pause(transport: str) -> None:
    busy = Answer([HEAD, *[chunk(b": " + b"p" * 500 + b"\n\n")] * 10_000])
    limits = Limits(request_timeout_ns=200 * MS)
    server = VirtualServer(lambda asked: Answer([], End.HANG) if asked.connection == 1 else busy)
    server.write_ns, server.poll_ns = MS // 10, MS // 5  # each poll finds something
    driven = drive(job_of(server.target(), 4, 4, limits=limits), transport, server)
    assert kinds(driven) == [FailureKind.TIMEOUT] * 4
    assert all(capture.end_ns - capture.sent_ns < 200 * MS + LATE_NS for capture in driven.captures)


@loop_over("silent", [True, False])
def test_a_connection_that_is_never_made_is_given_up_at_its_timeout(transport: str, silent: bool) -> None:
    limits = Limits(connect_timeout_ns=3000 * MS)
    server = VirtualServer(lambda _: stream(), silent=silent, refuses=not silent)
    driven = drive(job_of(server.target(), 2, 2, limits=limits), transport, server)
    assert kinds(driven) == [FailureKind.CONNECT] * 2
    waited_ns = server.time.ns - START_NS
    assert 3000 * MS <= waited_ns < 3000 * MS + 2 * LATE_NS if silent else waited_ns < LATE_NS


# Loops.


@loop_over("concurrency", [1, 3, 8])
def test_a_closed_loop_keeps_exactly_its_concurrency_under_way(epoll: str, concurrency: int) -> None:
    server = VirtualServer(lambda _: stream(4, 0.001))
    driven = drive(job_of(server.target(), 24, concurrency), epoll, server)
    assert server.connections == concurrency
    found = records(driven)
    changes = sorted([(r.sent_ns, 1) for r in found] + [(r.end_ns, -1) for r in found])
    assert np.cumsum([change for _, change in changes]).max() == concurrency
    for capture, record in zip(driven.captures, found, strict=True):
        earlier = [c for c in driven.captures if c.slot == capture.slot and c.index < capture.index]
        due_ns = earlier[-1].end_ns if earlier else driven.health.started_ns
        assert capture.intended_ns == due_ns
        assert record.sent_ns >= due_ns
    assert max(capture.sent_ns - capture.intended_ns for capture in driven.captures) < MS // 10
    assert driven.counters.sent == driven.counters.ended == 24


@loop_over("concurrency", [None, 2])
def test_an_open_loop_keeps_its_schedule(concurrency: int | None, transport: str) -> None:
    offsets_ns = np.arange(40) * 10 * MS
    server = VirtualServer(lambda _: stream(3, 0.001))
    job = job_of(server.target(), 40, concurrency, offsets_ns=offsets_ns, rate_per_s=100.0)
    driven = drive(job, transport, server)
    assert kinds(driven) == [None] * 40
    intended_ns = np.array([capture.intended_ns for capture in driven.captures])
    sent_ns = np.array([capture.sent_ns for capture in driven.captures])
    assert (intended_ns - driven.health.started_ns == offsets_ns).all()
    assert (sent_ns >= intended_ns).all()
    late_ns = (sent_ns - intended_ns)[1:]  # over httpx the first is connected after its time
    assert late_ns.max() < MS // 10


def test_an_open_loop_is_on_time_while_bodies_are_still_being_built(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(2))

    def body(index: int) -> bytes:
        server.time.sleep(0.002)  # a body that takes its time
        return b"{}"

    offsets_ns = np.concatenate([np.arange(20) * 20 * MS, np.full(280, 450 * MS)])
    job = job_of(server.target(), 300, 300, body=body, offsets_ns=offsets_ns, rate_per_s=1.0)
    driven = drive(job, epoll, server)
    late_ns = np.array([capture.sent_ns - capture.intended_ns for capture in driven.captures[1:20]])
    assert late_ns.max() < 4 * MS  # a body or two


def test_an_open_loop_adds_connections_as_needed(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.1))
    offsets_ns = np.arange(60) * 2 * MS
    driven = drive(job_of(server.target(), 60, None, offsets_ns=offsets_ns, rate_per_s=1.0), epoll, server)
    assert 16 < server.connections <= 61
    assert kinds(driven) == [None] * 60


def test_an_open_loop_with_a_limit_never_exceeds_it_and_shows_the_queue(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.01))
    offsets_ns = np.zeros(12, np.int64)
    job = job_of(server.target(), 12, 3, offsets_ns=offsets_ns, rate_per_s=float("inf"))
    driven = drive(job, epoll, server)
    assert server.connections == 3
    late_ns = [capture.sent_ns - capture.intended_ns for capture in driven.captures]
    assert max(late_ns[:3]) < min(late_ns[3:])


# A duration instead of a count.


def test_when_time_is_up_a_closed_loop_finishes_what_is_under_way(transport: str) -> None:
    built: list[int] = []

    def body(index: int) -> bytes:
        built.append(index)
        return b"{}"

    server = VirtualServer(lambda _: stream(3, 0.02))
    job = job_of(server.target(), 1_000_000, 3, body=body, duration_ns=300 * MS)
    driven = drive(job, transport, server)
    assert len(server.asked) == len(driven.captures)
    count = len(driven.captures)
    assert count == 9  # three slots, an answer takes a little more than 100 ms
    assert kinds(driven) == [None] * count
    assert driven.counters.sent == driven.counters.ended == count
    assert [capture.index for capture in driven.captures] == list(range(count))
    over_ns = driven.health.started_ns + 300 * MS
    assert all(capture.intended_ns < over_ns for capture in driven.captures)
    assert len(built) <= count + 16384


def test_a_request_longer_than_the_duration_is_the_only_one_of_its_slot(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.15))
    driven = drive(job_of(server.target(), 1000, 2, duration_ns=100 * MS), transport, server)
    assert kinds(driven) == [None, None]
    assert all(capture.end_ns > driven.health.started_ns + 100 * MS for capture in driven.captures)


def test_an_open_loop_leaves_what_its_limit_held_back_to_the_end(transport: str) -> None:
    offsets_ns = np.arange(10) * 20 * MS
    server = VirtualServer(lambda _: stream(3, 0.05))
    job = job_of(server.target(), 10, 1, offsets_ns=offsets_ns, rate_per_s=50.0, duration_ns=200 * MS)
    driven = drive(job, transport, server)
    assert kinds(driven) == [None]  # an answer takes 250 ms
    assert driven.counters.sent == driven.counters.ended == 1


def test_a_plan_that_is_done_before_its_time_is_up_does_not_wait_for_it(transport: str) -> None:
    server = VirtualServer(lambda _: stream())
    driven = drive(job_of(server.target(), 5, 2, duration_ns=3600 * SECOND), transport, server)
    assert kinds(driven) == [None] * 5


def test_a_refused_port_fails_one_request_per_slot_and_second(transport: str) -> None:
    server = VirtualServer(lambda _: stream(), refuses=True)
    driven = drive(job_of(server.target(), 1_000_000, 2, duration_ns=4500 * MS), transport, server)
    assert kinds(driven) == [FailureKind.CONNECT] * 10


# Stopping.


@pytest.mark.parametrize(
    ("transport", "offsets"),
    [
        *[(transport, None) for transport in ("wire", "ring", "httpx")],
        *[(transport, np.arange(50) * 50 * MS) for transport in ("wire", "ring")],
    ],
)
def test_a_stop_delivers_what_was_under_way_as_cancelled(transport: str, offsets: np.ndarray | None) -> None:
    holder: list[Callable[[], None]] = []

    def script(asked: Asked) -> Answer:
        if asked.number == 3:
            holder[0]()
        return stream() if int(asked.body) < 2 else Answer([HEAD, chunk(token())], End.HANG)

    server = VirtualServer(script)
    job = job_of(server.target(), 50, 2, body=lambda i: b"%d" % i, offsets_ns=offsets, rate_per_s=20.0)
    driver = Driver(job, transport, server)
    holder.append(driver.inbox.stop)
    driven = driver.run()
    assert kinds(driven) == [None, None, FailureKind.CANCELLED, FailureKind.CANCELLED]
    assert all(capture.sent_ns for capture in driven.captures)


def test_a_reader_that_is_gone_stops_the_run() -> None:
    server = VirtualServer(lambda _: Answer([HEAD], End.HANG))
    driver = Driver(job_of(server.target(), 10, 1), "wire", server)
    driver.inbox.stop()  # an unread byte makes the end of the pipe an error, not an end
    driver.inbox.sock.close()
    wire = EpollTransport(driver.job, driver.outbox, driver.counters, server)
    health = wire.run()
    assert health.ended_ns - health.started_ns < MS
    driver.outbox.sock.close()

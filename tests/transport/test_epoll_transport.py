"""The wire transport against a scripted server: framings, failures, connections, sizes, stamps."""

from __future__ import annotations

import socket
import sys
import threading

import numpy as np
import pytest

from builders.loops import loop_over, loop_over_named
from fakes.scripted_server import (
    DONE,
    HEAD,
    LAST,
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
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Limits
from loadgen.transport.tcp_connection import SO_TIMESTAMPNS, Slot

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

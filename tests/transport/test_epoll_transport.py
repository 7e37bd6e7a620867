"""Transports against a scripted server: framings, failures, connections, sizes, stamps."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

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
from loadgen.settings.shard_settings import Share
from loadgen.transport.epoll_transport import EpollTransport, PollPacing
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import At, Limits, Listed
from loadgen.transport.tcp_connection import SO_TIMESTAMPNS
from loadgen.wire.openai import Completions

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
def test_every_framing_is_read_to_its_end(transport: str, answer: Answer, connections: int) -> None:
    server = VirtualServer(lambda _: answer)
    driven = drive(job_of(server.target(), 3, 1), transport, server)
    assert (server.connections, len(server.asked)) == (connections, 3)
    assert kinds(driven) == [None] * 3
    assert [record.output_tokens for record in records(driven)] == [3] * 3
    assert [capture.resends for capture in driven.captures] == [0] * 3
    later = connections > 1  # the first connection of those that poll is made before the run
    connecting = [transport == "httpx", later, later]
    assert [capture.connect_ns > 0 for capture in driven.captures] == connecting


def test_a_request_is_sent_as_its_body_with_a_name_and_a_length(transport: str) -> None:
    server = VirtualServer(lambda _: stream())
    target = replace(server.target(), headers=(("Authorization", "Bearer x"),))
    job = job_of(target, 2, 1, body=lambda i: b'{"n":%d}' % i, request_id_prefix="me-")
    drive(job, transport, server)
    first, second = server.asked
    assert (first.body, second.body) == (b'{"n":0}', b'{"n":1}')
    lines = [
        "POST /v1/completions HTTP/1.1",
        f"host: 127.0.0.1:{job.target.port}",
        "content-type: application/json",
        "content-length: 7",
        "x-request-id: me-0",
        "Authorization: Bearer x",
    ]
    sent = first.head.splitlines()
    if transport == "httpx":  # in another order, with headers of its own
        assert {*map(str.lower, lines), "accept-encoding: identity"} <= {line.lower() for line in sent}
    else:
        assert sent == lines


# Connections.


@loop_over("concurrency", [1, 8, None])
def test_a_refused_port_fails_every_request_without_delay(transport: str, concurrency: int | None) -> None:
    count = 20 if transport == "httpx" else 600
    driven = drive(job_of(target_of("127.0.0.1", closed_port()), count, concurrency), transport)
    assert kinds(driven) == [FailureKind.CONNECT] * count
    assert all(capture.sent_ns == 0 for capture in driven.captures)
    details = {capture.failure.detail for capture in driven.captures if capture.failure}
    assert all(detail.isprintable() and len(detail) > 3 for detail in details)
    assert transport == "httpx" or all("cannot connect" in detail for detail in details)


def test_an_address_that_no_connection_can_be_begun_to_fails_each_request(epoll: str) -> None:
    driven = drive(job_of(target_of("255.255.255.255", 80), 3, 2), epoll)
    assert kinds(driven) == [FailureKind.CONNECT] * 3


def test_bytes_before_the_first_request_answer_none(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(), greeting=b"220 mail.example ESMTP\r\n")
    offsets_ns = np.array([100 * MS, 150 * MS])
    job = job_of(
        server.target(), 2, 1, offsets_ns=offsets_ns, rate_per_s=5.0, limits=Limits(request_timeout_ns=SECOND)
    )
    driven = drive(job, epoll, server)
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


# Stamps.


@linux
@pytest.mark.usefixtures("timestamping")
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


@linux
def test_the_kernels_option_for_stamps_has_the_number_we_use() -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        assert sock.getsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS) == 1


# Deadlines.


LATE_NS = 200 * MS  # of two sweeps


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


def test_a_part_of_an_open_loop_sends_its_indices_at_their_times(transport: str) -> None:
    server, share = VirtualServer(lambda _: stream(2, 0.001)), Share(1, 3)
    begin_ns, indices = server.now_ns() + 70 * MS, share.list_indices(9)
    own: dict[str, Any] = {"order": Listed(indices), "offsets_ns": indices * 10 * MS, "rate_per_s": 33.0}
    job = job_of(server.target(), 0, share=share, start=At(begin_ns), **own)
    driven = drive(job, transport, server)
    assert [capture.index for capture in driven.captures] == [1, 4, 7]
    assert driven.health.started_ns == begin_ns
    assert [capture.intended_ns - begin_ns for capture in driven.captures] == [10 * MS, 40 * MS, 70 * MS]
    assert all(0 <= capture.sent_ns - capture.intended_ns < 2 * MS for capture in driven.captures)
    assert {capture.slot % 3 for capture in driven.captures} == {1}


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


@loop_over("transport", ["wire", "ring", "httpx"])
@loop_over("answered", [0, 6])
def test_a_stop_while_connections_are_made_waits_for_none(transport: str, answered: int) -> None:
    def script(asked: Asked) -> Answer:
        if asked.number == answered - 1:
            server.silent = True  # of each later connection the SYN has no answer
            server.time.after(1500 * MS, driver.inbox.stop)
        return Answer(stream().pieces, End.CLOSE)

    server = VirtualServer(script, silent=not answered)
    driver = Driver(job_of(server.target(), 50, 2), transport, server)
    if not answered:
        server.time.after(1500 * MS, driver.inbox.stop)
    driven = driver.run()
    assert kinds(driven)[:answered] == [None] * answered
    assert {*kinds(driven)[answered:]} <= {FailureKind.CANCELLED}
    assert driven.health.ended_ns - driven.health.started_ns < 2000 * MS


@loop_over(
    ("transport", "offsets_ns", "most"),
    [
        *[(transport, None, 10) for transport in ("wire", "ring", "httpx")],
        *[(transport, np.arange(120) * 20 * MS, 60) for transport in ("wire", "ring")],
    ],
)
def test_a_server_away_for_a_second_does_not_use_up_the_plan(
    transport: str, offsets_ns: np.ndarray | None, most: int
) -> None:
    """Two were under way, and a slot asks once a second; of a rate what was due meanwhile fails at once."""

    def script(asked: Asked) -> Answer:
        if asked.number == 11:
            be_away(True)
            server.time.after(1000 * MS, lambda: be_away(False))
        return stream(3, 0.02)

    def be_away(away: bool) -> None:
        server.refuses = server.died = away

    server = VirtualServer(script)
    job = job_of(server.target(), 120, None if offsets_ns is not None else 2, offsets_ns=offsets_ns)
    driven = drive(job, transport, server)
    found = kinds(driven)
    failed = [kind for kind in found if kind is not None]
    assert 0 < len(failed) <= most
    assert {*failed} <= {FailureKind.CONNECT, FailureKind.TRUNCATED}
    assert found[-20:] == [None] * 20
    assert all(capture.end_ns - capture.sent_ns < 500 * MS for capture in driven.captures)


def test_a_reader_that_is_gone_stops_the_run() -> None:
    server = VirtualServer(lambda _: Answer([HEAD], End.HANG))
    driver = Driver(job_of(server.target(), 10, 1), "wire", server)
    driver.inbox.stop()  # an unread byte makes the end of the pipe an error, not an end
    driver.inbox.sock.close()
    wire = EpollTransport(driver.job, driver.outbox, driver.counters, server)
    health = wire.run()
    assert health.ended_ns - health.started_ns < MS
    driver.outbox.sock.close()


SECOND_NS = 1_000_000_000


@loop_over(
    ("streams", "reads_per_s", "rest_s"),
    [
        (1024, 102_400, 0.0002),  # 10 ms between a stream's reads: a fiftieth
        (512, 150_000, 512 / 150_000 / 50),
        (1024, 51_200, 0.0002),  # never longer, however slow they are
        (400, 160_000, 0.00005),
        (400, 161_000, 0.0),  # shorter than the kernel's slack
        (399, 100_000, 0.0),  # too few to be worth it
        (8, 1_000, 0.0),
        (1024, 0, 0.0),  # all of them wait for their first token
        (0, 0, 0.0),
    ],
)
def test_a_rest_is_a_small_share_of_the_gap_between_a_streams_reads(
    streams: int, reads_per_s: int, rest_s: float
) -> None:
    rest = PollPacing()
    rest.learn(streams, 5, 7 * SECOND_NS)
    rest.learn(streams, 5 + reads_per_s // 10, 7 * SECOND_NS + SECOND_NS // 10)
    assert rest.seconds == pytest.approx(rest_s, rel=1e-9)


def test_without_the_kernels_stamps_there_is_no_rest() -> None:
    rest = PollPacing()
    rest.learn(1024, 0, SECOND_NS)
    rest.learn(1024, 10_000, 2 * SECOND_NS)
    assert rest.seconds > 0
    rest.forbidden = True
    rest.learn(1024, 20_000, 3 * SECOND_NS)
    assert rest.seconds == 0

"""The wire transport against a scripted server: framing, failures, deadlines, both loops."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from loadgen.decode import Decoder
from loadgen.dialect import Chat, Completions
from loadgen.failure import FailureKind
from loadgen.job import Limits
from loadgen.record import Record
from loadgen.slot import SO_TIMESTAMPNS, Slot
from loadgen.wire import Wire
from scripted_server import (
    DONE,
    HEAD,
    LAST,
    PING,
    Answer,
    Asked,
    Driven,
    Driver,
    End,
    ScriptedServer,
    chunk,
    closed_port,
    drive,
    events,
    job_of,
    stream,
    target_of,
    token,
    usage,
    whole,
)

MS = 1_000_000
SECOND = 1000 * MS
linux = pytest.mark.skipif(sys.platform != "linux", reason="kernel stamps are asked for on Linux only")


def records(driven: Driven) -> list[Record]:
    decoder = Decoder(Completions(), streamed=True)
    return [decoder.decode(capture) for capture in driven.captures]


def kinds(driven: Driven) -> list[FailureKind | None]:
    return [record.failure.kind if record.failure else None for record in records(driven)]


def joined(pieces: list[bytes | float]) -> bytes:
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))


WHOLE = joined(list(stream(3).pieces))
BODY = b"".join(events(3))
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + BODY
LENGTH = whole(BODY, kind="text/event-stream")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SAYS_CLOSE = HEAD[:-2] + b"connection: close\r\n\r\n" + WHOLE[len(HEAD) :]
HTTP10 = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + BODY


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        pytest.param(stream(3), 1, id="each event a write"),
        pytest.param(Answer([WHOLE]), 1, id="one write"),
        pytest.param(Answer([WHOLE[:-3], 0.001, WHOLE[-3:]]), 1, id="the end mark split in two"),
        pytest.param(Answer([WHOLE[:-5], 0.001, WHOLE[-5:-4], 0.001, WHOLE[-4:]]), 1, id="and in three"),
        pytest.param(Answer([WHOLE[:9], 0.001, WHOLE[9:]]), 1, id="the head split"),
        pytest.param(Answer([LENGTH]), 1, id="a content length"),
        pytest.param(Answer([LENGTH[:-7], 0.001, LENGTH[-7:]]), 1, id="a content length in two"),
        pytest.param(Answer([CONTINUE, 0.001, WHOLE]), 1, id="a 100 first"),
        pytest.param(Answer([CONTINUE + WHOLE]), 1, id="a 100 in the same read"),
        pytest.param(Answer([UNTIL_CLOSE], End.CLOSE), 3, id="until close"),
        pytest.param(Answer([HTTP10], End.CLOSE), 3, id="HTTP/1.0"),
        pytest.param(Answer([SAYS_CLOSE], End.CLOSE), 3, id="connection: close"),
        pytest.param(Answer([SAYS_CLOSE], End.HANG), 3, id="connection: close, yet left open"),
    ],
)
def test_every_framing_is_read_to_its_end(answer: Answer, connections: int) -> None:
    with ScriptedServer(lambda _: answer) as server:
        driven = drive(job_of(server.target(), 3, 1))
        assert (server.connections, len(server.asked)) == (connections, 3)
    assert kinds(driven) == [None] * 3
    assert [record.output_tokens for record in records(driven)] == [3] * 3
    assert [capture.resends for capture in driven.captures] == [0] * 3
    assert [capture.connect_ns > 0 for capture in driven.captures] == [
        connections > 1 and i > 0 for i in range(3)
    ]


def test_a_request_is_sent_as_its_body_with_a_name_and_a_length() -> None:
    with ScriptedServer(lambda _: stream()) as server:
        job = job_of(server.target(), 2, 1, body=lambda i: b'{"n":%d}' % i, request_id_prefix="me-")
        drive(job)
        first, second = server.asked
    assert (first.body, second.body) == (b'{"n":0}', b'{"n":1}')
    assert first.head.splitlines() == [
        "POST /v1/completions HTTP/1.1",
        f"host: 127.0.0.1:{job.target.port}",
        "content-type: application/json",
        "content-length: 7",
        "x-request-id: me-0",
    ]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        pytest.param(
            Answer([HEAD, chunk(token())], End.RESET), FailureKind.TRUNCATED, id="RST in the stream"
        ),
        pytest.param(
            Answer([HEAD, chunk(token())], End.CLOSE), FailureKind.TRUNCATED, id="FIN in the stream"
        ),
        pytest.param(Answer([HEAD[:20]], End.CLOSE), FailureKind.TRUNCATED, id="FIN in the head"),
        pytest.param(Answer([], End.CLOSE), FailureKind.TRUNCATED, id="FIN instead of an answer"),
        pytest.param(Answer([], End.RESET), FailureKind.TRUNCATED, id="RST instead of an answer"),
        pytest.param(Answer([LENGTH[:-200]], End.CLOSE), FailureKind.TRUNCATED, id="a body too short"),
        pytest.param(
            Answer([UNTIL_CLOSE[: UNTIL_CLOSE.index(token("z", "length"))]], End.CLOSE),
            FailureKind.TRUNCATED,
            id="until close, no end",
        ),
        pytest.param(Answer([b"SSH-2.0-x\r\n"], End.HANG), FailureKind.MALFORMED, id="not HTTP"),
        pytest.param(Answer([HEAD, b"zz\r\n\r\n\r\n"], End.CLOSE), FailureKind.MALFORMED, id="not chunks"),
        pytest.param(Answer([whole(b'{"detail":"x"}', "404 Not Found")]), FailureKind.HTTP_STATUS, id="404"),
        pytest.param(Answer([whole(b"", "204 No Content")]), FailureKind.HTTP_STATUS, id="204"),
        pytest.param(Answer([whole(b'{"choices":[]}')]), FailureKind.NOT_STREAMED, id="one JSON body"),
        pytest.param(
            Answer([HEAD, chunk(b'data: {"error":{"message":"x"}}\n\n'), chunk(DONE), LAST]),
            FailureKind.IN_BAND,
            id="an error in a 200",
        ),
        pytest.param(Answer([HEAD, chunk(DONE), LAST]), FailureKind.EMPTY, id="no tokens"),
    ],
)
def test_what_goes_wrong_is_one_failed_request_and_the_next_one_is_served(
    answer: Answer, kind: FailureKind
) -> None:
    with ScriptedServer(lambda asked: stream() if asked.number else answer) as server:
        driven = drive(job_of(server.target(), 2, 1))
    assert kinds(driven) == [kind, None]


def test_a_finished_answer_whose_last_chunk_is_cut_is_no_failure() -> None:
    pieces = [HEAD, *(chunk(event) for event in events(3))]
    with ScriptedServer(lambda _: Answer(pieces, End.CLOSE)) as server:
        driven = drive(job_of(server.target(), 2, 1))
    assert kinds(driven) == [None, None]


# Connections.


@pytest.mark.parametrize("end", [End.CLOSE, End.RESET])
def test_an_idle_connection_that_the_server_closes_costs_one_resend_and_no_failure(end: End) -> None:
    with ScriptedServer(lambda asked: Answer([WHOLE], end)) as server:
        driven = drive(job_of(server.target(), 4, 1))
        assert len(server.asked) == 4
    assert kinds(driven) == [None] * 4
    assert all(capture.resends <= 1 for capture in driven.captures)
    assert driven.captures[0].resends == 0


def test_a_request_is_sent_again_once_and_never_twice() -> None:
    def script(asked: Asked) -> Answer:
        return stream() if asked.number == 0 else Answer([], End.CLOSE)

    with ScriptedServer(script) as server:
        driven = drive(job_of(server.target(), 2, 1))
        assert len(server.asked) == 3
        assert server.asked[1].body == server.asked[2].body
    assert kinds(driven) == [None, FailureKind.TRUNCATED]
    assert [capture.resends for capture in driven.captures] == [0, 1]
    assert driven.captures[1].connect_ns > 0


@pytest.mark.parametrize("concurrency", [1, 8, None])
def test_a_refused_port_fails_every_request_without_delay(concurrency: int | None) -> None:
    job = job_of(target_of("127.0.0.1", closed_port()), 3000, concurrency)
    driven = drive(job)
    assert kinds(driven) == [FailureKind.CONNECT] * 3000
    assert all(capture.sent_ns == 0 for capture in driven.captures)
    assert all(capture.failure and "cannot connect" in capture.failure.detail for capture in driven.captures)


@pytest.mark.realtime
def test_a_server_that_takes_only_some_connections_answers_the_rest_of_the_plan_on_those() -> None:
    with ScriptedServer(lambda _: stream(3, 0.005), accepts=lambda number: number <= 2) as server:
        driven = drive(job_of(server.target(), 40, 4))
    found = kinds(driven)
    assert len(found) == 40
    assert found.count(None) >= 30
    assert set(found) <= {None, FailureKind.CONNECT, FailureKind.TRUNCATED}


@pytest.mark.realtime
def test_a_server_that_closes_every_connection_at_once_fails_the_run_instead_of_hanging_it() -> None:
    with ScriptedServer(lambda _: stream(), accepts=lambda number: False) as server:
        driven = drive(job_of(server.target(), 20, 8))
        assert server.connections <= 20 + 2 * 8
    assert len(driven.captures) == 20
    assert set(kinds(driven)) <= {FailureKind.TRUNCATED, FailureKind.CONNECT}


UNASKED = [
    pytest.param(b"garbage", id="garbage"),
    pytest.param(whole(b"", "408 Request Timeout", more="connection: close\r\n"), id="a 408"),
    pytest.param(WHOLE, id="an answer"),
]


@pytest.mark.realtime
@pytest.mark.parametrize("unasked", UNASKED)
def test_bytes_nobody_asked_for_on_an_idle_connection_answer_no_request(unasked: bytes) -> None:
    def script(asked: Asked) -> Answer:
        return Answer([WHOLE, 0.05, unasked]) if asked.number == 0 else stream()

    with ScriptedServer(script) as server:
        offsets_ns = np.array([0, 200 * MS, 210 * MS])
        driven = drive(job_of(server.target(), 3, 1, offsets_ns=offsets_ns, rate_per_s=5.0))
        assert len(server.asked) == 3
    assert [capture.index for capture in driven.captures] == [0, 1, 2]
    assert kinds(driven) == [None] * 3


@pytest.mark.realtime
def test_bytes_before_the_first_request_answer_none() -> None:
    with ScriptedServer(lambda _: stream(), greeting=b"220 mail.example ESMTP\r\n") as server:
        offsets_ns = np.array([100 * MS, 150 * MS])
        job = job_of(
            server.target(),
            2,
            1,
            offsets_ns=offsets_ns,
            rate_per_s=5.0,
            limits=Limits(request_timeout_ns=SECOND),
        )
        driven = drive(job)
    assert [capture.index for capture in driven.captures] == [0, 1]


def test_an_answer_that_comes_before_the_request_is_written_costs_the_connection() -> None:
    early = whole(b'{"detail":"too large"}', "413 Payload Too Large")
    body = b"x" * (8 << 20)

    with ScriptedServer(lambda _: stream(), greeting=early) as server:
        # The greeting stands in for an answer given after the head alone.
        driven = drive(job_of(server.target(), 2, 1, body=lambda _: body))
    assert [capture.index for capture in driven.captures] == [0, 1]


def test_ipv6_is_spoken() -> None:
    try:
        with ScriptedServer(lambda _: stream(), host="::1") as server:
            driven = drive(job_of(server.target(), 2, 1))
            assert f"host: [::1]:{server.port}" in server.asked[0].head
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error.strerror}")
    assert kinds(driven) == [None, None]


# Sizes.


def test_a_large_request_goes_out_in_the_pieces_that_a_slow_reader_takes() -> None:
    body = bytes(range(256)) * 2800
    with ScriptedServer(lambda _: stream(), read_bytes=16384, read_pause_s=0.0005) as server:
        driven = drive(job_of(server.target(), 2, 1, body=lambda _: body))
        assert [asked.body == body for asked in server.asked] == [True, True]
    assert kinds(driven) == [None, None]


def test_a_huge_answer_is_kept_whole() -> None:
    padding = chunk(b": " + b"x" * 100_000 + b"\n\n")
    answer = Answer([HEAD, *[padding] * 60, *(chunk(event) for event in events(2)), LAST])
    with ScriptedServer(lambda _: answer) as server:
        driven = drive(job_of(server.target(), 2, 2))
    assert kinds(driven) == [None, None]
    assert [len(capture.raw) for capture in driven.captures] == [len(joined(list(answer.pieces)))] * 2


@pytest.mark.parametrize("end", [End.KEEP, End.CLOSE])
@pytest.mark.parametrize("size", [65535, 65536, 65537, 2 * 65536, 16 * 65536, 16 * 65536 + 1])
def test_an_answer_that_fills_reads_to_the_last_byte_is_read_to_its_end(size: int, end: End) -> None:
    def padded(more: int) -> bytes:
        return whole(b": " + b"x" * more + b"\n\n" + BODY, kind="text/event-stream")

    answer = Answer([padded(2 * size - len(padded(size)))], end)
    with ScriptedServer(lambda _: answer) as server:
        driven = drive(job_of(server.target(), 3, 1))
    assert kinds(driven) == [None] * 3
    assert [len(capture.raw) for capture in driven.captures] == [size] * 3


def test_a_reader_that_comes_late_delays_no_request() -> None:
    padding = chunk(b": " + b"x" * 400_000 + b"\n\n")
    answer = Answer([HEAD, padding, *(chunk(event) for event in events(2)), LAST])
    with ScriptedServer(lambda _: answer) as server:
        job = job_of(server.target(), 100, 4)
        driven = Driver(job, read_after=threading.Event()).run()
    assert kinds(driven) == [None] * 100
    assert driven.health.backlog_bytes > 30 << 20


# Stamps.


@linux
def test_every_read_has_a_kernel_stamp_no_later_than_the_clients_own() -> None:
    with ScriptedServer(lambda _: stream(20, 0.001)) as server:
        driven = drive(job_of(server.target(), 4, 2))
    for capture in driven.captures:
        kernel_ns, user_ns = capture.kernel_ns(), capture.user_ns()
        assert (kernel_ns > 0).all()
        assert (kernel_ns <= user_ns).all()
        assert (np.diff(kernel_ns) >= 0).all()
        assert capture.sent_ns <= kernel_ns[0]
        assert capture.end_ns == kernel_ns[-1]


def test_two_messages_in_one_read_share_its_stamp() -> None:
    pieces: list[bytes | float] = [HEAD, chunk(token()) + chunk(token()), 0.01, chunk(token("z", "length"))]
    with ScriptedServer(lambda _: Answer([*pieces, chunk(usage(3)), chunk(DONE), LAST])) as server:
        (record,) = records(drive(job_of(server.target(), 1, 1)))
    assert record.arrival_ns[0] == record.arrival_ns[1] < record.arrival_ns[2]
    assert record.shared_reads == 1


# Deadlines.


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


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        pytest.param([], FailureKind.STALL, id="silence"),
        pytest.param([HEAD], FailureKind.STALL, id="a head alone"),
        pytest.param([HEAD, *repeated(PING, 100, 0.02)], FailureKind.STALL, id="pings alone"),
        pytest.param(
            [HEAD, chunk(token()), *repeated(PING, 100, 0.02)], FailureKind.STALL, id="a token, then pings"
        ),
        pytest.param([HEAD, *repeated(token(), 10, 0.15), *FINISH], None, id="slow tokens"),
        pytest.param([HEAD, *halves(token(), 20, 0.08), *FINISH], None, id="tokens split over reads"),
        pytest.param(
            [HEAD, *repeated(token() + PING * 3, 10, 0.15), *FINISH], None, id="slow tokens among pings"
        ),
    ],
)
def test_a_stall_is_the_absence_of_tokens_whatever_else_comes(
    pieces: list[bytes | float], kind: FailureKind | None
) -> None:
    limits = Limits(stall_timeout_ns=1000 * MS)
    with ScriptedServer(lambda _: Answer(pieces, End.HANG if kind else End.KEEP)) as server:
        driven = drive(job_of(server.target(), 1, 1, limits=limits, token_seen=Completions().token_seen))
    assert kinds(driven) == [kind]


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("gap_s", "found"),
    [
        pytest.param(0.2, [None, None], id="queued behind an answer that goes on"),
        pytest.param(2.5, [FailureKind.STALL, FailureKind.STALL], id="nobody gets a token"),
    ],
)
def test_a_request_waits_for_its_first_token_as_long_as_others_get_theirs(
    gap_s: float, found: list[FailureKind | None]
) -> None:
    """The second request's first byte comes after twice the stall timeout."""
    going_on = Answer([HEAD, *repeated(token(), 12, gap_s), *FINISH], End.KEEP)
    queued = Answer([2.2, HEAD, chunk(token()), *FINISH], End.KEEP)
    limits = Limits(stall_timeout_ns=1000 * MS)
    with ScriptedServer(lambda asked: queued if asked.number else going_on) as server:
        job = job_of(server.target(), 2, 2, limits=limits, token_seen=Completions().token_seen)
        assert kinds(drive(job)) == found


@pytest.mark.realtime
def test_a_role_is_no_token() -> None:
    limits = Limits(stall_timeout_ns=1000 * MS)
    with ScriptedServer(lambda _: Answer([HEAD, *repeated(role(), 100, 0.02)])) as server:
        driven = drive(job_of(server.target(), 1, 1, limits=limits, token_seen=Chat().token_seen))
    assert kinds(driven) == [FailureKind.STALL]


@pytest.mark.realtime
def test_a_request_timeout_ends_a_request_that_still_gets_tokens_and_the_next_one_is_served() -> None:
    slow = Answer([HEAD, *repeated(token(), 200, 0.02)])
    limits = Limits(request_timeout_ns=200 * MS)
    with ScriptedServer(lambda asked: stream() if asked.number else slow) as server:
        driven = drive(job_of(server.target(), 2, 1, limits=limits))
    assert kinds(driven) == [FailureKind.TIMEOUT, None]
    assert records(driven)[0].output_tokens > 3


@pytest.mark.realtime
def test_deadlines_hold_while_other_streams_never_pause() -> None:
    busy = Answer([HEAD, *[chunk(b": " + b"p" * 500 + b"\n\n")] * 40_000])
    limits = Limits(request_timeout_ns=200 * MS)
    with ScriptedServer(lambda asked: Answer([], End.HANG) if asked.connection == 1 else busy) as server:
        driven = drive(job_of(server.target(), 4, 4, limits=limits))
    assert kinds(driven) == [FailureKind.TIMEOUT] * 4


# The loops.


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_a_closed_loop_keeps_exactly_its_concurrency_under_way(concurrency: int) -> None:
    with ScriptedServer(lambda _: stream(4, 0.001)) as server:
        driven = drive(job_of(server.target(), 24, concurrency))
        assert server.connections == concurrency
    found = records(driven)
    changes = sorted([(r.sent_ns, 1) for r in found] + [(r.end_ns, -1) for r in found])
    assert np.cumsum([change for _, change in changes]).max() == concurrency
    for capture, record in zip(driven.captures, found, strict=True):
        earlier = [c for c in driven.captures if c.slot == capture.slot and c.index < capture.index]
        due_ns = earlier[-1].end_ns if earlier else driven.health.started_ns
        assert capture.intended_ns == due_ns
        assert record.sent_ns >= due_ns
    assert driven.counters.sent == driven.counters.ended == 24


@pytest.mark.realtime
@pytest.mark.parametrize("concurrency", [None, 2])
def test_an_open_loop_keeps_its_schedule_and_says_how_late_it_was(concurrency: int | None) -> None:
    offsets_ns = np.arange(40) * 10 * MS
    with ScriptedServer(lambda _: stream(3, 0.001)) as server:
        job = job_of(server.target(), 40, concurrency, offsets_ns=offsets_ns, rate_per_s=100.0)
        driven = drive(job)
    assert kinds(driven) == [None] * 40
    intended_ns = np.array([capture.intended_ns for capture in driven.captures])
    sent_ns = np.array([capture.sent_ns for capture in driven.captures])
    assert (intended_ns - driven.health.started_ns == offsets_ns).all()
    assert (sent_ns >= intended_ns).all()
    assert (sent_ns - intended_ns).min() < 2 * MS  # the least: the servers of a test share its cores


@pytest.mark.realtime
def test_an_open_loop_is_on_time_while_bodies_are_still_being_built() -> None:
    def body(index: int) -> bytes:
        deadline = threading.Event()
        deadline.wait(0.002)  # a body that takes its time
        return b"{}"

    offsets_ns = np.concatenate([np.arange(20) * 20 * MS, np.full(280, 450 * MS)])
    with ScriptedServer(lambda _: stream(2)) as server:
        driven = drive(job_of(server.target(), 300, 300, body=body, offsets_ns=offsets_ns, rate_per_s=1.0))
    late_ns = np.array([c.sent_ns - c.intended_ns for c in driven.captures[1:20]])
    assert late_ns.min() < 6 * MS


@pytest.mark.realtime
def test_an_open_loop_adds_connections_as_they_are_needed() -> None:
    with ScriptedServer(lambda _: stream(3, 0.1)) as server:
        offsets_ns = np.arange(60) * 2 * MS
        driven = drive(job_of(server.target(), 60, None, offsets_ns=offsets_ns, rate_per_s=1.0))
        assert 16 < server.connections <= 61
    assert kinds(driven) == [None] * 60


@pytest.mark.realtime
def test_an_open_loop_with_a_limit_never_exceeds_it_and_shows_the_queue() -> None:
    with ScriptedServer(lambda _: stream(3, 0.01)) as server:
        offsets_ns = np.zeros(12, np.int64)
        driven = drive(job_of(server.target(), 12, 3, offsets_ns=offsets_ns, rate_per_s=float("inf")))
        assert server.connections == 3
    late_ns = [capture.sent_ns - capture.intended_ns for capture in driven.captures]
    assert max(late_ns[:3]) < min(late_ns[3:])


# A duration instead of a count.


@pytest.mark.realtime
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_once_its_time_is_up_a_closed_loop_sends_nothing_more_and_finishes_what_is_under_way(
    transport: str,
) -> None:
    built: list[int] = []

    def body(index: int) -> bytes:
        built.append(index)
        return b"{}"

    with ScriptedServer(lambda _: stream(3, 0.02)) as server:
        job = job_of(server.target(), 1_000_000, 3, body=body, duration_ns=300 * MS)
        driven = drive(job, transport)
        assert len(server.asked) == len(driven.captures)
    count = len(driven.captures)
    assert 3 <= count < 50
    assert kinds(driven) == [None] * count
    assert driven.counters.sent == driven.counters.ended == count
    assert [capture.index for capture in driven.captures] == list(range(count))
    over_ns = driven.health.started_ns + 300 * MS
    assert all(capture.intended_ns < over_ns for capture in driven.captures)
    assert len(built) <= count + 16384


@pytest.mark.realtime
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_a_request_longer_than_the_duration_is_the_only_one_of_its_slot(transport: str) -> None:
    with ScriptedServer(lambda _: stream(3, 0.15)) as server:
        driven = drive(job_of(server.target(), 1000, 2, duration_ns=100 * MS), transport)
    assert kinds(driven) == [None, None]
    assert all(capture.end_ns > driven.health.started_ns + 100 * MS for capture in driven.captures)


@pytest.mark.realtime
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_an_open_loop_leaves_what_its_limit_held_back_until_the_time_was_up(transport: str) -> None:
    offsets_ns = np.arange(10) * 20 * MS
    with ScriptedServer(lambda _: stream(3, 0.05)) as server:
        job = job_of(server.target(), 10, 1, offsets_ns=offsets_ns, rate_per_s=50.0, duration_ns=200 * MS)
        driven = drive(job, transport)
    assert 1 <= len(driven.captures) <= 2
    assert kinds(driven) == [None] * len(driven.captures)
    assert driven.counters.sent == driven.counters.ended == len(driven.captures)


@pytest.mark.realtime
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_a_plan_that_is_done_before_its_time_is_up_does_not_wait_for_it(transport: str) -> None:
    with ScriptedServer(lambda _: stream()) as server:
        driven = drive(job_of(server.target(), 5, 2, duration_ns=3600 * SECOND), transport)
    assert kinds(driven) == [None] * 5


@pytest.mark.realtime
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_a_refused_port_fails_a_request_of_each_slot_now_and_then_while_there_is_time(transport: str) -> None:
    job = job_of(target_of("127.0.0.1", closed_port()), 1_000_000, 2, duration_ns=600 * MS)
    driven = drive(job, transport)
    assert kinds(driven) == [FailureKind.CONNECT] * 2


# Stopping.


@pytest.mark.realtime
@pytest.mark.parametrize("offsets", [None, np.arange(50) * 50 * MS])
def test_a_stop_delivers_what_was_under_way_as_cancelled(offsets: np.ndarray | None) -> None:
    holder: list[Callable[[], None]] = []

    def script(asked: Asked) -> Answer:
        if asked.number == 3:
            holder[0]()
        return stream() if int(asked.body) < 2 else Answer([HEAD, chunk(token())], End.HANG)

    with ScriptedServer(script) as server:
        job = job_of(server.target(), 50, 2, body=lambda i: b"%d" % i, offsets_ns=offsets, rate_per_s=20.0)
        driver = Driver(job)
        holder.append(driver.inbox.stop)
        driven = driver.run()
    assert kinds(driven) == [None, None, FailureKind.CANCELLED, FailureKind.CANCELLED]
    assert all(capture.sent_ns for capture in driven.captures)


def test_a_reader_that_is_gone_stops_the_run() -> None:
    with ScriptedServer(lambda _: Answer([HEAD], End.HANG)) as server:
        driver = Driver(job_of(server.target(), 10, 1))
        driver.inbox.stop()  # an unread byte makes the end of the pipe an error, not an end
        driver.inbox.sock.close()
        wire = Wire(driver.job, driver.outbox, driver.counters)
        health = wire.run()
    assert health.ended_ns >= health.started_ns
    driver.outbox.sock.close()


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

"""Servers that answer badly, over both transports: one failure of the right kind, at once, no resend.

In virtual time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from builders.loops import loop_over, loop_over_named
from builders.required import require
from fakes.scripted_server import (
    DONE,
    HEAD,
    LAST,
    PING,
    Answer,
    Asked,
    Driven,
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
from fakes.virtual_network import VirtualServer
from loadgen.transport.failure import USER_CANCELLED, FailureKind
from loadgen.transport.httpx_transport import Exchange
from loadgen.transport.memory_room import MemoryGauge
from loadgen.transport.sending.job import Limits
from loadgen.wire.openai import Completions

MS = 1_000_000
SECOND = 1000 * MS
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LIMITS = Limits(stall_timeout_ns=8 * SECOND, answer_bytes=1 << 20)


def third(answer: Answer, transport: str, limits: Limits = LIMITS) -> Driven:
    """Three requests on one connection, of which the second is answered so."""
    server = VirtualServer(lambda asked: answer if asked.number == 1 else stream())
    job = job_of(server.target(), 3, 1, limits=limits, token_seen=Completions().has_token)
    return drive(job, transport, server)


# Lost connections.


@loop_over("end", [End.CLOSE, End.RESET])
def test_a_request_that_the_server_held_before_it_closed_is_a_failure(end: End, transport: str) -> None:
    driven = third(Answer([0.4], end), transport)
    assert kinds(driven) == [None, FailureKind.TRUNCATED, None]
    failure = driven.captures[1].failure
    said = r"the connection was closed after 0\.[4-9]\d s without a byte of a response( \(.*\))?"
    assert re.fullmatch(said, require(failure).detail)
    assert [capture.resends for capture in driven.captures] == [0, 0, 0]


@loop_over("end", [End.CLOSE, End.RESET])
@loop_over("begin", [HEAD[:1], HEAD[:20], CONTINUE, CONTINUE[:-2]])
def test_a_request_of_whose_answer_a_byte_came_is_not_sent_again(
    begin: bytes, end: End, transport: str
) -> None:
    # After the byte a moment, or the reset overtakes it.
    driven = third(Answer([begin, 0.05], end), transport)
    assert kinds(driven) == [None, FailureKind.TRUNCATED, None]
    assert [capture.resends for capture in driven.captures] == [0, 0, 0]


@loop_over("end", [End.CLOSE, End.RESET])
def test_a_request_resent_after_an_idle_close_keeps_its_first_time(end: End, transport: str) -> None:
    server = VirtualServer(lambda asked: Answer([0.03], end) if asked.number == 1 else stream())
    driven = drive(job_of(server.target(), 3, 1, limits=LIMITS), transport, server)
    assert len(server.asked) == 4
    assert kinds(driven) == [None, None, None]
    assert [capture.resends for capture in driven.captures] == [0, 1, 0]
    record = records(driven)[1]
    assert record.arrival_ns[0] - record.sent_ns > 30 * MS
    assert record.connect_ns > 0


def test_a_request_is_sent_again_once_and_never_twice(transport: str) -> None:
    server = VirtualServer(lambda asked: Answer([], End.CLOSE) if asked.number else stream())
    driven = drive(job_of(server.target(), 2, 1, limits=LIMITS), transport, server)
    assert len(server.asked) == 3
    assert server.asked[1].body == server.asked[2].body
    assert kinds(driven) == [None, FailureKind.TRUNCATED]
    assert [capture.resends for capture in driven.captures] == [0, 1]
    assert driven.captures[1].connect_ns > 0


@loop_over("delay", [[], [0.03], [0.3]])
def test_a_connection_that_never_served_has_nothing_sent_again(
    delay: list[bytes | float], transport: str
) -> None:
    server = VirtualServer(lambda asked: stream() if asked.number else Answer(delay, End.CLOSE))
    driven = drive(job_of(server.target(), 2, 1, limits=LIMITS), transport, server)
    assert kinds(driven) == [FailureKind.TRUNCATED, None]
    assert [capture.resends for capture in driven.captures] == [0, 0]


@loop_over_named(
    ("answer", "kind"),
    {
        "FIN in the stream": (Answer([HEAD, chunk(token())], End.CLOSE), FailureKind.TRUNCATED),
        "RST in the stream": (Answer([HEAD, chunk(token())], End.RESET), FailureKind.TRUNCATED),
        "until close, no end": (Answer([OK + b"\r\n" + token()], End.CLOSE), FailureKind.TRUNCATED),
        "404": (Answer([whole(b'{"detail":"x"}', "404 Not Found")]), FailureKind.HTTP_STATUS),
        "one JSON body": (Answer([whole(b'{"choices":[]}')]), FailureKind.NOT_STREAMED),
        "in-band": (Answer([HEAD, chunk(b'data: {"error":{"message":"x"}}\n\n'), LAST]), FailureKind.IN_BAND),
        "no tokens": (Answer([HEAD, chunk(DONE), LAST]), FailureKind.EMPTY),
    },
)
def test_a_bad_answer_fails_alone_by_its_kind(answer: Answer, kind: FailureKind, transport: str) -> None:
    found = records(third(answer, transport))
    assert [record.failure and record.failure.kind for record in found] == [None, kind, None]


@loop_over(
    "event",
    [
        "connection.connect_tcp.started",
        "connection.connect_tcp.complete",
        "http11.send_request_headers.started",
        "http11.send_request_body.complete",
        "http11.receive_response_headers.complete",
        "http11.receive_response_body.started",
        "http11.receive_response_body.complete",
        "http11.response_closed.started",
    ],
)
def test_a_request_given_up_at_any_step_costs_the_next_one_nothing(
    event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Exchange.trace

    async def given_up(exchange: Exchange, name: str, info: dict[str, object]) -> None:
        await trace(exchange, name, info)
        if exchange.index == 0 and name == event:
            exchange.give_up(USER_CANCELLED)

    monkeypatch.setattr(Exchange, "trace", given_up)
    driven = drive(job_of((server := VirtualServer(lambda _: stream(3))).target(), 3, 1), "httpx", server)
    assert kinds(driven)[1:] == [None, None]
    assert kinds(driven)[0] in (FailureKind.USER_CANCELLED, None)  # None: it had ended by then


# Answers without an end.

ENDLESS = {
    "tokens": (HEAD, b"".join(chunk(token()) for _ in range(500))),
    "one chunk": (HEAD + b"ffffffff\r\n", (b":" + b"x" * 98 + b"\n") * 655),
    "until close": (OK + b"\r\n", token() * 300),
    "pings": (HEAD, chunk(PING * 40) * 100),
}


@loop_over("name", ENDLESS)
def test_an_answer_without_an_end_is_cut_and_the_others_are_served(name: str, transport: str) -> None:
    head, piece = ENDLESS[name]

    def script(asked: Asked) -> Answer:
        return Answer([head, *[piece] * 400]) if asked.number == 1 else stream(3, 0.002)

    server = VirtualServer(script)
    driven = drive(job_of(server.target(), 20, 4, limits=LIMITS), transport, server)
    found = kinds(driven)
    assert found.count(FailureKind.MALFORMED) == 1
    assert found.count(None) == 19
    (cut,) = (capture for capture in driven.captures if capture.failure is not None)
    assert require(cut.failure).detail == "larger than the limit of 1 MiB for one response"
    assert len(cut.raw) <= 2 << 20
    assert len(cut.read_lengths) == len(cut.seen_ns) == len(cut.kernel) // 2


FLOODS: dict[str, tuple[list[bytes | float], int]] = {
    "full reads": ([chunk(token() * 100) * 50], 400),
    "small reads": ([chunk(token() * 20), 0.0005], 4000),
}


@loop_over("name", FLOODS)
def test_answers_that_fill_memory_together_are_cut_the_largest_first(
    name: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryGauge, "is_passed", lambda _: True)
    piece, times = FLOODS[name]

    def script(asked: Asked) -> Answer:
        return Answer([HEAD, *piece * times]) if asked.number in (1, 2, 3) else stream(3, 0.002)

    server = VirtualServer(script)
    limits = Limits(stall_timeout_ns=8 * SECOND, answer_bytes=64 << 20, open_bytes=1 << 20)
    driven = drive(job_of(server.target(), 20, 4, limits=limits), transport, server)
    found = kinds(driven)
    assert set(found) <= {None, FailureKind.MEMORY, FailureKind.TRUNCATED, FailureKind.STALL}
    assert found.count(None) == 17
    cut = [capture for capture in driven.captures if capture.failure is not None]
    assert FailureKind.MEMORY in {capture.failure.kind for capture in cut if capture.failure is not None}
    for capture in cut:
        assert capture.failure is not None
        if capture.failure.kind is FailureKind.MEMORY:
            assert "the largest: the responses under way held more than the 1 MiB" in capture.failure.detail
            assert len(capture.raw) <= 2 << 20
        assert len(capture.read_lengths) == len(capture.seen_ns) == len(capture.kernel) // 2


def test_answers_that_fit_together_are_not_cut(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryGauge, "is_passed", lambda _: True)
    server = VirtualServer(lambda _: stream(40, 0.002))
    limits = Limits(stall_timeout_ns=8 * SECOND, open_bytes=1 << 20)
    driven = drive(job_of(server.target(), 20, 4, limits=limits), transport, server)
    assert kinds(driven) == [None] * 20


def test_a_long_answer_of_many_small_reads_is_no_flood(transport: str) -> None:
    pieces: list[bytes | float] = [HEAD]
    for _ in range(300):
        pieces += [chunk(token()), 0.0002]
    answer = Answer([*pieces, *[chunk(event) for event in events(2)], LAST])
    driven = third(answer, transport, Limits(answer_bytes=65536))
    assert kinds(driven) == [None, None, None]


# Nobody waits for a stream that is looked at.


def test_pings_without_number_stall_their_stream_and_delay_no_other(transport: str) -> None:
    unknown = chunk(b'data: {"choices":[{"index":0,"delta":{"thinking":"x"}}]}\n\n')

    def pings() -> Iterator[bytes | float]:
        for _ in range(4000):
            yield unknown
            yield 0.0005

    def script(asked: Asked) -> Answer:
        return Answer([HEAD, *pings()]) if asked.number == 0 else stream(200, 0.01)

    limits = Limits(stall_timeout_ns=1000 * MS)
    server = VirtualServer(script)
    job = job_of(server.target(), 2, 2, limits=limits, token_seen=Completions().has_token)
    driven = drive(job, transport, server)
    assert kinds(driven) == [None, FailureKind.STALL] or kinds(driven) == [FailureKind.STALL, None]
    assert driven.health.stopped_ns < 500 * MS

"""The httpx transport: what the wire finds, it finds too."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from fakes.scripted_server import (
    DONE,
    HEAD,
    LAST,
    Answer,
    End,
    ScriptedServer,
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
from loadgen.records.record import Record
from loadgen.transport.failure import USER_CANCELLED, FailureKind
from loadgen.transport.httpx_transport import Exchange

BODY = b"".join(events(3))
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + BODY
PARTIAL = UNTIL_CLOSE[: UNTIL_CLOSE.index(token("z", "length"))]


def told(record: Record) -> tuple[object, ...]:
    """What a record says apart from times and the number of reads."""
    return (
        record.index,
        record.failure and record.failure.kind,
        record.output_tokens,
        record.input_tokens,
        record.usage,
        record.finish_reason,
        record.tokens.tolist(),
        record.sent_ns > 0,
    )


@loop_over(
    "answer",
    [
        pytest.param(stream(5), id="a stream"),
        pytest.param(Answer([HEAD, BODY and chunk(BODY), LAST]), id="one chunk"),
        pytest.param(Answer([whole(BODY, kind="text/event-stream")]), id="a content length"),
        pytest.param(Answer([UNTIL_CLOSE], End.CLOSE), id="until close"),
        pytest.param(Answer([b"HTTP/1.1 100 Continue\r\n\r\n", *stream(3).pieces]), id="a 100 first"),
        pytest.param(Answer([HEAD, chunk(token())], End.CLOSE), id="FIN in the stream"),
        pytest.param(Answer([HEAD, chunk(token())], End.RESET), id="RST in the stream"),
        pytest.param(Answer([PARTIAL], End.CLOSE), id="until close, no end"),
        pytest.param(Answer([], End.CLOSE), id="FIN instead of a response"),
        pytest.param(Answer([whole(b'{"detail":"x"}', "404 Not Found")]), id="404"),
        pytest.param(Answer([whole(b'{"choices":[]}')]), id="one JSON body"),
        pytest.param(Answer([HEAD, chunk(b'data: {"error":{"message":"x"}}\n\n'), LAST]), id="in-band"),
        pytest.param(Answer([HEAD, chunk(DONE), LAST]), id="no tokens"),
    ],
)
def test_both_transports_tell_the_same_of_the_same_answers(answer: Answer) -> None:
    found = []
    for transport in ("wire", "httpx"):
        with ScriptedServer(lambda asked: answer if asked.number % 2 else stream(2)) as server:
            found.append(
                [told(record) for record in records(drive(job_of(server.target(), 4, 1), transport))]
            )
    assert found[0] == found[1]


def test_requests_are_the_wires_but_for_headers_of_httpx() -> None:
    heads = []
    for transport in ("wire", "httpx"):
        with ScriptedServer(lambda _: stream()) as server:
            target = replace(server.target(), headers=(("Authorization", "Bearer x"),))
            drive(job_of(target, 2, 1, body=lambda i: b'{"n":%d}' % i, request_id_prefix="me-"), transport)
            heads.append([set(asked.head.lower().splitlines()[1:]) for asked in server.asked])
            assert [asked.body for asked in server.asked] == [b'{"n":0}', b'{"n":1}']
    wire, portable = heads
    for ours, theirs in zip(wire, portable, strict=True):
        ours = {line for line in ours if not line.startswith("host")}
        assert ours <= theirs
        assert "accept-encoding: identity" in theirs


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

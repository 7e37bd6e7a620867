"""What an exporter sends, whole and broken, byte by byte or at once, and what it is answered."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import pytest

from builders.loops import loop_over
from features.telemetry.test_server_spans import RECORDED
from loadgen.features.telemetry.span_exports import (
    GRPC,
    LARGEST_BODY,
    LARGEST_HEAD,
    LARGEST_SPAN,
    MOST_OPEN,
    MOST_SPANS,
    MOST_WAITING,
    ExportConnection,
    ReceivedSpans,
    Refused,
    inflate,
)

TAKEN = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
# The head as the SDK 1.45.2 sends it by `requests`.
HEAD = (
    b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:4318\r\nUser-Agent: OTel-OTLP-Exporter-Python/1.45.2\r\n"
    b"Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n"
    b"Content-Type: application/x-protobuf\r\n"
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x18\x04\x00\x00\x00\x00\x00"


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written, self.closed = b"", False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


def post(body: bytes, head: bytes = HEAD, more: bytes = b"") -> bytes:
    return head + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def zipped(body: bytes) -> bytes:
    return post(gzip.compress(body), more=b"Content-Encoding: gzip\r\n")


def chunked(body: bytes) -> bytes:
    half = len(body) // 2
    parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]))
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"


def feed(*reads: bytes) -> tuple[Transport, ReceivedSpans]:
    transport, spans, open_ones = Transport(), ReceivedSpans(), dict[ExportConnection, None]()
    connection = ExportConnection(spans, open_ones)
    connection.connection_made(transport)
    assert [*open_ones] == [connection]
    for read in reads:
        connection.data_received(read)
    connection.connection_lost(None)
    assert not open_ones
    assert spans.waiting == 0
    return transport, spans


def cut(data: bytes, at: int) -> list[bytes]:
    return [data[begin : begin + at] for begin in range(0, len(data), at)]


@loop_over(
    ("reads", "batches"),
    [
        pytest.param([post(RECORDED)], 1, id="at once"),
        pytest.param(cut(post(RECORDED), 1), 1, id="byte by byte"),
        pytest.param([post(RECORDED) + zipped(RECORDED)], 2, id="two in a read"),
        pytest.param(cut(zipped(RECORDED) * 3, 1000), 3, id="kept alive, gzip"),
        pytest.param([chunked(RECORDED)], 1, id="chunked"),
        pytest.param([post(RECORDED, more=b"Content-Encoding: identity\r\n")], 1, id="identity"),
    ],
)
def test_an_export_is_taken_and_the_connection_kept(reads: Sequence[bytes], batches: int) -> None:
    transport, spans = feed(*reads)
    assert (transport.written, transport.closed) == (TAKEN * batches, False)
    assert len(spans.read_rows()) == 4 * batches
    assert not spans.refused


def test_an_empty_export_is_one() -> None:
    transport, spans = feed(post(b""))
    assert (transport.written, len(spans.read_rows()), spans.other) == (TAKEN, 0, 0)


def test_an_exporter_that_closes_is_answered_first() -> None:
    transport, spans = feed(post(RECORDED, HEAD.replace(b"keep-alive", b"close")))
    assert (transport.written.startswith(b"HTTP/1.1 200 OK"), transport.closed) == (True, True)
    assert b"\r\nconnection: close\r\n" in transport.written
    assert len(spans.read_rows()) == 4


BOMB = gzip.compress(bytes(LARGEST_BODY + 1))
GZIP = b"Content-Encoding: gzip\r\n"


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def part(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def spans_of(*spans: bytes) -> bytes:
    return part(1, part(2, b"".join(part(2, span) for span in spans)))


EMPTY = b"\n\0" * (LARGEST_BODY // 2)  # resources of nothing, eight million of them
TIMED = part(9, part(1, b"gen_ai.latency.time_in_queue"))


@loop_over(
    ("sent", "status", "says", "closed"),
    [
        pytest.param(post(b"\xff" * 9), 400, "a damaged body", False, id="no protobuf"),
        pytest.param(post(RECORDED[:-1]), 400, "a damaged body", False, id="truncated"),
        pytest.param(post(b"plain", more=GZIP), 400, "damaged gzip", False, id="no gzip"),
        pytest.param(
            post(gzip.compress(RECORDED)[:-5], more=GZIP), 400, "damaged gzip", False, id="truncated gzip"
        ),
        pytest.param(
            post(gzip.compress(RECORDED) + b"x", more=GZIP), 400, "damaged gzip", False, id="more than gzip"
        ),
        pytest.param(post(BOMB, more=GZIP), 413, "a body of over 16 MiB", False, id="a gzip bomb"),
        pytest.param(zipped(EMPTY), 413, "a body of over 65,536 spans", False, id="resources of nothing"),
        pytest.param(
            zipped(part(1, part(2, b"\x12\0" * 70_000))),
            413,
            "of over 65,536 spans",
            False,
            id="spans of nothing",
        ),
        pytest.param(
            zipped(part(1, b"\x12\0" * 70_000)), 413, "of over 65,536 spans", False, id="scopes of nothing"
        ),
        pytest.param(zipped(b"\x28\0" * 70_000), 413, "of over 65,536 spans", False, id="other numbers"),
        pytest.param(
            zipped(spans_of(TIMED + b"J\0" * (LARGEST_SPAN // 2))),
            413,
            "a span of over 1 MiB",
            False,
            id="attributes of nothing",
        ),
        pytest.param(
            b"POST /" + b"x" * (LARGEST_HEAD * 2), 431, "over 64 KiB of headers", True, id="an endless path"
        ),
        pytest.param(
            HEAD + b"x" * (LARGEST_HEAD * 2), 431, "over 64 KiB of headers", True, id="an endless name"
        ),
        pytest.param(
            HEAD + b"x: y\r\n" * LARGEST_HEAD, 431, "over 64 KiB of headers", True, id="endless headers"
        ),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * LARGEST_HEAD,
            431,
            "over 64 KiB of headers",
            True,
            id="endless trailers",
        ),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * (LARGEST_HEAD * 2),
            431,
            "over 64 KiB of headers",
            True,
            id="an endless extension of a chunk",
        ),
        pytest.param(post(bytes(LARGEST_BODY + 1)), 413, "a body of over 16 MiB", True, id="huge"),
        pytest.param(
            post(b"x", more=b"Content-Encoding: br\r\n"), 415, "content encoding 'br'", False, id="brotli"
        ),
        pytest.param(
            post(b"{}", HEAD.replace(b"x-protobuf", b"json")),
            415,
            "application/json, not application/x-protobuf: http/protobuf is the protocol",
            False,
            id="JSON",
        ),
        pytest.param(
            post(b"", b"POST /v1/traces HTTP/1.1\r\nHost: x\r\n"), 415, "no type, not", False, id="no type"
        ),
        pytest.param(
            post(RECORDED, HEAD.replace(b"/v1/traces", b"/")),
            404,
            "exports to '/': give the endpoint with /v1/traces",
            False,
            id="no path",
        ),
        pytest.param(
            post(RECORDED, HEAD.replace(b"traces", b"metrics")), 404, "'/v1/metrics'", False, id="metrics"
        ),
        pytest.param(
            b"GET /v1/traces HTTP/1.1\r\nHost: x\r\n\r\n", 405, "GET requests", False, id="a browser"
        ),
        pytest.param(
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            400,
            "TLS: give the endpoint as http://",
            True,
            id="TLS",
        ),
        pytest.param(b"PRIOR nonsense\r\n\r\n", 400, "no HTTP/1.1", True, id="nearly gRPC's"),
        pytest.param(
            b"POST /v1/traces HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "no HTTP/1.1", True, id="a length"
        ),
        pytest.param(
            HEAD + b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n",
            200,
            "",
            True,
            id="an offer of HTTP/2",
        ),
    ],
)
def test_what_is_no_export_is_answered_and_counted(sent: bytes, status: int, says: str, closed: bool) -> None:
    transport, spans = feed(*cut(sent, 65_536))
    assert transport.written.startswith(b"HTTP/1.1 %d " % status)
    assert transport.closed == closed
    assert len(spans.read_rows()) == 0
    assert [says in why for why in spans.refused] == ([True] if says else [])
    assert transport.written.endswith(b"".join(why.encode() for why in spans.refused))


def test_bodies_that_are_not_whole_wait_in_little_memory() -> None:
    spans, head = ReceivedSpans(), HEAD + b"Content-Length: %d\r\n\r\n" % LARGEST_BODY
    connections = [ExportConnection(spans, {}) for _ in range(9)]
    for connection in connections:
        connection.connection_made(Transport())
        for read in cut(head + bytes(LARGEST_BODY - 1), 1 << 20):
            connection.data_received(read)
        assert spans.waiting <= MOST_WAITING
    assert spans.refused == {"no room: over 64 MiB wait": 5}
    for connection in connections:
        connection.connection_lost(None)
    assert spans.waiting == 0


def test_the_connection_that_was_quiet_for_longest_makes_room() -> None:
    spans, open_ones = ReceivedSpans(), dict[ExportConnection, None]()
    connections = [ExportConnection(spans, open_ones) for _ in range(MOST_OPEN + 1)]
    transports = [Transport() for _ in connections]
    for connection, transport in zip(connections[:-1], transports, strict=False):
        connection.connection_made(transport)
    connections[0].data_received(b"P")
    connections[-1].connection_made(transports[-1])
    assert [place for place, transport in enumerate(transports) if transport.closed] == [1]
    assert len(open_ones) == MOST_OPEN


def test_a_client_that_reads_no_answer_is_left() -> None:
    connection = ExportConnection(ReceivedSpans(), {})
    connection.connection_made(transport := Transport())
    connection.pause_writing()
    assert transport.closed


def test_two_million_spans_are_kept() -> None:
    _, spans = feed(post(RECORDED))
    spans._rows *= MOST_SPANS // 4
    with pytest.raises(Refused, match=r"no room: 2,097,152 spans are kept"):
        spans.take(RECORDED)
    assert len(spans.read_rows()) == MOST_SPANS


def test_reasons_are_few_whatever_is_sent() -> None:
    _, spans = feed(*[post(RECORDED, HEAD.replace(b"/v1/traces", b"/%d" % n)) for n in range(50)])
    assert (len(spans.refused), sum(spans.refused.values())) == (9, 50)
    assert spans.refused["other reasons"] == 42


def test_an_exporter_that_left_is_answered_no_more() -> None:
    class LeavingTransport(Transport):
        def write(self, data: bytes) -> None:
            super().write(data)
            self.close()

    connection = ExportConnection(spans := ReceivedSpans(), {})
    connection.connection_made(transport := LeavingTransport())
    connection.data_received(post(RECORDED) * 3)
    assert (transport.written, len(spans.read_rows())) == (TAKEN, 12)


def test_a_refused_export_ends_no_other() -> None:
    transport, spans = feed(post(b"\xff" * 9) + post(RECORDED))
    assert transport.written.endswith(TAKEN)
    assert (len(spans.read_rows()), sum(spans.refused.values())) == (4, 1)


@loop_over("size", [1, 5, 14, 100])
def test_grpc_is_recognised_however_it_comes(size: int) -> None:
    transport, spans = feed(*cut(PREFACE, size))
    assert (transport.written, transport.closed) == (b"", True)
    assert spans.refused == {GRPC: 1}
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in GRPC


def test_a_cut_off_export_is_not_taken() -> None:
    whole = post(RECORDED)
    for end in range(0, len(whole) - 1, 97):
        transport, spans = feed(whole[:end])
        assert (transport.written, len(spans.read_rows())) == (b"", 0)


def test_what_was_received_is_forgotten_before_a_run() -> None:
    _, spans = feed(post(RECORDED), post(b"\xff"))
    spans.forget()
    assert (len(spans.read_rows()), spans.other, dict(spans.refused)) == (0, 0, {})


@pytest.mark.parametrize(("encoding", "body"), [("", b"x"), ("GZIP", gzip.compress(b"x", mtime=0))])
def test_a_body_is_inflated(encoding: str, body: bytes) -> None:
    assert inflate(body, encoding) == b"x"

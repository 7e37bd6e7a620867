"""Span exports: what comes over one connection of an exporter, by OTLP over HTTP, and what is kept of it.

OTLP is HTTP POST of protobuf (https://opentelemetry.io/docs/specs/otlp/#otlphttp). What comes may be
anything: heads, bodies, spans and what waits are bounded.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loadgen.features.telemetry.port_server import PortServer
from loadgen.features.telemetry.server_spans import SPAN, pack_times

PATH, PROTOBUF = "/v1/traces", "application/x-protobuf"
# Bytes, inflated: a batch of the SDK's 512 spans has 0.3 MiB, one of a collector's 8,192 has 5. Of two bytes
# protobuf may make ninety.
LARGEST_BODY = 8 << 20
MOST_OF_A_BODY = 1 << 16  # spans
MOST_WAITING = 4 * LARGEST_BODY  # bytes, of all bodies that are being read
MOST_OPEN = 64  # connections
_SILENT_S = 60.0  # between two reads of a connection
MOST_SPANS = 1 << 21  # that are kept, of 56 bytes each: two million requests
_PREFACE = b"PRI * HTTP/2.0"  # begins a connection of gRPC (RFC 9113, 3.4)
_TLS = b"\x16\x03"  # begins a handshake (RFC 8446, 5.1)
_MOST_REASONS = 8
_LENGTH = re.compile("[0-9]{1,9}")
_GZIP = 16 + zlib.MAX_WBITS
GRPC = (
    "gRPC, which is not taken: start the server with OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf and an "
    f"endpoint that ends in {PATH}"
)


class Refused(Exception):
    """An export is not taken: the status of the answer, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class ReceivedSpans:
    """The spans of requests that were exported so far; a thread may add them while another one reads.

    `other` counts the spans that are of no request, `refused` the exports that were not taken, by reason.
    `speaks_grpc` is whether one of them came by gRPC.
    """

    def __init__(self) -> None:
        self.other, self.refused, self.speaks_grpc = 0, Counter[str](), False
        self._rows, self._lock, self._reading = bytearray(), threading.Lock(), threading.Lock()
        self._waiting = 0  # bytes of bodies that are being read

    def forget(self) -> None:
        """Drop what was received and counted until now: it is of no request to come."""
        with self._lock:
            self._rows, self.other, self.speaks_grpc = bytearray(), 0, False
            self.refused.clear()

    def read_rows(self) -> NDArray[np.void]:
        """Return the spans of requests so far, SPAN[spans], as they came."""
        with self._lock:
            return np.frombuffer(bytes(self._rows), SPAN)

    @contextmanager
    def make_room(self, size: int) -> Iterator[None]:
        """Reserve the memory of a body while it is read; raises Refused where others have it."""
        with self._lock:
            if self._waiting + size > MOST_WAITING:
                raise Refused(503, f"no room: over {MOST_WAITING >> 20} MiB wait")
            self._waiting += size
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= size

    def take(self, body: bytes, encoding: str = "") -> None:
        """Keep the spans of an export's body; raises Refused for one that is none, or where there is no room.

        One body is read at a time, so that what gzip and protobuf make of several is never there at once.
        """
        with self._reading:
            try:
                export = ExportTraceServiceRequest.FromString(inflate(body, encoding))
            except DecodeError:
                raise Refused(400, "a damaged body") from None
            scopes = [scope for resource in export.resource_spans for scope in resource.scope_spans]
            if sum(len(scope.spans) for scope in scopes) > MOST_OF_A_BODY:
                raise Refused(413, f"a body of over {MOST_OF_A_BODY:,} spans")
            packed = [pack_times(span) for scope in scopes for span in scope.spans]
            del export, scopes
        rows = b"".join(packed)
        with self._lock:
            if len(self._rows) + len(rows) > MOST_SPANS * SPAN.itemsize:
                raise Refused(503, f"no room: {MOST_SPANS:,} spans are kept")
            self._rows += rows
            self.other += packed.count(b"")

    def note_refused(self, why: str) -> None:
        """Count an export that was not taken, by its reason; from the ninth reason on as of others."""
        with self._lock:
            known = why in self.refused or len(self.refused) < _MOST_REASONS
            self.refused[why if known else "other reasons"] += 1


class ExportConnection(BaseHTTPRequestHandler):
    """Takes the exports of one connection, a request at a time, and answers each."""

    protocol_version = "HTTP/1.1"
    timeout = _SILENT_S
    server: SpanReceiver

    def handle(self) -> None:
        """Take requests until the connection ends, unless it speaks TLS."""
        with suppress(TimeoutError):
            if self.rfile.peek(1).startswith(_TLS):  # type: ignore[attr-defined]
                self.server.spans.note_refused("TLS: give the endpoint as http://")
                return
        super().handle()

    def parse_request(self) -> bool:
        """Read a request's head; a connection of gRPC is counted and ends."""
        if self.raw_requestline.startswith(_PREFACE):  # type: ignore[attr-defined]
            self.server.spans.speaks_grpc = True
            self.server.spans.note_refused(GRPC)
            self.close_connection = True
            return False
        return super().parse_request()

    def do_POST(self) -> None:
        """Keep the spans of an export, and answer it with an empty message, or say why it is refused."""
        self.close_connection = True  # until its body is read
        spans, length = self.server.spans, self.headers.get("Content-Length", "")
        try:
            if not _LENGTH.fullmatch(length):
                raise Refused(411, "a body without its length: send it with Content-Length")
            if int(length) > LARGEST_BODY:
                raise _too_large()
            with spans.make_room(int(length)):
                body = self.rfile.read(int(length))
                if len(body) < int(length):
                    return
                self.close_connection = self.headers.get("Connection", "").lower() == "close"
                self._check()
                spans.take(body, self.headers.get("Content-Encoding", ""))
        except Refused as error:
            self.send_error(error.status, error.why)
        else:
            self._answer(200, PROTOBUF, b"")

    def _check(self) -> None:
        """Raise Refused for a request that is no export of spans in protobuf."""
        path = self.path.partition("?")[0]
        if path != PATH:
            raise Refused(404, f"exports to {path[:40]!r}: give the endpoint with {PATH}")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != PROTOBUF:
            raise Refused(415, f"{kind[:40] or 'no type'}, not {PROTOBUF}: http/protobuf is the protocol")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with why a request is refused, in words, and count it."""
        why = message or HTTPStatus(code).phrase
        self.server.spans.note_refused(why)
        self._answer(code, "text/plain; charset=utf-8", why.encode("utf-8", "replace"))

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _too_large() -> Refused:
    return Refused(413, f"a body of over {LARGEST_BODY >> 20} MiB")


def inflate(body: bytes, encoding: str) -> bytes:
    """Return a body without its content encoding: none, or gzip of 8 MiB at most; raises Refused."""
    if encoding.lower() in ("", "identity"):
        return body
    if encoding.lower() != "gzip":
        raise Refused(415, f"content encoding {encoding[:40]!r}: gzip or none is taken")
    inflater = zlib.decompressobj(_GZIP)
    try:
        inflated = inflater.decompress(body, LARGEST_BODY + 1)
    except zlib.error:
        raise Refused(400, "damaged gzip") from None
    if len(inflated) > LARGEST_BODY:
        raise _too_large()
    if not inflater.eof or inflater.unused_data:
        raise Refused(400, "damaged gzip")
    return inflated


class SpanReceiver(PortServer):
    """Takes spans at HOST:PORT; raises UsageError if it cannot listen there."""

    def __init__(self, address: str) -> None:
        self.spans = ReceivedSpans()
        super().__init__("--receive-spans", address, ExportConnection, MOST_OPEN)

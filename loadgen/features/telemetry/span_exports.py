"""Span exports: what comes over one connection of an exporter, by OTLP over HTTP, and what is kept of it.

OTLP is HTTP POST of protobuf (https://opentelemetry.io/docs/specs/otlp/#otlphttp). In a run bodies are only
checked, in the decoding process, at some 2 us a span; the spans are read after it.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httptools
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loadgen.features.telemetry.server_spans import SPAN, pack_times

PATH, PROTOBUF = "/v1/traces", "application/x-protobuf"
LARGEST_BODY = 16 << 20  # bytes, inflated: a batch of the SDK's 512 spans has 0.3 MiB
MOST_BYTES, _IN_MEMORY = 4 << 30, 64 << 20  # of bodies that wait to be read: a span has 0.6 kB
_PREFACE = b"PRI * HTTP/2.0"  # begins a connection of gRPC (RFC 9113, 3.4)
_TLS = b"\x16\x03"  # begins a handshake (RFC 8446, 5.1)
_MOST_REASONS = 8
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large",
    415: "Unsupported Media Type", 503: "Service Unavailable",
}  # fmt: skip
_SIZE = struct.Struct("<I")  # before each body
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
    """

    def __init__(self) -> None:
        self.other, self.refused = 0, Counter[str]()
        self._rows, self._lock = bytearray(), threading.Lock()
        self._bodies: tempfile.SpooledTemporaryFile[bytes] | None = None  # each with its size, unread

    def forget(self) -> None:
        """Drop what was received and counted until now: it is of no request to come."""
        with self._lock:
            if self._bodies is not None:
                self._bodies.close()
            self._bodies, self._rows, self.other = None, bytearray(), 0
            self.refused.clear()

    def read_rows(self) -> NDArray[np.void]:
        """Read the bodies that wait; return the spans of requests so far, SPAN[spans], as they came."""
        with self._lock:
            waiting, self._bodies = self._bodies, None
        if waiting is not None:
            with waiting:
                self._read_bodies(waiting)
        return np.frombuffer(bytes(self._rows), SPAN)

    def _read_bodies(self, waiting: tempfile.SpooledTemporaryFile[bytes]) -> None:
        """Add the spans of the bodies in a file."""
        waiting.seek(0)
        while size := waiting.read(_SIZE.size):
            sent = ExportTraceServiceRequest.FromString(waiting.read(*_SIZE.unpack(size)))
            for span in _list_spans(sent):
                packed = pack_times(span)
                self._rows += packed
                self.other += not packed

    def take(self, body: bytes) -> None:
        """Keep an export's body; raises Refused for one that is none, or where there is no room."""
        try:
            ExportTraceServiceRequest.FromString(body)
        except DecodeError:
            raise Refused(400, "a damaged body") from None
        with self._lock:
            try:
                if self._bodies is None:
                    self._bodies = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - until read
                if self._bodies.tell() > MOST_BYTES:
                    raise OSError(f"over {MOST_BYTES >> 30} GiB wait")
                self._bodies.write(_SIZE.pack(len(body)) + body)
            except OSError as error:
                raise Refused(503, f"no room: {error.strerror or error}") from None

    def note_refused(self, why: str) -> None:
        """Count an export that was not taken, by its reason; from the ninth reason on as of others."""
        with self._lock:
            known = why in self.refused or len(self.refused) < _MOST_REASONS
            self.refused[why if known else "other reasons"] += 1


def _list_spans(sent: Any) -> Iterator[Any]:
    for resource in sent.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


class ExportConnection(asyncio.Protocol):
    """One connection of an exporter: a request at a time, kept open, as HTTP/1.1."""

    def __init__(self, spans: ReceivedSpans, open_ones: set[ExportConnection]) -> None:
        self.spans, self._open_ones = spans, open_ones
        self._begin: bytes | None = b""  # of the connection, while it may be gRPC's
        self._parser = httptools.HttpRequestParser(self)
        self._start()

    def _start(self) -> None:
        self._url, self._headers, self._body, self._answered = b"", dict[str, str](), bytearray(), False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._open_ones.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._open_ones.discard(self)

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._begin is not None:
            data = self._begin + data
            if data.startswith(_PREFACE):
                self.spans.note_refused(GRPC)
                self._transport.close()
                return
            self._begin = data if _PREFACE.startswith(data) else None
            if self._begin is not None:
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._transport.close()  # what it asked for in HTTP/1.1 is answered
        except httptools.HttpParserError:
            if not self._transport.is_closing():
                tls = data.startswith(_TLS)
                what = "TLS: give the endpoint as http://" if tls else "what is no HTTP/1.1"
                self._answer(Refused(400, what), keep=False)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_body(self, data: bytes) -> None:
        if self._answered:
            return
        self._body += data
        if len(self._body) > LARGEST_BODY:
            self._answer(_too_large(), keep=False)

    def on_message_complete(self) -> None:
        if not self._answered:
            try:
                self._check_request()
                self.spans.take(inflate(bytes(self._body), self._headers.get("content-encoding", "")))
                refused = None
            except Refused as error:
                refused = error
            self._answer(refused, keep=self._parser.should_keep_alive())
        self._start()

    def _check_request(self) -> None:
        """Raise Refused for a request that is no export of spans as protobuf."""
        path = self._url.partition(b"?")[0].decode("latin-1")
        if path != PATH:
            raise Refused(404, f"exports to {path[:40]!r}: give the endpoint with {PATH}")
        if (method := self._parser.get_method()) != b"POST":
            raise Refused(405, f"{method.decode('latin-1')} requests")
        kind = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != PROTOBUF:
            raise Refused(415, f"{kind[:40] or 'no type'}, not {PROTOBUF}: http/protobuf is the protocol")

    def _answer(self, refused: Refused | None, keep: bool) -> None:
        """Answer the request with 200 and an empty message, or as it was refused."""
        self._answered = True
        status, why = (200, "") if refused is None else (refused.status, refused.why)
        if refused is not None:
            self.spans.note_refused(why)
        if self._transport.is_closing():
            return  # it sent several and left: asyncio would complain of each answer
        kind = PROTOBUF if refused is None else "text/plain; charset=utf-8"
        body = why.encode()
        allow = "allow: POST\r\n" if status == 405 else ""
        end = "" if keep else "connection: close\r\n"
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: {kind}\r\n{allow}{end}"
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        if not keep:
            self._transport.close()


def _too_large() -> Refused:
    return Refused(413, f"a body of over {LARGEST_BODY >> 20} MiB")


def inflate(body: bytes, encoding: str) -> bytes:
    """Return a body without its content encoding, none or gzip, 16 MiB at most; raises Refused."""
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

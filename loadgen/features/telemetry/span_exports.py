"""Span exports: what comes over one connection of an exporter, by OTLP over HTTP, and what is kept of it.

OTLP is HTTP POST of protobuf (https://opentelemetry.io/docs/specs/otlp/#otlphttp). What comes may be
anything: heads, bodies, spans and what waits are bounded.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import zlib
from collections import Counter
from typing import Any

import httptools
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loadgen.base.errors import UsageError
from loadgen.features.telemetry.server_spans import MOST_PARTS, SPAN, find_spans, may_be_request, pack_times

PATH, PROTOBUF = "/v1/traces", "application/x-protobuf"
LARGEST_HEAD = 64 << 10  # bytes
LARGEST_BODY = 16 << 20  # bytes, inflated: a batch of the SDK's 512 spans has 0.3 MiB
LARGEST_SPAN = 1 << 20  # bytes: of two of them protobuf may make a hundred
MOST_WAITING = 4 * LARGEST_BODY  # bytes, of all bodies that are not whole yet
MOST_OPEN = 256  # connections
MOST_SPANS = 1 << 21  # that are kept, of 56 bytes each: two million requests
_PREFACE = b"PRI * HTTP/2.0"  # begins a connection of gRPC (RFC 9113, 3.4)
_TLS = b"\x16\x03"  # begins a handshake (RFC 8446, 5.1)
_MOST_REASONS = 8
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large",
    415: "Unsupported Media Type", 431: "Request Header Fields Too Large", 503: "Service Unavailable",
}  # fmt: skip
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
    `speaks_grpc` is whether one of them came by gRPC. `waiting` is the size of the bodies that are not whole
    yet, of all connections.
    """

    def __init__(self) -> None:
        self.other, self.refused, self.waiting, self.speaks_grpc = 0, Counter[str](), 0, False
        self._rows, self._lock = bytearray(), threading.Lock()

    def forget(self) -> None:
        """Drop what was received and counted until now: it is of no request to come."""
        with self._lock:
            self._rows, self.other, self.speaks_grpc = bytearray(), 0, False
            self.refused.clear()

    def read_rows(self) -> NDArray[np.void]:
        """Return the spans of requests so far, SPAN[spans], as they came."""
        with self._lock:
            return np.frombuffer(bytes(self._rows), SPAN)

    def take(self, body: bytes) -> None:
        """Keep the spans of an export's body; raises Refused for one that is none, or where there is no room.

        Each span is parsed by itself, so that what protobuf makes of a body is never there at once.
        """
        rows, others = bytearray(), 0
        try:
            for begin, end in find_spans(body):
                packed = b""
                if may_be_request(body, begin, end):
                    if end - begin > LARGEST_SPAN:
                        raise Refused(413, f"a span of over {LARGEST_SPAN >> 20} MiB")
                    packed = pack_times(Span.FromString(body[begin:end]))
                rows += packed
                others += not packed
        except OverflowError:
            raise Refused(413, f"a body of over {MOST_PARTS:,} spans") from None
        except (DecodeError, ValueError):
            raise Refused(400, "a damaged body") from None
        with self._lock:
            if len(self._rows) + len(rows) > MOST_SPANS * SPAN.itemsize:
                raise Refused(503, f"no room: {MOST_SPANS:,} spans are kept")
            self._rows += rows
            self.other += others

    def note_refused(self, why: str) -> None:
        """Count an export that was not taken, by its reason; from the ninth reason on as of others."""
        with self._lock:
            known = why in self.refused or len(self.refused) < _MOST_REASONS
            self.refused[why if known else "other reasons"] += 1


class ExportConnection(asyncio.Protocol):
    """One connection of an exporter: a request at a time, kept open, as HTTP/1.1."""

    def __init__(self, spans: ReceivedSpans, open_ones: dict[ExportConnection, None]) -> None:
        self.spans, self._open_ones = spans, open_ones  # in the order in which they last sent something
        self._begin: bytes | None = b""  # of the connection, while it may be gRPC's
        self._parser = httptools.HttpRequestParser(self)
        self._start()

    def _start(self) -> None:
        self._url, self._headers, self._body, self._answered = b"", dict[str, str](), bytearray(), False
        self._received = self._of_body = 0  # bytes of this request, but for the read in which it began
        self._began = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._open_ones[self] = None
        if len(self._open_ones) > MOST_OPEN:
            next(iter(self._open_ones)).abort()  # an exporter opens another one for its next batch

    def connection_lost(self, error: Exception | None) -> None:
        self._open_ones.pop(self, None)
        self._drop_body()

    def abort(self) -> None:
        """End the connection at once."""
        self._open_ones.pop(self, None)
        self._transport.abort()

    def pause_writing(self) -> None:
        """End the connection: it sends requests, and reads no answer."""
        self.abort()

    def _drop_body(self) -> None:
        self.spans.waiting -= len(self._body)
        self._body = bytearray()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._open_ones[self] = self._open_ones.pop(self, None)
        if self._begin is not None:
            data = self._begin + data
            if data.startswith(_PREFACE):
                self.spans.speaks_grpc = True
                self.spans.note_refused(GRPC)
                self._transport.close()
                return
            self._begin = data if _PREFACE.startswith(data) else None
            if self._begin is not None:
                return
        self._began = False
        try:
            self._parser.feed_data(data)
            self._received += 0 if self._began else len(data)
            # The parser keeps heads and trailers that never end, and reads extensions of chunks.
            if not self._answered and self._received > LARGEST_HEAD + 2 * self._of_body:
                self._answer(Refused(431, f"over {LARGEST_HEAD >> 10} KiB of headers"), keep=False)
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
        self._of_body += len(data)
        if self._answered:
            return
        self._body += data
        self.spans.waiting += len(data)
        if len(self._body) > LARGEST_BODY:
            self._answer(_too_large(), keep=False)
        elif self.spans.waiting > MOST_WAITING:
            self._answer(Refused(503, f"no room: over {MOST_WAITING >> 20} MiB wait"), keep=False)

    def on_message_complete(self) -> None:
        if not self._answered:
            try:
                path = self._url.partition(b"?")[0].decode("latin-1")
                if path != PATH:
                    raise Refused(404, f"exports to {path[:40]!r}: give the endpoint with {PATH}")
                if (method := self._parser.get_method()) != b"POST":
                    raise Refused(405, f"{method.decode('latin-1')} requests")
                kind = self._headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != PROTOBUF:
                    raise Refused(
                        415, f"{kind[:40] or 'no type'}, not {PROTOBUF}: http/protobuf is the protocol"
                    )
                self.spans.take(inflate(bytes(self._body), self._headers.get("content-encoding", "")))
                refused = None
            except Refused as error:
                refused = error
            self._answer(refused, keep=self._parser.should_keep_alive())
        self._start()

    def _answer(self, refused: Refused | None, keep: bool) -> None:
        """Answer the request with 200 and an empty message, or as it was refused."""
        self._answered = True
        self._drop_body()
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


class SpanReceiver:
    """Listens at HOST:PORT; raises UsageError if it cannot.

    It reads between `serve` and `stop`; what is sent at other times waits in the kernel.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address, self.spans = address, ReceivedSpans()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host.strip("[]"), int(port)), family=family)
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (while ")[0]  # Python adds the address
            why = f"cannot listen there ({reason})"
            raise UsageError(f"--receive-spans {address}: {why}: choose another port or address") from None
        self._thread: threading.Thread | None = None
        self._open_ones: dict[ExportConnection, None] = {}
        self._loop = asyncio.new_event_loop()
        accepting = self._loop.create_server(
            lambda: ExportConnection(self.spans, self._open_ones), sock=listening
        )
        self._server = self._loop.run_until_complete(accepting)

    def serve(self) -> None:
        """Read in a thread until `stop`; call it after the last fork."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="spans", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more; nothing if nothing is read."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Stop, end all connections and give the port back; a second call does nothing."""
        self.stop()
        if self._loop.is_closed():
            return
        self._server.close()
        for connection in tuple(self._open_ones):
            connection.abort()
        self._loop.run_until_complete(asyncio.sleep(0))  # transports close a turn later
        self._loop.close()
        self.spans.forget()

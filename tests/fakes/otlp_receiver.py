"""An OTLP/HTTP collector in a thread: it decodes the protobuf of what it gets and keeps it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpReceiver:
    """Listens at a free port inside `with`; answers with `status` after `delay`, which tests may set."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.spans: list[Any] = []  # of protobuf, in the order they came
        self.resources: list[dict[str, Any]] = []  # of each export
        self.metrics: dict[str, Any] = {}  # the last of each name
        self.held = threading.Event()  # cleared: answers wait
        self.held.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.held.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, path: str, body: bytes) -> None:
        """Keep what was sent to a path."""
        if path.endswith("/v1/traces"):
            sent: Any = ExportTraceServiceRequest.FromString(body)
            for resource in sent.resource_spans:
                self.resources.append(read_attributes(resource.resource))
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            sent = ExportMetricsServiceRequest.FromString(body)
            for resource in sent.resource_metrics:
                self.metrics |= {one.name: one for scope in resource.scope_metrics for one in scope.metrics}

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.held.wait(20)
                if receiver.status == 200:
                    receiver.take(self.path, body)
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def read_attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a protobuf message as a dict of plain values."""
    return dict(_read_pairs(holder.attributes))


def _read_pairs(pairs: Any) -> Iterator[tuple[str, Any]]:
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        yield pair.key, [one.string_value for one in value.values] if kind == "array_value" else value

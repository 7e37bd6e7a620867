"""A server's exporter of spans: one of each request that carries a traceparent, as vLLM's `llm_request`."""

from __future__ import annotations

import gzip
import http.client
import re
import threading
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from fakes.scripted_server import Asked

_HEADER = re.compile(r"(?mi)^traceparent: 00-([0-9a-f]{32})-([0-9a-f]{16})-01\r?$")
_NAMES = ("time_in_queue", "time_to_first_token", "time_in_model_prefill", "time_in_model_decode")
QUEUE_S, PREFILL_S, DECODE_S, HTTP_S = 0.001, 0.02, 0.5, 0.003


@dataclass
class SpanExporter:
    """Exports to a port of this machine, over one connection, a batch at a time; every other one is gzip."""

    port: int
    noted: int = 0  # requests
    zipped: bool = False
    spans: list[tuple[bytes, tuple[float, ...]]] = field(default_factory=list)  # waiting: trace, times in s
    statuses: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, asked: Asked) -> None:
        """Have a request's span wait for the next batch; its queue is a millisecond longer each time."""
        if (found := _HEADER.search(asked.head)) is not None:
            with self.lock:
                self.noted += 1
                queue_s = QUEUE_S * self.noted
                times = queue_s, HTTP_S + queue_s + PREFILL_S, PREFILL_S, DECODE_S
                self.spans.append((bytes.fromhex(found[1]), times))

    def export(self) -> None:
        """Export what waits, and a span of the server's start."""
        with self.lock:
            waiting, self.spans = self.spans, []
        sent = ExportTraceServiceRequest()
        scope = sent.resource_spans.add().scope_spans.add()
        scope.spans.add(name="Load model", trace_id=bytes(16), span_id=bytes(8))
        for trace, times in waiting:
            span = scope.spans.add(name="llm_request", trace_id=trace, span_id=b"fakespan")
            for name, time_s in zip(_NAMES, times, strict=True):
                span.attributes.add(key=f"gen_ai.latency.{name}").value.double_value = time_s
        body, headers = sent.SerializeToString(), {"Content-Type": "application/x-protobuf"}
        self.zipped = not self.zipped
        if self.zipped:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/v1/traces", body, headers)
        self.statuses.append(connection.getresponse().status)
        connection.close()

"""Spans: each request of a run as an OpenTelemetry span, and metrics of all, sent to a collector by OTLP.

Names are those of OpenTelemetry's conventions for generative AI
(https://github.com/open-telemetry/semantic-conventions-genai) if they have one, else begin with `loadgen.`.
A batch that fails is lost, after the SDK's own retries: nothing that is measured waits for a collector.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, Status, StatusCode

from loadgen import __version__
from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import Broken, make_guarded
from loadgen.base.secrecy import Secrets
from loadgen.base.urls import read_host, read_port
from loadgen.facts.run_facts import Facts, SpanFacts
from loadgen.features.telemetry.server_spans import TraceIds
from loadgen.records.record import Records
from loadgen.transport.failure import NO_EVIDENCE, Failure

MOST_EVENTS = 8  # of a span: its first message with a token, its last, and some between
_BATCH = 512  # spans
_METRICS_EVERY = 10  # batches, or calls of `take`
_LOGGERS = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
_LONGEST_REASON = 120
# The boundaries that the conventions give (s, tokens).
_DURATIONS = tuple(0.01 * 2**power for power in range(14))
_CHUNKS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TOKENS = tuple(float(4**power) for power in range(14))


# The histograms of all requests, by their names in the conventions: unit, description, boundaries.
_DURATION = "gen_ai.client.operation.duration"
_FIRST = "gen_ai.client.operation.time_to_first_chunk"
_USAGE = "gen_ai.client.token.usage"
_HISTOGRAMS = {
    _DURATION: ("s", "GenAI operation duration.", _DURATIONS),
    _FIRST: ("s", "Time to the first chunk with a token.", _CHUNKS),
    _USAGE: ("{token}", "Number of input and output tokens used.", _TOKENS),
}


class _NextIds(IdGenerator):
    """Gives the next span the ids that were set: those in its request's header."""

    trace = span = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _Reasons(logging.Filter):
    """Keeps what the exporters log in this thread, instead of printing it: the first line says why."""

    def __init__(self) -> None:
        super().__init__()
        self.thread, self.first = threading.current_thread(), ""  # the thread that exports now

    def filter(self, record: logging.LogRecord) -> bool:
        if threading.current_thread() is not self.thread:
            return True  # a program's own
        self.first = self.first or record.getMessage()
        return False

    def describe(self, *raised: str) -> str:
        """Describe why an export failed, in one line without keys; "" if nothing was logged or `raised`."""
        first = Secrets.collect_exported(os.environ).hide(next(filter(None, (self.first, *raised)), ""))
        known = _SYSTEM_ERROR.search(first)
        return known[1] if known else shorten(first, _LONGEST_REASON, placeholder=" …")


class _MetricExporter(OTLPMetricExporter):
    """The SDK's exporter, which keeps whether the last export succeeded: its reader does not report it."""

    succeeded = True

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        self.succeeded = False  # should it raise
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self.succeeded = result is MetricExportResult.SUCCESS
        return result


class SpanSink:
    """Sends a run's records to a collector, as spans and metrics; "" as URL: the SDK's variables name it."""

    def __init__(self, url: str, known: Facts, spans: SpanFacts) -> None:
        self.url, self.known, self.offset_ns = url, known, spans.wall_offset_ns
        self.ids = TraceIds(bytes.fromhex(spans.key))
        self.sent = self.lost = 0  # spans
        self.reason = ""  # why some were lost
        self.failing = False  # the last export failed
        self._labels = Labels(known)
        self._next, self._ended, self._reasons = _NextIds(), InMemorySpanExporter(), _Reasons()
        self._calls = 0
        self._exporter: OTLPSpanExporter | None = None

    def take(self, records: Records, rows: Int64) -> None:
        """Send the spans of some rows, and from time to time the metrics; a batch that fails is lost."""
        self._open()
        for batch in _split(rows):
            self._send(records, batch)
        self._calls += 1
        if self._calls % _METRICS_EVERY == 0 and not self.failing:
            self._send_metrics()

    def finish(self, records: Records, rows: Int64) -> None:
        """Send the spans of the rows left and the metrics; what follows a failed batch is lost untried."""
        self._open()
        for batch in _split(rows):
            if self.failing and self.lost:
                self.lost += len(batch)
            else:
                self._send(records, batch)
        if not self.failing:
            self._send_metrics()
        assert self._exporter is not None
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._reasons)

    def abandon(self) -> None:
        """End the export under way, which then fails."""
        if not self.reason:
            self.reason = self._reasons.describe() or "it took too long"
        if self._exporter is not None:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _open(self) -> None:
        """Make the SDK's parts, at the first call; from each on, keep what this thread logs."""
        self._reasons.thread = threading.current_thread()
        if self._exporter is not None:
            return
        resource = Resource.create({"service.name": "loadgen", "service.version": __version__})
        place = f"{self.url}/v1/" if self.url else None
        self._exporter = OTLPSpanExporter(endpoint=place and f"{place}traces")
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, id_generator=self._next, shutdown_on_exit=False
        )
        provider.add_span_processor(SimpleSpanProcessor(self._ended))
        self._tracer = provider.get_tracer("loadgen", __version__)
        self._metric_exporter = _MetricExporter(endpoint=place and f"{place}metrics")
        # A reader without an interval has no thread: this one collects.
        self._reader = PeriodicExportingMetricReader(self._metric_exporter, math.inf)
        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(boundaries))
            for name, (_, _, boundaries) in _HISTOGRAMS.items()
        ]
        meters = MeterProvider((self._reader,), resource, views=views, shutdown_on_exit=False)
        meter = meters.get_meter("loadgen", __version__)
        self._metrics = {
            name: meter.create_histogram(name, unit, description)
            for name, (unit, description, _) in _HISTOGRAMS.items()
        }
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._reasons)

    def _send(self, records: Records, rows: Int64) -> None:
        """Export the spans of some rows, and count them as sent or, with the first reason, as lost."""
        assert self._exporter is not None
        for span in list_spans(records, rows, self._labels):
            self._make(span)
        exporter, made, broken = self._exporter, self._ended.get_finished_spans(), list[Broken]()
        self._ended.clear()
        # Older versions of the SDK raise where nothing listens.
        taken = make_guarded("otel", lambda: exporter.export(made), SpanExportResult.FAILURE, broken)
        self.failing = taken is not SpanExportResult.SUCCESS
        if self.failing:
            self.lost += len(made)
            self.reason = self.reason or self._reasons.describe(*(each.why for each in broken))
        else:
            self.sent += len(made)

    def _make(self, row: SpanRow) -> None:
        """Make one request's span, with its own times and the ids that its header had; record its metrics."""
        self._next.trace, self._next.span = self.ids.find(row.index)
        span = self._tracer.start_span(
            self._labels.span_name,
            context=Context(),
            kind=SpanKind.CLIENT,
            attributes=row.attributes,
            start_time=row.start_ns + self.offset_ns,
        )
        for instant_ns, tokens in row.events:
            span.add_event("loadgen.tokens", {"loadgen.tokens": tokens}, instant_ns + self.offset_ns)
        if row.failure is not None and row.failure.kind not in NO_EVIDENCE:
            span.set_status(Status(StatusCode.ERROR, row.failure.detail or None))
        span.end(row.end_ns + self.offset_ns)
        names = (*self._labels.common, "server.address", "server.port")
        labels = {name: row.attributes[name] for name in names}
        error = {"error.type": row.attributes["error.type"]} if "error.type" in row.attributes else {}
        self._metrics[_DURATION].record((row.end_ns - row.start_ns) / SECOND_NS, {**labels, **error})
        if (first_s := row.attributes.get(_FIRST_CHUNK)) is not None:
            self._metrics[_FIRST].record(first_s, labels)
        for kind in ("input", "output"):
            if (used := row.attributes.get(f"gen_ai.usage.{kind}_tokens")) is not None:
                self._metrics[_USAGE].record(used, {**labels, "gen_ai.token.type": kind})

    def _send_metrics(self) -> None:
        make_guarded("otel", self._reader.collect, None, [])
        if not self._metric_exporter.succeeded:
            self.reason = self.reason or self._reasons.describe() or "metrics were not taken"


_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
# Attributes of a span from columns of its record, where it has a value.
_COUNTS = {
    "planned_output": "gen_ai.request.max_tokens",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "thought_tokens": "gen_ai.usage.reasoning.output_tokens",
    "http_status": "http.response.status_code",
}
_CHATS = ("/chat/completions", "/responses", "/messages")  # ends of their paths
_READ = ("index", "slot", "intended_ns", "sent_ns", "end_ns", "resends", "usage", "exact_tokens")


class Labels:
    """The attributes that all spans of a run share, and those by server and session."""

    def __init__(self, known: Facts) -> None:
        profile, server = known.profile, known.server
        operation = "chat" if urlsplit(server.url).path.endswith(_CHATS) else "text_completion"
        self.span_name = f"{operation} {server.model}"
        self.common: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": server.engine.lower(),
            "gen_ai.request.model": server.model,
            "gen_ai.request.stream": profile.stream,
        }
        self._servers = [
            {"server.address": read_host(url), "server.port": read_port(url)}
            for url in known.targets or (server.url,)
        ]
        self._prefix = known.request_id_prefix
        self._ends = np.cumsum(known.session_turns) if known.session_turns else None

    def find(self, index: int, slot: int) -> dict[str, Any]:
        """Return what a request's span has by its plan index and its connection."""
        named: dict[str, Any] = {"loadgen.request.index": index}
        if self._prefix is not None:
            named["loadgen.request.id"] = f"{self._prefix}{index}"
        if self._ends is not None:
            session = int(self._ends.searchsorted(index, side="right"))
            named["gen_ai.conversation.id"] = f"{self._prefix or ''}session-{session}"
        return {**self.common, **self._servers[slot % len(self._servers)], **named}


class SpanRow(msgspec.Struct, frozen=True):
    """A request's span: CLOCK_MONOTONIC times, attributes and events: (time, tokens up to then)."""

    index: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[tuple[int, int]]
    failure: Failure | None


def list_spans(records: Records, rows: Int64, labels: Labels) -> Iterator[SpanRow]:
    """Yield the spans of some rows of records: from being sent (else due) to the last byte of the answer."""
    columns = {name: getattr(records, name)[rows].tolist() for name in (*_READ, *_COUNTS)}
    for place, row in enumerate(rows.tolist()):
        one = {name: column[place] for name, column in columns.items()}
        first, last = int(records.start[row]), int(records.start[row + 1])
        start_ns = one["sent_ns"] if one["sent_ns"] > 0 else one["intended_ns"]
        attributes = labels.find(one["index"], one["slot"])
        if not (one["usage"] or one["exact_tokens"]):
            one["output_tokens"] = -1  # its messages were counted
        attributes.update({key: one[name] for name, key in _COUNTS.items() if one[name] >= 0})
        attributes["loadgen.send_delay"] = (start_ns - one["intended_ns"]) / SECOND_NS
        if one["resends"]:
            attributes["http.request.resend_count"] = one["resends"]
        if last > first:
            attributes[_FIRST_CHUNK] = (int(records.arrival_ns[first]) - start_ns) / SECOND_NS
        if reason := records.finish_reasons[row]:
            attributes["gen_ai.response.finish_reasons"] = (reason,)
        failure = records.failures[row]
        if failure is not None:
            attributes["error.type"] = failure.kind.value
        # Many messages are thinned out evenly; the first and last stay, and each has the tokens up to it.
        chosen = np.unique(np.linspace(0, last - first - 1, min(last - first, MOST_EVENTS)).astype(np.int64))
        carried = np.cumsum(records.tokens[first:last])[chosen]
        yield SpanRow(
            index=one["index"],
            start_ns=start_ns,
            end_ns=max(one["end_ns"], start_ns),
            attributes=attributes,
            events=list(zip(records.arrival_ns[first:last][chosen].tolist(), carried.tolist(), strict=True)),
            failure=failure,
        )


def _split(rows: Int64) -> Sequence[Int64]:
    return [rows[begin : begin + _BATCH] for begin in range(0, len(rows), _BATCH)]

"""A request's header and its span have the same ids, and no two requests of any runs do."""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from loadgen.features.telemetry.server_spans import KEY_BYTES, TraceIds


def test_the_official_propagator_reads_the_ids_from_the_header() -> None:
    ids = TraceIds(bytes(range(KEY_BYTES)))
    for index in (0, 1, 2**40):
        context = TraceContextTextMapPropagator().extract(dict(ids.make_headers(index)))
        span = trace.get_current_span(context).get_span_context()
        assert (span.trace_id, span.span_id) == ids.find(index)
        assert (span.is_valid, span.trace_flags.sampled) == (True, True)


def test_ids_are_those_of_the_run_and_the_index_alone() -> None:
    one, same, other = (TraceIds(key) for key in (b"1" * KEY_BYTES, b"1" * KEY_BYTES, os.urandom(KEY_BYTES)))
    assert [one.find(index) for index in range(100)] == [same.find(index) for index in range(100)]
    found = [ids.find(index) for ids in (one, other) for index in range(5_000)]
    for of_kind in zip(*found, strict=True):
        assert len(set(of_kind)) == 10_000

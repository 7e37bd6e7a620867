"""A server's own times, from its spans to the columns of the requests that they are of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from builders.loops import loop_over, loop_over_named
from loadgen.features.telemetry.server_spans import (
    KEY_BYTES,
    SPAN,
    SpanJoin,
    TraceIds,
    pack_times,
    split_trace,
)
from loadgen.features.telemetry.span_exports import ReceivedSpans
from loadgen.records.record import UNKNOWN, Record, Records

RECORDED = (Path(__file__).parents[2] / "data" / "spans" / "vllm-0.32.bin").read_bytes()
TRACE = bytes(range(16))
HALVES = 0x0001020304050607, 0x08090A0B0C0D0E0F
LATENCY = "gen_ai.latency."
SGLANG = {  # its root span's: the prefill includes the queue
    f"{LATENCY}time_to_first_token": 0.5,
    f"{LATENCY}e2e": 2.0,
    f"{LATENCY}time_in_model_decode": 1.5,
    f"{LATENCY}time_in_model_inference": 1.9,
    f"{LATENCY}time_in_model_prefill": 0.4,
}
IDS = TraceIds(bytes(16))


def answer(index: int, **times_ns: Any) -> Record:
    return Record(index, 0, intended_ns=1, sent_ns=1, end_ns=2, **times_ns)


def span(attributes: dict[str, Any], trace: bytes = TRACE) -> Span:
    made = Span(name="Req", trace_id=trace, start_time_unix_nano=7)
    for key, value in attributes.items():
        kind = {float: "double_value", int: "int_value", str: "string_value"}[type(value)]
        setattr(made.attributes.add(key=key).value, kind, value)
    return made


def read(packed: bytes) -> list[tuple[Any, ...]]:
    return [
        (*row[:3], row[3].tolist()) if isinstance(row[3], np.ndarray) else row
        for row in np.frombuffer(packed, SPAN).tolist()
    ]


def times(*values: int) -> tuple[int, ...]:
    return values


@loop_over_named(
    ("attributes", "times_ns"),
    {
        "some, one of them a whole number": (
            {f"{LATENCY}time_in_queue": 0.25, f"{LATENCY}time_in_model_prefill": 1, "x": "y"},
            times(250_000_000, UNKNOWN, 1_000_000_000, UNKNOWN),
        ),
        "SGLang's": (SGLANG, times(UNKNOWN, 500_000_000, UNKNOWN, 1_500_000_000)),
        "a queue that cannot be": (
            {f"{LATENCY}time_in_queue": -1.0, f"{LATENCY}time_in_model_prefill": 1.0},
            times(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
        ),
        "no numbers": (
            {f"{LATENCY}time_to_first_token": float("nan"), f"{LATENCY}time_in_model_decode": 1e300},
            times(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
        ),
        "text": ({f"{LATENCY}time_to_first_token": "1"}, times(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)),
    },
)
def test_a_requests_times_are_read(attributes: dict[str, Any], times_ns: tuple[int, ...]) -> None:
    assert read(pack_times(span(attributes))) == [(*HALVES, 7, list(times_ns))]


@loop_over("made", [span({"code.function": "load"}), span({}), span(SGLANG, b"short"), span(SGLANG, b"")])
def test_what_is_of_no_request_has_no_times(made: Span) -> None:
    assert pack_times(made) == b""


def test_the_recorded_spans_of_vllm_are_read() -> None:
    received = ReceivedSpans()
    received.take(RECORDED)
    rows = received.read_rows()
    assert [f"{low:x}"[-2:] for low in rows["low"].tolist()] == ["91", "92", "93", "39"]
    assert rows["times_ns"].tolist() == [
        [31_527, 27_245_522, 8_524_483, 52_419_205],
        [24_096, 20_094_156, 10_517_999, 44_901_896],
        [17_917, 7_605_553, 3_628_061, 112_155_933],
        [26_129, 8_364_201, 6_300_585, 13_291_252],
    ]
    assert received.other == 0


def made_spans(*rows: tuple[int, int, tuple[int, ...]]) -> np.ndarray[Any, np.dtype[np.void]]:
    """Spans of the requests with a plan index, by their begin and times."""
    return np.array(
        [(*split_trace(IDS.find(index)[0]), start_ns, times_ns) for index, start_ns, times_ns in rows], SPAN
    )


def test_spans_fill_the_columns_of_their_requests_alone() -> None:
    records = Records.from_records(
        [answer(index=index, server_queue_ns=3, server_ttft_ns=4) for index in (2, 5, 9)]
    )
    join = SpanJoin(records, IDS)
    spans = made_spans(
        (9, 20, (1, 2, 3, 4)),
        (9, 10, (9, 9, 9, 9)),  # sent again: the later begun is the one that was answered
        (2, 10, (UNKNOWN, 7, UNKNOWN, 8)),
        (4, 10, (9, 9, 9, 9)),  # of no request
    )
    assert join.mark(spans).tolist() == [True, False, True]
    assert join.match(spans)[1].tolist() == [True, True, True, False]
    join.fill(spans)
    assert records.server_queue_ns.tolist() == [3, 3, 1]
    assert records.server_first_token_ns.tolist() == [7, UNKNOWN, 2]
    assert records.server_ttft_ns.tolist() == [4, 4, 3]
    assert records.server_prefill_ns.tolist() == [UNKNOWN, UNKNOWN, 3]
    assert records.server_decode_ns.tolist() == [8, UNKNOWN, 4]


def test_without_requests_or_spans_nothing_is_filled() -> None:
    none = SpanJoin(Records.from_records([]), IDS)
    spans = made_spans((1, 1, (1, 1, 1, 1)))
    none.fill(spans)
    assert none.mark(spans).tolist() == []
    some = SpanJoin(Records.from_records([answer(index=0)]), IDS)
    some.fill(spans[:0])
    assert some.mark(spans[:0]).tolist() == [False]


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

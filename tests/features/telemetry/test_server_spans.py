"""A request has a span of ours with its own times, and from the server's span the times in its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from builders import made_runs
from builders.loops import loop_over, loop_over_named
from loadgen.facts.run_facts import Facts
from loadgen.features.telemetry.server_spans import (
    KEY_BYTES,
    SPAN,
    SpanJoin,
    TraceIds,
    pack_times,
    split_trace,
)
from loadgen.features.telemetry.span_exports import ReceivedSpans
from loadgen.features.telemetry.spans import Labels, list_spans
from loadgen.records.record import UNKNOWN, Record, Records
from loadgen.transport.failure import Failure, FailureKind

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


def span(attributes: dict[str, Any], trace: bytes = TRACE) -> Span:
    made = Span(name="Req", trace_id=trace, start_time_unix_nano=7)
    for key, value in attributes.items():
        kind = {float: "double_value", int: "int_value", str: "string_value"}[type(value)]
        setattr(made.attributes.add(key=key).value, kind, value)
    return made


@loop_over_named(
    ("attributes", "times_ns"),
    {
        "some, one of them a whole number": (
            {f"{LATENCY}time_in_queue": 0.25, f"{LATENCY}time_in_model_prefill": 1, "x": "y"},
            (250_000_000, UNKNOWN, 1_000_000_000, UNKNOWN),
        ),
        "SGLang's": (SGLANG, (UNKNOWN, 500_000_000, UNKNOWN, 1_500_000_000)),
        "a queue that cannot be": (
            {f"{LATENCY}time_in_queue": -1.0, f"{LATENCY}time_in_model_prefill": 1.0},
            (UNKNOWN,) * 4,
        ),
        "no numbers": (
            {f"{LATENCY}time_to_first_token": float("nan"), f"{LATENCY}time_in_model_decode": 1e300},
            (UNKNOWN,) * 4,
        ),
        "text": ({f"{LATENCY}time_to_first_token": "1"}, (UNKNOWN,) * 4),
    },
)
def test_a_requests_times_are_read(attributes: dict[str, Any], times_ns: tuple[int, ...]) -> None:
    (row,) = np.frombuffer(pack_times(span(attributes)), SPAN).tolist()
    assert (*row[:3], *row[3]) == (*HALVES, 7, *times_ns)


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


def test_without_requests_or_spans_nothing_is_filled() -> None:
    none = SpanJoin(Records.from_records([]), IDS)
    spans = np.array([(*split_trace(IDS.find(1)[0]), 1, (1, 1, 1, 1))], SPAN)
    none.fill(spans)
    assert none.mark(spans).tolist() == []
    some = SpanJoin(Records.from_records([record(0)]), IDS)
    some.fill(spans[:0])
    assert some.mark(spans[:0]).tolist() == [False]


def test_the_official_propagator_reads_the_ids_from_the_header() -> None:
    ids = TraceIds(bytes(range(KEY_BYTES)))
    for index in (0, 1, 2**40):
        context = TraceContextTextMapPropagator().extract(dict(ids.make_headers(index)))
        span = trace.get_current_span(context).get_span_context()
        assert (span.trace_id, span.span_id) == ids.find(index)
        assert (span.is_valid, span.trace_flags.sampled) == (True, True)


MS = 1_000_000
KNOWN = made_runs.run(requests=2).facts
SENT = 10**12


def record(index: int = 5, messages: int = 3, **changes: Any) -> Record:
    arrival_ns = SENT + MS * np.arange(10, 10 + messages, dtype=np.int64)
    plain: dict[str, Any] = {
        "arrival_ns": arrival_ns, "tokens": np.full(messages, 2, np.int64), "usage": True,
        "planned_output": 8, "input_tokens": 64, "output_tokens": 2 * messages, "http_status": 200,
        "finish_reason": "length",
    }  # fmt: skip
    made = Record(index, 0, SENT - 4 * MS, SENT, SENT + 100 * MS, **plain)
    return replace(made, **changes)


def spans_of(*rows: Record, known: Facts = KNOWN) -> list[Any]:
    made = Records.from_records(rows)
    return list(list_spans(made, np.arange(len(rows)), Labels(known)))


def test_a_success_has_its_own_times_and_all_that_is_known() -> None:
    (span,) = spans_of(record())
    assert (span.index, span.start_ns, span.end_ns) == (5, SENT, SENT + 100 * MS)
    assert span.events == [(SENT + 10 * MS, 2), (SENT + 11 * MS, 4), (SENT + 12 * MS, 6)]
    server = KNOWN.server
    assert span.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": server.engine.lower(),
        "gen_ai.request.model": server.model,
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 8,
        "gen_ai.usage.input_tokens": 64,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.time_to_first_chunk": 0.01,
        "http.response.status_code": 200,
        "server.address": "h",
        "server.port": 80,
        "loadgen.request.index": 5,
        "loadgen.send_delay": 0.004,
    }


@loop_over(
    ("changes", "more"),
    [
        ({"failure": Failure(FailureKind.STALL, "no token")}, {"error.type": "stall"}),
        ({"cached_tokens": 32}, {"gen_ai.usage.cache_read.input_tokens": 32}),
        ({"thought_tokens": 3}, {"gen_ai.usage.reasoning.output_tokens": 3}),
        ({"resends": 1}, {"http.request.resend_count": 1}),
        ({"usage": False, "exact_tokens": True}, {}),
        (
            {"usage": False, "exact_tokens": False},
            {"gen_ai.usage.output_tokens": None},
        ),  # messages that were counted
    ],
)
def test_what_a_request_has_besides(changes: dict[str, Any], more: dict[str, Any]) -> None:
    (plain,), (span,) = spans_of(record()), spans_of(record(**changes))
    known = {**plain.attributes, **more}
    assert span.attributes == {name: value for name, value in known.items() if value is not None}


def test_sessions_and_servers_are_named() -> None:
    known = replace(
        KNOWN, session_turns=(2, 1), request_id_prefix="p-", targets=("http://a:1/v1", "https://b/v1")
    )
    rows = [replace(record(index), slot=index) for index in range(3)]
    found = [span.attributes for span in spans_of(*rows, known=known)]
    assert [each["gen_ai.conversation.id"] for each in found] == ["p-session-0", "p-session-0", "p-session-1"]
    assert [each["loadgen.request.id"] for each in found] == ["p-0", "p-1", "p-2"]
    servers = [(each["server.address"], each["server.port"]) for each in found]
    assert servers == [("a", 1), ("b", 443), ("a", 1)]

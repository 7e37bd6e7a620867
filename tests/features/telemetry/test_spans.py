"""A record becomes a span with its own times, and attributes by the conventions where it has a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_runs
from loadgen.facts.run_facts import Facts
from loadgen.features.telemetry.spans import MOST_EVENTS, Labels, list_spans
from loadgen.records.record import Record, Records
from loadgen.transport.failure import Failure, FailureKind

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


CASES = [
    ("failed", {"failure": Failure(FailureKind.STALL, "no token")}, {"error.type": "stall"}),
    ("cached", {"cached_tokens": 32}, {"gen_ai.usage.cache_read.input_tokens": 32}),
    ("thought", {"thought_tokens": 3}, {"gen_ai.usage.reasoning.output_tokens": 3}),
    ("resent", {"resends": 1}, {"http.request.resend_count": 1}),
]


@pytest.mark.parametrize(("changes", "more"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_a_request_has_besides(changes: dict[str, Any], more: dict[str, Any]) -> None:
    (plain,), (span,) = spans_of(record()), spans_of(record(**changes))
    assert span.attributes == {**plain.attributes, **more}


def test_unknown_has_no_attribute_and_unsent_begins_when_due() -> None:
    never = record(messages=0, sent_ns=0, end_ns=0, finish_reason="", http_status=-1, input_tokens=-1,
        output_tokens=-1, failure=Failure(FailureKind.CONNECT, "refused"))  # fmt: skip
    (span,) = spans_of(never)
    assert (span.start_ns, span.end_ns, span.events) == (SENT - 4 * MS, SENT - 4 * MS, [])
    assert span.attributes["error.type"] == "connect"
    assert not {"gen_ai.usage.output_tokens", "gen_ai.response.finish_reasons"} & span.attributes.keys()


@pytest.mark.parametrize("messages", [1, MOST_EVENTS, MOST_EVENTS + 1, 5_000])
def test_events_are_bounded_and_have_first_and_last(messages: int) -> None:
    (span,) = spans_of(record(messages=messages))
    assert len(span.events) == min(messages, MOST_EVENTS)
    assert span.events[0] == (SENT + 10 * MS, 2)
    assert span.events[-1] == (SENT + (9 + messages) * MS, 2 * messages)


@pytest.mark.parametrize(
    ("usage", "exact", "has"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_messages_that_were_counted_are_no_tokens(usage: bool, exact: bool, has: bool) -> None:
    (span,) = spans_of(record(usage=usage, exact_tokens=exact))
    assert ("gen_ai.usage.output_tokens" in span.attributes) == has


def test_sessions_and_servers_are_named() -> None:
    known = replace(
        KNOWN, session_turns=(2, 1), request_id_prefix="p-", targets=("http://a:1/v1", "https://b/v1")
    )
    rows = [replace(record(index), slot=index) for index in range(3)]
    found = [span.attributes for span in spans_of(*rows, known=known)]
    assert [each["gen_ai.conversation.id"] for each in found] == ["p-session-0", "p-session-0", "p-session-1"]
    assert [each["loadgen.request.id"] for each in found] == ["p-0", "p-1", "p-2"]
    assert [(each["server.address"], each["server.port"]) for each in found] == [
        ("a", 1),
        ("b", 443),
        ("a", 1),
    ]

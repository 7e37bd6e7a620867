"""The client's figures beside the server's: what is shown, what differs, and what is said of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over, loop_over_named, read_tables
from builders.made_records import make_record
from builders.recorded import capture, chunk
from loadgen.figures.metrics import Metrics, compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.records.decode import Decoder
from loadgen.records.record import UNKNOWN, Record, Records
from loadgen.server.server_counters import ServerLatency, ServerSample, ServerWindow
from loadgen.transport.failure import Failure, FailureKind
from loadgen.verdict.reconcile import (
    count_foreign_requests,
    find_mismatches,
    make_reconciled_table,
    reconcile_figures,
)
from loadgen.wire.openai import DIALECTS

TABLES = read_tables("reconcile")

MS = 1_000_000
FAILED = Failure(FailureKind.STALL, "no token")


def answer(index: int, tokens: int = 5, **more: Any) -> Record:
    """Sent at 1 s; its first token after 100 ms, each further one 10 ms later; 20 prompt tokens."""
    usual = {"end_ns": 1200 * MS, "input_tokens": 20, "output_tokens": tokens, "usage": True}
    return make_record(1000 * MS, (1100 + 10 * np.arange(tokens)) * MS, index, **(usual | more))


def run(*records: Record, streamed: bool = True) -> tuple[Metrics, Records]:
    kept = Records.from_records(records)
    return compute_metrics(kept, MetricOptions(streamed=streamed)), kept


def latency(mean_ms: float, low: float = 0.0, high: float | None = 1000.0) -> ServerLatency:
    return ServerLatency(count=4, mean_ms=mean_ms, brackets_ms=dict.fromkeys(("50", "90", "99"), (low, high)))


def counted(**more: Any) -> ServerWindow:
    """What a server says of two of these answers."""
    fields: dict[str, Any] = {
        "names": "vllm",
        "prompt_tokens": 40,
        "generation_tokens": 10,
        "requests": {"length": 2},
        "running_before": 0,
        **more,
    }
    return ServerWindow(**fields)


SAMPLE = ServerSample(at_s=0.5, running=2, waiting=1, kv_cache_usage=0.25)
FULL = counted(
    prefix_queries=40,
    prefix_hits=10,
    preemptions=3,
    draft_tokens=100,
    accepted_tokens=75,
    ttft=latency(98.0, 80.0, 90.0),
    itl=latency(9.9, 0.0, 10.0),
    e2e=latency(139.0, 300.0, None),
    queue=ServerLatency(
        count=4, mean_ms=4.0, brackets_ms={"50": (0, 300), "90": (0, 300), "99": (2000, None)}
    ),
    samples=(SAMPLE,) * 30 + (ServerSample(at_s=1.5),),
)
TABLE = TABLES["table"]


def test_everything_a_server_can_say_is_beside_what_the_client_has() -> None:
    told = {"cached_tokens": 5, "server_queue_ns": 5 * MS, "server_ttft_ns": 90 * MS}
    metrics, records = run(answer(0, **told), answer(1, **told))
    assert [*map(list, make_reconciled_table(reconcile_figures(FULL, metrics, records)).body)] == TABLE


@pytest.mark.parametrize(("sampled", "peaks"), [(7, 0), (29, 0), (30, 3)])
def test_a_gauge_that_was_hardly_sampled_has_no_peak(sampled: int, peaks: int) -> None:
    metrics, records = run(answer(0), answer(1))
    window = FULL.model_copy(update={"samples": (SAMPLE,) * sampled + (ServerSample(at_s=1.5),) * 40})
    assert sum("peak" in row.figure for row in reconcile_figures(window, metrics, records)) == peaks


@pytest.mark.parametrize("count", [2, 10, 80, 100, 101])
def test_a_percentile_is_of_the_rank_that_the_server_counts(count: int) -> None:
    """One slow request is in the bucket of P99 where it has that rank; an interpolated P99 lies far below."""
    late = (4000 + np.arange(5, dtype=np.int64)) * MS
    slowest = replace(answer(count - 1), arrival_ns=late, end_ns=5000 * MS)
    metrics, records = run(*map(answer, range(count - 1)), slowest)
    slow = math.ceil(0.99 * count) == count
    window = counted(ttft=latency(100.0, *((2500.0, 5000.0) if slow else (50.0, 250.0))))
    found = {row.figure: row for row in reconcile_figures(window, metrics, records)}
    assert (found["TTFT, P99"].client, found["TTFT, P99"].difference) == (3000 if slow else 100, 0)


def test_answers_that_were_not_streamed_have_no_first_token_to_compare() -> None:
    metrics, records = run(answer(0), answer(1), streamed=False)
    found = {row.figure: row for row in reconcile_figures(FULL, metrics, records)}
    assert (found["TTFT, mean"].client, found["TTFT, mean"].difference) == (None, None)
    assert "TTFT, P50" not in found
    assert found["E2E, mean"].client == 200.0
    assert find_mismatches(counted(ttft=latency(98.0)), metrics) == []


def test_tokens_of_failures_have_a_row_of_their_own() -> None:
    metrics, records = run(answer(0), answer(1, tokens=3, failure=FAILED))
    found = {row.figure: row for row in reconcile_figures(counted(generation_tokens=9), metrics, records)}
    assert (found["generated tokens"].client, found["generated tokens"].difference) == (5, -4)
    assert found["  with those of failures"].client == 8


@loop_over_named(
    ("window", "requests"),
    {
        "ours alone": (counted(), 0),
        "others": (counted(requests={"length": 5}), 3),
        "an abort counted twice": (counted(requests={"": 2, "abort": 1}), 0),
        "no window": (ServerWindow(error="no"), 0),
        "reset": (ServerWindow(names="vllm", reset=True), 0),
    },
)
def test_foreign_requests_are_what_the_server_finished_beyond_ours(
    window: ServerWindow, requests: int
) -> None:
    metrics, _ = run(answer(0), answer(1))
    assert count_foreign_requests(window, metrics) == requests


ANSWERS: dict[str, dict[str, Any]] = {"ok": {}, "failed": {"failure": FAILED}, "no usage": {"usage": False}}


@loop_over_named(("window", "answers", "figures", "cause"), TABLES["causes"])
def test_a_mismatch_has_its_likely_cause(
    window: dict[str, Any], answers: list[str], figures: list[str], cause: str
) -> None:
    metrics, _ = run(*(answer(index, **ANSWERS[kind]) for index, kind in enumerate(answers)))
    fields = {
        key: latency(**value) if isinstance(value, dict) and "mean_ms" in value else value
        for key, value in window.items()
    }
    found = find_mismatches(counted(**fields), metrics)
    assert [mismatch.figure for mismatch in found] == figures
    assert all(cause in mismatch.cause for mismatch in found), found


# What each answer tells of itself: vLLM's `metrics`, on the message with the usage.

_TEXT = b'{"choices":[{"index":0,"text":"a","finish_reason":"length"}]'
_DELTA = b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"length"}]'
_WHOLE = b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"length"}]'
_USAGE = b'"usage":{"prompt_tokens":5,"completion_tokens":1}'
_METRICS = (
    b'{"time_to_first_token_ms":12.345678,"generation_time_ms":0.0,"queue_time_ms":0.25,'
    b'"tokens_per_second":80.9}'
)


def decoded(dialect: str, told: bytes, streamed: bool = True) -> Record:
    metrics = b',"metrics":%b' % told if told else b""
    if streamed:
        first = _DELTA if dialect == "chat" else _TEXT
        events = b'data: %b}\n\ndata: {"choices":[],%b%b}\n\ndata: [DONE]\n\n' % (first, _USAGE, metrics)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        reads = [head, chunk(events), b"0\r\n\r\n"]
    else:
        body = b"%b,%b%b}" % (_WHOLE if dialect == "chat" else _TEXT, _USAGE, metrics)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        reads = [head, body]
    return Decoder(DIALECTS[dialect], streamed).decode(capture(reads))


@loop_over("streamed", [True, False])
@loop_over("dialect", ["completions", "chat"])
@loop_over_named(
    ("told", "queue_ns", "ttft_ns"),
    {
        "vLLM's": (_METRICS, 250_000, 12_345_678),
        "a part": (b'{"queue_time_ms":1}', 1_000_000, UNKNOWN),
        "null": (b'{"queue_time_ms":null,"time_to_first_token_ms":2}', UNKNOWN, 2_000_000),
        "none": (b"", UNKNOWN, UNKNOWN),
        "no object": (b"null", UNKNOWN, UNKNOWN),
        "a list": (b'["of another server"]', UNKNOWN, UNKNOWN),
        "words": (b'{"queue_time_ms":"long"}', UNKNOWN, UNKNOWN),
    },
)
def test_server_reported_times_are_read_and_unknown_fields_ignored(
    dialect: str, streamed: bool, told: bytes, queue_ns: int, ttft_ns: int
) -> None:
    record = decoded(dialect, told, streamed)
    assert (record.failure, record.input_tokens, record.output_tokens) == (None, 5, 1)
    assert (record.server_queue_ns, record.server_ttft_ns) == (queue_ns, ttft_ns)
    decode_ns = 0 if told == _METRICS else UNKNOWN  # of one token
    assert (record.server_prefill_ns, record.server_decode_ns) == (ttft_ns, decode_ns)


@loop_over_named(
    ("told", "counts"),
    {
        "vLLM's": (
            b'{"queue_time_ms":1,"speculative_decoding":{"mean_acceptance_length":2.5,"acceptance_histogram":[1,2],'
            b'"num_spec_steps":12,"num_accepted_draft_tokens":15,"num_draft_tokens":45,"num_spec_tokens":4}}',
            (12, 15),
        ),
        "new": (b'{"queue_time_ms":1,"speculative_decoding":["new"]}', (UNKNOWN, UNKNOWN)),
        "null": (b'{"queue_time_ms":1,"speculative_decoding":null}', (UNKNOWN, UNKNOWN)),
        "none": (b'{"queue_time_ms":1}', (UNKNOWN, UNKNOWN)),
    },
)
def test_a_requests_drafts_are_read_whatever_else_is_there(told: bytes, counts: tuple[int, int]) -> None:
    record = decoded("chat", told)
    assert (record.server_drafts, record.server_accepted_tokens) == counts
    assert record.server_queue_ns == 1_000_000


def test_records_keep_the_servers_times(tmp_path: Path) -> None:
    records = Records.from_records([answer(0, server_queue_ns=3, server_ttft_ns=4), answer(1)])
    path = tmp_path / "arrivals.npz"
    records.save(path)
    assert Records.load(path).server_queue_ns.tolist() == [3, UNKNOWN]
    with np.load(path) as stored:
        columns = {name: stored[name] for name in stored.files if name != "server_queue_ns"}
    np.savez(path, allow_pickle=False, **columns)
    with pytest.raises(ValueError, match="column server_queue_ns is missing"):
        Records.load(path)

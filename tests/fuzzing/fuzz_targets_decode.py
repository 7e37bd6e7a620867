"""Any bytes as a server's answer: decoded, put in columns and computed; what must hold of it is asserted."""

from __future__ import annotations

import warnings
from typing import Final

import numpy as np

from builders import recorded
from loadgen.base.untrusted import LONGEST
from loadgen.figures.metrics import compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.records.decode import LONGEST_REASON, Decoder
from loadgen.records.decoded_stream import SILENT_TOKENS
from loadgen.records.record import UNKNOWN, Record, Records
from loadgen.transport.capture import NO_STAMP, Capture, join_reads, pack_int64s
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire.openai import MOST, Dialect

APIS: Final[tuple[Dialect, ...]] = (*recorded.APIS.values(),)
HEADS: Final = (
    b"",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 500 No\r\n\r\n",
)
STATUSES: Final = (0, 200, 503)  # 0: the bytes hold it
OPTIONS: Final = 6  # bytes of an input that say how the rest is read
SENT_NS, STEP_NS, OFFSET_NS = 10**9, 10**6, 10**18


def decode_any(data: bytes) -> None:
    """Decode an answer of any bytes, in any API and framing, in any reads; raises where something is amiss.

    The first bytes say which: API, streamed or not, a head before the rest, the status where there is no
    framing, how long each read is, what the transport says, and what the kernel's clock does.
    """
    options, body = data[:OPTIONS].ljust(OPTIONS, b"\0"), data[OPTIONS:]
    api, head, status, size, ending, clock = options
    dialect = APIS[api % len(APIS)]
    streamed = api & 0x80 == 0
    raw = HEADS[head % len(HEADS)] + body
    kinds = (None, None, FailureKind.TRUNCATED, FailureKind.STALL)
    kind = kinds[ending % len(kinds)]
    length = size * size + 1
    capture = captured(
        [raw[at : at + length] for at in range(0, len(raw), length)], STATUSES[status % len(STATUSES)], clock
    )
    capture.failure = None if kind is None else Failure(kind, "")
    check(dialect, streamed, capture)


def captured(reads: list[bytes], status: int, clock: int = 0) -> Capture:
    """These reads, one each millisecond; the clock of the kernel's timestamps may be set again and again."""
    raw, read_lengths = join_reads(reads)
    seen_ns = [SENT_NS + STEP_NS * (i + 1) for i in range(len(reads))]
    shift_ns = [((i * clock) % 7 - 3) * clock * STEP_NS // 8 for i in range(len(reads))]
    walls = [seen + OFFSET_NS - 1000 + shift for seen, shift in zip(seen_ns, shift_ns, strict=True)]
    return Capture(
        index=0,
        slot=0,
        intended_ns=SENT_NS,
        sent_ns=SENT_NS,
        end_ns=SENT_NS + STEP_NS * (len(reads) + 2),
        framed=status == 0,
        status=status,
        raw=raw,
        read_lengths=read_lengths,
        seen_ns=pack_int64s(seen_ns),
        kernel=b"".join(
            NO_STAMP if clock and i % 5 == 4 else pack_int64s(divmod(ns, 10**9)) for i, ns in enumerate(walls)
        ),
        realtime_offset_ns=OFFSET_NS,
    )


def check(dialect: Dialect, streamed: bool, capture: Capture) -> Record:
    """The Record of a capture, whose figures can be computed without a warning; raises AssertionError."""
    record = Decoder(dialect, streamed, keep_text=True).decode(capture)
    dialect.has_token(capture.raw)
    _check_counts(record, len(capture.raw))
    _check_times(record, capture)
    for text, longest in ((record.finish_reason, LONGEST_REASON), (_detail(record), LONGEST)):
        assert len(text) <= longest
        assert text.isprintable()
    assert _detail(record).strip()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures = compute_metrics(Records.from_records([record, record]), MetricOptions(streamed=streamed))
    assert figures.total_output_tokens == (0 if record.failure else 2 * max(record.output_tokens, 0))
    return record


def _detail(record: Record) -> str:
    return record.failure.detail if record.failure else "none"


def _check_counts(record: Record, size: int) -> None:
    for count in (record.input_tokens, record.cached_tokens):
        assert UNKNOWN <= count <= MOST
    assert record.cached_tokens <= max(record.input_tokens, UNKNOWN)
    assert UNKNOWN <= record.output_tokens <= size + SILENT_TOKENS
    assert len(record.tokens) == len(record.arrival_ns) <= size
    assert record.tokens.min(initial=0) >= 0
    if len(record.tokens):
        assert int(record.tokens.sum()) == record.output_tokens
    times_ns = (record.server_queue_ns, record.server_ttft_ns)
    for time_ns in (*times_ns, record.server_prefill_ns, record.server_decode_ns):
        assert UNKNOWN <= time_ns <= 10**15
    counts = (record.server_prompt_tokens, record.server_cached_tokens, record.server_output_tokens)
    assert all(UNKNOWN <= count <= MOST for count in counts)


def _check_times(record: Record, capture: Capture) -> None:
    """No read arrived before the request was sent, or after the client had it."""
    user_ns = capture.user_ns()
    assert record.reads == len(user_ns)
    assert 0 <= record.impossible_stamps <= record.unstamped_reads <= record.reads
    assert 0 <= record.lag_max_ns <= record.lag_sum_ns or record.lag_sum_ns == 0
    if len(record.arrival_ns):
        assert record.arrival_ns.min() >= SENT_NS
        assert record.arrival_ns.max() <= user_ns[-1]
    assert not np.isin(record.arrival_ns, (0, UNKNOWN)).any()

"""Server spans: a server's own times of each request, from its spans to the columns of the records.

A request's span is found by its ids, which the request's headers carry and our span gets after it has ended.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.records.record import UNKNOWN, Records

TRACEPARENT = "traceparent"
KEY_BYTES = 16
TRACE_BYTES, _SPAN_BYTES, _INDEX_BYTES = 16, 8, 8
_SAMPLED = 1
# A span's attributes, in seconds, and the columns that each fills. vLLM 0.32's `llm_request` has all of them,
# SGLang 0.5.23's root span all but the queue.
_TIMES = {
    "gen_ai.latency.time_in_queue": ("server_queue_ns",),
    "gen_ai.latency.time_to_first_token": ("server_first_token_ns",),
    "gen_ai.latency.time_in_model_prefill": ("server_prefill_ns", "server_ttft_ns"),
    "gen_ai.latency.time_in_model_decode": ("server_decode_ns",),
}
_PLACES = {name: place for place, name in enumerate(_TIMES)}
_QUEUE, _PREFILL = 0, 2
_MOST_S = 1e6  # eleven days: what is beyond it is not the time of a request
# A request's span: the halves of its trace id, when it began, and the times of _TIMES or UNKNOWN.
SPAN = np.dtype([("high", "<u8"), ("low", "<u8"), ("start_ns", "<u8"), ("times_ns", "<i8", (len(_TIMES),))])
_pack_span = struct.Struct(f"<QQQ{len(_TIMES)}q").pack


class TraceIds(msgspec.Struct, frozen=True):
    """The ids of a run's spans: BLAKE2b of the plan index under the run's key, the same in any process.

    The key is random: no two runs or shards have the same.
    """

    key: bytes

    def find(self, index: int) -> tuple[int, int]:
        """Return the trace id, of 128 bits, and the span id, of 64, of the request with a plan index."""
        size = TRACE_BYTES + _SPAN_BYTES
        digest = hashlib.blake2b(index.to_bytes(_INDEX_BYTES, "big"), key=self.key, digest_size=size).digest()
        # An id of zeros would be none (W3C Trace Context, 3.2.2).
        return int.from_bytes(digest[:TRACE_BYTES]) or 1, int.from_bytes(digest[TRACE_BYTES:]) or 1

    def make_headers(self, index: int) -> tuple[tuple[str, str], ...]:
        """Make the header by which the server's spans join a request's trace (W3C Trace Context, 3.2)."""
        trace, span = self.find(index)
        return ((TRACEPARENT, f"00-{trace:032x}-{span:016x}-{_SAMPLED:02x}"),)


def pack_times(span: Any) -> bytes:
    """Pack a request's times in a span of protobuf as a SPAN; b"" if it has none, as those of a start-up.

    A prefill is taken only with a queue: without one, as SGLang's, it includes the time in the queue.
    """
    times_ns, of_request = [UNKNOWN] * len(_TIMES), False
    for pair in span.attributes:
        if (place := _PLACES.get(pair.key)) is not None:
            kind, of_request = pair.value.WhichOneof("value"), True
            time_s = getattr(pair.value, kind) if kind in ("double_value", "int_value") else UNKNOWN
            times_ns[place] = round(time_s * SECOND_NS) if 0 <= time_s <= _MOST_S else UNKNOWN
    trace = span.trace_id
    if not of_request or len(trace) != TRACE_BYTES:
        return b""
    if times_ns[_QUEUE] == UNKNOWN:
        times_ns[_PREFILL] = UNKNOWN
    high, low = split_trace(int.from_bytes(trace, "big"))
    return _pack_span(high, low, span.start_time_unix_nano, *times_ns)


def split_trace(trace: int) -> tuple[int, int]:
    """Split a trace id, of 128 bits, into its halves."""
    return trace >> 64, trace & (1 << 64) - 1


class SpanJoin:
    """Finds the requests of records that a run's server spans belong to, by trace id."""

    def __init__(self, records: Records, ids: TraceIds) -> None:
        self.records = records
        halves = [split_trace(ids.find(index)[0]) for index in records.index.tolist()]
        self._high, self._low = np.array(halves, np.uint64).reshape(-1, 2).T
        self._order = self._high.argsort()

    def match(self, spans: NDArray[np.void]) -> tuple[Int64, Bool]:
        """Return the row of each span's request (any without one), int64[spans], and whether it has one."""
        if not len(self._high):
            return np.zeros(len(spans), np.int64), np.zeros(len(spans), np.bool_)
        # Two of 2^32 requests may share a high half.
        places = self._high.searchsorted(spans["high"], sorter=self._order)
        rows = self._order[np.minimum(places, len(self._high) - 1)]
        return rows, (self._high[rows] == spans["high"]) & (self._low[rows] == spans["low"])

    def mark(self, spans: NDArray[np.void]) -> Bool:
        """Mark the requests that have a span, bool[requests]."""
        marks = np.zeros(len(self.records), np.bool_)
        rows, ours = self.match(spans)
        marks[rows[ours]] = True
        return marks

    def fill(self, spans: NDArray[np.void]) -> None:
        """Write the times of spans into the records' columns; of several of one request the latest begun.

        A time that the span lacks leaves what the answer itself reported.
        """
        rows, ours = self.match(spans)
        order = np.flatnonzero(ours)[np.argsort(spans["start_ns"][ours], kind="stable")]
        for place, columns in enumerate(_TIMES.values()):
            times_ns = spans["times_ns"][order, place]
            known = times_ns != UNKNOWN
            for name in columns:
                getattr(self.records, name)[rows[order][known]] = times_ns[known]

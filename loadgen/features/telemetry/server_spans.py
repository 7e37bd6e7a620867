"""Server spans: a server's own times of each request, from its spans to the columns of the records."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.features.telemetry.trace_ids import TRACE_BYTES, TraceIds
from loadgen.records.record import UNKNOWN, Records

# A span's attributes, in seconds, and the columns that each fills. vLLM 0.32's `llm_request` has all of them,
# SGLang 0.5.23's root span all but the queue.
_TIMES = {
    "gen_ai.latency.time_in_queue": ("server_queue_ns",),
    "gen_ai.latency.time_to_first_token": ("server_first_token_ns",),
    "gen_ai.latency.time_in_model_prefill": ("server_prefill_ns", "server_ttft_ns"),
    "gen_ai.latency.time_in_model_decode": ("server_decode_ns",),
}
_QUEUE, _PREFILL = 0, 2  # places in _TIMES
_MOST_S = 1e6  # eleven days: what is beyond it is not the time of a request
SPAN = np.dtype([("trace", f"S{TRACE_BYTES}"), ("start_ns", "<u8"), ("times_ns", "<i8", (len(_TIMES),))])


class ServerTimes(msgspec.Struct, frozen=True, gc=False):
    """A request's span: its trace, when it began, and the times of _TIMES, UNKNOWN if it has none."""

    trace: bytes
    start_ns: int
    times_ns: tuple[int, ...]

    def as_tuple(self) -> tuple[bytes, int, tuple[int, ...]]:
        """Return the row as a value of SPAN."""
        return self.trace, self.start_ns, self.times_ns


def read_times(span: Any) -> ServerTimes | None:
    """Read the times of a request from a span of protobuf; None if it has none, as those of a start-up.

    A prefill is taken only with a queue: without one, as SGLang's, it includes the time in the queue.
    """
    found = {pair.key: pair.value for pair in span.attributes if pair.key in _TIMES}
    if not found or len(span.trace_id) != TRACE_BYTES:
        return None
    times_ns = [_read_ns(found.get(name)) for name in _TIMES]
    if times_ns[_QUEUE] == UNKNOWN:
        times_ns[_PREFILL] = UNKNOWN
    return ServerTimes(span.trace_id, span.start_time_unix_nano, tuple(times_ns))


def _read_ns(value: Any) -> int:
    """Convert an attribute in seconds to ns; UNKNOWN if it is none, no number, below 0 or over 11 days."""
    kind = None if value is None else value.WhichOneof("value")
    if kind not in ("double_value", "int_value"):
        return UNKNOWN
    time_s = getattr(value, kind)
    return round(time_s * SECOND_NS) if 0 <= time_s <= _MOST_S else UNKNOWN


class SpanJoin:
    """Finds the requests of records that a run's server spans belong to, by trace id."""

    def __init__(self, records: Records, ids: TraceIds) -> None:
        self.records = records
        traces = b"".join(ids.find(index)[0].to_bytes(TRACE_BYTES, "big") for index in records.index.tolist())
        self._traces = np.frombuffer(traces, f"S{TRACE_BYTES}")
        self._order = self._traces.argsort()

    def match(self, spans: NDArray[np.void]) -> tuple[Int64, Bool]:
        """Return the row of each span's request, int64[spans], and marks of the spans that have one."""
        if not len(self._traces):
            return np.zeros(len(spans), np.int64), np.zeros(len(spans), np.bool_)
        places = self._traces.searchsorted(spans["trace"], sorter=self._order)
        rows = self._order[np.minimum(places, len(self._traces) - 1)]
        return rows, self._traces[rows] == spans["trace"]

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

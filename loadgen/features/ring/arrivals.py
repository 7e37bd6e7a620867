"""Arrivals: which segments made a response readable, and what their TCP timestamps say of the way."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS
from loadgen.features.ring.segments import Pieces, Rows, read_wall_ns
from loadgen.transport.capture import SegmentTimes

_UNKNOWN = -1
_CLOCK = 1 << 32
_LEAST_MS = 2  # a request's delay that the grain of the two clocks cannot explain


class Arrivals(msgspec.Struct, frozen=True):
    """The segments that completed a response, in order, and how many bytes of it there were with each."""

    ends: Int64
    rows: Rows  # as many
    timed: bool  # they have TCP's timestamps
    pieces: Pieces | None = None  # where they did not come once each and in order, and have timestamps

    def measure_request_delay_ns(self, sent_ns: int, end_ns: int, clock_ms: int | None) -> int:
        """Measure how long after `sent_ns` the request's segment was sent that the server had got (ns).

        The response's first segment echoes our clock at that sending; `clock_ms` is that clock less
        CLOCK_MONOTONIC in ms, 0.5 ms more on the mean. Below 2 ms, the grain, it is 0; -1 where not known: no
        timestamp, another connection's time, or a first segment that was itself sent again.
        """
        if clock_ms is None or not self.timed:
            return _UNKNOWN
        rows, first, second = self.rows, 0, min(1, len(self.rows) - 1)
        if self.pieces is not None:
            rows, by = self.pieces.rows, self.pieces.brought_by
            first, second = by[0], by[min(1, len(by) - 1)]
        again = _wrap(int(rows["sent"][second]) - int(rows["sent"][first])) < 0
        if again or rows["kept"][first] & 1:  # its last byte was not kept
            return _UNKNOWN
        passed_ms = (end_ns - sent_ns) // MS_NS
        delay_ms = _wrap(int(rows["echoed"][first]) - clock_ms - sent_ns // MS_NS)
        if not -_LEAST_MS < delay_ms < passed_ms + _LEAST_MS:
            return _UNKNOWN
        return delay_ms * MS_NS - MS_NS // 2 if delay_ms >= _LEAST_MS else 0


def make_times(connection: int, pieces: Pieces, record_ends: Int64 | None) -> SegmentTimes:
    """Make the times of a response whose segments came out of order or twice.

    `record_ends` is where each TLS record ends, in bytes of the connection; None without TLS.
    """
    brought = pieces.rows[pieces.brought_by]
    least = (pieces.least + int(pieces.rows["sent"][0])) % _CLOCK
    return SegmentTimes(
        connection,
        sent=brought["sent"].astype(np.uint32).tobytes(),
        least=least.astype(np.uint32).tobytes(),
        came_ns=read_wall_ns(brought).tobytes(),
        order=pieces.brought_by.tobytes(),
        ends=pieces.ends.tobytes(),
        of_reads=b"" if record_ends is None else pieces.ends.searchsorted(record_ends).tobytes(),
    )


def _wrap(ticks: int) -> int:
    """Return the least difference of two 32-bit clocks that this one can be."""
    return (ticks + _CLOCK // 2) % _CLOCK - _CLOCK // 2

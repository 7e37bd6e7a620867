"""TTFT parts: each request's wait, from when it was due to its first token's arrival, divided into parts."""

from __future__ import annotations

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.features.attribution.parts import PARTS, ROWS
from loadgen.records.record import Records


def divide_waits(records: Records, rows: Int64, first_ns: Int64) -> Int64:
    """Divide the waits of requests, by their rows, into parts: int64[len(PARTS), rows] (ns).

    `first_ns` is the arrival of each one's first token. The parts sum to `first_ns` - intended, or - sent
    where it was sent earlier than due.
    """
    parts = np.zeros((len(PARTS), len(rows)), np.int64)
    sent_ns = records.sent_ns[rows]
    late_ns = (sent_ns - records.intended_ns[rows]).clip(0)
    # A connection that was opened ahead of time delayed no one.
    parts[ROWS["handshake"]] = records.connect_ns[rows].clip(0, late_ns)
    parts[ROWS["sent_late"]] = late_ns - parts[ROWS["handshake"]]
    parts[ROWS["unknown"]] = (first_ns - sent_ns).clip(0)
    return parts

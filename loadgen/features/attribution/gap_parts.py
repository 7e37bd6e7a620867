"""Gap parts: the gaps between a stream's messages that are beyond P99, divided into parts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.features.attribution.parts import PARTS, ROWS
from loadgen.figures.distribution import Piece, rank_pieces
from loadgen.figures.metrics import list_gaps
from loadgen.records.record import Records

TAIL = 99.0  # the percentile beyond which a gap or a TTFT is of the tail


class TailGaps(msgspec.Struct, frozen=True):
    """The gaps beyond P99 of those that ITL counts, a row each."""

    request: Int64  # row of the records
    message: Int64  # place in the request of the later message
    whole_ns: Int64
    threshold_ns: float  # P99 of all gaps, as of the report's ITL; NaN without any
    typical_ns: float  # their median


def find_tail_gaps(records: Records, counts: Bool) -> TailGaps:
    """Find the gaps beyond P99 of the requests that count, bool[requests]."""

    def list_pieces() -> Iterator[Piece]:
        for block in records.blocks():
            yield list_gaps(block, counts[block.first : block.last])[0], None

    count, low, high = 0, math.inf, -math.inf
    for gap_ns, _ in list_pieces():
        if len(gap_ns):
            count += len(gap_ns)
            low, high = min(low, int(gap_ns.min())), max(high, int(gap_ns.max()))
    none = np.zeros(0, np.int64)
    if not count:
        return TailGaps(none, none, none, math.nan, math.nan)
    typical_ns, threshold_ns = rank_pieces(list_pieces, count, (low, high), (50, TAIL))
    found = [(none, none, none)]
    for block in records.blocks():
        gap_ns = np.diff(block.arrival_ns, prepend=0)
        beyond = (gap_ns > threshold_ns) & np.repeat(counts[block.first : block.last], np.diff(block.start))
        beyond[block.start[:-1][np.diff(block.start) > 0]] = False  # of a first message
        at = np.flatnonzero(beyond)
        row = block.start.searchsorted(at, side="right") - 1
        found.append((block.first + row, at - block.start[row], gap_ns[at]))
    request, message, whole_ns = (np.concatenate(column) for column in zip(*found, strict=True))
    return TailGaps(request, message, whole_ns, threshold_ns, typical_ns)


def divide_gaps(gaps: TailGaps) -> Int64:
    """Divide the gaps into parts that sum to them: int64[len(PARTS), gaps] (ns)."""
    parts = np.zeros((len(PARTS), len(gaps.request)), np.int64)
    parts[ROWS["unknown"]] = gaps.whole_ns
    return parts

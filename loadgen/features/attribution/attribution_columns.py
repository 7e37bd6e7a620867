"""Attribution columns: the parts of each exported request's first token, and of its gaps beyond P99."""

from __future__ import annotations

from functools import partial

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.features.attribution.attribution import Attribution, PartRows
from loadgen.features.attribution.part_times import find_attribution
from loadgen.features.attribution.parts import EVIDENCE, PARTS, ROWS
from loadgen.records.record import UNKNOWN
from loadgen.report.run_directory import RequestColumn, Result


def list_ttft_part(run: Result, key: str) -> Int64:
    """List a part of each request's wait for its first token, int64[requests] (ns); -1: not known."""
    found = find_attribution(run)
    if found is None or not _is_known(found, found.ttft, key):
        return _make_unknown(run)
    values = np.full(len(run.records), UNKNOWN, np.int64)
    values[found.ttft.request] = found.ttft.parts[ROWS[key]]
    return values


def list_tail_part(run: Result, key: str) -> Int64:
    """List a part of each request's gaps beyond P99, summed, int64[requests] (ns); -1: not known."""
    found = find_attribution(run)
    if found is None or not _is_known(found, found.gaps, key):
        return _make_unknown(run)
    values = np.full(len(run.records), UNKNOWN, np.int64)
    values[found.ttft.request] = 0
    np.add.at(values, found.gaps.request, found.gaps.parts[ROWS[key]])
    return values


def _make_unknown(run: Result) -> Int64:
    """Make a column of no values, which takes no memory."""
    return np.broadcast_to(np.int64(UNKNOWN), len(run.records))


def _is_known(found: Attribution, waits: PartRows, key: str) -> bool:
    """Whether a part was found in a run, or something would have shown it: else its 0 is no answer."""
    shown_by = {kind.key for kind in EVIDENCE if key in kind.parts}
    return not shown_by or not shown_by.isdisjoint(found.evidence) or bool(waits.parts[ROWS[key]].any())


_WAITS = (
    ("ttft", "the wait from when it was due until its first token", list_ttft_part),
    ("tail", "its gaps beyond P99 ITL, summed", list_tail_part),
)
COLUMNS = tuple(
    RequestColumn(
        f"{wait}_{part.key}_ns",
        "int64",
        f"{part.label}: of {what}",
        numbers=partial(make, key=part.key),
    )
    for wait, what, make in _WAITS
    for part in PARTS
    if wait in part.waits
)

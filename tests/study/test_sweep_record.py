"""Sweep lines: a point without a whole run is named with its reason."""

from __future__ import annotations

from loadgen.study import sweep_record
from loadgen.study.sweep_record import SweptPoint


def test_points_that_are_not_done_are_listed_with_their_reasons() -> None:
    points = (
        SweptPoint({"max_concurrency": 1}, 0, "done"),
        SweptPoint({"max_concurrency": 8}, 0, "saturated", "TTFT rises"),
        SweptPoint({"input_len": 512}, 0, "failed", "out of\nmemory", serve={"max-num-seqs": "8"}),
        SweptPoint({"max_concurrency": 16}, 1, "planned"),
    )
    assert sweep_record.list_unfinished(points) == [
        "concurrency=8: ended early, saturated: TTFT rises",
        "max-num-seqs=8 input_len=512: failed: out of memory",
        "concurrency=16 repeat 1: not measured",
    ]

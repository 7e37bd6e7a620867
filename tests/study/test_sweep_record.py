"""Sweep lines: a point without a whole run is named with its reason."""

from __future__ import annotations

from loadgen.study import sweep_record
from loadgen.study.sweep_record import SweepPoint, SweepRecord


def test_points_that_are_not_done_are_listed_with_their_reasons() -> None:
    points = (
        SweepPoint(number=0, settings={"max_concurrency": 1}, state="done"),
        SweepPoint(number=1, settings={"max_concurrency": 8}, state="saturated", reason="TTFT rises"),
        SweepPoint(number=2, settings={"input_len": 512}, serve={"max-num-seqs": "8"}, state="failed",
                   reason="out of\nmemory"),
        SweepPoint(number=3, settings={"max_concurrency": 16}),
        SweepPoint(number=4, settings={"max_concurrency": 32}, state="under-way"),
    )  # fmt: skip
    record = SweepRecord(name="s", command=(), fixed="", seed=0, points=points)
    assert sweep_record.list_unfinished(record) == [
        "concurrency=8: ended early, saturated: TTFT rises",
        "max-num-seqs=8 input_len=512: failed: out of memory",
        "concurrency=16: not measured",
        "concurrency=32: begun, not finished",
    ]

"""The record of a measured gate, which may be a stranger's: what no gate would write is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.study.gate.gate_record import (
    GateRecord,
    make_gate_record,
    parse_gate_metrics,
    read_gate_record,
    write_gate_record,
)
from loadgen.study.gate.gate_verdict import GatePlan

ROW = {"name": "tok/s", "key": "output_throughput", "higher_is_faster": True, "margin": 0.03}


def made() -> GateRecord:
    names = ["tok/s,ttft_p99,request_goodput,itl"]
    return make_gate_record(parse_gate_metrics(names), GatePlan(0.05, 9, sequential=True), ["base", "new"])


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_gate_record(tmp_path, made())
    assert read_gate_record(tmp_path) == made()


@loop_over(
    ("change", "named"),
    [
        pytest.param({"metrics": []}, "metrics", id="no figure"),
        pytest.param({"metrics": [{**ROW, "higher_is_faster": False}]}, "metrics.0", id="direction"),
        pytest.param({"metrics": [{**ROW, "key": "nope"}]}, "metrics.0", id="unknown figure"),
        pytest.param({"metrics": [{**ROW, "margin": 50.0}]}, "metrics.0.margin", id="margin"),
        pytest.param({"alpha": 0.5}, "alpha", id="alpha"),
        pytest.param({"max_pairs": 10**12}, "max_pairs", id="pairs without end"),
        pytest.param({"max_pairs": 2}, "max_pairs", id="no look"),
        pytest.param({"arms": ["base"]}, "arms", id="one arm"),
        pytest.param({"arms": ["base", "base"]}, "'base' is there twice", id="an arm against itself"),
        pytest.param({"metrics": [ROW, ROW]}, "'output_throughput' is there twice", id="a figure twice"),
    ],
)
def test_what_no_gate_writes_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(made().model_dump(mode="json") | change))
    with pytest.raises(UsageError, match=named) as caught:
        read_gate_record(tmp_path)
    assert len(str(caught.value).splitlines()) == 1

"""The record of a measured gate, which may be a stranger's: what no gate would write is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.base.errors import UsageError
from loadgen.study.gate.gate_record import (
    GateRecord,
    lay_margins,
    parse_gate_metrics,
    read_gate_record,
    write_gate_record,
)

TABLES = read_tables("gate_record")
ROW = {"name": "tok/s", "key": "output_throughput", "higher_is_faster": True, "margin": 0.03}


METRICS = tuple(parse_gate_metrics(["tok/s,ttft_p99,request_goodput,itl"]))
RECORD = GateRecord(metrics=METRICS, alpha=0.05, max_pairs=9, arms=("base", "new"))


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_gate_record(tmp_path, RECORD)
    assert read_gate_record(tmp_path) == RECORD


@loop_over_named(("change", "named"), TABLES["refused_records"])
def test_what_no_gate_writes_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(RECORD.model_dump(mode="json") | change))
    with pytest.raises(UsageError, match=named) as caught:
        read_gate_record(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@loop_over(("name", "key", "higher_is_faster"), TABLES["names"])
def test_a_name_that_people_use_is_a_figures_key(name: str, key: str, higher_is_faster: bool) -> None:
    (found,) = parse_gate_metrics([name])
    assert (found.name, found.key, found.higher_is_faster) == (name, key, higher_is_faster)


@loop_over(("names", "message"), TABLES["refused_names"])
def test_a_name_that_is_no_figure_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_gate_metrics(names)
    assert message in str(refused.value)


@loop_over(("margins", "laid"), TABLES["margins"])
def test_a_margin_is_every_metrics_or_the_named_ones(margins: list[str], laid: list[float]) -> None:
    metrics = parse_gate_metrics(["tok/s,ttft_p99"])
    assert [metric.margin for metric in lay_margins(metrics, margins)] == laid


@loop_over(("margin", "message"), TABLES["refused_margins"])
def test_a_margin_that_cannot_be_is_refused(margin: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        lay_margins(parse_gate_metrics(["tok/s"]), [margin])
    assert message in str(refused.value)

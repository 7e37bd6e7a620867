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
    lay_margins,
    parse_gate_metrics,
    read_gate_record,
    write_gate_record,
)

ROW = {"name": "tok/s", "key": "output_throughput", "higher_is_faster": True, "margin": 0.03}


METRICS = tuple(parse_gate_metrics(["tok/s,ttft_p99,request_goodput,itl"]))
RECORD = GateRecord(metrics=METRICS, alpha=0.05, max_pairs=9, arms=("base", "new"))


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_gate_record(tmp_path, RECORD)
    assert read_gate_record(tmp_path) == RECORD


@loop_over(
    ("change", "named"),
    [
        pytest.param({"metrics": []}, "metrics", id="no figure"),
        pytest.param({"metrics": [{**ROW, "higher_is_faster": False}]}, "metrics.0", id="direction"),
        pytest.param({"metrics": [{**ROW, "key": "nope"}]}, "metrics.0", id="unknown figure"),
        pytest.param({"metrics": [{**ROW, "margin": 50.0}]}, "metrics.0.margin", id="margin"),
        pytest.param({"metrics": [{**ROW, "margin": None}]}, "metrics.0.margin", id="no margin"),
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
    path.write_text(json.dumps(RECORD.model_dump(mode="json") | change))
    with pytest.raises(UsageError, match=named) as caught:
        read_gate_record(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@loop_over(
    ("name", "key", "higher_is_faster"),
    [
        ("tok/s", "output_throughput", True),
        ("throughput", "output_throughput", True),
        ("output throughput", "output_throughput", True),
        ("req/s", "request_throughput", True),
        ("goodput", "request_goodput", True),
        ("total throughput", "total_token_throughput", True),
        ("ttft", "mean_ttft_ms", False),
        ("TTFT_P99", "p99_ttft_ms", False),
        ("ttft-p99", "p99_ttft_ms", False),
        ("p99 ttft", "p99_ttft_ms", False),
        ("p99_ttft_ms", "p99_ttft_ms", False),
        ("p99.9_itl", "p99.9_itl_ms", False),
        ("ttft_p50", "median_ttft_ms", False),
        ("avg_tpot", "mean_tpot_ms", False),
        ("end-to-end latency", "mean_e2el_ms", False),
        ("time to first token p90", "p90_ttft_ms", False),
        ("max_itl_ms", "max_itl_ms", False),
        ("prefill_speed", "mean_prefill_speed", True),
        ("tps_user_p50", "median_tps_user", True),
        ("duration", "duration", False),
    ],
)
def test_a_name_that_people_use_is_a_figures_key(name: str, key: str, higher_is_faster: bool) -> None:
    (found,) = parse_gate_metrics([name])
    assert (found.name, found.key, found.higher_is_faster) == (name, key, higher_is_faster)


@loop_over(
    ("names", "message"),
    [
        (["ttft_p9x"], "--metric 'ttft_p9x': no such figure"),
        (["cached"], "--metric 'cached': no such figure"),
        ([""], "--metric '': no such figure"),
        (["tok/s,throughput"], "--metric throughput: tok/s is the same figure"),
        (["p99_goodput"], "goodput is one number a run: leave p99 out"),
    ],
)
def test_a_name_that_is_no_figure_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_gate_metrics(names)
    assert message in str(refused.value)


@loop_over(
    ("margins", "laid"),
    [
        ([], [0.03, 0.03]),
        (["5%"], [0.05, 0.05]),
        (["0.05"], [0.05, 0.05]),
        (["p99_ttft=10%"], [0.03, 0.1]),
        (["ttft_p99=10%,2%"], [0.02, 0.1]),
        (["tok/s=1%", "ttft_p99=10%"], [0.01, 0.1]),
    ],
)
def test_a_margin_is_every_metrics_or_the_named_ones(margins: list[str], laid: list[float]) -> None:
    metrics = parse_gate_metrics(["tok/s,ttft_p99"])
    assert [metric.margin for metric in lay_margins(metrics, margins)] == laid


@loop_over(
    ("margin", "message"),
    [
        ("0%", "'0%' is not a share"),
        ("100%", "'100%' is not a share"),
        ("itl=3%", "the gate judges tok/s: name it with --metric too"),
        ("tokk/s=3%", "--margin 'tokk/s': no such figure, did you mean 'tok/s'?"),
        ("tok/s=", "'' is not a share"),
    ],
)
def test_a_margin_that_cannot_be_is_refused(margin: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        lay_margins(parse_gate_metrics(["tok/s"]), [margin])
    assert message in str(refused.value)

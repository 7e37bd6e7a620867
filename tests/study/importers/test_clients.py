"""Clients: each file's figures stand under the key whose definition they meet, or nowhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.report.result_block import LAYOUTS, render_block
from loadgen.study.audit.findings import audit_runs
from loadgen.study.importers import result_sources
from loadgen.study.importers.clients import aiperf_exports, guidellm_reports, vllm_files
from loadgen.study.importers.pasted import pasted_pages
from loadgen.study.run_summary import Reported

RESULTS = Path(__file__).parents[2] / "data" / "results"
VLLM: dict[str, Any] = json.loads((RESULTS / "vllm_bench_serve.json").read_text("utf-8"))
SGLANG: dict[str, Any] = json.loads((RESULTS / "sglang_rust_bench.jsonl").read_text("utf-8"))
AIPERF: dict[str, Any] = json.loads((RESULTS / "aiperf.json").read_text("utf-8"))
GUIDELLM: dict[str, Any] = json.loads((RESULTS / "guidellm.json").read_text("utf-8"))


def only(found: Any) -> Reported:
    (known,) = found
    assert isinstance(known, Reported)
    return known


def vllm(**changes: Any) -> Reported:
    return only(vllm_files.VLLM.read_runs({**VLLM, **changes}, "f"))


def sglang(**changes: Any) -> Reported:
    return only(vllm_files.SGLANG.read_runs({**SGLANG, **changes}, "f"))


def aiperf() -> Reported:
    return only(aiperf_exports.AIPERF.read_runs(AIPERF, "f"))


def guidellm(**changes: Any) -> Reported:
    """What is read of the report whose one benchmark is changed so."""
    return only(guidellm_reports.GUIDELLM.read_runs({**GUIDELLM, "benchmarks": [benchmark(**changes)]}, "f"))


def benchmark(**changes: Any) -> dict[str, Any]:
    return {**GUIDELLM["benchmarks"][0], **changes}


def printed(name: str) -> Reported:
    return only(pasted_pages.read_page((RESULTS / name).read_text("utf-8"), Path(name)))


@pytest.mark.parametrize(
    ("document", "client"),
    [
        (VLLM, vllm_files.VLLM),
        (SGLANG, vllm_files.SGLANG),
        (AIPERF, aiperf_exports.AIPERF),
        (GUIDELLM, guidellm_reports.GUIDELLM),
    ],
)
def test_a_file_is_known_by_what_is_in_it_and_by_one_client_alone(document: Any, client: Any) -> None:
    telling = [one for one in result_sources.CLIENTS if one.is_result(document)]
    assert telling[:1] == [client]
    raw = json.dumps(document).encode()
    assert any(mark in raw for mark in telling[0].marks)
    assert not any(one.is_result({}) for one in result_sources.CLIENTS)


def test_vllms_file_has_the_figures_that_it_printed() -> None:
    known = vllm()
    told = printed("vllm_bench_serve.stdout.txt").figures
    assert {key: round(known.figures[key], 2) for key in told} == told
    assert (known.name, known.engine, known.told_by) == ("qwen3", "vLLM", "vllm")
    assert (known.load.requests, known.load.max_concurrency, known.input_len) == (32, 8, 8193 / 32)
    assert known.load.request_rate_per_s == math.inf
    assert known.remarks == ()


def test_vllms_details_give_the_end_to_end_latency_that_the_file_lacks() -> None:
    each = np.array([ttft + sum(gaps) for ttft, gaps in zip(VLLM["ttfts"], VLLM["itls"], strict=True)]) * 1e3
    figures = vllm().figures
    assert figures["mean_e2el_ms"] == pytest.approx(each.mean(), rel=1e-12)
    assert figures["p99_e2el_ms"] == pytest.approx(np.percentile(each, 99), rel=1e-12)
    whole: dict[str, Any] = {"latencies": [2.0] * 32, "ttfts": [], "itls": []}
    assert vllm(**whole).figures["std_e2el_ms"] == 0
    assert vllm(**whole, mean_e2el_ms=7.0).figures["mean_e2el_ms"] == 7.0
    assert "mean_e2el_ms" not in vllm(latencies=[2.0] * 31 + [0.0]).figures  # of fewer than succeeded


def test_sglangs_line_renders_to_a_block_with_the_lines_that_it_prints() -> None:
    text = (RESULTS / "sglang_rust.stdout.txt").read_text("utf-8")
    block = text[text.index("====") : text.index("\nResult appended")]
    own = sglang()
    rendered = render_block(own.figures, LAYOUTS["sglang"]).splitlines()
    lines = [line for line in block.splitlines() if not line.startswith("Max ITL")]  # the file has no largest
    assert [line[:41] for line in rendered] == [line[:41] for line in lines]
    again = only(pasted_pages.read_page("\n".join(rendered), Path("f")))
    assert again.figures == {
        key: round(value, 2) if isinstance(value, float) else value
        for key, value in own.figures.items()
        if key != "total_input_vision_tokens" and not key.startswith("std_")
    }


def test_sglangs_printed_block_renders_again_byte_for_byte() -> None:
    text = (RESULTS / "sglang_rust.stdout.txt").read_text("utf-8")
    block = text[text.index("====") : text.index("\nResult appended")]
    assert render_block(printed("sglang_rust.stdout.txt").figures, LAYOUTS["sglang"]) == block


def test_aiperfs_duration_is_what_its_rates_are_over() -> None:
    figures = aiperf().figures
    for rate, total in (("request_throughput", "completed"), ("output_throughput", "total_output_tokens")):
        assert figures[rate] * figures["duration"] == pytest.approx(figures[total])


def requests() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = GUIDELLM["benchmarks"][0]["requests"]["successful"]
    return found


def test_guidellms_requests_give_vllms_metrics() -> None:
    figures = guidellm().figures
    ttft = np.array([one["time_to_first_token_ms"] for one in requests()])
    timings = [one["info"]["timings"] for one in requests()]
    e2el = np.array([one["last_token_iteration"] - one["request_start"] for one in timings]) * 1e3
    tpot = (e2el - ttft) / (np.array([one["output_tokens"] for one in requests()]) - 1)
    for key, each in (("ttft", ttft), ("tpot", tpot), ("e2el", e2el)):
        assert figures[f"mean_{key}_ms"] == pytest.approx(each.mean(), rel=1e-6)
        assert figures[f"p99_{key}_ms"] == pytest.approx(np.percentile(each, 99), rel=1e-6)


def test_guidellms_own_tpot_and_its_percentiles_of_gaps_stand_nowhere() -> None:
    figures = guidellm().figures
    theirs = GUIDELLM["benchmarks"][0]["metrics"]["time_per_output_token_ms"]["successful"]["mean"]
    assert theirs > 9
    assert not [key for key, value in figures.items() if value == theirs]
    assert [key for key in figures if key.endswith("_itl_ms")] == ["mean_itl_ms"]


@pytest.mark.parametrize("client", [vllm_files.VLLM, vllm_files.SGLANG, aiperf_exports.AIPERF])
def test_a_file_without_a_figure_is_refused(client: Any) -> None:
    with pytest.raises(UsageError, match="f has no figures"):
        list(client.read_runs({"completed": "x", "duration": None, "mean_e2e_latency_ms": math.nan}, "f"))


COUNTS = {"successful": 10, "errored": 10, "incomplete": 3, "total": 23}
METRICS = {key: each for key, each in GUIDELLM["benchmarks"][0]["metrics"].items() if key != "request_totals"}


@loop_over(
    "places",
    [
        {"metrics": {**METRICS, "request_totals": COUNTS}},
        {"metrics": METRICS, "request_totals": COUNTS},
        {"metrics": METRICS, "run_stats": {"requests_made": COUNTS}},
    ],
)
def test_guidellms_counts_are_found_where_each_version_has_them(places: dict[str, Any]) -> None:
    known = guidellm(scheduler_state={}, **places)
    assert (known.figures["completed"], known.figures["failed"], known.load.requests) == (10, 10, 20)
    assert "mean_tpot_ms" in known.figures  # all its requests are there
    (audited,) = audit_runs([known], None, None)
    assert [each.evidence for each in audited.findings if each.rule.code == "many-failures"] == [
        "10 of 20 requests failed (50 %)"
    ]


@loop_over(
    ("client", "document"),
    [
        (vllm_files.VLLM, {**VLLM, "completed": 16, "failed": 16}),
        (vllm_files.VLLM, {**VLLM, "completed": 16, "failed": 0}),
        (vllm_files.VLLM,
         {**VLLM, "completed": 16, "failed": None, "num_prompts": None, "errors": ["", "timeout"] * 16}),
        (vllm_files.SGLANG, {**SGLANG, "completed": 512, "num_prompts": 1024}),
        (vllm_files.SGLANG, {**SGLANG, "completed": 512, "errors": ["", "timeout"] * 512}),
        (aiperf_exports.AIPERF, {**AIPERF, "error_request_count": {"unit": "requests", "avg": 1024.0}}),
        (aiperf_exports.AIPERF,
         {**AIPERF, "error_summary": [{"error_details": {"code": 500}, "count": 1024}]}),
    ],
)  # fmt: skip
def test_failures_are_found_wherever_a_client_writes_them(client: Any, document: dict[str, Any]) -> None:
    (audited,) = audit_runs([only(client.read_runs(document, "f"))], None, None)
    (failures,) = [each for each in audited.findings if each.rule.code == "many-failures"]
    assert failures.evidence.endswith("requests failed (50 %)")

"""Clients: figures of files and printed tables stand under the key whose definition they meet, or nowhere."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.features.roofline import machines
from loadgen.report.result_block import LAYOUTS, render_block
from loadgen.study.audit.findings import audit_runs
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.importers import result_sources
from loadgen.study.importers.clients import aiperf_exports, guidellm_reports, vllm_files
from loadgen.study.importers.pasted import pasted_pages, pasted_tables
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

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


PRINTED = Path(__file__).parents[2] / "data/printed"
# As 0.2 prints it, whose latency of requests is in seconds under a title of ms.
TWO = (PRINTED / "guidellm_0.2.txt").read_text("utf-8")
# As 0.4 and later do.
THREE = (PRINTED / "guidellm_0.4.txt").read_text("utf-8")


def read_table(text: str) -> list[dict[str, object]]:
    runs = guidellm_reports.read_report(text, Path("x.txt"))
    assert all(run.told_by == guidellm_reports.GUIDELLM.name for run in runs)
    return [
        {"name": run.name, "load": run.load.name, "limit": run.load.max_concurrency,
         "rate": run.load.request_rate_per_s, **run.figures}
        for run in runs
    ]  # fmt: skip


def test_two_reports_are_not_repeats_of_one_another(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text(THREE + "\nwith another router\n" + THREE, "utf-8")
    runs = result_sources.read_sources([str(tmp_path / "x.md")]).reported
    assert [(run.load.name, run.unread["report"]) for run in runs] == [
        ("concurrent, row 1", "1"), ("concurrent, row 2", "1"),
        ("concurrent, row 1", "2"), ("concurrent, row 2", "2"),
    ]  # fmt: skip
    assert len({run.source for run in runs}) == 4


@loop_over("text", [TWO, THREE])
@loop_over("number", ["nan", "inf", "-inf", "1e400", "-1", "9" * 400])
def test_a_number_that_no_measurement_gives_ends_no_reader(text: str, number: str) -> None:
    for runs in (
        read_table(re.sub(r"(?<=\|) *[\d.]+(?=\||\n| +\|)", number, text)),
        read_table(re.sub("@0.69", f"@{number}", text)),
    ):
        assert {run["limit"] for run in runs} <= {1, None}


PAGES = Path(__file__).parent / "pages"
BENCH, BENCHY = ((PAGES / f"{name}.md").read_text("utf-8") for name in ("llama_bench", "llama_benchy"))


def read_page(page: str) -> list[Reported]:
    return pasted_tables.read_tables(page, Path("page.md"))[0]


def test_prefill_and_decoding_of_an_honest_page_are_valid() -> None:
    prefilled, decoded = audit_runs(read_page(BENCHY), machines.find_machine("dgx-spark"), None)
    assert (prefilled.level, decoded.level) == (Level.VALID, Level.VALID)
    assert prefilled.roofline == pytest.approx(0.30, abs=0.01)  # of the arithmetic
    assert decoded.roofline == pytest.approx(0.82, abs=0.01)  # of the memory
    assert [one.unchecked for one in (prefilled, decoded)] == [("relations",)] * 2


def test_prefill_decoding_and_depths_are_never_one_mean() -> None:
    tables_made = compare_runs(read_page(BENCH), ComparisonOptions())
    assert len(tables_made) == 4
    lines = [line.summaries for table in tables_made for line in table.lines]
    speeds = [line.get("prefill_throughput") or line["decode_throughput"] for line in lines]
    assert [speed.mean for speed in speeds] == [3120.44, 45.2, 2710.02, 41.83]


@loop_over(
    ("text", "why"),
    [
        ("request_performance:\n" + "a: 1\n" * 220_000, "has more than 1 MiB of YAML: give it in parts, or"),
        ("request_performance: " + "[" * 9000, "is damaged: maximum recursion depth"),
        ("request_performance:\n  - a: {]", "is not valid YAML: while parsing a flow node"),
        ("request_performance: !!python/object:os.x {}", "could not determine a constructor"),
        ("results:\n  request_performance:\n    aggregate:\n      latency:\n        x: 1\n",
         "has no figures"),
        ("request_performance: 1\n", "has no known results"),
    ],
)  # fmt: skip
def test_a_broken_report_is_one_line(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "br.yaml").write_text(text, "utf-8")
    with pytest.raises(UsageError, match=why) as refused:
        result_sources.read_sources([str(tmp_path / "br.yaml")])
    assert "\n" not in str(refused.value)


def test_without_the_library_of_yaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="is YAML, which needs the compare extra"):
        result_sources.read_sources([str(RESULTS / "llm_d_0.2.1.yaml")])

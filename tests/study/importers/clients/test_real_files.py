"""Real files of other clients: our figures are those that the file itself has, in our units."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.study.importers import json_fields, result_sources
from loadgen.study.importers.clients import http_clients
from loadgen.study.importers.clients.inference_perf import LLM_D
from loadgen.study.run_summary import Reported

RESULTS = Path(__file__).parents[3] / "data" / "results"


def read(name: str) -> tuple[Reported, ...]:
    found = result_sources.read_sources([str(RESULTS / name)])
    assert found.errors == ()
    return found.reported


def test_a_log_that_begins_in_brackets_is_no_json(tmp_path: Path) -> None:
    prefill, decode, deep = read("llama_benchy_0.1.stdout.txt")
    assert (prefill.figures["prefill_throughput"], decode.figures["decode_throughput"]) == (32895.69, 246.31)
    assert (deep.load.name, deep.figures["decode_throughput"]) == ("tg32 @ d512", 400.75)
    block = (RESULTS / "vllm_bench_serve.stdout.txt").read_text("utf-8")
    (tmp_path / "x.log").write_text(f"[2026-11-27 01:14:00] INFO begin\n{block}", "utf-8")
    assert len(result_sources.read_sources([str(tmp_path / "x.log")]).reported) == 1


def test_evalscopes_log_repeats_the_summaries_below_it(tmp_path: Path) -> None:
    load = tmp_path / "20260101_120000" / "Qwen3-0.6B" / "parallel_2_number_10"
    load.mkdir(parents=True)
    for name in ("benchmark_summary.json", "benchmark_percentile.json"):
        shutil.copy(RESULTS / "evalscope_1.0" / name, load)
    shutil.copy(RESULTS / "evalscope_1.0" / "benchmark.log", load.parent)
    (run,) = result_sources.read_sources([str(tmp_path)]).reported
    assert (run.name, run.figures["mean_ttft_ms"], run.figures["output_throughput"]) == (
        "Qwen3-0.6B", pytest.approx(4.1), 792.5025,
    )  # fmt: skip
    (alone, *_) = read("evalscope_1.0/benchmark.log")
    assert alone.figures["output_throughput"] == 792.5


def test_stages_are_read_instead_of_their_summary(tmp_path: Path) -> None:
    stage = (RESULTS / "inference_perf_0.7.json").read_text("utf-8")
    for name in (
        "stage_0_lifecycle_metrics.json",
        "stage_1_lifecycle_metrics.json",
        "summary_lifecycle_metrics.json",
    ):
        (tmp_path / name).write_text(stage, "utf-8")
    (tmp_path / "config.yaml").write_text("server:\n  type: vllm\n  model_name: Qwen/Qwen3-8B-FP8\n", "utf-8")
    found = result_sources.read_sources([str(tmp_path)])
    assert [(run.name, Path(run.source).name[:7]) for run in found.reported] == [
        ("Qwen3-8B-FP8", "stage_0"), ("Qwen3-8B-FP8", "stage_1"),
    ]  # fmt: skip
    alone = result_sources.read_sources([str(tmp_path / "summary_lifecycle_metrics.json")])
    assert len(alone.reported) == 1


_LIST = "llama_bench_0c1e570.json"  # a list, of which whole tests are read
JSONS = [*sorted({path.name for path in RESULTS.glob("*.json")} - {_LIST}), "sglang_rust_bench.jsonl"]


@loop_over("name", JSONS)
def test_a_truncated_file_is_one_line(name: str, tmp_path: Path) -> None:
    raw = (RESULTS / name).read_bytes()
    (tmp_path / name).write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UsageError, match=r"not valid JSON, or cut off") as refused:
        result_sources.read_sources([str(tmp_path / name)])
    assert "\n" not in str(refused.value)


TOO_LARGE = 1e16


def attempt(path: Path) -> tuple[tuple[Reported, ...], tuple[str, ...]]:
    """What is read of a file, and a line on each part that is not."""
    try:
        found = result_sources.read_sources([str(path)])
    except UsageError as error:
        return (), (str(error),)
    return found.reported, found.errors


def changed(value: Any, number: Any) -> Any:
    """A document with another value in place of each number."""
    if isinstance(value, dict):
        return {key: changed(each, number) for key, each in value.items()}
    if isinstance(value, list):
        return [changed(each, number) for each in value]
    return number if isinstance(value, int | float) and not isinstance(value, bool) else value


@loop_over("name", JSONS)
@loop_over("number", [None, "x", [1], {"a": 1}, math.nan, math.inf, -1, 10**30, 1e-300, True])
def test_numbers_that_are_none_give_one_line_or_no_figure(name: str, number: Any, tmp_path: Path) -> None:
    first = next(json_fields.read_documents((RESULTS / name).read_text("utf-8"))).value
    (tmp_path / name).write_text(json.dumps(changed(first, number)), "utf-8")
    reported, errors = attempt(tmp_path / name)
    assert not [line for line in errors if "is damaged" in line or "\n" in line]
    assert all(figure < TOO_LARGE for run in reported for figure in run.held.values())


# As llm-d-benchmark's native_to_br0_1.py writes a run of `vllm bench serve`, with its P25.
V01: dict[str, Any] = {
    "version": "0.1",
    "scenario": {"model": {"name": "Qwen/Qwen3-8B"},
        "load": {"name": "vllm-benchmark", "args": {"max_concurrency": 8, "request_rate": "inf"}}},
    "metrics": {
        "time": {"duration": 10.0},
        "requests": {"total": 100, "input_length": {"units": "count", "mean": 512}},
        "latency": {
            "time_to_first_token": {"units": "ms", "mean": 50.0, "P25": 40.0, "p50": 48.0, "p99p9": 90.0},
            "time_per_output_token": {"units": "ms/token", "mean": 10.0},
            "inter_token_latency": {"units": "ms/token", "mean": 9.5, "p99": 30.0},
            "request_latency": {"units": "fortnights", "mean": 1.0},
        },
        "throughput": {"output_tokens_per_sec": 1280.0, "requests_per_sec": 10.0},
    },
}  # fmt: skip


def llm_d(tool: str) -> Reported:
    load = {**V01["scenario"]["load"], "name": tool}
    document = {**V01, "scenario": {**V01["scenario"], "load": load}}
    assert LLM_D.is_result(document)
    (run,) = LLM_D.read_runs(document, "br.json")
    return run


def test_an_older_report_of_llm_d_is_what_its_tool_measured() -> None:
    run = llm_d("vllm-benchmark")
    assert run.figures == {
        "request_throughput": 10.0, "output_throughput": 1280.0, "completed": 100, "duration": 10.0,
        "total_input_tokens": 51200, "mean_ttft_ms": 50.0, "p25_ttft_ms": 40.0, "median_ttft_ms": 48.0,
        "p99.9_ttft_ms": 90.0, "mean_tpot_ms": 10.0, "mean_itl_ms": 9.5, "p99_itl_ms": 30.0,
    }  # fmt: skip
    assert (run.name, run.load.max_concurrency, run.load.request_rate_per_s) == ("Qwen3-8B", 8, math.inf)


@loop_over(
    ("tool", "tpot", "itl"), [("guidellm", 9.5, None), ("aiperf", 9.5, None), ("inference-perf", 10.0, None)]
)
def test_a_tools_own_words_decide_what_its_latencies_are(tool: str, tpot: float, itl: float | None) -> None:
    figures = llm_d(tool).figures
    assert (figures["mean_tpot_ms"], figures.get("mean_itl_ms")) == (tpot, itl)


def test_a_report_of_ours_comes_back_as_it_was() -> None:
    """As `loadgen export --format llm-d` writes it of the embedded engine."""
    lengths = {way: {"distribution": "fixed", "value": 64} for way in ("input_seq_len", "output_seq_len")}
    latency = {"inter_token_latency": {"units": "s/token", "mean": 0.003}}
    document = {
        "version": "0.2.1",
        "scenario": {
            "stack": [{"standardized": {"kind": "generic", "model": "Qwen/Qwen3-0.6B (simulated)"}}],
            "load": {"standardized": {"tool": "loadgen", "concurrency": 4, **lengths}},
        },
        "results": {"request_performance": {"aggregate": {"requests": {"total": 16}, "latency": latency}}},
    }
    (run,) = LLM_D.read_runs(document, "br.json")
    assert (run.name, run.figures) == ("Qwen3-0.6B", {"mean_itl_ms": 3.0, "completed": 16})
    assert (run.load.max_concurrency, run.load.request_rate_per_s, run.load.asked_output_len) == (
        4,
        math.inf,
        64,
    )
    assert run.simulated
    assert run.remarks[0].startswith("SIMULATED")


# As mlcommons/endpoints' metrics/report.py writes it, with the window of LoadGen.
SUMMARY: dict[str, Any] = {
    "version": "0.1", "git_sha": None, "test_started_at": 0, "n_samples_issued": 12,
    "n_samples_completed": 10, "n_samples_failed": 2, "duration_ns": 4_000_000_000,
    "state": "interrupted", "complete": False,
    "ttft": {
        "total": 10, "min": 4e6, "max": 9e6, "median": 5e6, "avg": 5.5e6, "std_dev": 1e6,
        "percentiles": {"50": 5e6, "90": 8e6, "99": 8.9e6, "99.9": 9e6},
        "histogram": {"buckets": [], "counts": []},
    },
    "tpot": {}, "latency": {}, "output_sequence_lengths": {"total": 1000, "avg": 100.0, "percentiles": {}},
    "legacy_loadgen_window_duration_ns": 3_000_000_000, "qps": 3.0, "tps": 333.3,
    "run_config": {"load_pattern": {"type": "poisson", "target_qps": 2.5}},
}  # fmt: skip


def test_mlperfs_rates_over_its_window_are_computed_again(tmp_path: Path) -> None:
    place = tmp_path / "performance" / "result_summary.json"
    place.parent.mkdir()
    place.write_text(json.dumps(SUMMARY), "utf-8")
    (tmp_path / "config.yaml").write_text(
        "model_params:\n  temperature: 1\n  name: openai/gpt-oss-120b\n", "utf-8"
    )
    (run,) = result_sources.read_sources([str(tmp_path)]).reported
    assert (run.name, run.load.requests, run.load.request_rate_per_s) == ("gpt-oss-120b", 12, 2.5)
    assert (run.figures["request_throughput"], run.figures["output_throughput"]) == (2.5, 250.0)
    assert (run.figures["p99_ttft_ms"], run.figures["p99.9_ttft_ms"]) == (8.9, 9.0)
    assert run.remarks[-1] == "mlperf-endpoints: the run is not complete: interrupted"


# As k6 printed it before 1.0 (published in a public README), with failed requests and a longer run.
OLD_K6 = """
     checks...: 85.09% ✓ 2907     ✗ 509
     http_req_connecting............: avg=70.59µs min=0s med=0s max=1.72ms p(90)=252.55µs p(95)=586.6µs
   ✗ http_req_duration..............: avg=12.56s min=1.07ms med=10.99s max=1m26.3s p(90)=22.11s p(95)=24.45s
       { expected_response:true }...: avg=2.5s min=1.07ms med=2.4s max=3.1s p(90)=3s p(95)=3.05s
   ✓ http_req_failed................: 10.00% ✓ 80       ✗ 720
     http_reqs......................: 800    8/s
     vus_max........................: 100 min=100 max=100
"""


def test_k6_before_its_version_1_is_read_of_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "k6.log").write_text(OLD_K6, "utf-8")
    (run,) = result_sources.read_sources([str(tmp_path)]).reported
    assert run.figures == pytest.approx({
        "completed": 720, "failed": 80, "duration": 100.0, "request_throughput": 7.2, "mean_e2el_ms": 2500.0,
        "min_e2el_ms": 1.07, "median_e2el_ms": 2400.0, "max_e2el_ms": 3100.0, "p90_e2el_ms": 3000.0,
        "p95_e2el_ms": 3050.0,
    })  # fmt: skip
    assert (run.load.max_concurrency, run.load.requests) == (100, 800)
    (tmp_path / "k6.log").write_text(OLD_K6.replace("expected_response", "scenario"), "utf-8")
    (mixed,) = result_sources.read_sources([str(tmp_path)]).reported
    assert "mean_e2el_ms" not in mixed.figures


@loop_over(
    ("text", "time_ms"),
    [("1m26.3s", 86300.0), ("40.7ms", 40.7), ("4.2 secs", 4200.0), ("70.59µs", 0.07059), ("1h", 3.6e6),
     ("", None), ("5", None), ("5 parsecs", None), ("1.2.3s", None), ("x 5s", None)],
)  # fmt: skip
def test_a_printed_time_is_milliseconds(text: str, time_ms: float | None) -> None:
    assert http_clients._parse_ms(text) == (None if time_ms is None else pytest.approx(time_ms))

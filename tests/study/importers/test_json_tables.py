"""Files of evalscope, llama-bench and llama-benchy are read as the tables that these clients print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.features.roofline import machines
from loadgen.study.audit.findings import audit_runs
from loadgen.study.compare import run_groups
from loadgen.study.importers import result_sources
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

# The shape and the figures are those of ggml-org/llama.cpp, tools/llama-bench/README.md.
BENCH: dict[str, Any] = {
    "build_commit": "8cf427ff", "build_number": 5163, "cpu_info": "AMD Ryzen 7 7800X3D 8-Core Processor",
    "gpu_info": "NVIDIA GeForce RTX 4080", "backends": "CUDA",
    "model_filename": "models/Qwen2.5-7B-Instruct-Q4_K_M.gguf", "model_type": "qwen2 7B Q4_K - Medium",
    "model_size": 4677120000, "model_n_params": 7615616512, "n_batch": 2048, "n_ubatch": 512,
    "n_threads": 8, "cpu_mask": "0x0", "cpu_strict": False, "poll": 50, "type_k": "f16", "type_v": "f16",
    "n_gpu_layers": 99, "split_mode": "layer", "main_gpu": 0, "no_kv_offload": False, "flash_attn": False,
    "tensor_split": "0.00", "use_mmap": True, "embeddings": False, "n_prompt": 512, "n_gen": 0,
    "n_depth": 0, "test_time": "2025-04-24T11:58:50Z", "avg_ns": 72135640, "stddev_ns": 1453752,
    "avg_ts": 7100.002165, "stddev_ts": 140.34152,
    "samples_ns": [74601900, 71632900, 71745200], "samples_ts": [6863.1, 7147.55, 7136.37],
}  # fmt: skip
DECODE = {**BENCH, "n_prompt": 0, "n_gen": 128, "avg_ts": 118.881, "samples_ts": [119.03, 120.178]}
TESTS = [
    BENCH,
    DECODE,
    {**BENCH, "n_depth": 4096, "avg_ts": 6000.5},
    {**BENCH, "n_gen": 128, "avg_ts": 640.0},
]
FLAT = {key: value for key, value in BENCH.items() if not isinstance(value, list)}


def written(rows: list[dict[str, Any]], form: str) -> str:
    """The rows as llama-bench's printers write them."""
    if form == "json":
        return json.dumps(rows, indent=2)
    if form == "jsonl":
        return "\n".join(map(json.dumps, rows)) + "\n"
    cells = [[str(row[key]) for key in FLAT] for row in rows]
    if form == "csv":
        return ",".join(FLAT) + "\n" + "".join('"' + '","'.join(row) + '"\n' for row in cells)
    table = "CREATE TABLE IF NOT EXISTS test (\n  build_commit TEXT,\n  avg_ts REAL\n);\n\n"
    head = f"INSERT INTO llama_bench ({', '.join(FLAT)}) VALUES "
    return table + "".join(f"{head}({', '.join(map(repr, row))});\n" for row in cells)


def read(path: Path, content: str) -> tuple[Reported, ...]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, "utf-8")
    found = result_sources.read_sources([str(path)])
    assert found.errors == ()
    return found.reported


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "sql"])
def test_each_row_of_llama_bench_is_what_its_test_measures(form: str, tmp_path: Path) -> None:
    runs = read(tmp_path / f"bench.{form}", written(TESTS, form))
    assert [(run.load.name, run.load.input_len, run.load.output_len) for run in runs] == [
        ("pp512", 512, None), ("tg128", None, 128), ("pp512 @ d4096", 512, None), ("pp512+tg128", 512, 128),
    ]  # fmt: skip
    assert [run.figures for run in runs] == [
        {"prefill_throughput": 7100.002165},
        {"decode_throughput": 118.881, "mean_tpot_ms": 1e3 / 118.881},
        {"prefill_throughput": 6000.5},
        {"total_token_throughput": 640.0, "output_throughput": 128.0},
    ]
    assert {(run.name, run.engine, run.machine, run.told_by) for run in runs} == {
        ("qwen2-7B-Q4_K_M", "llama.cpp CUDA", "NVIDIA GeForce RTX 4080", "llama-bench")
    }
    assert {run.load.max_concurrency for run in runs} == {1}


@pytest.mark.parametrize("form", ["json", "csv"])
def test_settings_of_llama_bench_tell_its_rows_apart_and_samples_do_not(form: str, tmp_path: Path) -> None:
    again = {**DECODE, "avg_ts": 119.5, "samples_ts": [119.0, 120.0], "test_time": "2025-04-25T11:58:50Z"}
    other = {**DECODE, "avg_ts": 59.5, "type_k": "q8_0"}
    runs = read(tmp_path / f"bench.{form}", written([DECODE, again, other], form))
    names = run_groups.name_rows(runs)
    assert names[0] == names[1] != names[2]
    assert names[2].endswith("(type_k q8_0)")


BENCHY: dict[str, Any] = {
    "version": "0.3.0", "timestamp": "2026-01-12 10:00:00", "latency_mode": "generation", "latency_ms": 1.2,
    "model": "Qwen/Qwen3-8B-FP8", "prefix_caching_enabled": False, "max_concurrency": 8,
    "benchmarks": [
        {
            "concurrency": 1, "context_size": 0, "prompt_size": 2048, "response_size": 32,
            "is_context_prefill_phase": False,
            "pp_throughput": {"mean": 5210.15, "std": 40.2, "values": [5170.0, 5250.3]},
            "pp_req_throughput": None,
            "tg_throughput": {"mean": 27.41, "std": 0.1, "values": [27.3, 27.5]},
            "tg_req_throughput": None, "peak_throughput": {"mean": 28.0, "std": 0.0, "values": [28.0]},
            "ttfr": {"mean": 401.1, "std": 3.0, "values": [398.1, 404.1]},
            "est_ppt": {"mean": 393.08, "std": 3.0, "values": [390.0, 396.1]},
            "e2e_ttft": {"mean": 401.3, "std": 3.0, "values": [398.3, 404.3]},
        },
        {
            "concurrency": 8, "context_size": 4096, "prompt_size": 2048, "response_size": 32,
            "is_context_prefill_phase": False, "pp_throughput": None,
            "tg_throughput": {"mean": 160.0, "std": 1.0, "values": [160.0]},
            "tg_req_throughput": {"mean": 22.0, "std": 1.0, "values": [22.0]},
        },
    ],
}  # fmt: skip  # as eugr/llama-benchy, schemas/benchmark_report_schema.json


def test_llama_benchys_report_is_its_prefill_and_its_decoding(tmp_path: Path) -> None:
    prefill, decode, batch = read(tmp_path / "benchy.json", json.dumps(BENCHY))
    assert (prefill.load.name, decode.load.name, batch.load.name) == ("pp2048", "tg32", "tg32 @ d4096 (c8)")
    assert prefill.figures == {
        "prefill_throughput": 5210.15, "mean_prefill_ms": 393.08, "mean_ttft_ms": 401.3,
    }  # fmt: skip
    assert decode.figures == {"decode_throughput": 27.41, "mean_tpot_ms": 1e3 / 27.41}
    assert batch.figures == {"decode_throughput": 160.0, "mean_tpot_ms": 1e3 / 22.0}
    assert (batch.load.max_concurrency, batch.name, batch.told_by) == (8, "Qwen3-8B-FP8", "llama-benchy")
    audited = audit_runs([prefill, decode, batch], machines.find_machine("dgx-spark"), None)
    assert [each.level for each in audited] == [Level.VALID] * 3


# The keys are those of modelscope/evalscope, evalscope/perf/utils/perf_constants.py: of 2026, and before.
NEW = {
    "Test Duration (s)": 28.9, "Concurrency": 5, "Request Rate (req/s)": -1.0, "Total Requests": 100,
    "Success Requests": 100, "Failed Requests": 0, "Req Throughput (req/s)": 3.4602, "Avg Latency (s)": 1.413,
    "Avg Input Tokens": 94.75, "Output Throughput (tok/s)": 514.391, "Total Throughput (tok/s)": 842.24,
    "TTFT (ms)": 41.3, "TPOT (ms)": 9.345, "ITL (ms)": 9.345, "Avg Output Tokens": 148.66,
}  # fmt: skip
OLD = {
    "Time taken for tests (s)": 28.9, "Number of concurrency": 5, "Total requests": 100,
    "Succeed requests": 100, "Failed requests": 0, "Request throughput (req/s)": 3.4602,
    "Average latency (s)": 1.413, "Output token throughput (tok/s)": 514.391,
    "Total token throughput (tok/s)": 842.24, "Average time to first token (s)": 0.0413,
    "Average time per output token (s)": 0.009345, "Average inter-token latency (s)": 0.009345,
    "Average input tokens per request": 94.75, "Average output tokens per request": 148.66,
    "Expected number of requests": 100, "Result DB path": "outputs/20260101_120000/m/benchmark_data.db",
}  # fmt: skip
RANKS = {"10%": (30.0, 9.1, 1.2), "50%": (40.0, 9.3, 1.4), "99%": (90.0, 9.9, 1.9)}
NEW_RANKS = [
    {"Percentiles": rank, "TTFT (ms)": ttft, "TPOT (ms)": tpot, "Latency (s)": latency}
    for rank, (ttft, tpot, latency) in RANKS.items()
]
OLD_RANKS = {
    "Percentiles": [*RANKS],
    "TTFT (s)": [each[0] / 1e3 for each in RANKS.values()],
    "TPOT (s)": [each[1] / 1e3 for each in RANKS.values()],
    "Latency (s)": [each[2] for each in RANKS.values()],
}


@loop_over(("summary", "ranks"), [(NEW, NEW_RANKS), (OLD, OLD_RANKS), (OLD, NEW_RANKS)])
@loop_over("named", [True, False])
def test_evalscopes_summary_has_the_percentiles_next_to_it(
    summary: dict[str, Any], ranks: Any, named: bool, tmp_path: Path
) -> None:
    directory = tmp_path / "20260101_120000" / "Qwen3-8B" / "parallel_5_number_100"
    directory.mkdir(parents=True)
    (directory / "benchmark_percentile.json").write_text(json.dumps(ranks))
    if named:
        (directory / "benchmark_args.json").write_text(json.dumps({"model": "Qwen3-8B", "dataset": "openqa"}))
    (directory / "benchmark_summary.json").write_text(json.dumps(summary))
    (run,) = result_sources.read_sources([str(directory)]).reported
    assert run.figures == pytest.approx({
        "duration": 28.9, "completed": 100, "failed": 0, "request_throughput": 3.4602,
        "output_throughput": 514.391, "total_token_throughput": 842.24,
        "mean_e2el_ms": 1413.0, "mean_ttft_ms": 41.3, "mean_tpot_ms": 9.345, "mean_itl_ms": 9.345,
        "p10_ttft_ms": 30.0, "median_ttft_ms": 40.0, "p99_ttft_ms": 90.0, "p10_tpot_ms": 9.1,
        "median_tpot_ms": 9.3, "p99_tpot_ms": 9.9, "p10_e2el_ms": 1200.0, "median_e2el_ms": 1400.0,
        "p99_e2el_ms": 1900.0,
    })  # fmt: skip
    assert (run.name, run.told_by, run.load.max_concurrency, run.load.requests) == (
        "Qwen3-8B", "evalscope", 5, 100,
    )  # fmt: skip
    assert run.load.request_rate_per_s in (None, float("inf"))
    assert audit_runs([run], None, None)[0].level is Level.VALID


def test_evalscopes_percentiles_alone_are_a_run(tmp_path: Path) -> None:
    (run,) = read(tmp_path / "p.json", json.dumps(NEW_RANKS))
    assert (run.figures["p99_ttft_ms"], run.figures["median_tpot_ms"]) == (90.0, 9.3)


def test_a_row_of_inferencex_has_seconds_and_the_throughput_of_a_gpu(tmp_path: Path) -> None:
    row = {
        "hw": "h200", "conc": 64, "model": "Qwen/Qwen3-8B", "framework": "vllm", "precision": "fp8", "tp": 8,
        "isl": 1024, "osl": 512, "disagg": False, "mean_ttft": 0.412, "p99_ttft": 0.9, "median_tpot": 0.011,
        "std_e2el": 0.25, "median_intvty": 90.9, "tput_per_gpu": 1500.5, "output_tput_per_gpu": 500.25,
    }  # fmt: skip
    path = tmp_path / "agg.json"
    path.write_text(json.dumps([row, {**row, "conc": 1, "disagg": True}]), "utf-8")
    many, one = result_sources.read_sources([str(path)]).reported
    latencies = {"mean_ttft_ms": 412, "p99_ttft_ms": 900, "median_tpot_ms": 11, "std_e2el_ms": 250}
    assert many.figures == {**latencies, "total_token_throughput": 12004, "output_throughput": 4002}
    assert (many.name, many.engine, many.machine) == ("Qwen3-8B-fp8", "vllm", "8 × h200")
    assert (many.load.max_concurrency, many.load.input_len, many.load.output_len) == (64, 1024, 512)
    assert (one.figures, one.load.max_concurrency) == (latencies, 1)

"""Rows that clients write as JSON are rows of a table, with their settings and in their units."""

from __future__ import annotations

import json
from pathlib import Path

from loadgen.study.compare import run_groups
from loadgen.study.importers import result_sources

RESULTS = Path(__file__).parents[2] / "data" / "results"


def test_settings_of_llama_bench_tell_its_rows_apart_and_samples_do_not(tmp_path: Path) -> None:
    (first, *_) = json.loads((RESULTS / "llama_bench_0c1e570.json").read_text("utf-8"))
    again = {**first, "avg_ts": 119.5, "samples_ts": [119.0, 120.0], "test_time": "2025-04-25T11:58:50Z"}
    other = {**first, "avg_ts": 59.5, "type_k": "q8_0"}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps([first, again, other]), "utf-8")
    names = run_groups.name_rows(result_sources.read_sources([str(path)]).reported)
    assert names[0] == names[1] != names[2]
    assert names[2].endswith("(type_k q8_0)")


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

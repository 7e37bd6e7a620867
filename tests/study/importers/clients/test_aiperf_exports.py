"""genai-perf's exports, JSON of its versions and CSV: model, load, and figures by their definitions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from builders.loops import loop_over
from loadgen.study.importers import result_sources
from loadgen.study.run_summary import Reported


def statistic(unit: str, value: float) -> dict[str, Any]:
    return {"unit": unit, "avg": value, "p50": value, "p99": 1.1 * value, "max": 1.2 * value, "std": 1.0}


def export(speed: float, ttft_ms: float, **config: Any) -> dict[str, Any]:
    return {
        "request_throughput": {"unit": "requests/sec", "avg": speed / 190},
        "request_count": {"unit": "count", "avg": 100.0}, "request_latency": statistic("ms", ttft_ms + 1890),
        "time_to_first_token": statistic("ms", ttft_ms), "inter_token_latency": statistic("ms", 10.0),
        "output_token_throughput": {"unit": "tokens/sec", "avg": speed},
        "output_sequence_length": {"unit": "tokens", "avg": 190.0},
        "input_sequence_length": {"unit": "tokens", "avg": 550.0}, "input_config": config,
    }  # fmt: skip


FLAT: dict[str, Any] = {
    "model": ["org/model-8b"], "service_kind": "openai", "request_rate": None, "num_prompts": 100,
    "output_tokens_mean": 190, "synthetic_input_tokens_mean": 550, "u": "localhost:8000",
}  # fmt: skip
NESTED: dict[str, Any] = {
    "model_names": ["org/model-8b"],
    "input": {"synthetic_tokens": {"mean": 550, "stddev": 0}, "output_tokens": {"mean": 190, "stddev": 0}},
    "endpoint": {"backend": "vllm", "url": "localhost:8000"},
}


def read(path: Path, document: dict[str, Any]) -> Reported:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), "utf-8")
    (run,) = result_sources.read_sources([str(path)]).reported
    return run


@loop_over(
    ("config", "limit", "rate"),
    [
        ({**FLAT, "concurrency": 64}, 64, math.inf),
        ({**FLAT, "concurrency": [64]}, 64, math.inf),
        ({**FLAT, "perf_analyzer": {"stimulus": {"concurrency": 64}}}, 64, math.inf),
        ({**FLAT, "model": "org/model-8b", "concurrency": 64}, 64, math.inf),
        ({**FLAT, "request_rate": 4.0}, None, 4.0),
        ({**NESTED, "perf_analyzer": {"stimulus": {"concurrency": 64}}}, 64, math.inf),
        ({**NESTED, "perf_analyzer": {"stimulus": {"request_rate": 4.0}}}, None, 4.0),
    ],
)
def test_model_and_load_are_those_of_its_configuration(
    tmp_path: Path, config: dict[str, Any], limit: int | None, rate: float
) -> None:
    run = read(tmp_path / "x.json", export(5800.0, 140.0, **config))
    assert (run.name, run.told_by) == ("model-8b", "genai-perf")
    assert (run.load.max_concurrency, run.load.request_rate_per_s) == (limit, rate)
    assert (run.load.asked_input_len, run.load.asked_output_len) == (550, 190)
    keys = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "completed")
    assert [run.figures[key] for key in keys] == [5800.0, 140.0, 10.0, 2030.0, 100]
    assert [remark.partition(":")[0] for remark in run.remarks] == ["genai-perf"]


def test_lengths_that_were_drawn_are_the_counted_ones(tmp_path: Path) -> None:
    config = {**FLAT, "concurrency": 1, "synthetic_input_tokens_stddev": 30}
    run = read(tmp_path / "x.json", export(96.0, 90.0, **config))
    assert (run.load.asked_input_len, run.load.input_len) == (None, 550.0)


SHEET = """Metric,avg,min,max,p99,p95,p90,p75,p50,p25
Time To First Token (ms),"1,146.31",249.48,"3,485.23","3,457.97","3,349.56","3,215.06","1,330.93",640.07,286
Request Latency (ms),"6,406.20","5,371.47","9,608.72","9,436.13","9,046.58","9,028.16","6,549.60",5.1,5.0
Inter Token Latency (ms),30.35,27.59,35.60,35.23,33.88,32.53,31.05,30.13,29.04
Output Sequence Length (tokens),174.45,164.00,187.00,186.22,183.10,180.10,177.00,174.00,171.75
Input Sequence Length (tokens),"3,000.05","2,999.00","3,001.00","3,001.00","3,001.00",3000,3000,3000,3000

Metric,Value
Output Token Throughput (per sec),261.25
Request Throughput (per sec),1.50
Request Count (count),40.00
"""


def test_a_sheet_is_read_with_the_load_of_its_directory(tmp_path: Path) -> None:
    place = tmp_path / "llama-8b-openai-chat-concurrency16"
    place.mkdir()
    (place / "profile_export_genai_perf.csv").write_text(SHEET, "utf-8")
    (run,) = result_sources.read_sources([str(tmp_path)]).reported
    assert (run.name, run.told_by, run.load.max_concurrency) == ("llama-8b", "genai-perf", 16)
    keys = ("output_throughput", "request_throughput", "completed", "mean_ttft_ms", "p99_tpot_ms")
    assert [run.figures[key] for key in keys] == [261.25, 1.5, 40, 1146.31, 35.23]
    read(place / "profile_export_genai_perf.json", export(261.25, 1146.31, **FLAT, concurrency=16))
    (run,) = result_sources.read_sources([str(tmp_path)]).reported
    assert (run.name, run.source) == ("model-8b", str(place / "profile_export_genai_perf.json"))


def test_a_sheet_of_aiperf_is_aiperf_s(tmp_path: Path) -> None:
    path = tmp_path / "profile_export_aiperf.csv"
    path.write_text(SHEET.replace("(per sec)", "(tokens/sec)"), "utf-8")
    (run,) = result_sources.read_sources([str(path)]).reported
    assert run.told_by == "aiperf"
    assert [remark.partition(":")[0] for remark in run.remarks] == ["aiperf"]

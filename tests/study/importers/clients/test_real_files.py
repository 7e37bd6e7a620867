"""Real files of other clients: our figures are those that the file itself has, in our units."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from builders.read_results import read_cases
from loadgen.base.errors import UsageError
from loadgen.study.importers import json_fields, result_sources
from loadgen.study.importers.clients import http_clients
from loadgen.study.run_summary import Reported

RESULTS = Path(__file__).parents[3] / "data" / "results"
CASES = {name.partition(": ")[2]: content for name, content in read_cases().items() if "clients.txt" in name}


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


def test_mlperfs_rates_over_its_window_are_computed_again(tmp_path: Path) -> None:
    place = tmp_path / "performance" / "result_summary.json"
    place.parent.mkdir()
    place.write_text(CASES["mlperf.json"], "utf-8")
    (tmp_path / "config.yaml").write_text(
        "model_params:\n  temperature: 1\n  name: openai/gpt-oss-120b\n", "utf-8"
    )
    (run,) = result_sources.read_sources([str(tmp_path)]).reported
    assert (run.name, run.load.requests, run.load.request_rate_per_s) == ("gpt-oss-120b", 12, 2.5)
    assert (run.figures["request_throughput"], run.figures["output_throughput"]) == (2.5, 250.0)
    assert (run.figures["p99_ttft_ms"], run.figures["p99.9_ttft_ms"]) == (8.9, 9.0)
    assert run.remarks[-1] == "mlperf-endpoints: the run is not complete: interrupted"


@loop_over(
    ("text", "time_ms"),
    [("1m26.3s", 86300.0), ("40.7ms", 40.7), ("4.2 secs", 4200.0), ("70.59µs", 0.07059), ("1h", 3.6e6),
     ("", None), ("5", None), ("5 parsecs", None), ("1.2.3s", None), ("x 5s", None)],
)  # fmt: skip
def test_a_printed_time_is_milliseconds(text: str, time_ms: float | None) -> None:
    assert http_clients._parse_ms(text) == (None if time_ms is None else pytest.approx(time_ms))


def test_a_sheet_is_read_with_the_load_of_its_directory(tmp_path: Path) -> None:
    place = tmp_path / "llama-8b-openai-chat-concurrency16"
    place.mkdir()
    (place / "profile_export_genai_perf.csv").write_text(CASES["genai-perf.csv"], "utf-8")
    (run,) = result_sources.read_sources([str(tmp_path)]).reported
    assert (run.name, run.told_by, run.load.max_concurrency) == ("llama-8b", "genai-perf", 16)
    keys = ("output_throughput", "request_throughput", "completed", "mean_ttft_ms", "p99_tpot_ms")
    assert [run.figures[key] for key in keys] == [261.25, 1.5, 40, 1146.31, 35.23]
    (place / "profile_export_genai_perf.json").write_text(CASES["genai-perf 2.json"], "utf-8")
    (run,) = result_sources.read_sources([str(tmp_path)]).reported
    assert (run.name, run.source) == ("model-8b", str(place / "profile_export_genai_perf.json"))

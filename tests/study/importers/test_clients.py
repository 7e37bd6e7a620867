"""Clients: what a file has stands under the key of the same meaning, and what it lacks ends no reader."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from builders.read_results import list_files, read_cases, read_file, read_stored
from loadgen.base.errors import UsageError
from loadgen.report.result_block import LAYOUTS, render_block
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.importers import json_fields
from loadgen.study.importers.clients import aiperf_exports, guidellm_reports, vllm_files
from loadgen.study.importers.pasted import pasted_pages, pasted_tables
from loadgen.study.importers.result_sources import read_sources
from loadgen.study.run_summary import Reported

TABLES = read_tables("printed_blocks")
DATA = Path(__file__).parents[2] / "data"
RESULTS = DATA / "results"
CASES = {name.partition(": ")[2]: content for name, content in read_cases().items() if "clients.txt" in name}
_LIST = "llama_bench_0c1e570.json"  # a list, of which whole tests are read
JSONS = [*sorted({path.name for path in RESULTS.glob("*.json")} - {_LIST}), "sglang_rust_bench.jsonl"]


def read(place: Path) -> tuple[Reported, ...]:
    return read_sources([str(place)]).reported


@pytest.mark.parametrize("client", [vllm_files.VLLM, vllm_files.SGLANG, aiperf_exports.AIPERF])
def test_a_file_without_a_figure_is_refused(client: Any) -> None:
    with pytest.raises(UsageError, match="f has no figures"):
        list(client.read_runs({"completed": "x", "duration": None, "mean_e2e_latency_ms": math.nan}, "f"))
    assert not client.is_result({})


def test_latencies_computed_of_requests_are_what_their_client_means() -> None:
    """vLLM's E2EL of its details; vLLM's metrics of guidellm's requests, and not its own TPOT."""
    vllm = json.loads((RESULTS / "vllm_bench_serve.json").read_text("utf-8"))
    sums = np.array([ttft + sum(gaps) for ttft, gaps in zip(vllm["ttfts"], vllm["itls"], strict=True)]) * 1e3
    (benchmark,) = json.loads((RESULTS / "guidellm.json").read_text("utf-8"))["benchmarks"]
    requests = benchmark["requests"]["successful"]
    ttft = np.array([one["time_to_first_token_ms"] for one in requests])
    timings = [one["info"]["timings"] for one in requests]
    e2el = np.array([one["last_token_iteration"] - one["request_start"] for one in timings]) * 1e3
    tpot = (e2el - ttft) / (np.array([one["output_tokens"] for one in requests]) - 1)
    for name, key, each in (
        ("vllm_bench_serve", "e2el", sums), ("guidellm", "ttft", ttft), ("guidellm", "tpot", tpot),
        ("guidellm", "e2el", e2el),
    ):  # fmt: skip
        (run,) = read(RESULTS / f"{name}.json")
        assert run.figures[f"mean_{key}_ms"] == pytest.approx(each.mean(), rel=1e-6)
        assert run.figures[f"p99_{key}_ms"] == pytest.approx(np.percentile(each, 99), rel=1e-6)


def test_sglangs_printed_block_renders_again_byte_for_byte() -> None:
    text = (RESULTS / "sglang_rust.stdout.txt").read_text("utf-8")
    block = text[text.index("====") : text.index("\nResult appended")]
    (run,) = read(RESULTS / "sglang_rust.stdout.txt")
    assert render_block(run.figures, LAYOUTS["sglang"]) == block


THOR = (DATA / "published" / "jetson_thor_serving.md").read_text("utf-8")
BLOCK = THOR[THOR.index("====") : THOR.index("```\n\n- low")]


@loop_over(("around", "changes"), TABLES["around"])
def test_what_surrounds_a_block_does_not_matter(around: str, changes: list[Any]) -> None:
    changed = BLOCK
    for pattern, text in changes:
        changed = re.sub(pattern, text, changed)
    assert changed != BLOCK
    if around == "lower case":
        changed = changed.lower().replace("serving", "Serving")
    (known,), (plain,) = (pasted_pages.read_page(text, Path("page.md")) for text in (changed, BLOCK))
    assert (known.figures, known.remarks) == (plain.figures, ())


# As 0.2 prints it, whose latency of requests is in seconds under a title of ms, and as 0.4 and later do.
TWO, THREE = ((DATA / "printed" / f"guidellm_{name}.txt").read_text("utf-8") for name in ("0.2", "0.4"))


def test_two_reports_are_not_repeats_of_one_another(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text(THREE + "\nwith another router\n" + THREE, "utf-8")
    runs = read(tmp_path / "x.md")
    assert [(run.load.name, run.unread["report"]) for run in runs] == [
        ("concurrent, row 1", "1"), ("concurrent, row 2", "1"),
        ("concurrent, row 1", "2"), ("concurrent, row 2", "2"),
    ]  # fmt: skip
    assert len({run.source for run in runs}) == 4


@loop_over("text", [TWO, THREE])
@loop_over("number", ["nan", "inf", "-inf", "1e400", "-1", "9" * 400])
def test_a_number_that_no_measurement_gives_ends_no_reader(text: str, number: str) -> None:
    for changed in (
        re.sub(r"(?<=\|) *[\d.]+(?=\||\n| +\|)", number, text), re.sub("@0.69", f"@{number}", text),
    ):  # fmt: skip
        runs = guidellm_reports.read_report(changed, Path("x.txt"))
        assert {run.load.max_concurrency for run in runs} <= {1, None}


def test_prefill_decoding_and_depths_are_never_one_mean() -> None:
    page = (Path(__file__).parent / "pages" / "llama_bench.md").read_text("utf-8")
    tables_made = compare_runs(pasted_tables.read_tables(page, Path("page.md"))[0], ComparisonOptions())
    assert len(tables_made) == 4
    lines = [line.summaries for table in tables_made for line in table.lines]
    speeds = [line.get("prefill_throughput") or line["decode_throughput"] for line in lines]
    assert [speed.mean for speed in speeds] == [3120.44, 45.2, 2710.02, 41.83]


STAGE = (RESULTS / "inference_perf_0.7.json").read_text("utf-8")
SHEET = "llama-8b-openai-chat-concurrency16/profile_export_genai_perf"
EVALSCOPE = "20260101_120000/Qwen3-0.6B"


@loop_over_named(
    ("files", "runs"),
    {
        # Each file's place with what it has; each run's name, file, requests at a time or in all, one figure.
        "stages instead of their summary": (
            {
                **{f"{name}_lifecycle_metrics.json": STAGE for name in ("stage_0", "stage_1", "summary")},
                "config.yaml": "server:\n  type: vllm\n  model_name: Qwen/Qwen3-8B-FP8\n",
            },
            [("Qwen3-8B-FP8", f"stage_{at}_lifecycle_metrics.json", None, "completed", None)
             for at in (0, 1)],
        ),
        "a summary alone": (
            {"summary_lifecycle_metrics.json": STAGE},
            [("row1", "summary_lifecycle_metrics.json", None, "completed", None)],
        ),
        "mlperf with its configuration": (
            {
                "performance/result_summary.json": CASES["mlperf.json"],
                "config.yaml": "model_params:\n  temperature: 1\n  name: openai/gpt-oss-120b\n",
            },
            [("gpt-oss-120b", "result_summary.json", None, "request_throughput", 2.5)],
        ),
        "a sheet's load by its folder": (
            {f"{SHEET}.csv": CASES["genai-perf.csv"]},
            [("llama-8b", "profile_export_genai_perf.csv", 16, "output_throughput", 261.25)],
        ),
        "a document instead of its sheet": (
            {f"{SHEET}.csv": CASES["genai-perf.csv"], f"{SHEET}.json": CASES["genai-perf 2.json"]},
            [("model-8b", "profile_export_genai_perf.json", 64, "completed", 100)],
        ),
    },
)  # fmt: skip
def test_files_of_one_directory_are_read_together(
    files: dict[str, str], runs: list[Any], tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, "utf-8")
    assert [
        (run.name, Path(run.source).name, run.load.max_concurrency, key, value and run.figures[key])
        for run, (*_, key, value) in zip(read(tmp_path), runs, strict=True)
    ] == runs


def test_evalscopes_log_repeats_the_summaries_below_it(tmp_path: Path) -> None:
    load = tmp_path / EVALSCOPE / "parallel_2_number_10"
    load.mkdir(parents=True)
    for name in ("benchmark_summary.json", "benchmark_percentile.json"):
        shutil.copy(RESULTS / "evalscope_1.0" / name, load)
    shutil.copy(RESULTS / "evalscope_1.0" / "benchmark.log", load.parent)
    (run,) = read(tmp_path)
    assert (run.name, run.figures["output_throughput"]) == ("Qwen3-0.6B", 792.5025)
    assert run.figures["mean_ttft_ms"] == pytest.approx(4.1)


@loop_over("name", JSONS)
def test_a_truncated_file_is_one_line(name: str, tmp_path: Path) -> None:
    raw = (RESULTS / name).read_bytes()
    (tmp_path / name).write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UsageError, match=r"not valid JSON, or cut off") as refused:
        read(tmp_path / name)
    assert "\n" not in str(refused.value)


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
    reported: tuple[Reported, ...] = ()
    try:
        found = read_sources([str(tmp_path / name)])
        reported, errors = found.reported, found.errors
    except UsageError as error:
        errors = (str(error),)
    assert not [line for line in errors if "is damaged" in line or "\n" in line]
    assert all(figure < 1e16 for run in reported for figure in run.held.values())


def test_yaml_is_read_with_its_library_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, why in (("a: 1\n" * 220_000, "has more than 1 MiB of YAML"), ("[" * 9000, "is damaged")):
        (tmp_path / "br.yaml").write_text(f"request_performance:\n {content}", "utf-8")
        with pytest.raises(UsageError, match=why) as refused:
            read(tmp_path / "br.yaml")
        assert "\n" not in str(refused.value)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="is YAML, which needs the compare extra"):
        read(RESULTS / "llm_d_0.2.1.yaml")


def near(value: Any) -> Any:
    """The value, in which numbers may differ as another processor computes them."""
    if isinstance(value, dict):
        return {key: near(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [near(inner) for inner in value]
    return pytest.approx(value, rel=1e-9, nan_ok=True) if isinstance(value, float) else value


def test_every_file_is_stored() -> None:
    assert [*read_stored()] == list_files()


@loop_over(("name", "stored"), read_stored().items())
def test_a_file_is_read_as_it_is_stored(name: str, stored: list[Any]) -> None:
    assert read_file(name) == near(stored)

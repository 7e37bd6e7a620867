"""Rows of prefill and of decoding are two things: llama-bench's tests, and columns that name the phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from builders.required import require
from loadgen.features.roofline import machines
from loadgen.study.audit.findings import audit_runs
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.importers.pasted import csv_tables, pasted_tables, row_figures
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

BENCH = """# Qwen3-8B Q4_K_M

| model                  |     size |  params | backend | ngl |           test |             t/s |
| ---------------------- | -------: | ------: | ------- | --: | -------------: | --------------: |
| qwen3 8B Q4_K - Medium | 4.68 GiB |  8.19 B | CUDA    |  99 |         pp2048 | 3120.44 ± 12.10 |
| qwen3 8B Q4_K - Medium | 4.68 GiB |  8.19 B | CUDA    |  99 |           tg32 |    45.20 ± 0.11 |
| qwen3 8B Q4_K - Medium | 4.68 GiB |  8.19 B | CUDA    |  99 | pp2048 @ d4096 |  2710.02 ± 8.40 |
| qwen3 8B Q4_K - Medium | 4.68 GiB |  8.19 B | CUDA    |  99 |   tg32 @ d4096 |    41.83 ± 0.09 |
"""
BENCHY = """## Qwen3-8B-FP8

| model | test | t/s | peak t/s | ttfr (ms) | est_ppt (ms) | e2e_ttft (ms) |
|:------|-----:|----:|---------:|----------:|-------------:|--------------:|
| Qwen/Qwen3-8B-FP8 | pp2048 | 5210.15 ± 40.20 | | 401.10 ± 3.00 | 393.08 ± 3.00 | 401.30 ± 3.00 |
| Qwen/Qwen3-8B-FP8 | tg32 | 27.41 ± 0.10 | 28.00 ± 0.00 | | | |
"""
SHARED = """## Qwen3-8B-FP8

| test | t/s (total) | t/s (req) | TTFT (ms) |
|:-----|------------:|----------:|----------:|
| pp2048 (c10) | 7822.13 | 1372.97 | 2048.47 |
| tg128 (c10) | 221.00 | 25.00 | — |
| ctx_pp @ d8192 (c1) | 7611.59 | 7611.59 | 1078.66 |
"""
EDGE = """# TensorRT Edge-LLM on Jetson AGX Thor

|Model|Precision|Batch|Prefill (ms)|Prefill Tokens|Prefill (tok/s)|Generation (tok/s)|GPU Mem (MB)|
|---|---|---|---|---|---|---|---|
| Qwen3-1.7B | NVFP4 | 1 | 14.1 | 370 | 26,240 | 170.0 | 1,400 |
| Qwen3-1.7B | NVFP4 | 8 | 151.0 | 2,960 | 19,600 | 800.0 | 1,500 |
| Qwen3-30B-A3B | INT4 GPTQ | 1 | 126.0 | 370 | 2,936 | 80.0 | 16,000 |
"""


def read(page: str) -> list[Reported]:
    return pasted_tables.read_tables(page, Path("page.md"))[0]


def figures(run: Reported) -> dict[str, Any]:
    return {key: round(value, 2) for key, value in run.figures.items()}


@loop_over("name", ["", "speed", "pp512 tg128", "pp+", "+tg32", "@ d4096", "(c4)", "gsm8k"])
def test_another_name_is_none(name: str) -> None:
    assert row_figures.parse_test(name) is None


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        (BENCH, [
            ("pp2048", 2048, None, {"prefill_throughput": 3120.44}),
            ("tg32", None, 32, {"decode_throughput": 45.2, "mean_tpot_ms": 22.12}),
            ("pp2048 @ d4096", 2048, None, {"prefill_throughput": 2710.02}),
            ("tg32 @ d4096", 4096, 32, {"decode_throughput": 41.83, "mean_tpot_ms": 23.91}),
        ]),
        (BENCHY, [
            ("pp2048", 2048, None,
             {"prefill_throughput": 5210.15, "mean_prefill_ms": 393.08, "mean_ttft_ms": 401.3}),
            ("tg32", None, 32,
             {"decode_throughput": 27.41, "mean_tpot_ms": 36.48, "max_output_tokens_per_s": 28.0}),
        ]),
        (SHARED, [
            ("pp2048 (c10)", 2048, None,
             {"prefill_throughput": 7822.13, "mean_prefill_speed": 1372.97, "mean_ttft_ms": 2048.47}),
            ("tg128 (c10)", None, 128, {"decode_throughput": 221.0, "mean_tpot_ms": 40.0}),
            ("ctx_pp @ d8192 (c1)", 8192, None,
             {"prefill_throughput": 7611.59, "mean_prefill_speed": 7611.59, "mean_ttft_ms": 1078.66}),
        ]),
    ],
)  # fmt: skip
def test_each_test_has_the_figures_of_what_it_measures(page: str, rows: list[tuple[Any, ...]]) -> None:
    runs = read(page)
    assert [(run.load.name, run.load.input_len, run.load.output_len, figures(run)) for run in runs] == rows


def test_llama_benchs_backend_and_type_are_named_as_llama_cpp_does() -> None:
    (first, *_) = read(BENCH)
    assert (first.name, first.engine, first.load.max_concurrency) == ("qwen3-8B-Q4_K_M", "llama.cpp CUDA", 1)


def test_prefill_and_decoding_of_an_honest_page_are_valid() -> None:
    prefilled, decoded = audit_runs(read(BENCHY), machines.find_machine("dgx-spark"), None)
    assert (prefilled.level, decoded.level) == (Level.VALID, Level.VALID)
    assert prefilled.roofline == pytest.approx(0.30, abs=0.01)  # of the arithmetic
    assert decoded.roofline == pytest.approx(0.82, abs=0.01)  # of the memory
    assert [one.unchecked for one in (prefilled, decoded)] == [("relations",)] * 2


def test_prefill_faster_than_the_machine_computes_is_suspect() -> None:
    faster = read(BENCHY.replace("5210.15", "52101.50"))
    (first, *_) = audit_runs(faster, machines.find_machine("dgx-spark"), None)
    assert (first.level, first.findings[0].rule.code) == (Level.SUSPECT, "beyond-peak")


def test_prefill_decoding_and_depths_are_never_one_mean() -> None:
    tables_made = compare_runs(read(BENCH), ComparisonOptions())
    assert len(tables_made) == 4
    lines = [line.summaries for table in tables_made for line in table.lines]
    speeds = [line.get("prefill_throughput") or line["decode_throughput"] for line in lines]
    assert [speed.mean for speed in speeds] == [3120.44, 45.2, 2710.02, 41.83]


def test_nvidias_table_of_edge_llm_is_read_and_valid() -> None:
    one, eight, mixture = audit_runs(read(EDGE), machines.find_machine("jetson-thor"), None)
    assert [figures(each.reported) for each in (one, eight)] == [
        {
            "mean_prefill_ms": 14.1, "mean_ttft_ms": 14.1, "prefill_throughput": 26240,
            "decode_throughput": 170.0, "mean_tpot_ms": 5.88,
        },
        {
            "mean_prefill_ms": 151.0, "mean_ttft_ms": 151.0, "prefill_throughput": 19600,
            "decode_throughput": 800.0, "mean_tpot_ms": 10.0,
        },
    ]  # fmt: skip
    assert [each.reported.load.input_len for each in (one, eight, mixture)] == [370, 370, 370]
    assert [each.level for each in (one, eight, mixture)] == [Level.VALID] * 3
    assert (one.reported.name, one.reported.memory_bytes) == ("Qwen3-1.7B-NVFP4", 1400 << 20)
    assert require(one.ceiling).weight_bytes() == pytest.approx(1.42e9, rel=0.02)  # the head in 16 bits
    assert mixture.ceiling is not None


@pytest.mark.parametrize("batch", [1, 8])
def test_a_decoding_speed_of_a_batch_is_of_no_single_request(batch: int) -> None:
    page = f"| Model | Batch | Decode (tok/s) |\n|---|---|---|\n| Qwen3-1.7B-NVFP4 | {batch} | 160 |\n"
    (run,) = read(page)
    assert run.figures == ({"mean_tpot_ms": 6.25} if batch == 1 else {"decode_throughput": 160})


def test_a_table_of_comma_separated_values_has_tests_too() -> None:
    sheet = "model,test,t/s\nQwen3-8B-FP8,pp2048,5210.15\nQwen3-8B-FP8,tg32,25\n"
    first, second = csv_tables.read_csv_table(sheet, Path("bench.csv"))[0]
    assert (first.load.name, first.figures) == ("pp2048", {"prefill_throughput": 5210.15})
    assert second.figures == {"decode_throughput": 25, "mean_tpot_ms": 40.0}

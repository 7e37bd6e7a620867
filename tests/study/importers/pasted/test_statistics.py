"""Statistics in tables: a mean, a percentile or a count of a run is a figure of it, and no run of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.study.audit.findings import audit_runs
from loadgen.study.compare import run_groups
from loadgen.study.importers import result_sources
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

HEAD = "### Qwen3-8B\n\n"
SPEEDS = "|---|---|---|\n"
# By their form: a page, and of each run that it has the load and some figures.
PAGES: dict[str, tuple[str, list[tuple[str, dict[str, Any]]]]] = {
    "a column of statistics first": (
        f"{HEAD}| Stat | Concurrency | TTFT (ms) |\n{SPEEDS}| mean | 8 | 80 |\n| p99 | 8 | 120 |\n"
        "| mean | 64 | 180 |\n| p99 | 64 | 920 |\n",
        [
            ("8 at a time", {"mean_ttft_ms": 80, "p99_ttft_ms": 120}),
            ("64 at a time", {"mean_ttft_ms": 180, "p99_ttft_ms": 920}),
        ],
    ),
    "a count below them": (
        f"{HEAD}| Statistic | TTFT (ms) | TPOT (ms) |\n{SPEEDS}| Mean | 80 | 11.9 |\n| Std | 5 | 0.2 |\n"
        "| Count | 100 | 100 |\n",
        [("", {"mean_ttft_ms": 80, "std_ttft_ms": 5, "mean_tpot_ms": 11.9})],
    ),
    "runs, then their mean": (
        f"{HEAD}| Run | TTFT (ms) | Output tok/s |\n{SPEEDS}| 1 | 80 | 640 |\n| 2 | 82 | 632 |\n"
        "| Mean | 81 | 636 |\n| Std | 1.4 | 5.7 |\n",
        [("", {"mean_ttft_ms": 80, "output_throughput": 640}), ("", {"mean_ttft_ms": 82})],
    ),
    "runs as columns, then their mean": (
        f"{HEAD}| Metric | Run 1 | Run 2 | Mean | Std |\n|---|---|---|---|---|\n"
        "| TTFT (ms) | 80 | 82 | 81 | 1.4 |\n| Output tok/s | 640 | 632 | 636 | 5.7 |\n",
        [("", {"mean_ttft_ms": 80, "output_throughput": 640}), ("", {"mean_ttft_ms": 82})],
    ),
    "loads, then their mean": (
        f"{HEAD}| Concurrency | TTFT (ms) | Output tok/s |\n{SPEEDS}| 1 | 80 | 100 |\n| 8 | 82 | 632 |\n"
        "| Average | 81 | 366 |\n",
        [("1 at a time", {"mean_ttft_ms": 80}), ("8 at a time", {"mean_ttft_ms": 82})],
    ),
    "in Chinese": (
        f"{HEAD}| 指标 | 平均值 | 中位数 | 标准差 |\n|---|---|---|---|\n| 首token延迟 (ms) | 80 | 79 | 4 |\n"
        "| 吞吐量 (tokens/s) | 640 | - | - |\n",
        [("", {"mean_ttft_ms": 80, "median_ttft_ms": 79, "std_ttft_ms": 4, "output_throughput": 640})],
    ),
    "levels of a load": (
        f"{HEAD}| Load | TTFT (ms) | Output tok/s |\n{SPEEDS}| min | 80 | 100 |\n| max | 82 | 632 |\n",
        [("min", {"mean_ttft_ms": 80}), ("max", {"mean_ttft_ms": 82})],
    ),
}  # fmt: skip


def read(directory: Path, page: str, name: str = "page.md") -> tuple[tuple[Reported, ...], tuple[str, ...]]:
    """Return the runs of a page, and what was said of it."""
    path = directory / name
    path.write_text(page, "utf-8")
    sources = result_sources.read_sources([str(path)])
    return sources.reported, sources.errors


@pytest.mark.parametrize("form", PAGES)
def test_statistics_are_figures_of_the_run_that_they_are_of(form: str, tmp_path: Path) -> None:
    page, expected = PAGES[form]
    runs, _ = read(tmp_path, page)
    found = [
        (run.load.name, {key: run.figures.get(key) for key in figures})
        for run, (_, figures) in zip(runs, expected, strict=True)
    ]
    assert found == expected


def test_statistics_of_other_rows_are_left_out_and_named(tmp_path: Path) -> None:
    runs, errors = read(tmp_path, PAGES["runs, then their mean"][0])
    assert len({*run_groups.name_rows(runs)}) == 1
    assert [error.partition(": ")[2] for error in errors] == [
        "line 7, line 8: statistics of other runs, left out"
    ]
    runs, errors = read(tmp_path, PAGES["runs as columns, then their mean"][0])
    assert len({*run_groups.name_rows(runs)}) == 1
    assert [error.partition(": ")[2] for error in errors] == [
        "'Mean', 'Std': statistics of other runs, left out"
    ]


def test_a_sheet_s_statistics_are_of_one_run(tmp_path: Path) -> None:
    sheet = "model,stat,ttft_ms,tpot_ms,output_throughput\nm-8b,mean,80,11.9,640\nm-8b,p99,120,12.4,\n"
    ((run,), _) = read(tmp_path, sheet, "sheet.csv")
    assert run.figures == {
        "mean_ttft_ms": 80, "p99_ttft_ms": 120, "mean_tpot_ms": 11.9, "p99_tpot_ms": 12.4,
        "output_throughput": 640,
    }  # fmt: skip


def test_shares_of_cached_prompts_are_no_percentiles(tmp_path: Path) -> None:
    rows = "".join(f"| {share} | {ttft} | 640 |\n" for share, ttft in (("0%", 80), ("50%", 60), ("90%", 20)))
    runs, _ = read(tmp_path, f"{HEAD}| Cache hit | TTFT (ms) | Output tok/s |\n{SPEEDS}{rows}")
    assert [run.figures["mean_ttft_ms"] for run in runs] == [80, 60, 20]
    assert len({*run_groups.name_rows(runs)}) == 3


@pytest.mark.parametrize(
    ("title", "first", "second"),
    [
        ("req/s sent", "4", "6"), ("Offered load (req/s)", "4", "6"), ("Achieved req/s", "3.98", "5.9"),
        ("Seq len", "512", "1024"), ("Avg input len", "512", "1024"), ("Prefix cache hit (%)", "0", "80"),
        ("Prefill share", "10.25%", "40.25%"), ("Number of concurrency", "4.0000", "64.0000"),
    ],
)  # fmt: skip
def test_rows_that_differ_in_a_load_are_no_repeats(
    title: str, first: str, second: str, tmp_path: Path
) -> None:
    rows = f"| {first} | 80 | 640 |\n| {second} | 70 | 740 |\n"
    page = f"{HEAD}| {title} | TTFT (ms) | Output tok/s |\n{SPEEDS}{rows}"
    runs, _ = read(tmp_path, page)
    names = run_groups.name_rows(runs)
    assert (names[0], runs[0].load) != (names[1], runs[1].load)


def test_a_speed_of_each_user_is_no_time_per_token(tmp_path: Path) -> None:
    page = f"{HEAD}| Concurrency | tok/s/user | TTFT (ms) |\n{SPEEDS}| 1 | 72.3 | 500 |\n| 8 | 50 | 900 |\n"
    runs, _ = read(tmp_path, page)
    assert [run.figures for run in runs] == [
        {"request_tok_s": 72.3, "mean_ttft_ms": 500},
        {"request_tok_s": 50, "mean_ttft_ms": 900},
    ]
    assert all(remark.startswith("tok/s of each user") for run in runs for remark in run.remarks)


GRIDS = {
    "a grid without rules between rows": """
+----------+-------------+-----------+--------------+
| Model    | Concurrency | TTFT (ms) | Output tok/s |
+==========+=============+===========+==============+
| qwen3-8b |           8 |        80 |          640 |
| qwen3-8b |          64 |       180 |         3400 |
+----------+-------------+-----------+--------------+
""",
    "a grid whose cells go on": """
+----------+-------------+-----------+--------------+
| Model    | Concurrency | TTFT (ms) | Output tok/s |
+==========+=============+===========+==============+
| qwen3-8b |           8 |        80 |          640 |
| on a     |             |           |              |
| card     |             |           |              |
+----------+-------------+-----------+--------------+
| qwen3-8b |          64 |       180 |         3400 |
| on a     |             |           |              |
| card     |             |           |              |
+----------+-------------+-----------+--------------+
""",
}


@pytest.mark.parametrize("form", GRIDS)
def test_rows_of_a_terminal_s_table_are_read_one_by_one(form: str, tmp_path: Path) -> None:
    runs, errors = read(tmp_path, GRIDS[form])
    found = [
        (run.load.max_concurrency, run.figures["mean_ttft_ms"], run.figures["output_throughput"])
        for run in runs
    ]
    assert found == [(8, 80, 640), (64, 180, 3400)]
    assert errors == ()


@pytest.mark.parametrize(
    ("titles", "named"),
    [
        ("Concurrency | Requests | Failed | Timeouts", "not read: 'Timeouts'"),
        ("Concurrency | Requests | Errors | Retries", "not read: 'Retries'"),
        ("并发数 | 请求数 | 失败数 | 超时", "not read: '超时'"),
    ],
)
def test_failures_are_read_and_what_is_not_is_named(titles: str, named: str, tmp_path: Path) -> None:
    head = f"{HEAD}| {titles} | TTFT (ms) | Output tok/s |\n|---|---|---|---|---|---|\n"
    runs, _ = read(tmp_path, f"{head}| 8 | 100 | 0 | 0 | 80 | 640 |\n| 64 | 100 | 40 | 3 | 180 | 3400 |\n")
    assert [run.figures["failed"] for run in runs] == [0, 40]
    assert [run.remarks for run in runs] == [(named,), (named,)]
    levels = [audited.level for audited in audit_runs(runs, None, None)]
    assert levels == [Level.UNCHECKED, Level.INVALID]


def test_columns_of_other_languages_are_named_and_separate_rows(tmp_path: Path) -> None:
    head = f"{HEAD}| Gleichzeitige Anfragen | Fehlgeschlagen | TTFT (ms) |\n{SPEEDS}"
    runs, _ = read(tmp_path, f"{head}| 8 | 0 | 80 |\n| 64 | 40 | 180 |\n")
    assert len({*run_groups.name_rows(runs)}) == 2
    assert runs[0].remarks == ("not read: 'Gleichzeitige Anfragen', 'Fehlgeschlagen'",)

"""Columns of anyone's tables: units in cells, other languages, requested rates, labels, what is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.loops import loop_over
from loadgen.study.compare import run_groups
from loadgen.study.importers import result_sources
from loadgen.study.importers.pasted import pasted_tables, row_figures
from loadgen.study.run_summary import Reported

HERE = Path("page.md")


def read(page: str) -> list[Reported]:
    return pasted_tables.read_tables(page, HERE)[0]


def table(head: str, *rows: str) -> str:
    cells = len(head.split("|"))
    return "\n".join(
        ("# model-8b", "", f"| {head} |", "|---" * cells + "|", *(f"| {row} |" for row in rows), "")
    )


def figures(page: str) -> list[dict[str, float]]:
    return [dict(run.figures) for run in read(page)]


# The figure that titles in any spelling are of, and what their cells are multiplied by.
TITLES = {
    ("max_concurrency", 1.0): ["Concur", "Conc.", "并发数", "Max concurrency", "Batch size"],
    ("input_length", 1.0): ["ISL", "输入长度"],
    ("prompts", 1.0): ["N"],
    ("model", 1.0): ["模型"],
    ("engine", 1.0): ["引擎"],
    ("speed_tok_s", 1.0): ["Tok/s", "Speed(tokens/s)", "tok/s", "Tokens per second"],
    ("output_throughput", 1.0): ["吞吐量 (tokens/s)", "输出吞吐量\uff08token/秒\uff09",
        "Output throughput (tok/s)",
        "Output token throughput (tok/s):"],
    ("total_token_throughput", 1.0): ["总吞吐量 (tokens/s)", "Total throughput (tok/s)"],
    ("request_tok_s", 1.0): ["tok/s/user"],
    ("", 1.0): ["tok/s/GPU", "TTFT (cold) (ms)", "配置", "TTFT", "Throughput", "Price ($)"],
    ("request_throughput", 1.0): ["请求吞吐量(req/s)", "req/s"],
    ("requested_rate", 1.0): ["Request rate (req/s)"],
    ("mean_ttft_ms", 1.0): ["TTFT Avg (ms)", "TTFT (avg, ms)", "TTFT/ms", "平均首token延迟(ms)",
        "Mean TTFT (ms)"],
    ("p99_ttft_ms", 1.0): ["TTFT P99 (ms)"],
    ("mean_e2el_ms", 1.0): ["E2EL Avg (ms)"],
    ("p95_ttft_ms", 1.0): ["ttft_p95_ms"],
    ("mean_ttft_ms", 1e3): ["TTFT (s)"],
    ("mean_tpot_ms", 1.0): ["每token延迟 (ms)"],
    ("mean_e2el_ms", 1e3): ["端到端延迟 (s)"],
    ("decode_tok_s", 1.0): ["Decode (tokens/s)"],
    ("median_tpot_ms", 1.0): ["P50 TPOT [ms]"],
    ("p99_itl_ms", 1.0): ["ITL p99 (ms)"],
    ("prefill_throughput", 1.0): ["Prefill (tok/s)"],
}  # fmt: skip


@loop_over(
    ("title", "key", "times"), [(title, *meaning) for meaning, titles in TITLES.items() for title in titles]
)
def test_a_title_in_any_spelling_is_its_figure(title: str, key: str, times: float) -> None:
    column = row_figures.read_column(title)
    assert (column.key, column.times) == (key, times)


@loop_over(
    ("page", "found"),
    [
        (table("Engine | TTFT", "vLLM | 53.94ms", "SGLang | 1.2 s"),
         [{"mean_ttft_ms": 53.94}, {"mean_ttft_ms": 1200}]),
        (table("TTFT (ms) | Engine", "1.2 s | vLLM", "900 | SGLang"),
         [{"mean_ttft_ms": 1200}, {"mean_ttft_ms": 900}]),
        (table("Load | Throughput", "high | 3.9k tok/s"), [{"output_throughput": 3900}]),
        (table("Load | Throughput", "high | 4.25 req/s"), [{"request_throughput": 4.25}]),
        (table("Load | P99 TTFT", "high | ~54 ms (±3)"), [{"p99_ttft_ms": 54}]),
        (table("Load | TPOT", "high | 11.1 ± 0.2 ms"), [{"mean_tpot_ms": 11.1}]),
        (table("Load | ITL", "high | 850 \u00b5s"), [{"mean_itl_ms": 0.85}]),
        (table("负载 | 首token延迟", "高 | 120毫秒"), [{"mean_ttft_ms": 120}]),
    ],
)  # fmt: skip
def test_the_unit_of_a_cell_is_its_own(page: str, found: list[dict[str, float]]) -> None:
    assert figures(page) == found


def test_a_rate_that_is_not_round_was_measured() -> None:
    measured = read(table("Load | req/s | tok/s", "high | 4.17 | 666", "low | 1.03 | 164"))
    assert [run.figures["request_throughput"] for run in measured] == [4.17, 1.03]


def test_lengths_in_one_cell_are_both() -> None:
    runs = read(table("ISL/OSL | Concurrency | tok/s", "1024/128 | 8 | 690.4", "2,048 / 256 | 8 | 500.5"))
    lengths = [(run.load.asked_input_len, run.load.asked_output_len) for run in runs]
    assert lengths == [(1024, 128), (2048, 256)]


@loop_over(
    ("head", "rows", "names"),
    [
        ("Config | TTFT (ms)", ("A, plain | 900", "B, layout on | 850"), ("A, plain", "B, layout on")),
        ("TP size of it | TTFT (ms)", ("1 | 900", "4 | 300"), ("TP size of it 1", "TP size of it 4")),
        ("Flash | Concurrency | tok/s", ("✓ | 8 | 300", " | 8 | 200"), ("Flash ✓", "")),
        ("Run | Concurrency | tok/s", ("1 | 8 | 300", "2 | 8 | 301"), ("", "")),
        ("Concurrency | tok/s | P95 other (ms)", ("8 | 300 | 12", "8 | 301 | 13"), ("", "")),
        ("Concurrency | tok/s | Quality", ("8 | 300 | 0.812", "8 | 301 | 0.815"), ("", "")),
        ("Concurrency | tok/s | Date", ("8 | 300 | 2026-11-01", "8 | 301 | 2026-11-02"), ("", "")),
        ("Input length | Concurrency | tok/s", ("1k | 8 | 300", "8k | 8 | 200"),
         ("input_length 1k", "input_length 8k")),
        ("Note | Concurrency | tok/s", ("before it | 8 | 300", "after it | 8 | 200"),
         ("before it", "after it")),
    ],
)  # fmt: skip
def test_a_column_that_is_not_read_separates_rows_where_it_is_no_figure(
    head: str, rows: tuple[str, ...], names: tuple[str, ...]
) -> None:
    whole = [f"model-8b ({name})" if name else "model-8b" for name in names]
    assert run_groups.name_rows(read(table(head, *rows))) == whole


# Columns that differ, and the rows that they make of one model; each is tried as a table and as a sheet.
TELLING = {
    "Notes": (("before", "after"), ["m8b (before)", "m8b (after)"]),
    "备注": (("前", "后"), ["m8b (备注 前)", "m8b (备注 后)"]),
    "TP": (("1", "4"), ["m8b (TP 1)", "m8b (TP 4)"]),
    "GPUs": (("1", "2"), ["m8b (GPUs 1)", "m8b (GPUs 2)"]),
    "PP": (("1", "2"), ["m8b (PP 1)", "m8b (PP 2)"]),
    "Test": (("AA", "BB"), ["m8b (AA)", "m8b (BB)"]),
    "Context": (("4k", "32k"), ["m8b (input_length 4k)", "m8b (input_length 32k)"]),
    "ISL/OSL": (("1k/1k", "8k/1k"), ["m8b (1k/1k)", "m8b (8k/1k)"]),
}


@loop_over("form", ["table", "sheet"])
@loop_over("title", TELLING)
def test_a_setting_tells_the_rows_of_a_table_and_of_a_sheet_apart(
    title: str, form: str, tmp_path: Path
) -> None:
    cells, names = TELLING[title]
    rows = [f"m8b | {cells[0]} | 640 | 100 | 11.8", f"m8b | {cells[1]} | 320 | 200 | 23.6"]
    path = tmp_path / ("page.md" if form == "table" else "page.csv")
    page = table(f"Model | {title} | tok/s | TTFT (ms) | TPOT (ms)", *rows)
    sheet = "\n".join([f"Model | {title} | tok/s | TTFT (ms) | TPOT (ms)", *rows]).replace(" | ", ",")
    path.write_text(page if form == "table" else sheet, "utf-8")
    assert run_groups.name_rows(result_sources.read_sources([str(path)]).reported) == names


@pytest.mark.parametrize(
    ("title", "cell", "figures"),
    [
        ("Acceptance rate", "0.65", {"spec_decode_acceptance_rate": 65.0}),
        ("Acceptance rate", "65 %", {"spec_decode_acceptance_rate": 65.0}),
        ("Acceptance rate (%)", "12", {"spec_decode_acceptance_rate": 12.0}),
        ("Acceptance rate", "2.5", {"accept_length": 2.5}),
    ],
)
def test_an_acceptance_rate_is_a_share_or_the_tokens_of_a_pass(
    title: str, cell: str, figures: dict[str, float]
) -> None:
    (run,) = read(table(f"Model | Concurrency | {title} | tok/s", f"m8b | 8 | {cell} | 300"))
    assert {key: value for key, value in run.figures.items() if "accept" in key} == figures


@loop_over(
    ("cell", "value"),
    [
        ("12.3¹", 12.3), ("12.3 ²³", 12.3), ("12[^1]", 12.0), ("12 [2]", 12.0), ("12.5†", 12.5),
        ("12.3 ms/tok", 12.3), ("12.3 ms ± 0.2", 12.3), ("12.3 ± 0.2 ms", 12.3), ("0.0123 s/token", 12.3),
    ],
)  # fmt: skip
def test_a_mark_behind_a_number_is_no_digit_of_it(cell: str, value: float) -> None:
    (run,) = read(table("Model | Concurrency | tok/s | TPOT (ms)", f"m8b | 8 | 300 | {cell}"))
    assert run.figures["mean_tpot_ms"] == pytest.approx(value)


@pytest.mark.parametrize(
    ("title", "cell"),
    [("Throughput (ktok/s)", "3.4"), ("Throughput", "3.4 ktok/s"), ("Throughput (tok/s)", "3.4k")],
)
def test_thousands_of_tokens_are_thousands(title: str, cell: str) -> None:
    (run,) = read(table(f"Model | Concurrency | {title}", f"m8b | 8 | {cell}"))
    assert run.figures == {"output_throughput": 3400.0}


HTML = (
    '<table><tr><th rowspan="2">Model</th><th colspan="2">TTFT (ms)</th><th colspan="2">TPOT (ms)</th></tr>'
    "<tr><th>Mean</th><th>P99</th><th>Mean</th><th>P99</th></tr>"
    "<tr><td>m8b</td><td>50</td><td>80</td><td>11.8</td><td>14</td></tr></table>"
)


@pytest.mark.parametrize(
    "page",
    [
        table("Model | TTFT (ms) | | TPOT (ms) |", " | Mean | P99 | Mean | P99", "m8b | 50 | 80 | 11.8 | 14"),
        HTML,
    ],
)
def test_titles_in_two_rows_are_read_together(page: str) -> None:
    (run,) = read(page)
    assert (run.name, run.figures) == (
        "m8b", {"mean_ttft_ms": 50.0, "p99_ttft_ms": 80.0, "mean_tpot_ms": 11.8, "p99_tpot_ms": 14.0},
    )  # fmt: skip


def test_rows_of_equal_figures_under_two_labels_are_two() -> None:
    page = table("Config | TTFT (ms)", "A, plain | 900", "B, layout on | 900")
    assert len(run_groups.drop_repeated(read(page))[0]) == 2


def test_tables_under_two_headings_are_no_repeats() -> None:
    rows = "| Model | Load | tok/s |\n|---|---|---|\n| Qwen3-8B | high | {} |\n\n"
    page = f"# Speeds\n\n## Before the patch\n\n{rows.format(300)}## After the patch\n\n{rows.format(600)}"
    assert run_groups.name_rows(read(page)) == ["Qwen3-8B (Before the patch)", "Qwen3-8B (After the patch)"]


@pytest.mark.parametrize(
    ("page", "remark"),
    [
        (table("Concurrency | tok/s | P95 Foo (ms)", "8 | 300 | 12"), "not read: 'P95 Foo (ms)'"),
        (table("Concurrency | tok/s | TTFT", "8 | 300 | 30", "16 | 400 | 50"), "not read: 'TTFT'"),
        (table("Concurrency | tok/s | TTFT (ms)", "8 | 300 | 54 / 60"),
         "TTFT (ms) '54 / 60' is not a number: left out"),
        (table("Concurrency | tok/s | TTFT", "8 | 300 | 54ms", "8 | 300 | 60"),
         "TTFT '60' has no unit: left out"),
    ],
)  # fmt: skip
def test_what_is_dropped_is_named(page: str, remark: str) -> None:
    assert remark in read(page)[-1].remarks


SIDE = {
    table("Metric | vLLM | SGLang", "TTFT (ms) | 54.1 | 60.2", "Throughput (tok/s) | 300 | 400"):
        [("", "vLLM"), ("", "SGLang")],
    table("Metric | Unit | Config A | Config B | Change", "TTFT | ms | 54.1 | 60.2 | +11 %",
          "Throughput | tok/s | 300 | 400 | +33 %"): [("Config A", ""), ("Config B", "")],
    table("指标 | 方案一 | 方案二", "首token延迟 | 54.1ms | 60.2ms", "吞吐量 | 300 tok/s | 400 tok/s"):
        [("方案一", ""), ("方案二", "")],
    table("Metric / Concurrency | 1 | 8", "Mean TTFT (ms) | 54.1 | 60.2", "Output tok/s | 300 | 400"):
        [("", ""), ("", "")],
}  # fmt: skip


@pytest.mark.parametrize("page", SIDE)
def test_a_table_with_metrics_down_the_side_is_read_by_its_columns(page: str) -> None:
    runs = read(page)
    assert [(run.figures["mean_ttft_ms"], run.figures["output_throughput"]) for run in runs] == [
        (54.1, 300), (60.2, 400),
    ]  # fmt: skip
    assert [(run.unread.get("Configuration", ""), run.engine) for run in runs] == SIDE[page]
    limits = [1, 8] if "Concurrency" in page else [None, None]
    assert [run.load.max_concurrency for run in runs] == limits


def test_a_single_column_of_values_is_one_run() -> None:
    (run,) = read(table("Metric | Value", "Mean TTFT (ms) | 54.1", "Mean TPOT (ms) | 9.5"))
    assert (run.name, run.figures) == ("model-8b", {"mean_ttft_ms": 54.1, "mean_tpot_ms": 9.5})


def test_a_sheet_is_read_with_its_units_its_language_and_its_labels(tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    path.write_text(
        "模型,配置,并发数,吞吐量 (tokens/s),首token延迟,每token延迟 (ms),P95 其他 (ms)\n"
        "m-8b,默认配置,8,690.4,152ms,10.4,12\n"
        "m-8b,开启缓存,8,720.4,0.14 s,10.1,13\n"
        "m-8b,默认配置,8,691.4,153ms,10.5,14\n",
        "utf-8",
    )
    runs = result_sources.read_sources([str(path)]).reported
    keys = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")
    assert [[run.figures[key] for key in keys] for run in runs] == [
        [690.4, 152, 10.4], [720.4, 140, 10.1], [691.4, 153, 10.5],
    ]  # fmt: skip
    assert {run.load.max_concurrency for run in runs} == {8}
    assert run_groups.name_rows(runs) == ["m-8b (默认配置)", "m-8b (开启缓存)", "m-8b (默认配置)"]
    assert "not read: 'P95 其他 (ms)'" in runs[0].remarks

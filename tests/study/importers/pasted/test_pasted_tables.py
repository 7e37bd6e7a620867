"""Tables of a page are read row by row: the ladder's own, the published ones, and anyone's."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from itertools import groupby
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.growth import hold_linear
from builders.loops import loop_over
from builders.published_runs import PUBLISHED
from loadgen.base.errors import UsageError
from loadgen.base.rule import Severity
from loadgen.features.roofline import machines
from loadgen.study.audit.findings import audit_runs
from loadgen.study.importers import result_sources
from loadgen.study.importers.pasted import page_reader, pasted_tables
from loadgen.study.importers.pasted.drawn_tables import Grid
from loadgen.study.run_summary import Reported, join_quantization
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import (
    OUTPUT,
    TOTAL,
    UNKNOWN,
    Memory,
    SpeedRow,
    convert_speed,
    list_published,
)
from loadgen.verdict.verdict import Level

HERE = Path("page.md")
GROUPS = [list(rows) for _, rows in groupby(list_published(), lambda row: (row.model, row.backend))]
WRITTEN = ("html", "rst", "md")
LADDER = GROUPS[0]


def read(page: str) -> list[Reported]:
    return pasted_tables.read_tables(page, HERE)[0]


@loop_over("form", WRITTEN)
@loop_over("rows", GROUPS)
def test_what_the_ladder_writes_is_read_back_row_by_row(rows: list[SpeedRow], form: str) -> None:
    ran = [row for row in rows if row.speed_tok_s]
    runs = read(speed_rows.draw_speeds(rows, form))
    for run, row in zip(runs, ran, strict=True):
        assert (run.name, run.load.input_len) == (
            join_quantization(row.model, row.quantization),
            row.input_length,
        )
        assert (run.figures["speed_tok_s"], run.speed_formula) == (float(row.speed_tok_s or 0), row.formula)
        whole = pasted_tables.read_ladder_row(row, run.source)
        assert run.figures == whole.figures
        assert (run.load, run.told_by) == (whole.load, "speed table")
        assert all(note.strip() in " ".join(run.remarks) for note in row.note.split(","))


@pytest.mark.parametrize("form", WRITTEN)
def test_memory_and_several_gpus_of_a_rung_are_read_back(form: str) -> None:
    memory = Memory.of_bytes(30 << 30, "MB")
    row = SpeedRow("Mine-70B", "", "", 1, "FP8", 4, LADDER[0].speed_tok_s, memory, "host memory", TOTAL)
    (run,) = read(speed_rows.draw_speeds([row], form))
    assert (run.memory_bytes, run.machine) == (30 << 30, "4 × GPU")


@pytest.mark.parametrize("form", WRITTEN)
def test_answers_of_another_length_are_those_of_the_speed(form: str) -> None:
    speed = LADDER[0].speed_tok_s
    row = SpeedRow("Mine-7B", "", "", 6144, "BF16", 1, speed, formula=TOTAL, output_length=128)
    (run,) = read(speed_rows.draw_speeds([row], form))
    assert run.load.output_len == 128
    assert run.figures["output_throughput"] == convert_speed(float(speed or 0), TOTAL, OUTPUT, 6144, 128)


def test_a_request_s_json_is_no_sheet(tmp_path: Path) -> None:
    (tmp_path / "a.request.json").write_text('{"model":"m","max_tokens":4}', "utf-8")
    (tmp_path / "speeds.md").write_text(speed_rows.draw_speeds(LADDER, "md"), "utf-8")
    found = result_sources.read_sources([str(tmp_path)])
    assert found.errors == (f"{tmp_path}: 1 of 2 files have no results: a.request.json",)


@pytest.mark.parametrize("form", ["md", "csv"])
def test_ttft_and_decode_of_a_rung_are_read_back(form: str, tmp_path: Path) -> None:
    timed = {"ttft_ms": Decimal("12.87"), "decode_tok_s": Decimal("130.78")}
    rows = [replace(row, **timed, formula=TOTAL, note="SIMULATED, no model ran") for row in LADDER]
    rows = [row for row in rows if row.quantization == "FP8" and row.speed_tok_s]
    path = tmp_path / f"ladder.{form}"
    path.write_text(speed_rows.draw_speeds(rows, form), "utf-8")
    runs = result_sources.read_sources([str(path)]).reported
    for run, row in zip(runs, rows, strict=True):
        assert run.figures["mean_ttft_ms"] == 12.87
        assert run.figures["mean_tpot_ms"] == 1e3 / 130.78
        assert (run.name, run.figures["speed_tok_s"]) == ("Qwen3-0.6B-FP8", float(row.speed_tok_s or 0))
        assert (run.speed_formula, run.simulated) == (TOTAL, "an unnamed preset")


@pytest.mark.parametrize(
    ("name", "count", "formula", "hardware", "engine"),
    [
        ("table_qwen3.html", 20, TOTAL, "H20-96GB", {"SGLang", "Transformers"}),
        ("table_qwen2_5.rst", 40, OUTPUT, "A100-80GB", {"vLLM", "Transformers"}),
    ],
)
def test_a_published_page_is_known_by_its_figures(
    name: str, count: int, formula: str, hardware: str, engine: set[str]
) -> None:
    runs = result_sources.read_sources([str(PUBLISHED / name)]).reported
    assert len(runs) == count
    assert {run.speed_formula for run in runs} == {formula}
    assert {run.machine for run in runs} == {hardware}
    assert {run.engine for run in runs} == engine
    assert {each.level for each in audit_runs(runs, None, None)} <= {Level.VALID, Level.SUSPECT}
    assert not [each for each in audit_runs(runs, None, None) if each.unchecked == ("roofline", "relations")]


def test_a_published_page_on_another_machine_is_impossible() -> None:
    runs = result_sources.read_sources([str(PUBLISHED / "table_qwen3.html")]).reported
    found = audit_runs(runs, machines.find_machine("jetson-thor"), None)
    assert found[0].findings[0].rule.code == "beyond-roofline"


def test_prompts_sent_at_once_are_a_load_of_their_own() -> None:
    runs = result_sources.read_sources([str(PUBLISHED / "table_qwen2_throughput.rst")]).reported
    assert [(run.name, run.load.name, run.figures) for run in runs[:2]] == [
        ("Qwen1.5-32B-Chat", "100 prompts", {"request_throughput": 6.68, "total_token_throughput": 7343.56}),
        ("Qwen2-57B-A14B-Instruct", "100 prompts",
         {"request_throughput": 4.81, "total_token_throughput": 5291.15}),
    ]  # fmt: skip


def test_a_speed_of_an_unknown_formula_is_not_judged_but_where_all_agree() -> None:
    rows = "| Qwen3-8B | 1 | BF16 | 400.0 |\n| Qwen3-8B | 6144 | BF16 | 400.0 |\n"
    page = f"| Model | Input Length | Quantization | Speed (tokens/s) |\n|---|---|---|---|\n{rows}"
    runs = read(page)
    assert [run.speed_formula for run in runs] == [OUTPUT, UNKNOWN]
    found = audit_runs(runs, machines.find_machine("jetson-thor"), None)
    assert [each.level for each in found] == [Level.INVALID, Level.UNCHECKED]
    assert "Speed = output/time or Speed = (prompt+output)/time" in found[1].no_ceiling
    stated = audit_runs(read(f"{page}\n* Speed = output/time\n"), machines.find_machine("jetson-thor"), None)
    assert [each.level for each in stated] == [Level.INVALID] * 2


def test_gpus_that_share_a_model_add_up() -> None:
    head = "| Model | Input Length | Quantization | GPU Num | Speed (tokens/s) |\n|--|--|--|--|--|\n"
    runs = read(f"{head}| Qwen3-32B | 1 | BF16 | 4 | 100 |\n| Qwen3-32B | 1 | BF16 | 1 | 100 |\n")
    found = audit_runs(runs, machines.find_machine("h20-96gb"), None)
    assert [each.level for each in found] == [Level.VALID, Level.INVALID]


SERVED = """| Model | Load | Concurrency | Output tok/s | TTFT (ms) | P99 TTFT (ms) | TPOT (ms) |
| --- | :---: | ---: | --- | --- | --- | --- |
| **Qwen3-8B-FP8** | high | 8 | 298.07 | 495.44 | 800 | 22.59 |
|  | low | 1 | 111.15 | 23.06 | 30 ms | 8.88 |
"""
KEYS = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms")
WANTED = [
    ("Qwen3-8B-FP8", "high", 8, dict(zip(KEYS, (298.07, 495.44, 800.0, 22.59), strict=True))),
    ("Qwen3-8B-FP8", "low", 1, dict(zip(KEYS, (111.15, 23.06, 30.0, 8.88), strict=True))),
]
NUMBERED = SERVED.replace("| Model", "| # | Model").replace("| ---", "| --- | ---", 1)


def as_html(page: str) -> str:
    lines = [line.strip("|").split("|") for line in page.splitlines() if "---" not in line]
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f"<p>x</p><table class=a>{body}</table>"


@loop_over(
    "page",
    [
        SERVED,
        as_html(SERVED),
        as_html(SERVED).replace("<tr>", "\n<tr>\n").replace("<td>", "\n  <td align='right'>\n"),
        "".join(f"> {line}\n" for line in SERVED.splitlines()),
        f"```\n{SERVED}```\n",
        SERVED.replace("\n", "\r\n"),
        "\n".join(f"\x1b[32m{line}\x1b[0m" for line in SERVED.splitlines()),
        SERVED.replace("Output tok/s", "Throughput (tok/s)").replace("TTFT (ms)", "TTFT (mean, ms)", 1),
        SERVED.replace("Model | Load", "model | scenario").replace("**", "`"),
        SERVED.replace("Output tok/s", "tok/s"),
        SERVED.replace("298.07", "298.07 t/s").replace("Concurrency", "Batch size"),
        NUMBERED.replace("| **", "| 1 | **").replace("|  |", "| 2 |  |"),
    ],
)
def test_a_table_with_a_load_column_is_a_run_a_row(page: str) -> None:
    page = page.replace("TTFT (mean, ms)", "Mean TTFT (ms)")
    runs = [(run.name, run.load.name, run.load.max_concurrency, run.figures) for run in read(page)]
    assert runs == WANTED
    found = audit_runs(read(page), machines.find_machine("jetson-thor"), None)
    assert [each.level for each in found] == [Level.INVALID] * 2


@pytest.mark.parametrize(
    "sheet",
    [
        "Model,Load,Concurrency,tok/s,TTFT (ms),P99 TTFT (ms),TPOT (ms)\n"
        "Qwen3-8B-FP8,high,8,298.07,495.44,800,22.59\nQwen3-8B-FP8,low,1,111.15,23.06,30,8.88\n",
        "Model;Load;Concurrency;Output tok/s;TTFT (s);P99 TTFT (ms);TPOT (ms)\n"
        "Qwen3-8B-FP8;high;8;298,07;0,49544;800,0;22,59\nQwen3-8B-FP8;low;1;111,15;0,02306;30,0;8,88\n",
        "Model,Quantization,Scenario,Throughput (tok/s),Mean TTFT (ms),TTFT P99 (ms),TPOT (ms),Users\n"
        "Qwen3-8B,FP8,high,298.07,495.44,800,22.59,8\nQwen3-8B,FP8,low,111.15,23.06,30,8.88,1\n",
    ],
)
def test_a_sheet_is_read_as_a_table_is(sheet: str, tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    path.write_text(sheet, "utf-8")
    runs = result_sources.read_sources([str(path)]).reported
    assert [(run.name, run.load.name, run.load.max_concurrency, run.figures) for run in runs] == WANTED


ROWS = "m | 1 | 100 | 50\nm | 64 | OOM | OOM\nm | 128 | - | -\nm | 256 | 超时 | 超时\n"
EMPTY = {
    "rows.md": "Model | Concurrency | tok/s | TTFT (ms)\n--|--|--|--\n" + ROWS,
    "rows.csv": "Model,Concurrency,tok/s,TTFT (ms),TPOT (ms)\n"
    + "".join(f"{row},{row.rpartition(',')[2]}\n" for row in ROWS.replace(" | ", ",").splitlines()),
    "ladder.md": "Model | Input Length | Speed (tokens/s)\n--|--|--\nm | 1 | 100\nm | 6144 | OOM\n",
    "ladder.csv": "model,backend,gpu,input_length,quantization,gpu_num,speed_tok_s,note\n"
    "m,vLLM,H20,1,BF16,1,100,\nm,vLLM,H20,6144,BF16,1,,OOM\n",
}
ROWS_NAMED = "line {} (m, 64, OOM), line {} (m, 128, -), line {} (m, 256, 超时)"


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("rows.md", "3 of 4 rows of a table have no figures: " + ROWS_NAMED.format(4, 5, 6)),
        ("rows.csv", "3 of 4 rows of a table have no figures: " + ROWS_NAMED.format(3, 4, 5)),
        ("ladder.md", "1 of 2 rows of a table have no figures: line 4 (m, 6144, OOM)"),
        ("ladder.csv", "1 of 2 rows of a table have no figures: line 3 (m, BF16, 6144, OOM)"),
    ],
)
def test_rows_without_a_figure_are_named_and_cost_no_other(name: str, named: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(EMPTY[name], "utf-8")
    found = result_sources.read_sources([str(tmp_path / name)])
    assert (len(found.reported), found.errors) == (1, (f"{tmp_path / name}: {named}",))


def test_a_table_without_a_model_is_of_the_heading_above() -> None:
    table = (
        "| Load | tok/s | TPOT (ms) |\n|---|---|---|\n| high | 298.07 | 22.59 |\n| low | 111.15 | 8.88 |\n"
    )
    runs = read(f"# Thor\n## Qwen3-8B FP8\n{table}\n## Qwen3-8B (vLLM)\n\n{table}")
    assert [(run.name, run.checkpoint, run.load.name, run.engine) for run in runs] == [
        ("Qwen3-8B-FP8", "Qwen3-8B-FP8", "high", ""),
        ("Qwen3-8B-FP8", "Qwen3-8B-FP8", "low", ""),
        ("Qwen3-8B", "Qwen3-8B", "high", "vLLM"),
        ("Qwen3-8B", "Qwen3-8B", "low", "vLLM"),
    ]


@loop_over(
    "page",
    [
        "| Flag | Meaning |\n|---|---|\n| --seed | 0 |\n",
        "| Model | Size |\n|---|---|\n| Qwen3-8B | 8.2 |\n",
        "| Name | tok/s |\n|---|---|\n| a | fast |\n| b | - |\n",
        "| Speed |\n|---|\n| 3 |\n",
        "<table><tr><td>Model</td><td>tok/s</td></tr></table>",
        "+---+\n| a |\n+---+\n",
        "+---+---+\n+---+---+\n",
        "| Model | TTFT |\n|---|---|\n| Qwen3-8B | 30 |\n",  # of no unit
        "| Mean TTFT (ms) | Qwen3-8B | Qwen3-8B-FP8 |\n|---|---|---|\n| 8 users | 90.5 | 70.5 |\n",
        "| Output throughput (tok/s) | 1 | 8 |\n|---|---|---|\n| 1 | 90 | 600 |\n",
        "",
    ],
)
def test_a_table_of_something_else_has_no_runs(page: str) -> None:
    assert read(page) == []


def test_a_cell_that_spans_rows_or_columns_is_in_each() -> None:
    head = "<table><tr><th>a</th><th>b</th><th>c</th></tr>"
    page = f"{head}<tr><td rowspan=2>1</td><td colspan=2>2</td></tr><tr><td>3</td><td>4</td></tr></table>"
    (grid,) = page_reader.read_parts(page)
    assert isinstance(grid, Grid)
    assert [row.cells for row in grid.rows] == [("1", "2", "2"), ("1", "3", "4")]


def test_a_row_is_found_again_by_its_line() -> None:
    page = (PUBLISHED / "table_qwen2_5.rst").read_text("utf-8")
    lines = page.splitlines()
    for run in read(page):
        line = lines[int(run.source.rpartition(":")[2]) - 1]
        assert f"{run.figures['speed_tok_s']:.2f}" in line


@pytest.mark.long
@loop_over(
    "piece",
    [
        "| a | tok/s |\n|---|---|\n| x | 1 |\n", "| a | b |\n|---|---|\n", "|---|---|\n", "|" * 500 + "\n",
        "+--+--+\n", "+--+--+\n|a |b |\n", "+" + "-+" * 900 + "\n", "<table>", "<td rowspan=1000>1",
        "<table><tr><td rowspan=1000 colspan=1000>tok/s<tr>", "<tr>\n", "<" * 900 + "\n", "> " * 400 + "\n",
    ],
)  # fmt: skip
def test_no_table_takes_long(piece: str) -> None:
    def read_rows(length: int) -> None:
        with suppress(UsageError):  # of more cells than are read
            read(f"# Qwen3-8B\n<table><tr><td>Model<td>tok/s<tr>{piece * (length // len(piece))}")

    hold_linear(read_rows, 300_000)


@pytest.mark.parametrize("title", ["Output tok/s", "output tokens/s", "Out tok/s", "Output (tok/s)"])
def test_a_speed_of_output_is_not_that_of_all_tokens(title: str) -> None:
    page = (
        f"| Model | Req/s | {title} | Total tok/s |\n|---|---|---|---|\n| Qwen3-8B | 0.51 | 131.2 | 652.1 |\n"
    )
    for whole in (page, page.replace(" Total tok/s |", " x |").replace(" 652.1 |", " a |")):
        (run,) = read(whole)
        assert run.figures["output_throughput"] == 131.2
        assert run.figures.get("total_token_throughput", 652.1) == 652.1


@pytest.mark.parametrize(
    "titles_and_cells",
    [
        "| Model | Concurrency | Mean TTFT (s) | Median TTFT (s) | Output tok/s |\n"
        "|---|---|---|---|---|\n| Qwen3-8B | 8 | 0.1 | 0.3 | 512 |",  # 0.149 and 0.251 s
        "| Model | Concurrency | Benchmark duration (s) | Total generated tokens | Output tok/s |\n"
        "|---|---|---|---|---|\n| Qwen3-8B | 8 | 20.0 | 78520 | 3.9k |",  # 3,926 tok/s
    ],
)
def test_a_figure_in_a_larger_unit_is_as_coarse_as_it_was_printed(titles_and_cells: str) -> None:
    (audited,) = audit_runs(read(titles_and_cells), None, None)
    assert not [each.rule.code for each in audited.findings if each.rule.severity is Severity.INVALID]
    assert len(audited.reported.figures) >= 3

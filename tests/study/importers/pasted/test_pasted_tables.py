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
from loadgen.study.importers.pasted import pasted_tables
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
        assert (run.load.max_concurrency, run.load.output_len, run.told_by) == (1, 2048, "speed table")
        speed, lengths = float(row.speed_tok_s or 0), (row.input_length, row.output_length)
        assert run.figures["output_throughput"] == convert_speed(speed, row.formula, OUTPUT, *lengths)
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

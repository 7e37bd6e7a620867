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
from loadgen.base.errors import UsageError
from loadgen.study.importers.pasted import pasted_tables
from loadgen.study.importers.result_sources import read_sources
from loadgen.study.run_summary import join_quantization
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import (
    OUTPUT,
    TOTAL,
    Memory,
    SpeedRow,
    convert_speed,
    list_published,
)

HERE = Path("page.md")
LADDER = [list(rows) for _, rows in groupby(list_published(), lambda row: (row.model, row.backend))]
_MADE = SpeedRow("Mine-70B", "", "", 1, "FP8", 4, LADDER[0][0].speed_tok_s, formula=TOTAL)
_TIMED = {"ttft_ms": Decimal("12.87"), "decode_tok_s": Decimal("130.78"), "note": "SIMULATED, no model ran"}
GROUPS = [
    *LADDER,
    [replace(_MADE, gpu_memory=Memory.of_bytes(30 << 30, "MB"), note="host memory")],
    [replace(_MADE, input_length=6144, output_length=128)],
    [replace(row, **_TIMED, formula=TOTAL) for row in LADDER[0]],
]


@loop_over("form", ("html", "rst", "md", "csv"))
@loop_over("rows", GROUPS)
def test_what_the_ladder_writes_is_read_back_row_by_row(
    rows: list[SpeedRow], form: str, tmp_path: Path
) -> None:
    page = tmp_path / f"ladder.{form}"
    page.write_text(speed_rows.draw_speeds(rows, form), "utf-8")
    ran = [row for row in rows if row.speed_tok_s]
    for run, row in zip(read_sources([str(page)]).reported, ran, strict=True):
        speed, lengths = float(row.speed_tok_s or 0), (row.input_length, row.output_length)
        assert (run.name, run.told_by) == (join_quantization(row.model, row.quantization), "speed table")
        assert (run.load.input_len, run.load.output_len, run.load.max_concurrency) == (*lengths, 1)
        assert (run.figures["speed_tok_s"], run.speed_formula) == (speed, row.formula)
        assert run.figures["output_throughput"] == convert_speed(speed, row.formula, OUTPUT, *lengths)
        assert all(note.strip() in " ".join(run.remarks) for note in row.note.split(","))
        timed = row if form in ("md", "csv") else replace(row, ttft_ms=None, decode_tok_s=None)
        assert run.figures.get("mean_ttft_ms") == (timed.ttft_ms and float(timed.ttft_ms))
        assert run.figures.get("mean_tpot_ms") == (timed.decode_tok_s and 1e3 / float(timed.decode_tok_s))
        assert run.simulated == ("an unnamed preset" if row.ttft_ms else "")
        if row is GROUPS[-3][0]:
            assert (run.memory_bytes, run.machine) == (30 << 30, "4 × GPU")


def test_a_request_s_json_is_no_sheet(tmp_path: Path) -> None:
    (tmp_path / "a.request.json").write_text('{"model":"m","max_tokens":4}', "utf-8")
    (tmp_path / "speeds.md").write_text(speed_rows.draw_speeds(LADDER[0], "md"), "utf-8")
    found = read_sources([str(tmp_path)])
    assert found.errors == (f"{tmp_path}: 1 of 2 files have no results: a.request.json",)


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
            pasted_tables.read_tables(
                f"# Qwen3-8B\n<table><tr><td>Model<td>tok/s<tr>{piece * (length // len(piece))}", HERE
            )

    hold_linear(read_rows, 300_000)

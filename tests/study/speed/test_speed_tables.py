"""Tables: the pages' own, byte for byte; ours, safe to print."""

from __future__ import annotations

import html
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import read_tables
from loadgen.base.tables import Column, render_csv_table, render_text_table
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import (
    CSV,
    QWEN2_5,
    QWEN3,
    SETTINGS,
    THROUGHPUT,
    TOTAL,
    EngineSetting,
    Memory,
    SpeedRow,
    TableShape,
    ThroughputRow,
    list_published,
    name_settings,
    read_speed_csv,
)

TABLES = read_tables("speed_tables")

PAGES = Path(__file__).parents[2] / "data" / "published"
SHIPPED = Path(speed_rows.__file__).parent / "published"
# "Setting 1" is another under Qwen2.5-32B and the smaller ones.
SETTINGS_TO_32B = {
    "Default Setting": SETTINGS["Default Setting"],
    "Setting 1": EngineSetting.make(gpu_memory_utilization=1.0, max_model_len=32768, enforce_eager=True),
    "Setting-64k": SETTINGS["Setting 4"],
}
NEW_SAMPLE_CONFIG = (
    "[new sample config]: for vLLM, set the following sampling parameters: SamplingParams(temperature=0.7,"
    "top_p=0.8,top_k=20,repetition_penalty=1,presence_penalty=0,frequency_penalty=0,max_tokens=out_length)"
)


def of(model: str, backend: str) -> list[SpeedRow]:
    return [row for row in list_published() if (row.model, row.backend) == (model, backend)]


def shaped(shape: TableShape, **changes: Any) -> TableShape:
    """The same with other titles, by key, or columns that are at least so wide: those are drawn by hand."""
    columns = []
    for column in shape.columns:
        change = changes.get(column.key)
        name = "title" if isinstance(change, str) else "width"
        columns.append(column if change is None else replace(column, **{name: change}))
    return replace(shape, columns=tuple(columns))


def test_the_qwen3_page_is_drawn_byte_for_byte() -> None:
    later = shaped(QWEN3, input_length="Input length", note="Notes")
    tables = (
        speed_rows.make_speed_table(of("Qwen3-0.6B", "SGLang"), QWEN3, ()),
        speed_rows.make_speed_table(of("Qwen3-30B-A3B", "Transformers"), later, ()),
    )
    drawn = "".join(map(speed_rows.render_html_table, tables))
    assert drawn == (PAGES / "table_qwen3.html").read_text("utf-8")


def test_the_qwen2_5_page_is_drawn_byte_for_byte_with_its_legend() -> None:
    lines = speed_rows.write_legend({setting: name for name, setting in SETTINGS_TO_32B.items()})
    small, large = shaped(QWEN2_5, model=23, note=25), shaped(QWEN2_5, model=27, note=41)
    notes = [*lines, NEW_SAMPLE_CONFIG]
    tables = (
        speed_rows.make_speed_table(of("Qwen2.5-0.5B-Instruct", "Transformers"), small, ()),
        speed_rows.make_speed_table(of("Qwen2.5-7B-Instruct", "vLLM"), large, notes),
    )
    drawn = "\n".join(map(speed_rows.render_rst_table, tables))
    assert drawn == (PAGES / "table_qwen2_5.rst").read_text("utf-8")


def test_the_legend_of_72b_is_written_as_on_its_page() -> None:
    assert speed_rows.write_legend(name_settings(SETTINGS.values())) == TABLES["legend"]


@pytest.mark.parametrize(("name", "unit"), [("qwen3_h20_speed", "mb"), ("qwen2_5_a100_speed", "gb")])
def test_the_published_files_are_written_byte_for_byte(name: str, unit: str) -> None:
    path, memory = SHIPPED / f"{name}.csv", f"gpu_memory_{unit}"
    shape = TableShape((*CSV.columns[:7], Column(memory, memory), *CSV.columns[8:9]))
    table = speed_rows.make_speed_table(read_speed_csv(path), shape)
    assert render_csv_table(table) == path.read_text("utf-8")


GIVEN = EngineSetting.make(gpu_memory_utilization=0.9, max_model_len=4096, enforce_eager=False)
NO_ROOM = "context limit 4096: 6144 + 2048 tokens do not fit"
OURS = [
    SpeedRow(
        "Qwen3-8B", "vLLM", "H200", 1, "FP8", 1, Decimal("230.12"), Memory(Decimal(20480), "MB"),
        setting=SETTINGS["Default Setting"], ttft_ms=Decimal("9.50"), decode_tok_s=Decimal("250.00"),
    ),
    SpeedRow("Qwen3-8B", "vLLM", "H200", 6144, "FP8", None, None, None, NO_ROOM, setting=GIVEN),
]  # fmt: skip


def test_our_rows_are_printed_for_a_terminal_with_formula_and_legend() -> None:
    assert speed_rows.draw_speeds(OURS, "text").splitlines() == TABLES["ours"]


def plain(drawn: str) -> str:
    """A table without what escapes its text."""
    return html.unescape(re.sub(r"\\(\W|_)", r"\1", drawn))


@pytest.mark.parametrize("form", ["html", "rst", "md"])
def test_our_rows_name_formula_and_settings_below_the_table(form: str) -> None:
    drawn = plain(speed_rows.draw_speeds(OURS, form))
    assert "Speed = output/time" in drawn
    assert "[Setting 6]=(gpu_memory_utilization=0.9 max_model_len=4096 enforce_eager=" in drawn
    assert f"Setting 6, {NO_ROOM}" in drawn
    if form == "md":
        assert "| Input Length | TTFT (ms) | Decode (tokens/s) | Speed (tokens/s) |" in drawn.splitlines()[0]
        assert "| 1 | 9.50 | 250.00 | 230.12 |" in drawn


def test_our_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ladder.csv"
    path.write_text(speed_rows.draw_speeds(OURS, "csv"), "utf-8")
    assert read_speed_csv(path) == OURS


HOSTILE = "<script>alert(1)</script>|`a` *b* c_ \\d [e](f) & \x1b[31mred\x1b[0m\nsecond\tline"
HARMLESS = "<script>alert(1)</script>|`a` *b* c_ \\d [e](f) & �[31mred�[0m second line"


@pytest.mark.parametrize("form", ["html", "rst", "md", "csv"])
def test_what_a_cell_says_is_text_and_does_nothing(form: str) -> None:
    rows = [SpeedRow(HOSTILE, "", "", 1, "BF16", 1, Decimal(1), note=HOSTILE)]
    drawn = speed_rows.draw_speeds(rows, form)
    assert plain(drawn).count(HARMLESS) == 2
    if form in ("html", "md"):
        assert "<script" not in drawn
    assert "\x1b" not in drawn


@pytest.mark.parametrize("width", [80, 40, 24])
def test_a_terminal_gets_no_long_line_and_no_control_character(width: int) -> None:
    long = SpeedRow("m" * 200, "", "", 129024, "GPTQ-Int4", 1, Decimal("1234.56"), note=HOSTILE * 3)
    drawn = render_text_table(speed_rows.make_speed_table([long], speed_rows.TERMINAL), width)
    assert max(map(len, drawn.splitlines())) <= width
    assert all(letter.isprintable() or letter == "\n" for letter in drawn)


def test_ours_stand_beside_the_published_of_the_same_formula() -> None:
    ours = [
        SpeedRow("Qwen3-8B", "SGLang", "H200", 1, "FP8", 1, Decimal("300.50"), formula=TOTAL),
        SpeedRow("Qwen3-8B", "SGLang", "H200", 129024, "FP8", 1, None, note=NO_ROOM, formula=TOTAL),
        SpeedRow("Qwen3-8B", "SGLang", "H200", 100, "FP8", 1, Decimal("300.00"), formula=TOTAL),
    ]
    assert speed_rows.draw_next_to_published(ours).splitlines() == TABLES["published"]


PROMPTS = [
    ThroughputRow(model, "BF16", prompts, Decimal(qps), Decimal(tokens_per_s))
    for model, prompts, qps, tokens_per_s in [
        ("Qwen1.5-32B-Chat", 100, "6.68", "7343.56"),
        ("Qwen2-57B-A14B-Instruct", 100, "4.81", "5291.15"),
        ("Qwen1.5-32B-Chat", 1000, "7.99", "8791.35"),
        ("Qwen2-57B-A14B-Instruct", 1000, "5.18", "5698.37"),
    ]
]


def test_the_qwen2_throughput_table_is_drawn_byte_for_byte() -> None:
    drawn = speed_rows.draw_throughput(PROMPTS, "rst", shaped(THROUGHPUT, model=24, prompts=11))
    assert drawn == (PAGES / "table_qwen2_throughput.rst").read_text("utf-8")


@pytest.mark.parametrize("form", ["text", "md", "html", "rst"])
def test_one_setting_needs_no_name_unless_it_is_the_pages(form: str) -> None:
    rows = [replace(row, setting=GIVEN) for row in OURS]
    theirs = [replace(row, setting=SETTINGS["Default Setting"]) for row in OURS]
    drawn = re.sub(r"\\(.)|\n +(?!\*)", lambda found: found[1] or " ", speed_rows.draw_speeds(rows, form))
    assert "Setting" not in drawn
    assert "Server: gpu_memory_utilization=0.9 max_model_len=4096 enforce_eager=False" in drawn
    assert "[Default Setting]=(" in speed_rows.draw_speeds(theirs, form).replace("\\", "")

"""Tables: the pages' own, byte for byte; every published row in its page's shape; ours, safe to print."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from loadgen.base.tables import Column, render_csv_table, render_text_table
from loadgen.study.speed import speed_tables
from loadgen.study.speed.speed_rows import (
    OUTPUT,
    SETTINGS,
    TOTAL,
    EngineSetting,
    Memory,
    SpeedRow,
    ThroughputRow,
    list_published,
    name_settings,
    read_speed_csv,
)
from loadgen.study.speed.speed_tables import CSV, QWEN2_5, QWEN3, TABLES, THROUGHPUT, TableShape

PAGES = Path(__file__).parents[2] / "data" / "published"
SHIPPED = Path(speed_tables.__file__).parent / "published"
# "Setting 1" is another under Qwen2.5-32B and the smaller ones.
SETTINGS_TO_32B = {
    "Default Setting": SETTINGS["Default Setting"],
    "Setting 1": EngineSetting.make(gpu_memory_utilization=1.0, max_model_len=32768, enforce_eager=True),
    "Setting-64k": SETTINGS["Setting 4"],
}
# Of all 475 published rows.
GROUPS = [list(rows) for _, rows in groupby(list_published(), lambda row: (row.model, row.backend))]
NEW_SAMPLE_CONFIG = (
    "[new sample config]: for vLLM, set the following sampling parameters: SamplingParams(temperature=0.7,"
    "top_p=0.8,top_k=20,repetition_penalty=1,presence_penalty=0,frequency_penalty=0,max_tokens=out_length)"
)


def of(model: str, backend: str) -> list[SpeedRow]:
    return [row for row in list_published() if (row.model, row.backend) == (model, backend)]


class HtmlCells(HTMLParser):
    """An HTML table read back, each spanning cell repeated in every row it spans."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.running: list[tuple[int, str]] = []  # rows left, cell
        self.span = 1
        self.cell: str | None = None
        self.feed(document)
        assert not any(left for left, _ in self.running), "a cell spans more rows than there are"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in ("table", "thead", "tbody", "tr", "th", "td", "ul", "li")
        if tag == "tr":
            going_on = [(left - 1, cell) for left, cell in self.running if left]
            self.rows.append([cell for _, cell in going_on])
            self.running = going_on
        if tag in ("th", "td"):
            self.span, self.cell = int(dict(attributes).get("rowspan") or 1), ""

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            assert self.cell is not None
            self.rows[-1].append(self.cell)
            if self.span > 1:
                self.running.append((self.span - 1, self.cell))
            self.cell = None


def shaped(shape: TableShape, **changes: Any) -> TableShape:
    """The same with other titles, by key, or columns that are at least so wide: those are drawn by hand."""
    columns = []
    for column in shape.columns:
        change = changes.get(column.key)
        name = "title" if isinstance(change, str) else "width"
        columns.append(column if change is None else replace(column, **{name: change}))
    return replace(shape, columns=tuple(columns))


def html_cells(document: str) -> list[list[str]]:
    return HtmlCells(document).rows


def rst_cells(document: str) -> list[list[str]]:
    rows: list[list[str]] = []
    lines = document.split("\n\n", maxsplit=1)[0].splitlines()
    assert len(set(map(len, lines))) == 1, "the grid has an edge that is not straight"
    for number, line in enumerate(lines):
        if line.startswith("|"):
            cells = [
                re.sub(r"\\(.)", r"\1", cell[1:].rstrip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]
            ]
            above = re.split(r"(?<=[+])", lines[number - 1])[1:]
            goes_on = [piece[0] == " " for piece in above if piece]
            rows.append([rows[-1][i] if goes_on[i] else cell for i, cell in enumerate(cells)])
    return rows


def markdown_cells(document: str) -> list[list[str]]:
    lines = [line for line in document.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if not line.startswith("| ---")]
    return [[re.sub(r"\\(.)", r"\1", html.unescape(cell.strip())) for cell in row] for row in cells]


def csv_cells(document: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(document)))


READ: dict[str, Callable[[str], list[list[str]]]] = {
    "html": html_cells,
    "rst": rst_cells,
    "md": markdown_cells,
    "csv": csv_cells,
}


def test_the_qwen3_page_is_drawn_byte_for_byte() -> None:
    later = shaped(QWEN3, input_length="Input length", note="Notes")
    tables = (
        speed_tables.make_speed_table(of("Qwen3-0.6B", "SGLang"), QWEN3, ()),
        speed_tables.make_speed_table(of("Qwen3-30B-A3B", "Transformers"), later, ()),
    )
    drawn = "".join(map(speed_tables.render_html_table, tables))
    assert drawn == (PAGES / "table_qwen3.html").read_text("utf-8")


def test_the_qwen2_5_page_is_drawn_byte_for_byte_with_its_legend() -> None:
    lines = speed_tables.write_legend({setting: name for name, setting in SETTINGS_TO_32B.items()})
    small, large = shaped(QWEN2_5, model=23, note=25), shaped(QWEN2_5, model=27, note=41)
    notes = [*lines, NEW_SAMPLE_CONFIG]
    tables = (
        speed_tables.make_speed_table(of("Qwen2.5-0.5B-Instruct", "Transformers"), small, ()),
        speed_tables.make_speed_table(of("Qwen2.5-7B-Instruct", "vLLM"), large, notes),
    )
    drawn = "\n".join(map(speed_tables.render_rst_table, tables))
    assert drawn == (PAGES / "table_qwen2_5.rst").read_text("utf-8")


def test_the_legend_of_72b_is_written_as_on_its_page() -> None:
    assert speed_tables.write_legend(name_settings(SETTINGS.values())) == [
        "[Default Setting]=(gpu_memory_utilization=0.9 max_model_len=32768 enforce_eager=False)",
        "[Setting 1]=(gpu_memory_utilization=0.98 max_model_len=4096 enforce_eager=True)",
        "[Setting 2]=(gpu_memory_utilization=1.0 max_model_len=4096 enforce_eager=True)",
        "[Setting 3]=(gpu_memory_utilization=1.0 max_model_len=8192 enforce_eager=True)",
        "[Setting 4]=(gpu_memory_utilization=0.9 max_model_len=65536 enforce_eager=False)",
        "[Setting 5]=(gpu_memory_utilization=0.9 max_model_len=131072 enforce_eager=False)",
    ]


@pytest.mark.parametrize(("name", "unit"), [("qwen3_h20_speed", "mb"), ("qwen2_5_a100_speed", "gb")])
def test_the_published_files_are_written_byte_for_byte(name: str, unit: str) -> None:
    path, memory = SHIPPED / f"{name}.csv", f"gpu_memory_{unit}"
    shape = TableShape((*CSV.columns[:7], Column(memory, memory), *CSV.columns[8:9]))
    table = speed_tables.make_speed_table(read_speed_csv(path), shape)
    assert render_csv_table(table) == path.read_text("utf-8")


def cells_of_the_file(model: str, backend: str, columns: list[str]) -> Iterator[list[str]]:
    for path in SHIPPED.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                if (line["model"], line["backend"]) == (model, backend):
                    yield [line[column] for column in columns]


@loop_over("form", ["html", "rst", "md"])
@loop_over("rows", GROUPS)
def test_every_published_row_is_drawn_again(rows: list[SpeedRow], form: str) -> None:
    shape = QWEN3 if rows[0].formula == TOTAL else QWEN2_5
    table = speed_tables.make_speed_table(rows, shape, ())
    heading, *body = READ[form](TABLES[form](table))
    assert heading == [column.title for column in table.columns]
    assert body == list(cells_of_the_file(rows[0].model, rows[0].backend, [c.key for c in table.columns]))
    reported = rows[0].backend == "Transformers"  # the others take all memory at their start
    assert any("Memory" in title for title in heading) is reported


@loop_over("rows", GROUPS)
def test_a_terminal_of_80_columns_holds_every_published_table(rows: list[SpeedRow]) -> None:
    drawn = render_text_table(speed_tables.make_speed_table(rows, speed_tables.TERMINAL))
    assert max(map(len, drawn.splitlines())) <= 80
    assert [word for word in drawn.split() if re.fullmatch(r"\d+\.\d+", word)] == [
        figure
        for row in rows
        for figure in (str(row.speed_tok_s), row.gpu_memory.format_amount("GB") if row.gpu_memory else "")
        if re.fullmatch(r"\d+\.\d+", figure)
    ]


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
    assert speed_tables.draw_speeds(OURS, "text") == (
        "   Input  TTFT      Decode  output  GPU     GPU  Note\n"
        "  Length  (ms)  (tokens/s)  / time  Num  Memory\n"
        "                                           (GB)\n"
        "  ------  ----  ----------  ------  ---  ------  -------------------------------\n"
        "Qwen3-8B FP8\n"
        "       1  9.50      250.00  230.12    1   20.00  Default\n"
        "    6144     -           -       -    -       -  Setting 6, context limit 4096:\n"
        "                                                 6144 + 2048 tokens do not fit\n"
        "TTFT is a mean; Decode = 1000 / mean TPOT\n"
        "output/time: Speed (tokens/s) of the Qwen2 and Qwen2.5 pages\n"
        "[Default Setting]=(gpu_memory_utilization=0.9 max_model_len=32768\n"
        "  enforce_eager=False)\n"
        "[Setting 6]=(gpu_memory_utilization=0.9 max_model_len=4096 enforce_eager=False)\n"
    )


@pytest.mark.parametrize("form", ["html", "rst", "md"])
def test_our_rows_name_formula_and_settings_below_the_table(form: str) -> None:
    drawn = speed_tables.draw_speeds(OURS, form)
    plain = re.sub(r"\\(.)", r"\1", drawn)
    assert "Speed = output/time" in plain
    assert "[Setting 6]=(gpu_memory_utilization=0.9 max_model_len=4096 enforce_eager=" in plain
    assert READ[form](drawn)[2][-1] == f"Setting 6, {NO_ROOM}"


def test_our_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ladder.csv"
    path.write_text(speed_tables.draw_speeds(OURS, "csv"), "utf-8")
    assert read_speed_csv(path) == OURS


HOSTILE = "<script>alert(1)</script>|`a` *b* c_ \\d [e](f) & \x1b[31mred\x1b[0m\nsecond\tline"
HARMLESS = "<script>alert(1)</script>|`a` *b* c_ \\d [e](f) & �[31mred�[0m second line"


@pytest.mark.parametrize("form", ["html", "rst", "md", "csv"])
def test_what_a_cell_says_is_text_and_does_nothing(form: str) -> None:
    rows = [SpeedRow(HOSTILE, "", "", length, "BF16", 1, Decimal(1), note=HOSTILE) for length in (1, 2)]
    drawn = speed_tables.draw_speeds(rows, form)
    body = READ[form](drawn)[1:]
    columns = speed_tables.make_speed_table(rows, speed_tables.SHAPES[form]).columns
    note = [column.key for column in columns].index("note")
    assert [(row[0], row[note]) for row in body] == [(HARMLESS, HARMLESS)] * 2
    if form in ("html", "md"):
        assert "<script" not in drawn
    assert "\x1b" not in drawn


@pytest.mark.parametrize("width", [80, 40, 24])
def test_a_terminal_gets_no_long_line_and_no_control_character(width: int) -> None:
    long = SpeedRow("m" * 200, "", "", 129024, "GPTQ-Int4", 1, Decimal("1234.56"), note=HOSTILE * 3)
    drawn = render_text_table(speed_tables.make_speed_table([long], speed_tables.TERMINAL), width)
    assert max(map(len, drawn.splitlines())) <= width
    assert all(letter.isprintable() or letter == "\n" for letter in drawn)


def test_a_cell_spans_the_rows_beside_it_only() -> None:
    def row(model: str, length: int, quantization: str) -> SpeedRow:
        return SpeedRow(model, "", "", length, quantization, 1, Decimal(1))

    rows = [row("a", 1, "x"), row("a", 1, "y"), row("b", 1, "x"), row("a", 1, "x"), row("a", 2, "x")]
    table = speed_tables.make_speed_table(rows, QWEN3)
    assert table.count_spans() == [[2, 2], [0, 0], [1, 1], [2, 1], [0, 1]]
    shown = html_cells(speed_tables.render_html_table(table))[1:]
    assert [cells[:2] for cells in shown] == [["a", "1"], ["a", "1"], ["b", "1"], ["a", "1"], ["a", "2"]]
    assert rst_cells(speed_tables.render_rst_table(table))[1:] == shown


@loop_over("form", TABLES)
def test_a_table_without_rows_is_a_heading(form: str) -> None:
    assert "quantization" in speed_tables.draw_speeds([], form).lower()


def test_ours_stand_beside_the_published_of_the_same_formula() -> None:
    ours = [
        SpeedRow("Qwen3-8B", "SGLang", "H200", 1, "FP8", 1, Decimal("300.50"), formula=TOTAL),
        SpeedRow("Qwen3-8B", "SGLang", "H200", 129024, "FP8", 1, None, note=NO_ROOM, formula=TOTAL),
        SpeedRow("Qwen3-8B", "SGLang", "H200", 100, "FP8", 1, Decimal("300.00"), formula=TOTAL),
    ]
    assert speed_tables.draw_next_to_published(ours) == (
        "   Input  Quantization       Speed   Published  Ratio  Published on\n"
        "  Length                (tokens/s)  (tokens/s)\n"
        "  ------  ------------  ----------  ----------  -----  -------------------\n"
        "Qwen3-8B\n"
        "       1  FP8               300.50      150.25   2.00  SGLang, 1× H20-96GB\n"
        "  129024  FP8                    -     1393.21      -  SGLang, 1× H20-96GB\n"
        "     100  FP8               300.00           -      -  -\n"
        "Speed = (prompt+output)/time\n"
    )


def test_a_published_speed_of_the_other_formula_is_converted() -> None:
    ours = [SpeedRow("Qwen3-0.6B", "SGLang", "H200", 30720, "BF16", 1, Decimal("447.18"), output_length=256)]
    drawn = speed_tables.draw_next_to_published(ours)
    assert ours[0].formula == OUTPUT
    assert "447.18      223.59   2.00" in drawn  # 3577.42 × 2048 / (30720 + 2048)
    assert "Published as (prompt+output)/time, converted to output/time" in drawn
    assert "Published with 2048 generated tokens, ours with 256" in drawn


def test_nothing_stands_beside_a_model_that_nobody_published() -> None:
    assert speed_tables.draw_next_to_published([SpeedRow("tiny", "vLLM", "", 1, "BF16", 1, Decimal(9))]) == ""


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
    drawn = speed_tables.draw_throughput(PROMPTS, "rst", shaped(THROUGHPUT, model=24, prompts=11))
    assert drawn == (PAGES / "table_qwen2_throughput.rst").read_text("utf-8")


@pytest.mark.parametrize("form", ["html", "rst", "md", "csv"])
def test_throughput_rows_are_drawn_in_every_shape(form: str) -> None:
    heading, *body = READ[form](speed_tables.draw_throughput(PROMPTS, form))
    titles = {"csv": ["model", "quantization", "prompts", "qps", "tokens_per_s"]}
    assert heading == titles.get(form, ["Model", "Quantization", "# Prompts", "QPS", "Tokens/s"])
    assert body[3] == ["Qwen2-57B-A14B-Instruct", "BF16", "1000", "5.18", "5698.37"]


def test_markdown_has_both_times_before_the_speed() -> None:
    heading, first, _ = READ["md"](speed_tables.draw_speeds(OURS, "md"))
    assert heading[1:5] == ["Input Length", "TTFT (ms)", "Decode (tokens/s)", "Speed (tokens/s)"]
    assert first[1:5] == ["1", "9.50", "250.00", "230.12"]


@pytest.mark.parametrize("form", ["text", "md", "html", "rst"])
def test_one_setting_needs_no_name_unless_it_is_the_pages(form: str) -> None:
    rows = [replace(row, setting=GIVEN) for row in OURS]
    theirs = [replace(row, setting=SETTINGS["Default Setting"]) for row in OURS]
    drawn = re.sub(r"\\(.)|\n +(?!\*)", lambda found: found[1] or " ", speed_tables.draw_speeds(rows, form))
    assert "Setting" not in drawn
    assert "Server: gpu_memory_utilization=0.9 max_model_len=4096 enforce_eager=False" in drawn
    assert "[Default Setting]=(" in speed_tables.draw_speeds(theirs, form).replace("\\", "")


def test_several_quantizations_are_a_column() -> None:
    rows = [OURS[0], replace(OURS[0], quantization="AWQ-INT4")]
    columns = speed_tables.make_speed_table(rows, speed_tables.TERMINAL).columns
    assert "quantization" in [column.key for column in columns]


def test_two_formulas_are_a_speed() -> None:
    drawn = speed_tables.draw_speeds([OURS[0], replace(OURS[0], formula=TOTAL)], "text")
    assert "Speed = output/time or (prompt+output)/time" in drawn

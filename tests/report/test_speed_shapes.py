"""Shapes: what stands where in each form of our own rows: the times before the speed, settings, formulas."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from loadgen.report import speed_tables
from loadgen.report.speed_formulas import TOTAL
from loadgen.report.speed_rows import SETTINGS
from loadgen.report.speed_tables import QWEN2_5, QWEN3
from report.test_speed_tables import GIVEN, OURS, READ


@pytest.mark.parametrize("form", ["html", "rst"])
def test_the_pages_shapes_have_the_pages_columns_alone(form: str) -> None:
    heading = READ[form](speed_tables.render(OURS, form))[0]
    shape = QWEN3 if form == "html" else QWEN2_5
    assert heading == [column.title for column in shape.columns]


def test_markdown_has_both_times_before_the_speed() -> None:
    heading, first, _ = READ["md"](speed_tables.render(OURS, "md"))
    assert heading[1:5] == ["Input Length", "TTFT (ms)", "Decode (tokens/s)", "Speed (tokens/s)"]
    assert first[1:5] == ["1", "9.50", "250.00", "230.12"]


@pytest.mark.parametrize("form", ["text", "md", "html", "rst"])
def test_one_setting_needs_no_name(form: str) -> None:
    rows = [replace(row, setting=GIVEN) for row in OURS]
    drawn = re.sub(r"\\(.)|\n +(?!\*)", lambda found: found[1] or " ", speed_tables.render(rows, form))
    assert "Setting" not in drawn
    assert "Server: gpu_memory_utilization=0.9 max_model_len=4096 enforce_eager=False" in drawn


@pytest.mark.parametrize("form", ["text", "md", "html", "rst"])
def test_a_setting_of_the_pages_keeps_its_name(form: str) -> None:
    rows = [replace(row, setting=SETTINGS["Default Setting"]) for row in OURS]
    drawn = speed_tables.render(rows, form)
    assert "[Default Setting]=(" in drawn.replace("\\", "")


def test_several_quantizations_are_a_column() -> None:
    rows = [OURS[0], replace(OURS[0], quantization="AWQ-INT4")]
    assert "quantization" in [
        column.key for column in speed_tables.table(rows, speed_tables.TERMINAL).columns
    ]


def test_two_formulas_are_a_speed() -> None:
    drawn = speed_tables.render([OURS[0], replace(OURS[0], formula=TOTAL)], "text")
    assert "Speed = output/time or (prompt+output)/time" in drawn

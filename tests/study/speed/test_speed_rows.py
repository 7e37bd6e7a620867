"""Rows: published files and our own read whole, names told apart, settings numbered as on the pages."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.study.speed.speed_rows import (
    OUTPUT,
    SETTINGS,
    TOTAL,
    EngineSetting,
    Memory,
    SpeedRow,
    find_published,
    list_published,
    name_settings,
    read_speed_csv,
)

TABLES = read_tables("speed_rows")


def test_the_published_files_are_read_with_the_precision_they_print() -> None:
    rows = list_published()
    assert len(rows) == 216 + 259
    assert {row.formula for row in rows if row.model.startswith("Qwen3-")} == {TOTAL}
    assert {row.formula for row in rows if row.model.startswith("Qwen2.5-")} == {OUTPUT}
    assert {str(row.speed_tok_s) for row in rows} >= {"47.40", "3.5", "41.8", "None"}
    first = SpeedRow("Qwen2.5-0.5B-Instruct", "Transformers", "A100-80GB", 1, "BF16", 1, Decimal("47.40"))
    memory = Memory(Decimal("0.97"), "GB")
    assert next(row for row in rows if row.gpu_memory == memory) == replace(first, gpu_memory=memory)


@loop_over(("content", "said"), TABLES["refused"])
def test_a_file_that_is_no_table_of_speeds_is_told_in_one_line(
    content: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        read_speed_csv(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    path.unlink()
    with pytest.raises(UsageError, match=r"rows\.csv cannot be read"):
        read_speed_csv(path)


@loop_over(("asked", "speed_tok_s"), TABLES["published"])
def test_the_published_row_of_the_same_model_and_length_is_found(
    asked: list[Any], speed_tok_s: str | None
) -> None:
    """Asked are the model, its prompts' length, quantization, engine and number of GPUs."""
    row = find_published(*asked)
    assert (str(row.speed_tok_s) if row else None) == speed_tok_s


EAGER = EngineSetting.make(gpu_memory_utilization=1.0, max_model_len=32768, enforce_eager=True)
SGLANG = EngineSetting.make(mem_fraction_static=0.85, context_length=140000)


def test_settings_are_numbered_as_on_the_pages_new_ones_after() -> None:
    given = [SGLANG, SETTINGS["Setting 4"], SETTINGS["Default Setting"], EAGER, SGLANG]
    assert list(name_settings(given).items()) == [
        (SETTINGS["Default Setting"], "Default Setting"),
        (SETTINGS["Setting 4"], "Setting 4"),
        (SGLANG, "Setting 6"),
        (EAGER, "Setting 7"),
    ]
    assert name_settings([]) == {}


@pytest.mark.parametrize(
    ("memory", "mb", "gb"),
    [
        (Memory(Decimal("0.97"), "GB"), "993", "0.97"),
        (Memory(Decimal(1394), "MB"), "1394", "1.36"),
        (Memory.of_bytes(20 * 2**30, "MB"), "20480", "20.00"),
        (Memory.of_bytes(3 * 2**29, "GB"), "1536", "1.50"),
    ],
)
def test_memory_is_printed_in_the_unit_of_its_column(memory: Memory, mb: str, gb: str) -> None:
    assert (memory.format_amount("MB"), memory.format_amount("GB")) == (mb, gb)

"""Rows: published files and our own read whole, names told apart, settings numbered as on the pages."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
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

HEAD = "model,backend,gpu,input_length,quantization,gpu_num,speed_tok_s,gpu_memory_mb,note"


def test_the_published_files_are_read_with_the_precision_they_print() -> None:
    rows = list_published()
    assert len(rows) == 216 + 259
    assert {row.formula for row in rows if row.model.startswith("Qwen3-")} == {TOTAL}
    assert {row.formula for row in rows if row.model.startswith("Qwen2.5-")} == {OUTPUT}
    assert {str(row.speed_tok_s) for row in rows} >= {"47.40", "3.5", "41.8", "None"}
    first = SpeedRow("Qwen2.5-0.5B-Instruct", "Transformers", "A100-80GB", 1, "BF16", 1, Decimal("47.40"))
    memory = Memory(Decimal("0.97"), "GB")
    assert next(row for row in rows if row.gpu_memory == memory) == replace(first, gpu_memory=memory)


@loop_over(
    ("content", "said"),
    [
        ("model,tok_s\nQwen3-4B,208.1\n", "no column input_length, speed_tok_s"),
        (f"{HEAD}\nM,,,one,BF16,1,2.0,,\n", "line 2: not a speed row: invalid literal"),
        (f"{HEAD}\nM,,,1,BF16,1,2.0,,\nM,,,1,BF16,1,fast,,\n", "line 3"),
        (f"{HEAD}\nM,,,1,BF16,1,nan,,\n", "speed_tok_s is nan"),
        (f"{HEAD}\nM,,,1,BF16,1,-2,,\n", "speed_tok_s is -2"),
        (f"{HEAD}\n,,,1,BF16,1,2,,\n", "'model'"),
        (f"{HEAD}\nM,,,1,BF16,1,2,,a,b\n", "more cells than"),
        (f"{HEAD},formula\nM,,,1,BF16,1,2,,,tokens\n", "unknown formula 'tokens': use one of output/time"),
        (f"{HEAD},setting\nM,,,1,BF16,1,2,,,eager\n", "'eager' is not a setting"),
        (f'{HEAD}\nM,,,1,BF16,1,2,,"open\n', "cannot be read"),
        ("\udc80", "cannot be read"),
        ("", "no column"),
    ],
)
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


@loop_over(
    ("model", "input_length", "quantization", "backend", "gpu_num", "speed_tok_s"),
    [
        ("/models/Qwen3-8B-FP8", 1, "", "SGLang", 1, "150.25"),
        ("/models/qwen3-8b-fp8", 1, "", "Transformers", 1, "15.46"),
        ("/models/Qwen3-8B-FP8", 1, "", "vLLM", 1, "150.25"),  # not published of vLLM: of what serves
        ("Qwen2.5-7B-Instruct", 1, "BF16", "SGLang", 1, "84.28"),  # of vLLM, not of Transformers
        ("Qwen/Qwen3-8B", 6144, "", "", None, "296.25"),  # no quantization is BF16
        ("Qwen/Qwen3-8B-AWQ", 1, "", "sglang", 1, "144.11"),  # the page says AWQ-INT4
        ("Qwen/Qwen3-8B-AWQ", 1, "AWQ-4bit", "sglang", 1, "144.11"),  # so does a checkpoint
        ("Qwen3-8B", 129024, "FP8", "SGLang", 1, "1393.21"),  # the page's tables say 129042
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", 129024, "", "vLLM", 1, "26.37"),
        ("Qwen2.5-7B-Instruct", 1, "GPTQ-4bit", "vllm", 1, "154.05"),
        ("Qwen2.5-72B-Instruct", 1, "BF16", "vLLM", 2, "18.19"),
        ("Qwen2.5-72B-Instruct", 1, "BF16", "vLLM", 4, "31.37"),
        ("Qwen2.5-7B", 1, "BF16", "vLLM", 1, None),
        ("Qwen3-8B", 2, "BF16", "vLLM", 1, None),
        ("Qwen3-8B", 1, "NVFP4", "vLLM", 1, None),
    ],
)
def test_the_published_row_of_the_same_model_and_length_is_found(
    model: str, input_length: int, quantization: str, backend: str, gpu_num: int | None,
    speed_tok_s: str | None,
) -> None:  # fmt: skip
    row = find_published(model, input_length, quantization, backend, gpu_num)
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

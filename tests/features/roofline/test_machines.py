"""Machines are found by key, by what a GPU calls itself, and by a bandwidth alone."""

from __future__ import annotations

import pytest

from builders.loops import loop_over, read_tables
from builders.required import require
from loadgen.features.roofline.machines import (
    choose_machine,
    find_machine,
    list_machines,
    make_machine,
    recognise_machine,
)

TABLES = read_tables("machines")

NAMES = TABLES["names"]


def test_every_machine_names_its_source_and_is_found_by_its_own_key() -> None:
    for key, row in list_machines().items():
        assert row.source
        assert row.memory_bytes >= 8e9
        assert set(row.peak_flop_per_s) <= {"bf16", "fp8", "fp4", "int8"}
        assert find_machine(key.upper()) == row
    assert "1,536" in find_machine("rtx-pro-6000").note
    assert "231 to 234" in find_machine("gb10").note


WRITTEN = TABLES["written"]


@loop_over("name", WRITTEN)
@loop_over(
    ("form", "count"), [("{}", 1), ("{} GPU", 1), ("8x{}", 8), ("8 × {}", 8), ("{} x8", 8), ("{} × 8", 8)]
)
def test_a_gpu_is_recognised_as_people_write_it(name: str, form: str, count: int) -> None:
    assert recognise_machine(form.format(name)) == find_machine(WRITTEN[name]).multiply(count)


@loop_over(
    "name",
    [
        "GB200 NVL72", "A100 or H100", "RTX 3090 Ti", "GH200", "MI325X", "x8", "NVIDIA H2", "llvmpipe", "",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
    ],
)  # fmt: skip
def test_a_name_that_is_nearly_one_of_the_table_is_none_of_it(name: str) -> None:
    assert recognise_machine(name) is None


# Boards with one name are told apart by their memory.
BOARDS = [
    ("Orin (nvgpu)", 61.4, "jetson-agx-orin"),
    ("Orin (nvgpu)", 29.9, "jetson-agx-orin-32gb"),
    ("Orin (nvgpu)", 15.3, "jetson-orin-nx"),
    ("Orin (nvgpu)", 7.4, "jetson-orin-nano"),
    ("NVIDIA Thor", 122.8, "jetson-thor"),
    ("NVIDIA Thor", 61.4, "jetson-thor-t4000"),
    ("NVIDIA Thor", 500.0, "jetson-thor"),
    ("NVIDIA H20", 2000.0, "h20-96gb"),
]


@loop_over(("name", "memory_gib", "key"), [*((name, None, key) for name, key in NAMES.items()), *BOARDS])
def test_a_gpu_is_recognised_by_what_it_calls_itself(name: str, memory_gib: float | None, key: str) -> None:
    assert require(recognise_machine(name, memory_gib)).key == key


@pytest.mark.parametrize("words", ["4xh100", "4 x h100", "4×H100"])
def test_several_devices_add_up(words: str) -> None:
    one, four = find_machine("h100"), find_machine(words)
    assert four.devices == 4
    assert four.bandwidth_bytes_per_s == 4 * one.bandwidth_bytes_per_s
    assert four.peak_flop_per_s["fp8"] == 4 * one.peak_flop_per_s["fp8"]
    assert four.memory_bytes == 4 * one.memory_bytes
    assert four.name == "4 × H100 SXM 80GB"
    assert recognise_machine("4 × NVIDIA H100 80GB HBM3") == four


def test_a_given_bandwidth_overrides_that_of_a_known_machine() -> None:
    assert choose_machine(None, None) is None
    alone = choose_machine(None, 460.0)
    assert alone == make_machine(460.0)
    assert alone is not None
    assert (alone.bandwidth_bytes_per_s, alone.peak_flop_per_s, alone.memory_bytes) == (460e9, {}, 0)
    both = require(choose_machine("gb10", 233.0))
    assert (both.bandwidth_bytes_per_s, both.key) == (233e9, "gb10")
    assert both.peak_flop_per_s == find_machine("gb10").peak_flop_per_s

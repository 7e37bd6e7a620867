"""A model's shape is found by its config.json or name, a machine by key, a GPU's name or a bandwidth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over, loop_over_named, read_tables
from builders.required import require
from loadgen.base.errors import UsageError
from loadgen.features.roofline.machines import (
    choose_machine,
    find_machine,
    list_machines,
    make_machine,
    recognise_machine,
)
from loadgen.features.roofline.models import (
    find_architecture,
    find_model,
    find_suffix,
    list_models,
    parse_architecture,
    read_architecture,
    read_rows,
    split_gguf,
)

TABLES = read_tables("models")

QWEN3_8B = Path(__file__).parents[2] / "data" / "configs" / "qwen3-8b.json"


@loop_over("key", read_rows())
def test_the_parameters_are_those_of_the_models_card(key: str) -> None:
    row, shape = read_rows()[key], list_models()[key]
    assert shape.total / 1e9 == pytest.approx(row.parameters_b, rel=0.013)
    if row.active_b:
        counts = [shape.active, shape.active - shape.embedding, shape.active - 2 * shape.embedding]
        assert any(count / 1e9 == pytest.approx(row.active_b, rel=0.02) for count in counts)


@loop_over(("key", "total", "non_embedding"), TABLES["parameters"])
def test_the_parameters_to_the_million(key: str, total: int, non_embedding: int) -> None:
    shape = list_models()[key]
    assert (round(shape.total / 1e6), round(shape.non_embedding / 1e6)) == (total, non_embedding)


# Names of the published pages and of hubs, the row, and how the weights are stored.
NAMES = TABLES["names"]


@loop_over("name", NAMES)
def test_a_name_is_a_model_and_how_it_is_stored(name: str) -> None:
    key, quantization = NAMES[name]
    found = find_model(name)
    assert found is not None
    assert (found.key, found.quantization) == (key, quantization)
    assert find_architecture(name) == list_models()[key]
    assert find_suffix(name) == quantization


@loop_over(
    ("name", "quantization"),
    [("", ""), ("Qwen3-8B-Eagle", ""), ("DeepSeek-R1-Distill-Qwen-7B", ""), ("tiny-Int8-W8A8", "Int8-W8A8")],
)
def test_a_name_that_is_nearly_one_of_the_table_is_none_of_it(name: str, quantization: str) -> None:
    assert find_architecture(name) is None
    assert find_suffix(name) == quantization


def test_a_config_is_read_from_its_file_or_its_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(QWEN3_8B.read_bytes())
    expected = replace(list_models()["Qwen3-8B"], source="")
    for path in (QWEN3_8B, tmp_path, tmp_path / "config.json"):
        assert replace(read_architecture(path), source="") == expected


SMALL: dict[str, Any] = TABLES["small"]


@loop_over_named(("changes", "expected"), TABLES["families"])
def test_families_say_the_same_in_other_words(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    shape = parse_architecture({**SMALL, **changes}, "a config")
    assert {name: getattr(shape, name) for name in expected} == expected


def test_a_model_that_sees_has_its_shape_in_its_text_part() -> None:
    shape = parse_architecture(TABLES["sees"], "google/gemma-3-12b-it, config.json")
    assert shape == find_architecture("gemma-3-12b-it")
    assert shape.window_layers == 40


@loop_over(
    ("text", "said"),
    [
        (None, "No such file"),
        (b"{", "is not valid JSON: check that the model"),
        (b"[]", "is not a JSON object"),
        (b"{}", "does not have num_hidden_layers: give the config.json of a language model"),
        (
            json.dumps({**SMALL, "layer_types": ["linear_attention", "full_attention"]}).encode(),
            "llama has layers (linear_attention) whose bytes and arithmetic are not modelled: no roofline",
        ),
        (json.dumps({**SMALL, "state_size": 16}).encode(), "llama has layers (state_size)"),
        (json.dumps({**SMALL, "hidden_size": "64"}).encode(), "does not have hidden_size"),
        (json.dumps({**SMALL, "num_experts": 4}).encode(), "does not have num_experts_per_tok"),
    ],
)
def test_a_config_that_is_none_says_so(tmp_path: Path, text: bytes | None, said: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(UsageError) as error:
        read_architecture(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


@loop_over(("model", "parts"), TABLES["bases"])
def test_a_name_is_a_base_and_a_quantization(model: str, parts: list[str]) -> None:
    assert list(split_gguf(model)) == parts


MACHINES = read_tables("machines")
WRITTEN = MACHINES["written"]


def test_every_machine_names_its_source_and_is_found_by_its_own_key() -> None:
    for key, row in list_machines().items():
        assert row.source
        assert row.memory_bytes >= 8e9
        assert set(row.peak_flop_per_s) <= {"bf16", "fp8", "fp4", "int8"}
        assert find_machine(key.upper()) == row
    assert "1,536" in find_machine("rtx-pro-6000").note
    assert "231 to 234" in find_machine("gb10").note


@loop_over("name", WRITTEN)
@loop_over(
    ("form", "count"), [("{}", 1), ("{} GPU", 1), ("8x{}", 8), ("8 × {}", 8), ("{} x8", 8), ("{} × 8", 8)]
)
def test_a_gpu_is_recognised_as_people_write_it(name: str, form: str, count: int) -> None:
    assert recognise_machine(form.format(name)) == find_machine(WRITTEN[name]).multiply(count)


@loop_over("name", MACHINES["none of them"])
def test_a_gpu_whose_name_is_nearly_one_of_the_table_is_none_of_it(name: str) -> None:
    assert recognise_machine(name) is None


@loop_over(
    ("name", "memory_gib", "key"),
    [*((name, None, key) for name, key in MACHINES["names"].items()), *MACHINES["boards"]],
)
def test_a_gpu_is_recognised_by_what_it_calls_itself(name: str, memory_gib: float | None, key: str) -> None:
    """Boards with one name are told apart by their memory."""
    assert require(recognise_machine(name, memory_gib)).key == key


@pytest.mark.parametrize("words", ["4xh100", "4 x h100", "4×H100"])
def test_several_devices_add_up(words: str) -> None:
    one, four = find_machine("h100"), find_machine(words)
    assert (four.devices, four.name) == (4, "4 × H100 SXM 80GB")
    assert four.bandwidth_bytes_per_s == 4 * one.bandwidth_bytes_per_s
    assert four.peak_flop_per_s["fp8"] == 4 * one.peak_flop_per_s["fp8"]
    assert four.memory_bytes == 4 * one.memory_bytes
    assert recognise_machine("4 × NVIDIA H100 80GB HBM3") == four


def test_a_given_bandwidth_overrides_that_of_a_known_machine() -> None:
    assert choose_machine(None, None) is None
    alone = require(choose_machine(None, 460.0))
    assert alone == make_machine(460.0)
    assert (alone.bandwidth_bytes_per_s, alone.peak_flop_per_s, alone.memory_bytes) == (460e9, {}, 0)
    both = require(choose_machine("gb10", 233.0))
    assert (both.bandwidth_bytes_per_s, both.key) == (233e9, "gb10")
    assert both.peak_flop_per_s == find_machine("gb10").peak_flop_per_s

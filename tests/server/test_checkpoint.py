"""The checkpoint: every way a model's files declare their numbers, and files that are no model."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.server import checkpoint

TABLES = read_tables("checkpoint")

DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960,
    "num_hidden_layers": 36,
    "hidden_size": 4096,
}


def model(directory: Path, config: dict[str, Any], **beside: object) -> Path:
    """A model's directory: its config, and other JSON files by name (with _ for -)."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    for name, content in beside.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def read(path: Path) -> checkpoint.Checkpoint:
    found = checkpoint.read_checkpoint(str(path))
    assert found is not None
    return found


def test_a_plain_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    place = model(tmp_path, DENSE)
    (place / "model-00001-of-00002.safetensors").write_bytes(b"1" * 30)
    (place / "model-00002-of-00002.safetensors").write_bytes(b"2" * 12)
    (place / "consolidated.safetensors").write_bytes(b"3" * 42)
    (place / "pytorch_model.bin").write_bytes(b"4" * 42)
    found = read(place)
    assert (found.architecture, found.model_type) == ("Qwen3ForCausalLM", "qwen3")
    assert (found.dtype, found.quantization, found.quantization_detail) == ("bfloat16", "BF16", "")
    assert (found.max_positions, found.layers, found.hidden_size) == (40960, 36, 4096)
    assert found.weight_bytes == 42
    assert len(found.config_digest) == 32


def test_the_digest_is_of_the_config_alone(tmp_path: Path) -> None:
    one, same = model(tmp_path / "a", DENSE), model(tmp_path / "b", DENSE)
    other = model(tmp_path / "c", {**DENSE, "rope_theta": 1})
    (same / "model.safetensors").write_bytes(b"1")
    assert read(one).config_digest == read(same).config_digest != read(other).config_digest


@loop_over(("declared", "word", "detail"), TABLES["quantizations"])
def test_the_quantization_has_the_fields_word(
    declared: dict[str, Any], word: str, detail: str, tmp_path: Path
) -> None:
    found = read(model(tmp_path, {**DENSE, "quantization_config": declared}))
    assert (found.quantization, found.quantization_detail) == (word, detail)
    assert found.dtype == "bfloat16"


@loop_over(
    ("stored", "word"),
    TABLES["types"],
)
def test_what_is_not_quantized_has_its_types_word(stored: dict[str, Any], word: str, tmp_path: Path) -> None:
    assert read(model(tmp_path, stored)).quantization == word


def test_modelopts_own_file_counts_where_the_config_is_silent(tmp_path: Path) -> None:
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    found = read(model(tmp_path, DENSE, hf_quant_config=beside))
    assert (found.quantization, found.quantization_detail) == ("NVFP4", "groups of 16")


@loop_over(
    ("keys", "experts"),
    TABLES["experts"],
)
def test_experts_are_those_that_a_config_declares(
    keys: dict[str, Any], experts: int | None, tmp_path: Path
) -> None:
    assert read(model(tmp_path, {**DENSE, **keys})).experts == experts


@pytest.mark.parametrize(
    "config",
    TABLES["text parts"],
)
def test_of_a_model_that_sees_the_text_part_speaks(config: dict[str, Any], tmp_path: Path) -> None:
    found = read(model(tmp_path, config))
    assert (found.dtype, found.max_positions, found.layers) == ("bfloat16", 40960, 36)
    assert found.hidden_size == 4096


@loop_over(
    ("sizes", "index", "weight_bytes"),
    [
        ({"a.safetensors": 5, "extra.safetensors": 50}, ["a.safetensors", "gone.safetensors"], 5),
        # What training left is not counted.
        ({"pytorch_model-00001-of-00001.bin": 5, "training_args.bin": 5, "optimizer.bin": 5}, [], 5),
    ],
)
def test_the_weights_that_count_are_those_of_the_index_or_of_a_kind(
    sizes: dict[str, int], index: list[str], weight_bytes: int, tmp_path: Path
) -> None:
    place = model(tmp_path, DENSE)
    for name, size in sizes.items():
        (place / name).write_bytes(bytes(size))
    if index:
        named = {"weight_map": dict(zip("wb", index, strict=True)) | {"c": index[0]}}
        (place / "model.safetensors.index.json").write_text(json.dumps(named))
    assert read(place).weight_bytes == weight_bytes


def metadata(*pairs: tuple[str, int, bytes]) -> bytes:
    """A GGUF head of keys, types and values as they are stored."""
    body = b"".join(string(key) + struct.pack("<I", kind) + value for key, kind, value in pairs)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + body


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def number(value: int) -> bytes:
    return struct.pack("<I", value)


WORDS = struct.pack("<IQ", 8, 2) + string("a") + string("b")
LLAMA = (
    ("general.architecture", 8, string("qwen3")),
    ("general.tags", 9, WORDS),
    ("general.scores", 9, struct.pack("<IQ", 6, 3) + bytes(12)),
    ("qwen3.context_length", 4, number(40960)),
    ("qwen3.block_count", 4, number(36)),
    ("qwen3.embedding_length", 4, number(4096)),
    ("general.file_type", 4, number(15)),
)


@loop_over(
    ("name", "pairs", "word"),
    [
        ("model.gguf", LLAMA, "GGUF-Q4_K_M"),
        ("model.gguf", LLAMA[:-1], "GGUF"),
        ("model.gguf", (*LLAMA[:-1], ("general.file_type", 4, number(0))), "GGUF-F32"),
        ("Qwen3-8B-Q5_K_S.gguf", LLAMA, "GGUF-Q5_K_S"),
        ("qwen3-8b-iq4_xs-00001-of-00002.gguf", LLAMA, "GGUF-IQ4_XS"),
        ("Qwen3-8B-BF16.gguf", LLAMA, "GGUF-BF16"),
    ],
)
def test_a_gguf_file_is_known_by_its_name_or_its_head(
    name: str, pairs: tuple[tuple[str, int, bytes], ...], word: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(metadata(*pairs))
    found = read(path)
    assert found.quantization == word
    assert (found.model_type, found.max_positions, found.layers) == ("qwen3", 40960, 36)
    assert found.hidden_size == 4096
    assert found.weight_bytes == path.stat().st_size


def test_a_directory_of_gguf_parts_is_one_model(tmp_path: Path) -> None:
    for part in (1, 2):
        (tmp_path / f"m-Q8_0-0000{part}-of-00002.gguf").write_bytes(metadata(*LLAMA))
    found = read(tmp_path)
    assert (found.quantization, found.weight_bytes) == ("GGUF-Q8_0", 2 * len(metadata(*LLAMA)))


@pytest.mark.parametrize("cut", [24, 60, 100, 200])
def test_a_gguf_head_that_ends_early_says_what_it_can(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(metadata(*LLAMA)[:cut])
    assert read(path).model_type == ("qwen3" if cut > 60 else "")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "/no/such/model"])
def test_a_name_that_is_no_path_here_is_none(name: str) -> None:
    assert checkpoint.read_checkpoint(name) is None


@loop_over(
    ("files", "told"),
    [
        ({}, "is not a model: it holds neither config.json"),
        ({"config.json": "{"}, "is not valid JSON"),
        ({"config.json": "[" * 100_000}, "is not valid JSON"),
        ({"config.json": "[1]"}, "is not a JSON object"),
        ({"config.json": "{}", "hf_quant_config.json": "\x00"}, "is not valid JSON"),
        ({"model.gguf": "GGUF"}, "is not a GGUF file"),
        ({"model.gguf": "0" * 100}, "is not a GGUF file"),
    ],
)
def test_what_is_no_checkpoint_is_said(files: dict[str, str], told: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=told):
        checkpoint.read_checkpoint(str(tmp_path))


def test_a_config_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(tmp_path / "config.json")  # for root there is no permission
    with pytest.raises(UsageError, match="is not a model"):
        checkpoint.read_checkpoint(str(tmp_path))


def test_a_config_of_nonsense_is_read_as_silence(tmp_path: Path) -> None:
    nonsense = {
        "architectures": "x",
        "dtype": 7,
        "hidden_size": "many",
        "text_config": {"text_config": [1]},
        "num_hidden_layers": True,
        "quantization_config": {"config_groups": {"a": 1}, "quant_method": 5},
    }
    found = read(model(tmp_path, nonsense))
    assert (found.architecture, found.dtype, found.hidden_size, found.layers) == ("", "", None, None)
    assert found.quantization == "compressed-tensors"

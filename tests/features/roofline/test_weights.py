"""A checkpoint's bytes come from its safetensors headers, or from its shape and the word for its scheme."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from builders.required import require
from loadgen.base.errors import UsageError
from loadgen.features.roofline import estimate
from loadgen.features.roofline.estimate import Scheme, estimate_ceiling, parse_scheme
from loadgen.features.roofline.machines import find_machine
from loadgen.features.roofline.models import Architecture, list_models, parse_architecture

HIDDEN, VOCABULARY, LAYERS, INNER, EXPERTS = 8, 32, 2, 16, 4
CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
TIED = {**CONFIG, "tie_word_embeddings": True}
MIXTURE = {
    **CONFIG,
    "model_type": "qwen3_moe",
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": INNER,
}
SIZES = {"BF16": 2, "F8_E4M3": 1, "F32": 4, "I32": 4, "U8": 1}
ATTENTION = 2 * HIDDEN * 8 + 2 * HIDDEN * 4  # of a layer: q and o, k and v
MLP, TABLE = 3 * HIDDEN * INNER, VOCABULARY * HIDDEN
Tensors = dict[str, tuple[str, list[int]]]


def safetensors(tensors: Tensors) -> bytes:
    """A file with these tensors, all zeros."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(at)


def dense(dtype: str = "BF16") -> Tensors:
    """A model of CONFIG."""
    tensors: Tensors = {
        "model.embed_tokens.weight": ("BF16", [VOCABULARY, HIDDEN]),
        "lm_head.weight": ("BF16", [VOCABULARY, HIDDEN]),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, rows, columns in (("q", 8, HIDDEN), ("k", 4, HIDDEN), ("v", 4, HIDDEN), ("o", HIDDEN, 8)):
            tensors[f"{at}.self_attn.{name}_proj.weight"] = (dtype, [rows, columns])
        for name in ("gate", "up", "down"):
            tensors[f"{at}.mlp.{name}_proj.weight"] = (dtype, [INNER, HIDDEN])
    return tensors


def mixture(stacked: bool) -> Tensors:
    """A model of MIXTURE: an expert a tensor, or all of a layer in one."""
    tensors = {name: said for name, said in dense().items() if ".mlp." not in name}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.mlp"
        tensors[f"{at}.gate.weight"] = ("BF16", [EXPERTS, HIDDEN])
        if stacked:
            tensors[f"{at}.experts.gate_up_proj"] = ("BF16", [EXPERTS, HIDDEN, 2 * INNER])
            tensors[f"{at}.experts.down_proj"] = ("BF16", [EXPERTS, INNER, HIDDEN])
            continue
        for expert in range(EXPERTS):
            for name in ("gate", "up", "down"):
                tensors[f"{at}.experts.{expert}.{name}_proj.weight"] = ("BF16", [INNER, HIDDEN])
    return tensors


def checkpoint(place: Path, tensors: Tensors, config: dict[str, Any] | None = None, shards: int = 1) -> Path:
    """A directory with a config and these tensors in so many files."""
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(config or CONFIG))
    names = list(tensors)
    if shards == 1:
        (place / "model.safetensors").write_bytes(safetensors(tensors))
        return place
    index: dict[str, str] = {}
    for shard in range(shards):
        part = {name: tensors[name] for name in names[shard::shards]}
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        (place / file).write_bytes(safetensors(part))
        index |= dict.fromkeys(part, file)
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return place


def shape(config: dict[str, Any] | None = None, **changes: Any) -> Architecture:
    return parse_architecture({**(config or CONFIG), **changes}, "a config")


LAYER = ATTENTION + MLP
OTHERS: Tensors = {
    "model.visual.blocks.0.attn.qkv.weight": ("BF16", [8, 8]),
    "vision_tower.encoder.weight": ("BF16", [8, 8]),
    "mtp.layers.0.mlp.up_proj.weight": ("BF16", [8, 8]),
    f"model.layers.{LAYERS}.mlp.up_proj.weight": ("BF16", [8, 8]),  # as DeepSeek has what guesses ahead
}


STORED = TABLE + LAYERS * LAYER  # without the input's embedding
EXPERT_BYTES = 2 * LAYERS * EXPERTS * MLP
MIXED_BYTES = 2 * (TABLE + LAYERS * (ATTENTION + EXPERTS * HIDDEN))
PACKED: Tensors = {
    "model.layers.0.mlp.up_proj.qweight": ("I32", [HIDDEN // 8, INNER]),
    "model.layers.0.mlp.up_proj.qzeros": ("I32", [1, INNER // 8]),
    "model.layers.0.mlp.up_proj.scales": ("BF16", [1, INNER]),
    "model.layers.0.mlp.down_proj.weight_packed": ("U8", [HIDDEN, INNER // 2]),
}


@loop_over(
    ("tensors", "config", "shards", "dense_bytes", "other_bytes", "routed_bytes"),
    [
        pytest.param(dense(), CONFIG, 1, 2 * STORED, 2 * TABLE, 0, id="the head is read, the input's not"),
        pytest.param(dense(), CONFIG, 3, 2 * STORED, 2 * TABLE, 0, id="in three files"),
        pytest.param(dense(), TIED, 1, 2 * STORED, 0, 0, id="a tied embedding counts once"),
        pytest.param(dense("F8_E4M3"), CONFIG, 1, STORED + TABLE, 2 * TABLE, 0, id="types as stored"),
        pytest.param(PACKED, CONFIG, 1, 64 + 8 + 32 + 64, 0, 0, id="packed integers as their words"),
        pytest.param(mixture(False), MIXTURE, 1, MIXED_BYTES, 2 * TABLE, EXPERT_BYTES, id="one by one"),
        pytest.param(mixture(True), MIXTURE, 1, MIXED_BYTES, 2 * TABLE, EXPERT_BYTES, id="experts stacked"),
        pytest.param({**dense(), **OTHERS}, CONFIG, 1, 2 * STORED, 2 * TABLE + 4 * 128, 0,
         id="what sees and what guesses ahead must fit and is not read"),
    ],
)  # fmt: skip
def test_bytes_are_counted_as_they_are_stored(
    tensors: Tensors, config: dict[str, Any], shards: int, dense_bytes: int, other_bytes: int,
    routed_bytes: int, tmp_path: Path,
) -> None:  # fmt: skip
    """`other_bytes` must fit in memory and are not read for a token."""
    place = checkpoint(tmp_path / "m", tensors, config, shards)
    total_bytes = dense_bytes + other_bytes + routed_bytes
    assert estimate.read_stored(place, shape(config)) == estimate.Stored(
        total_bytes, dense_bytes, routed_bytes
    )


@pytest.mark.parametrize("config", [CONFIG, MIXTURE], ids=["dense", "mixture"])
def test_headers_and_shape_come_to_the_same(tmp_path: Path, config: dict[str, Any]) -> None:
    tensors = dense() if config is CONFIG else mixture(stacked=False)
    found = estimate_ceiling(
        "m", find_machine("l4"), checkpoint_path=str(checkpoint(tmp_path / "m", tensors, config))
    )
    computed = estimate.weigh_shape(shape(config), Scheme("BF16", 16.0), "")
    assert found.weights.how == f"safetensors headers of {tmp_path / 'm'}"
    assert found.weights.model_dump(exclude={"how"}) == computed.model_dump(exclude={"how"})


WHOLE = safetensors({"a": ("BF16", [4, 4])})


def lying(**said: Any) -> bytes:
    told = {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 32], **said}
    head = json.dumps({"a": told}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(32)


@loop_over(
    ("raw", "said"),
    [
        pytest.param(b"", "is not a safetensors file, or is cut off", id="empty"),
        pytest.param(b"GGUF\x03\0\0\0", "is not a safetensors file, or is cut off", id="another format"),
        pytest.param(WHOLE[:30], "is not a safetensors file, or is cut off", id="cut in the header"),
        pytest.param(WHOLE[:-1], "a is not where its header puts it", id="cut in the weights"),
        pytest.param(struct.pack("<Q", 4) + b"{{{{", "its header is not valid JSON", id="no JSON"),
        pytest.param(struct.pack("<Q", 2) + b"[]", "its header is not a JSON object", id="no object"),
        pytest.param(lying(shape=[4, 5]), "a is not where its header puts it", id="another shape"),
        pytest.param(lying(data_offsets=[16, 8]), "a is not where its header puts it", id="backwards"),
        pytest.param(lying(data_offsets=[0, 1 << 60]), "a is not where its header puts it", id="beyond"),
        pytest.param(lying(data_offsets=[0]), "its header is invalid for a", id="half an offset"),
        pytest.param(lying(shape=[-4, -4]), "its header is invalid for a", id="a negative shape"),
        pytest.param(lying(shape="4x4"), "its header is invalid for a", id="words for a shape"),
    ],
)
def test_a_header_that_is_cut_off_or_not_true_is_named(tmp_path: Path, raw: bytes, said: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(UsageError) as error:
        estimate.read_stored(tmp_path, shape())
    assert said in str(error.value)
    assert str(tmp_path / "model.safetensors") in str(error.value)


def test_a_model_half_copied_and_unknown_experts_are_named(tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "half", dense(), shards=3)
    (place / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UsageError, match=r"00002-of-00003.* is missing: the model is half copied"):
        estimate.read_stored(place, shape())
    with pytest.raises(UsageError, match=r"its config\.json declares none"):
        estimate.read_stored(checkpoint(tmp_path / "mixed", mixture(stacked=False)), shape())


def test_a_directory_without_weights_is_estimated_from_its_config(tmp_path: Path) -> None:
    config = {**CONFIG, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = estimate_ceiling("m", find_machine("h20-96gb"), checkpoint_path=str(tmp_path)).weights
    assert found.how == f"computed from the config of {tmp_path / 'config.json'} as FP8 (8.002 bits)"
    assert found.dense_bytes == round(2 * TABLE + LAYERS * LAYER * 8.001953125 / 8)
    assert found.computes == "fp8"


def test_a_gguf_file_has_the_bits_that_its_size_has(tmp_path: Path) -> None:
    file = tmp_path / "Qwen3-8B-Q4_K_M.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(999_976))
    found = estimate_ceiling(str(file), find_machine("jetson-thor")).weights
    share = 1 - list_models()["Qwen3-8B"].embedding / list_models()["Qwen3-8B"].total
    assert found.total_bytes == pytest.approx(1_000_000, abs=2)
    assert found.dense_bytes == pytest.approx(1_000_000 * share, abs=2)
    assert (found.computes, found.how) == ("bf16", f"the size of {file}")


# Bits per weight, and what computes.
SCHEMES = {
    "": (16, "bf16"),
    "BF16": (16, "bf16"),
    "FP8": (8 + 32 / 128**2, "fp8"),
    "FP8-W8A16": (8 + 32 / 128**2, "bf16"),
    "MXFP8-W8A16": (8 + 8 / 32, "bf16"),
    "AWQ": (4 + 20 / 128, "bf16"),
    "AWQ-4bit": (4 + 20 / 128, "bf16"),
    "AWQ-8bit": (8 + 24 / 128, "bf16"),
    "GPTQ-Int4": (4 + 20 / 128, "bf16"),
    "GPTQ-Int8": (8 + 24 / 128, "bf16"),
    "Int4-W4A16": (4 + 16 / 128, "bf16"),
    "Int8-W8A16": (8 + 16 / 128, "bf16"),
    "Int8-W8A8": (8, "int8"),
    "quantized.w8a8": (8, "int8"),
    "NVFP4": (4.5, "fp4"),
    "NVFP4-W4A16": (4.5, "bf16"),
    "MXFP4": (4.25, "fp8"),
    "BNB-4bit": (4.5, "bf16"),
    "GGUF-Q4_K_M": (4.89, "bf16"),
    "Q8_0": (8.5, "bf16"),
    "FP32": (16, "bf16"),
}


@loop_over("word", SCHEMES)
def test_a_word_is_bits_per_weight_and_what_computes(word: str) -> None:
    found = require(parse_scheme(word))
    assert (found.bits, found.computes) == SCHEMES[word]


def test_groups_that_are_told_are_taken_and_others_are_said_to_be_assumed() -> None:
    told, assumed = require(parse_scheme("GPTQ-Int4", 32)), require(parse_scheme("GPTQ-Int4"))
    assert (told.bits, told.assumed, assumed.assumed) == (4 + 20 / 32, "", "groups of 128")


def test_a_machine_without_the_unit_computes_in_sixteen_bits() -> None:
    for word in ("FP8", "NVFP4"):
        found = estimate_ceiling(f"Qwen3-8B-{word}", find_machine("a100-80gb"))
        assert found.weights.computes == "bf16"
    assert estimate_ceiling("Qwen3-8B-FP8", find_machine("h100")).weights.computes == "fp8"


def test_only_the_experts_of_gpt_oss_are_in_four_bits() -> None:
    found = estimate_ceiling("openai/gpt-oss-20b", find_machine("h100")).weights
    part = list_models()["gpt-oss-20b"]
    assert found.total_bytes / 1e9 == pytest.approx(13.8, rel=0.01)  # its card: 12.8 GiB
    assert found.dense_bytes == 2 * (part.dense + part.routers + part.embedding)


def test_a_scheme_that_nobody_knows_says_what_to_pass() -> None:
    assert {parse_scheme(word) for word in ("quark", "ternary", "w", "AQLM")} == {None}
    with pytest.raises(UsageError, match=r"unknown bit width of quark"):
        estimate_ceiling("Qwen3-8B", find_machine("l4"), quantization="quark")


@pytest.mark.parametrize(("dtype", "share"), [("", 1), ("auto", 1), ("bfloat16", 1), ("fp8_e4m3", 0.5)])
def test_keys_and_values_take_what_the_engine_stores_them_in(dtype: str, share: float) -> None:
    found = estimate_ceiling("Qwen3-8B", find_machine("l4"), kv_dtype=dtype).weights
    assert found.kv_bytes_per_token == 147_456 * share

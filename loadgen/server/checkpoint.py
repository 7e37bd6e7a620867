"""Checkpoint: the declarations of a local model directory or GGUF file."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel

from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.plan import model_files

UNQUANTIZED = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}
_QUANTIZED_BY = ("quantization_config", "compression_config")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_PICKLED = re.compile(r"(?:pytorch_)?model.*\.bin|consolidated.*\.bin")  # no optimizer, no training_args
_LONGEST_PATH = 4096  # characters
_GGUF_NAME = re.compile(r"[-._]((?:I?Q\d|TQ\d|MXFP4|BF16|F16|F32)\w*?)(?:-\d{5}-of-\d{5})?\.gguf$", re.I)


class Checkpoint(BaseModel, extra="forbid", frozen=True):
    """The declarations of a checkpoint about itself; "" or None for what it does not declare."""

    path: str
    config_digest: str  # blake2b of config.json, or of a GGUF file's metadata
    architecture: str = ""
    model_type: str = ""
    dtype: str = ""  # as stored, where it is not quantized
    quantization: str = ""  # its usual short name: BF16, FP8, AWQ-4bit, GPTQ-Int4, NVFP4, GGUF-Q4_K_M
    quantization_detail: str = ""  # what the name leaves out: blocks, groups, the packing
    max_positions: int | None = None
    layers: int | None = None
    hidden_size: int | None = None
    experts: int | None = None  # routed, of a layer that has them
    weight_bytes: int | None = None  # of the files on this disk


def read_checkpoint(path: str) -> Checkpoint | None:
    """Read what the checkpoint at a path declares; None if nothing is there (a hub name).

    The path may come from a server: only a directory's known files and a .gguf file are opened, and only
    regular files. Raises UsageError where something is there that cannot be read as a checkpoint.
    """
    place = Path(os.path.expanduser(path))
    if not os.path.exists(place):
        return None
    try:
        if not os.path.isdir(place):
            return _read_gguf([place], path)
        if os.path.isfile(place / "config.json"):
            return _read_transformers(place, path)
        parts = sorted(place.glob("*.gguf"))
        if not parts:
            raise UsageError(f"{path} is not a model: it holds neither config.json nor a .gguf file")
        return _read_gguf(parts, path)
    except OSError as error:
        raise UsageError(f"{path}: the model cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):  # a null byte in a name, values nested too deep
        raise UsageError(f"{path} is broken: its files cannot be interpreted; copy the model again") from None


class Quantization(msgspec.Struct, frozen=True):
    """How a config declares its weights to be stored; "" or None for what it does not declare."""

    word: str = ""  # the short name, as in `Checkpoint.quantization`
    detail: str = ""
    group_size: int | None = None  # weights that share a scale


def read_quantization(config: Mapping[str, Any], directory: Path) -> Quantization:
    """Read how a config, else ModelOpt's file next to it, declares weights to be stored; else their type."""
    places = _list_places(config)
    declared = _find_first(places, _QUANTIZED_BY, dict, {})
    if not declared and (modelopt := directory / "hf_quant_config.json").is_file():
        _, outer = model_files.read_json_object(modelopt)
        declared = {"quant_method": "modelopt", **read_mapping(outer.get("quantization", outer))}
    if not declared:
        return Quantization(UNQUANTIZED.get(_read_dtype(places), ""))
    method = str(declared.get("quant_method", "")).lower()
    if "config_groups" in declared and "modelopt" not in method:
        groups = [read_mapping(group) for group in read_mapping(declared["config_groups"]).values()]
        words = dict.fromkeys(
            _name_scheme(group, str(group.get("format") or declared.get("format"))) for group in groups
        )
        parts = [_add_details("", read_mapping(group.get("weights"))) for group in groups]
        details = dict.fromkeys(part.detail for part in parts if part.detail)
        sizes = (part.group_size for part in parts if part.group_size is not None)
        return Quantization("+".join(words) or "compressed-tensors", ", ".join(details), next(sizes, None))
    if "quant_algo" in declared or "modelopt" in method:
        return _add_details(_name_modelopt(declared), declared)
    return _add_details(_name_method(method, declared), declared)


def _list_places(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """List the tables in which a config may declare things: its decoder's part, and the whole."""
    return model_files.find_text_part(config), config


def _read_dtype(places: Iterable[Mapping[str, Any]]) -> str:
    return str(_find_first(places, ("dtype", "torch_dtype"), str, "")).removeprefix("torch.")


def _read_transformers(directory: Path, path: str) -> Checkpoint:
    """Read what a config.json declares, and the bytes of one copy of its weights, None without files."""
    raw, config = model_files.read_json_object(directory / "config.json")
    places = _list_places(config)
    names, stored = read_list(config.get("architectures")), read_quantization(config, directory)
    # One copy of the weights: indexed files, else .safetensors, else .bin.
    named = [path for path in model_files.list_indexed_files(directory) or () if os.path.isfile(path)]
    if not named:
        tensors = list(directory.glob("*.safetensors"))
        tensors = [part for part in tensors if not part.name.startswith("consolidated")] or tensors
        named = tensors or [part for part in directory.glob("*.bin") if _PICKLED.fullmatch(part.name)]
    return _make_checkpoint(
        raw,
        path=path,
        architecture=next((name for name in names if isinstance(name, str)), ""),
        model_type=_find_first((config,), ("model_type",), str, ""),
        dtype=_read_dtype(places),
        quantization=stored.word,
        quantization_detail=stored.detail,
        max_positions=_find_first(places, _POSITIONS, int, None),
        layers=_find_first(places, _LAYERS, int, None),
        hidden_size=_find_first(places, _HIDDEN, int, None),
        experts=_find_first(places, _EXPERTS, int, None),
        weight_bytes=sum(part.stat().st_size for part in named) if named else None,
    )


def _read_gguf(parts: list[Path], path: str) -> Checkpoint:
    """Read the checkpoint of GGUF files by the first one's name, for its quantization, and metadata."""
    raw, values = read_head(parts[0])
    family = str(values.get("general.architecture", ""))
    named = _GGUF_NAME.search(parts[0].name)
    kind = named[1].upper() if named else _FILE_TYPES.get(values.get("general.file_type"), "")
    return _make_checkpoint(
        raw,
        path=path,
        model_type=family,
        quantization=f"GGUF-{kind}" if kind else "GGUF",
        max_positions=_read_whole(values.get(f"{family}.context_length")),
        layers=_read_whole(values.get(f"{family}.block_count")),
        hidden_size=_read_whole(values.get(f"{family}.embedding_length")),
        experts=_read_whole(values.get(f"{family}.expert_count")),
        weight_bytes=sum(part.stat().st_size for part in parts),
    )


def _make_checkpoint(config: bytes, **declared: Any) -> Checkpoint:
    """Make a checkpoint: `declared`, the hash of `config`, texts cut at 300 characters, `path` at 4096."""
    declared["config_digest"] = hashlib.blake2b(config, digest_size=16).hexdigest()
    bounded = {name: untrusted.read_text(value) for name, value in declared.items() if isinstance(value, str)}
    return Checkpoint(**{**declared, **bounded, "path": untrusted.read_text(declared["path"], _LONGEST_PATH)})


def _name_method(method: str, declared: Mapping[str, Any]) -> str:
    """Make the usual short name of a quantization method, with its bits; an unknown one keeps its name."""
    bits = _read_whole(declared.get("bits", declared.get("w_bit", declared.get("nbits"))))
    if "awq" in method:
        return f"AWQ-{bits or 4}bit"
    if "gptq" in method:
        return f"GPTQ-Int{bits}" if bits else "GPTQ"
    if method in ("auto-round", "intel/auto-round", "inc"):
        return f"AutoRound-Int{bits}" if bits else "AutoRound"
    if method == "bitsandbytes":
        return "BNB-8bit" if declared.get("load_in_8bit") else "BNB-4bit"
    for name in ("mxfp4", "mxfp8", "nvfp4", "fp8"):  # fbgemm_fp8, gpt_oss_mxfp4, deepseek_v4_fp8
        if name in method:
            return name.upper()
    return (f"{method}-{bits}bit" if bits else method) or "quantized"


def _name_scheme(group: Mapping[str, Any], layout: str) -> str:
    """Name one group's scheme: the format of floats, or bits of integer weights and activations."""
    weights, activations = read_mapping(group.get("weights")), read_mapping(group.get("input_activations"))
    bits, active = _read_whole(weights.get("num_bits")), _read_whole(activations.get("num_bits")) or 16
    if weights.get("type") == "float" or "fp" in layout:
        scaled = str(weights.get("scale_dtype"))
        if bits == 4:
            word = "MXFP4" if "mxfp4" in layout or "uint8" in scaled else "NVFP4"
            return word if active == 4 else f"{word}-W4A{active}"
        word = "MXFP8" if "mxfp8" in layout else f"FP{bits or 8}"
        return f"{word}-W8A16" if active == 16 else word
    return f"Int{bits}-W{bits}A{active}" if bits else "compressed-tensors"


def _name_modelopt(declared: Mapping[str, Any]) -> str:
    """Name ModelOpt's quantization: its algorithm, or those of its layers, each once, joined by +."""
    algorithm = str(declared.get("quant_algo", "")).upper()
    if algorithm == "MIXED_PRECISION":
        layers = read_mapping(declared.get("quantized_layers")).values()
        algorithms = dict.fromkeys(str(read_mapping(layer).get("quant_algo", "")).upper() for layer in layers)
        return "+".join(map(_name_algorithm, algorithms)) or algorithm
    return _name_algorithm(algorithm) or "ModelOpt"


def _name_algorithm(name: str) -> str:
    if name.startswith(("FP8", "NVFP4")):  # FP8_PB_WO, NVFP4_AWQ: the same numbers, scaled otherwise
        return name.partition("_")[0]
    return {"W4A16_AWQ": "AWQ-4bit", "W4A16_NVFP4": "NVFP4-W4A16"}.get(name, name)


def _add_details(word: str, declared: Mapping[str, Any]) -> Quantization:
    """Make a Quantization of this name, with the blocks and groups of weights that share a scale."""
    block = read_list(declared.get("weight_block_size") or declared.get("block_structure"))
    group = _read_whole(declared.get("group_size")) or None
    details = [f"blocks of {'×'.join(map(str, block))}"] if block else []
    details += [f"groups of {group}"] if group else []
    return Quantization(word, ", ".join(details), group)


def _find_first(places: Iterable[Mapping[str, Any]], names: Iterable[str], kind: type, default: Any) -> Any:
    """Return the first plausible value of a type under these names, place by place; else `default`."""
    values = (place.get(name) for place in places for name in names)
    right = (value for value in values if isinstance(value, kind) and not isinstance(value, bool))
    plausible = (value for value in right if not isinstance(value, int) or _read_whole(value) is not None)
    return next(plausible, default)


def _read_whole(value: object) -> int | None:
    return untrusted.read_count(value) if isinstance(value, int) else None


# The model's description comes first; after it the tokenizer's arrays, which are not needed.
_HEAD_BYTES = 1 << 20
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# general.file_type, as in llama.cpp's llama_ftype.
_FILE_TYPES: dict[object, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


def read_head(path: Path) -> tuple[bytes, dict[str, str | int | float]]:
    """Read a GGUF file's first MiB and its metadata's scalars up to an invalid one; else UsageError."""
    try:
        raw = untrusted.read_file_head(path, _HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: the model cannot be read: {error.strerror}") from None
    if raw[:4] != b"GGUF" or len(raw) < 24:
        raise UsageError(f"{path} is not a GGUF file: give a model's directory, or its .gguf file")
    values: dict[str, str | int | float] = {}
    reader = _Reader(raw, 24)
    try:
        for _ in range(struct.unpack_from("<Q", raw, 16)[0]):
            key = reader.string()
            value = reader.value(reader.number("I"))
            if value is not None:
                values[key] = value
    except (struct.error, KeyError, OverflowError, RecursionError):  # the end of the head, or invalid values
        pass
    return raw, values


@dataclass
class _Reader:
    """Reads successive values from bytes; raises struct.error at their end."""

    raw: bytes
    at: int

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f"<{kind}", self.raw, self.at)
        self.at += struct.calcsize(f"<{kind}")
        return value  # type: ignore[no-any-return]

    def string(self) -> str:
        size = self.number("Q")
        (value,) = struct.unpack_from(f"<{size}s", self.raw, self.at)
        self.at += size
        return str(value, "utf-8", "replace")

    def value(self, kind: int) -> str | int | float | None:
        """Read a scalar value; an array is skipped and returned as None."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        inner, count = self.number("I"), self.number("Q")
        if inner in _NUMBERS:
            self.at += count * struct.calcsize(f"<{_NUMBERS[inner]}")
        else:
            for _ in range(count):
                self.value(inner)
        return None

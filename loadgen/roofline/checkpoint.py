"""Checkpoint: what a local model directory or GGUF file declares of itself."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from loadgen.errors import UsageError
from loadgen.protocol import untrusted
from loadgen.roofline import gguf

_UNQUANTIZED = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}
_QUANTIZED_BY = ("quantization_config", "compression_config")
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")  # of models that see or hear
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_PICKLED = re.compile(r"(?:pytorch_)?model.*\.bin|consolidated.*\.bin")  # no optimizer, no training_args
_LONGEST_PATH = 4096  # characters
_MOST_JSON_BYTES = 64 << 20  # the index of the largest models has some 20
_GGUF_NAME = re.compile(r"[-._]((?:I?Q\d|TQ\d|MXFP4|BF16|F16|F32)\w*?)(?:-\d{5}-of-\d{5})?\.gguf$", re.I)


class Checkpoint(BaseModel):
    """What a checkpoint declares; an empty word or None where it does not say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    config_digest: str  # blake2b of config.json, or of a GGUF file's metadata
    architecture: str = ""
    model_type: str = ""
    dtype: str = ""  # as stored, where it is not quantized
    quantization: str = ""  # the field's short word: BF16, FP8, AWQ-4bit, GPTQ-Int4, NVFP4, GGUF-Q4_K_M
    quantization_detail: str = ""  # what the word leaves out: blocks, groups, the packing
    max_positions: int | None = None
    layers: int | None = None
    hidden_size: int | None = None
    weight_bytes: int | None = None  # of the files on this disk


def read(path: str) -> Checkpoint | None:
    """What a path on this machine holds; None where there is nothing (a hub name).

    The path may be the server's word: only a directory's known files and a .gguf file are opened, and
    only where they are regular files. Raises UsageError where something is there, and is no checkpoint
    that can be read.
    """
    place = Path(os.path.expanduser(path))
    if not os.path.exists(place):
        return None
    try:
        if not os.path.isdir(place):
            return _gguf([place], path)
        if os.path.isfile(place / "config.json"):
            return _transformers(place, path)
        parts = sorted(place.glob("*.gguf"))
        if not parts:
            raise UsageError(f"{path} is no model: no config.json and no .gguf in it")
        return _gguf(parts, path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: the model cannot be read") from None
    except (ValueError, RecursionError):  # a null byte in a name, words nested too deep to be repeated
        raise UsageError(f"{path}: what its files say makes no sense: the model is broken") from None


def quantized(config: Mapping[str, Any], directory: Path) -> tuple[str, str]:
    """What a config (and the files beside it) says of the weights: the field's short word, and the detail.

    Empty where it does not say.
    """
    places = _places(config)
    word, detail = _quantization(places, directory)
    dtype = _first(places, ("dtype", "torch_dtype"), str, "").removeprefix("torch.")
    return word or _UNQUANTIZED.get(dtype, ""), detail


def _places(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Where a config says what it says: of the part that reads text, and of the whole."""
    part = _first((config,), _TEXT, dict, {})
    text: dict[str, Any] = _first((part,), ("text_config",), dict, part)
    return text, config


def _transformers(directory: Path, path: str) -> Checkpoint:
    raw, config = _json(directory / "config.json")
    places = _places(config)
    dtype = _first(places, ("dtype", "torch_dtype"), str, "").removeprefix("torch.")
    word, detail = quantized(config, directory)
    return _checkpoint(
        path=path,
        config_digest=_digest(raw),
        architecture=next((name for name in _list(config.get("architectures")) if isinstance(name, str)), ""),
        model_type=_first((config,), ("model_type",), str, ""),
        dtype=dtype,
        quantization=word,
        quantization_detail=detail,
        max_positions=_first(places, _POSITIONS, int, None),
        layers=_first(places, _LAYERS, int, None),
        hidden_size=_first(places, _HIDDEN, int, None),
        weight_bytes=_weight_bytes(directory),
    )


def _gguf(parts: list[Path], path: str) -> Checkpoint:
    head = gguf.read_head(parts[0])
    told = head.values
    family = str(told.get("general.architecture", ""))
    named = _GGUF_NAME.search(parts[0].name)
    kind = named[1].upper() if named else head.kind()
    return _checkpoint(
        path=path,
        config_digest=_digest(head.raw),
        model_type=family,
        quantization=f"GGUF-{kind}" if kind else "GGUF",
        max_positions=_whole(told.get(f"{family}.context_length")),
        layers=_whole(told.get(f"{family}.block_count")),
        hidden_size=_whole(told.get(f"{family}.embedding_length")),
        weight_bytes=sum(part.stat().st_size for part in parts),
    )


def _checkpoint(**declared: Any) -> Checkpoint:
    """What is declared, its texts bounded."""
    bounded = {name: untrusted.text(said) for name, said in declared.items() if isinstance(said, str)}
    return Checkpoint(**{**declared, **bounded, "path": untrusted.text(declared["path"], _LONGEST_PATH)})


def _quantization(places: Iterable[Mapping[str, Any]], directory: Path) -> tuple[str, str]:
    """The word and the detail of what quantizes the weights; empty where nothing does."""
    found = _first(places, _QUANTIZED_BY, dict, {})
    beside = directory / "hf_quant_config.json"  # ModelOpt's own
    if not found and beside.is_file():
        _, declared = _json(beside)
        found = {"quant_method": "modelopt", **_mapping(declared.get("quantization", declared))}
    if not found:
        return "", ""
    method = str(found.get("quant_method", "")).lower()
    if "config_groups" in found and "modelopt" not in method:
        return _compressed(found)
    if "quant_algo" in found or "modelopt" in method:
        return _modelopt(found)
    return _plain(method, found), _detail(found)


def _plain(method: str, found: Mapping[str, Any]) -> str:
    """The word of a method with one setting for all weights."""
    bits = _whole(found.get("bits", found.get("w_bit", found.get("nbits"))))
    if "awq" in method:
        return f"AWQ-{bits or 4}bit"
    if "gptq" in method:
        return f"GPTQ-Int{bits}" if bits else "GPTQ"
    if method in ("auto-round", "intel/auto-round", "inc"):
        return f"AutoRound-Int{bits}" if bits else "AutoRound"
    if method == "bitsandbytes":
        return "BNB-8bit" if found.get("load_in_8bit") else "BNB-4bit"
    for known in ("mxfp4", "mxfp8", "nvfp4", "fp8"):  # fbgemm_fp8, gpt_oss_mxfp4, deepseek_v4_fp8
        if known in method:
            return known.upper()
    return (f"{method}-{bits}bit" if bits else method) or "quantized"


def _compressed(found: Mapping[str, Any]) -> tuple[str, str]:
    """compressed-tensors: each group of layers has its own scheme."""
    groups = [_mapping(group) for group in _mapping(found["config_groups"]).values()]
    words = dict.fromkeys(_scheme(group, str(group.get("format") or found.get("format"))) for group in groups)
    weights = (_mapping(group.get("weights")) for group in groups)
    details = dict.fromkeys(detail for one in weights if (detail := _detail(one)))
    return "+".join(words) or "compressed-tensors", ", ".join(details)


def _scheme(group: Mapping[str, Any], layout: str) -> str:
    """One group's word: of floats their format, of integers the bits of weights and activations."""
    weights, activations = _mapping(group.get("weights")), _mapping(group.get("input_activations"))
    bits, active = _whole(weights.get("num_bits")), _whole(activations.get("num_bits")) or 16
    if weights.get("type") == "float" or "fp" in layout:
        scaled = str(weights.get("scale_dtype"))
        if bits == 4:
            word = "MXFP4" if "mxfp4" in layout or "uint8" in scaled else "NVFP4"
            return word if active == 4 else f"{word}-W4A{active}"
        word = "MXFP8" if "mxfp8" in layout else f"FP{bits or 8}"
        return f"{word}-W8A16" if active == 16 else word
    return f"Int{bits}-W{bits}A{active}" if bits else "compressed-tensors"


def _modelopt(found: Mapping[str, Any]) -> tuple[str, str]:
    """ModelOpt: one algorithm, or one a layer."""
    algorithm = str(found.get("quant_algo", "")).upper()
    if algorithm == "MIXED_PRECISION":
        layers = _mapping(found.get("quantized_layers")).values()
        algorithms = dict.fromkeys(_mapping(layer).get("quant_algo", "") for layer in layers)
        return "+".join(_algorithm(str(one).upper()) for one in algorithms) or algorithm, _detail(found)
    return _algorithm(algorithm) or "ModelOpt", _detail(found)


def _algorithm(name: str) -> str:
    if name.startswith(("FP8", "NVFP4")):  # FP8_PB_WO, NVFP4_AWQ: the same numbers, scaled otherwise
        return name.partition("_")[0]
    return {"W4A16_AWQ": "AWQ-4bit", "W4A16_NVFP4": "NVFP4-W4A16"}.get(name, name)


def _detail(found: Mapping[str, Any]) -> str:
    block = _list(found.get("weight_block_size") or found.get("block_structure"))
    group = _whole(found.get("group_size"))
    said = [f"blocks of {'×'.join(map(str, block))}" if block else ""]
    said.append(f"groups of {group}" if group and group > 0 else "")
    return ", ".join(filter(None, said))


def _weight_bytes(directory: Path) -> int | None:
    """The size of one copy of the weights: many repositories hold them twice, in two formats."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        # Beside the index: a name that leads elsewhere names no part of this model.
        told = {
            name for name in _mapping(_json(index)[1].get("weight_map")).values() if isinstance(name, str)
        }
        named = {name for name in told if ".." not in Path(name).parts and not Path(name).is_absolute()}
        if sizes := [(directory / name).stat().st_size for name in named if os.path.isfile(directory / name)]:
            return sum(sizes)
    tensors = list(directory.glob("*.safetensors"))
    tensors = [part for part in tensors if not part.name.startswith("consolidated")] or tensors
    pickled = [part for part in directory.glob("*.bin") if _PICKLED.fullmatch(part.name)]
    sizes = [part.stat().st_size for part in tensors or pickled]
    return sum(sizes) if sizes else None


def _json(path: Path) -> tuple[bytes, dict[str, Any]]:
    """A file's bytes and the object in them; raises UsageError where there is none."""
    try:
        raw = untrusted.file_bytes(path, _MOST_JSON_BYTES)
        found = untrusted.json_value(raw)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: the model cannot be read") from None
    except ValueError:
        raise UsageError(f"{path} is no JSON: the model is broken or only half copied") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no object: the model is broken")
    return raw, found


def _first(places: Iterable[Mapping[str, Any]], names: Iterable[str], kind: type, default: Any) -> Any:
    """The first of these names that any place holds, of that type; else `default`."""
    values = (place.get(name) for place in places for name in names)
    right = (one for one in values if isinstance(one, kind) and not isinstance(one, bool))
    return next((one for one in right if not isinstance(one, int) or _whole(one) is not None), default)


def _whole(value: object) -> int | None:
    return untrusted.whole(value) if isinstance(value, int) else None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()

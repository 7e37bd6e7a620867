"""Models: the table in models.toml, looked up by a checkpoint's name."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from itertools import takewhile
from typing import Any

import msgspec
from pydantic import BaseModel

from loadgen.features.roofline.architecture import Architecture, parse_architecture

# What a name may have behind the model's: how it was tuned, and how its weights are stored.
_TUNED = re.compile(r"(?:instruct|chat|it|base|hf|thinking|reasoning|\d{4}|v\d+(?:\.\d+)*|preview)", re.I)
_STORED = re.compile(
    r"(?:bf16|fp16|fp32|fp8|fp4|nvfp4|mxfp4|mxfp8|awq|gptq|autoround|bnb|gguf|int4|int8|w\d+a\d+|[48]bit|quantized(?:\.w\d+a\d+)?"
    r"|dynamic|block|marlin|qat|q4_0|g\d+|gs\d+|i?q\d\w*|tq\d\w*|(?:w\d+a\d+|[48]bit)\.?\w*|sym|asym|quant)",
    re.I,
)


class Named(msgspec.Struct, frozen=True):
    """A model found by its name: its row of the table, and the words for how its weights are stored."""

    key: str
    quantization: str  # as AWQ, Int4-W4A16, GGUF-Q4_K_M; "" where the name has none


class _ModelRow(BaseModel, extra="forbid"):
    hub: str
    parameters_b: float
    config: dict[str, Any]
    active_b: float = 0.0
    names: list[str] = []
    stored: str = ""
    note: str = ""


def find_architecture(model: str) -> Architecture | None:
    """Find the shape of a checkpoint by its name or path; None if the table lacks it."""
    match = find_model(model)
    return None if match is None else list_models()[match.key]


def find_model(model: str) -> Named | None:
    """Find the row of a checkpoint's name, and the quantization in the name; None if the table lacks it.

    `/models/Qwen3-Coder-30B-A3B-Instruct-AWQ-8bit` is Qwen3-Coder-30B-A3B and AWQ-8bit. Only words of tuning
    and storing may follow the model's name: with any other word it is another model.
    """
    base, quantization = split_name(model)
    name = re.sub(r"\.(gguf|safetensors)$", "", base, flags=re.IGNORECASE).replace(":", "-")
    name = f"{name}-{quantization}" if quantization else name
    parts = name.split("-")
    for count in range(len(parts), 0, -1):
        key = _index_names().get("-".join(parts[:count]).lower())
        rest = parts[count:]
        if key is not None and all(_TUNED.fullmatch(part) or _STORED.fullmatch(part) for part in rest):
            return Named(key, "-".join(part for part in rest if _STORED.fullmatch(part)))
    return None


def find_suffix(model: str) -> str:
    """Return the words at the end of a name for how weights are stored; "" if there are none."""
    if (match := find_model(model)) is not None:
        return match.quantization
    base, quantization = split_name(model)
    suffixes = [*takewhile(_STORED.fullmatch, reversed(base.split("-")))][::-1]
    return "-".join(filter(None, [*suffixes, quantization]))


@cache
def list_models() -> dict[str, Architecture]:
    """Return every shape by key, in the order of the file."""
    return {
        key: parse_architecture(row.config, f"{row.hub}, config.json") for key, row in read_rows().items()
    }


@cache
def read_rows() -> dict[str, _ModelRow]:
    """Read the table's rows by key."""
    text = resources.files(__package__).joinpath("models.toml").read_text("utf-8")
    return {key: _ModelRow(**row) for key, row in tomllib.loads(text).items()}


@cache
def _index_names() -> dict[str, str]:
    """Map each name of a model, in lower case, to its key."""
    return {
        name.lower(): key
        for key, row in read_rows().items()
        for name in (key, row.hub.split("/")[-1], *row.names)
    }


_SPLIT = re.compile(
    r"(.+?)-(BF16|FP16|(?:NV|MX)?FP[48](?:-dynamic)?|AWQ(?:-(?:INT4|4bit))?|GPTQ(?:-(?:Int[48]|[48]bit))?"
    r"|INT[48]|W\d+A\d+)",
    re.IGNORECASE,
)
# A GGUF file, which may be one of several, or a repository of such files with the kind that is meant.
_GGUF_FILE = re.compile(
    r"(.+?)(?:[-._]((?:UD-)?(?:I?Q\d|TQ\d|MXFP4|BF16|F16|F32)\w*?))?(?:-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE
)
_GGUF_HUB = re.compile(r"(.+?)[-_]GGUF(?::([\w-]+))?", re.IGNORECASE)


def split_name(model: str) -> tuple[str, str]:
    """Split a path's or hub name's last part into name and quantization, "" if it has none.

    `/models/Qwen3-8B-FP8` is ("Qwen3-8B", "FP8"), `Qwen/Qwen3-8B` is ("Qwen3-8B", "").
    """
    parts = [part for part in re.split(r"[/\\]", model) if part] or [""]
    cached = next((part for part in parts if part.startswith("models--")), None)  # …/snapshots/<commit>
    name = cached.split("--")[-1] if cached else parts[-1]
    match = _SPLIT.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def split_gguf(model: str) -> tuple[str, str]:
    """Split a name with the kind of a GGUF; any other name as `split_name` does.

    `Qwen3-8B-Q4_K_M.gguf` and `Qwen/Qwen3-8B-GGUF:Q4_K_M` are ("Qwen3-8B", "GGUF-Q4_K_M").
    """
    name = re.split(r"[/\\]", model)[-1]
    match = _GGUF_FILE.fullmatch(name) or _GGUF_HUB.fullmatch(name)
    if match is None:
        return split_name(model)
    kind = "-".join(filter(None, ("GGUF", match[2])))
    return match[1], kind if match[2] or not name.lower().endswith(".gguf") else ""

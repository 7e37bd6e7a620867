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

from loadgen.roofline.architecture import Architecture, parse
from loadgen.roofline.model_names import split_name

# What a name may have behind the model's: how it was tuned, and how its weights are stored.
_TUNED = re.compile(r"(?:instruct|chat|it|base|hf|thinking|reasoning|\d{4}|v\d+(?:\.\d+)*|preview)", re.I)
_STORED = re.compile(
    r"(?:bf16|fp16|fp32|fp8|fp4|nvfp4|mxfp4|mxfp8|awq|gptq|autoround|bnb|gguf|int4|int8|w\d+a\d+|[48]bit|quantized(?:\.w\d+a\d+)?"
    r"|dynamic|block|marlin|qat|q4_0|g\d+|gs\d+|i?q\d\w*|tq\d\w*|(?:w\d+a\d+|[48]bit)\.?\w*|sym|asym|quant)",
    re.I,
)


class Named(msgspec.Struct, frozen=True):
    """What a name means: a row of the table, and the words behind it for how the weights are stored."""

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


def named(model: str) -> Architecture | None:
    """The shape of a checkpoint by its name or path; None where the table has none of that name."""
    match = find(model)
    return None if match is None else models()[match.key]


def find(model: str) -> Named | None:
    """The row of a checkpoint's name, and the quantization in it.

    `/models/Qwen3-Coder-30B-A3B-Instruct-AWQ-8bit` is Qwen3-Coder-30B-A3B and AWQ-8bit. Only
    words of tuning and storing may follow the model's name: with any other word it is another model.
    """
    base, quantization = split_name(model)
    name = re.sub(r"\.(gguf|safetensors)$", "", base, flags=re.IGNORECASE).replace(":", "-")
    name = f"{name}-{quantization}" if quantization else name
    parts = name.split("-")
    for count in range(len(parts), 0, -1):
        key = _keys().get("-".join(parts[:count]).lower())
        rest = parts[count:]
        if key is not None and all(_TUNED.fullmatch(part) or _STORED.fullmatch(part) for part in rest):
            return Named(key, "-".join(part for part in rest if _STORED.fullmatch(part)))
    return None


def suffix(model: str) -> str:
    """The words at a name's end for how the weights are stored, of any model; "" if there are none."""
    if (match := find(model)) is not None:
        return match.quantization
    base, quantization = split_name(model)
    words = [*takewhile(_STORED.fullmatch, reversed(base.split("-")))][::-1]
    return "-".join(filter(None, [*words, quantization]))


@cache
def models() -> dict[str, Architecture]:
    """Every shape by key, in the order of the file."""
    return {key: parse(row.config, f"{row.hub}, config.json") for key, row in rows().items()}


@cache
def rows() -> dict[str, _ModelRow]:
    """The table's rows by key."""
    text = resources.files(__package__).joinpath("models.toml").read_text("utf-8")
    return {key: _ModelRow(**row) for key, row in tomllib.loads(text).items()}


@cache
def _keys() -> dict[str, str]:
    """Keys by every name of theirs, in lower case."""
    return {
        name.lower(): key for key, row in rows().items() for name in (key, row.hub.split("/")[-1], *row.names)
    }

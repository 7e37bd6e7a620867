"""Weights of a checkpoint: from its files' headers where they are here, else from shape and scheme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loadgen.roofline import safetensors
from loadgen.roofline.architecture import Architecture
from loadgen.roofline.ceiling import Weights
from loadgen.roofline.quantization import Scheme

_PLAIN_BITS = 16
_KV_BYTES = {"fp8": 1.0, "int8": 1.0, "float8": 1.0, "fp4": 0.5, "nvfp4": 0.5, "int4": 0.5, "float32": 4.0}


def of_files(directory: Path, shape: Architecture, scheme: Scheme, kv_dtype: str) -> Weights | None:
    """From the headers of a directory's safetensors; None where it has none. Raises UsageError."""
    stored_bytes = safetensors.read(directory, shape)
    if stored_bytes is None:
        return None
    shrunk = 2 if scheme.word == "FP32" else 1
    assumed = f", {scheme.assumed}" if shrunk > 1 else ""
    return _weights(
        shape,
        scheme.computes,
        kv_dtype,
        how=f"safetensors headers of {directory}{assumed}",
        total_bytes=stored_bytes.total_bytes // shrunk,
        dense_bytes=stored_bytes.dense_bytes // shrunk,
        expert_bytes=stored_bytes.routed_bytes // shape.experts // shrunk if shape.experts else 0,
    )


def of_gguf(files: list[Path], shape: Architecture, scheme: Scheme, kv_dtype: str) -> Weights:
    """From the size of a GGUF model's files: its bits per weight, the same for all of them."""
    size = sum(path.stat().st_size for path in files)
    measured = replace(scheme, bits=8 * size / shape.total, everything=True, assumed="")
    return of_shape(shape, measured, kv_dtype).model_copy(update={"how": f"the size of {files[0]}"})


def of_shape(shape: Architecture, scheme: Scheme, kv_dtype: str) -> Weights:
    """Computed: parameters × bits, embedding, head and routers in 16 bits unless the scheme has them.

    gpt-oss keeps its attention in 16 bits too: MXFP4 is of the experts alone.
    """
    other = scheme.bits if scheme.everything else _PLAIN_BITS
    layers = other if shape.model_type == "gpt_oss" else scheme.bits
    read = shape.dense * layers + (shape.routers + shape.embedding) * other
    expert = shape.expert * scheme.bits
    apart = 0 if shape.tied else shape.embedding * other
    assumed = f", {scheme.assumed}" if scheme.assumed else ""
    return _weights(
        shape,
        scheme.computes,
        kv_dtype,
        how=f"computed from the config of {shape.source} as {scheme.word} ({scheme.bits:.4g} bits{assumed})",
        total_bytes=round((read + apart + shape.experts * expert) / 8),
        dense_bytes=round(read / 8),
        expert_bytes=round(expert / 8),
    )


def _weights(shape: Architecture, computes: str, kv_dtype: str, **stored: Any) -> Weights:
    """The weights stored in these bytes, with their arithmetic and the bytes of a token of context.

    2 FLOP a parameter and token, of the head for a prompt's last token and every token of an answer; 16 bits
    a cached number unless the engine stores it in fewer.
    """
    word = kv_dtype.lower().removeprefix("torch.")
    kv_size = next((size for name, size in _KV_BYTES.items() if word.startswith(name)), 2.0)
    full, local = shape.layers - shape.window_layers, shape.window_layers
    return Weights(
        **stored,
        computes=computes,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        flop_per_token=2.0 * (shape.dense + shape.routers + shape.experts_per_token * shape.expert),
        head_flop=2.0 * shape.embedding,
        pair_flop=float(shape.pair_flop(full)),
        window=shape.window,
        window_pair_flop=float(shape.pair_flop(local)),
        kv_bytes_per_token=round(kv_size * shape.kv_values(full)),
        window_kv_bytes_per_token=round(kv_size * shape.kv_values(local)),
    )

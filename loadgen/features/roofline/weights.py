"""Weights: a checkpoint's bytes, from its files' headers where they are here, else from its shape."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.facts.ceiling import Weights
from loadgen.features.roofline.models import Architecture
from loadgen.plan import model_files

_PLAIN_BITS = 16
_KV_BYTES = {"fp8": 1.0, "int8": 1.0, "float8": 1.0, "fp4": 0.5, "nvfp4": 0.5, "int4": 0.5, "float32": 4.0}


def weigh_files(directory: Path, shape: Architecture, scheme: Scheme, kv_dtype: str) -> Weights | None:
    """Weigh a model by the headers of a directory's safetensors; None if it has none.

    FP32 counts as half, since engines load it in 16 bits. Raises UsageError for a broken file.
    """
    stored_bytes = read_stored(directory, shape)
    if stored_bytes is None:
        return None
    shrunk = 2 if scheme.word == "FP32" else 1
    assumed = f", {scheme.assumed}" if shrunk > 1 else ""
    return _make_weights(
        shape,
        scheme.computes,
        kv_dtype,
        how=f"safetensors headers of {directory}{assumed}",
        total_bytes=stored_bytes.total_bytes // shrunk,
        dense_bytes=stored_bytes.dense_bytes // shrunk,
        expert_bytes=stored_bytes.routed_bytes // shape.experts // shrunk if shape.experts else 0,
    )


def weigh_gguf(files: list[Path], shape: Architecture, scheme: Scheme, kv_dtype: str) -> Weights:
    """Weigh a GGUF model by the size of its files, as if every weight had the same number of bits."""
    size = sum(path.stat().st_size for path in files)
    measured = replace(scheme, bits=8 * size / shape.total, everything=True, assumed="")
    return weigh_shape(shape, measured, kv_dtype).model_copy(update={"how": f"the size of {files[0]}"})


def weigh_shape(shape: Architecture, scheme: Scheme, kv_dtype: str) -> Weights:
    """Weigh a model by its shape: parameters × bits, and 16 bits for embedding, head and routers.

    The scheme may have these too. gpt-oss keeps its attention in 16 bits too: MXFP4 is of the experts alone.
    """
    other = scheme.bits if scheme.everything else _PLAIN_BITS
    layers = other if shape.model_type == "gpt_oss" else scheme.bits
    read = shape.dense * layers + (shape.routers + shape.embedding) * other
    expert = shape.expert * scheme.bits
    apart = 0 if shape.tied else shape.embedding * other
    assumed = f", {scheme.assumed}" if scheme.assumed else ""
    return _make_weights(
        shape,
        scheme.computes,
        kv_dtype,
        how=f"computed from the config of {shape.source} as {scheme.word} ({scheme.bits:.4g} bits{assumed})",
        total_bytes=round((read + apart + shape.experts * expert) / 8),
        dense_bytes=round(read / 8),
        expert_bytes=round(expert / 8),
    )


def _make_weights(shape: Architecture, computes: str, kv_dtype: str, **stored: Any) -> Weights:
    """Make the weights with the stored bytes, their FLOP and the bytes per token of context.

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
        pair_flop=float(shape.count_pair_flop(full)),
        window=shape.window,
        window_pair_flop=float(shape.count_pair_flop(local)),
        kv_bytes_per_token=round(kv_size * shape.count_kv_values(full)),
        window_kv_bytes_per_token=round(kv_size * shape.count_kv_values(local)),
    )


_MOST_HEADER_BYTES = 100_000_000  # the format's own limit
_MOST_DIMENSIONS = 64
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "F64": 64, "I64": 64, "U64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6,
    "F6_E3M2": 6,
}  # fmt: skip
_EMBEDDING = re.compile(r"(?:.*\.)?(?:embed_tokens|word_embeddings|tok_embeddings|wte)\.\w+")
_HEAD = re.compile(r"(?:.*\.)?(?:lm_head|output_layer)\.\w+|output\.weight")
_EXPERT = re.compile(r"\.experts[._]")  # experts.7.up_proj.weight, experts.gate_up_proj_blocks
_OTHER_SENSES = re.compile(
    r"(?:^|\.)(?:visual|vision\w*|multi_modal_projector|mm_projector|audio\w*|image\w*|patch_embed\w*)\."
)
_DRAFTS = re.compile(r"(?:^|\.)(?:mtp|nextn|eh_proj|enorm|hnorm)\b")  # draft layers
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


class Stored(msgspec.Struct, frozen=True):
    """Bytes of a checkpoint's weights on disk, by use."""

    total_bytes: int  # of what is loaded: a head that is the embedding counts once
    dense_bytes: int  # read at every token
    routed_bytes: int  # of all experts of all layers


def read_stored(directory: Path, architecture: Architecture) -> Stored | None:
    """Read the bytes of a directory's safetensors by use; None if there are none.

    Left out of what every token reads: the input embedding (one row of it is read), unless it is the head
    too; vision and audio parts; draft layers. Raises UsageError if a header is cut off or does not match its
    file.
    """
    total = dense = routed = 0
    for name, size in chain.from_iterable(map(read_header, _list_files(directory))):
        if architecture.tied and _HEAD.fullmatch(name):
            continue
        total += size
        layer = _LAYER.search(name)
        apart = _OTHER_SENSES.search(name) or _DRAFTS.search(name)
        if apart or (layer and int(layer[1]) >= architecture.layers):
            continue
        if _EXPERT.search(name):
            routed += size
        elif architecture.tied or not _EMBEDDING.fullmatch(name):
            dense += size
    if routed and not architecture.experts:
        raise UsageError(
            f"{directory} has tensors of experts, but its config.json declares none: "
            "check that both are of one model"
        )
    return Stored(total, dense, routed) if total else None


def read_header(path: Path) -> list[tuple[str, int]]:
    """List (name, bytes) of a file's tensors; raises UsageError if the header is cut off or wrong."""
    try:
        size = path.stat().st_size
        head = untrusted.read_file_head(path, 8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
            raise UsageError(f"{path} is not a safetensors file, or is cut off: copy it again")
        tensors = untrusted.parse_json(untrusted.read_file_head(path, 8 + length)[8:])
    except OSError as error:
        raise UsageError(f"{path}: its header cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path}: its header is not valid JSON: copy it again") from None
    room = size - 8 - length
    if not isinstance(tensors, dict):
        raise UsageError(f"{path}: its header is not a JSON object: copy it again")
    entries = (item for item in tensors.items() if item[0] != "__metadata__")
    return [(name, _read_tensor_bytes(path, name, entry, room)) for name, entry in entries]


def _read_tensor_bytes(path: Path, name: str, entry: Any, room: int) -> int:
    """Return a tensor's bytes by its entry of a header.

    Raises UsageError if it is invalid or beyond `room`.
    """
    fields = untrusted.read_mapping(entry)
    offsets, shape = _read_numbers(fields.get("data_offsets")), _read_numbers(fields.get("shape"))
    if offsets is None or shape is None or len(offsets) != 2:
        raise UsageError(f"{path}: its header is invalid for {name}: copy it again")
    begin, end = offsets
    bits = _BITS.get(str(fields.get("dtype")))
    if not begin <= end <= room or (bits is not None and (end - begin) * 8 != math.prod(shape) * bits):
        raise UsageError(
            f"{path}: {name} is not where its header puts it: the file is cut off or broken: copy it again"
        )
    return end - begin


def _read_numbers(value: object) -> list[int] | None:
    """Return a list of integers from 0 up; None for anything else."""
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return None
    return value if all(type(number) is int and number >= 0 for number in value) else None


def _list_files(directory: Path) -> list[Path]:
    """List the safetensors of one copy of the weights: those of the index, else all but consolidated ones.

    Raises UsageError if some of the indexed files are missing; if all are, the index does not count.
    """
    if paths := sorted(model_files.list_indexed_files(directory) or ()):
        missing = next((path for path in paths if not path.is_file()), None)
        if missing is None:
            return paths
        if any(path.is_file() for path in paths):
            raise UsageError(
                f"{missing} is named by the index and is missing: the model is half copied, copy it again"
            )
    files = sorted(directory.glob("*.safetensors"))
    return [path for path in files if not path.name.startswith(("consolidated", "adapter"))] or files


_GROUP = 128  # weights that share a scale, by default
_SCALE_BITS, _BLOCK = 16, 128 * 128
# llama.cpp's bits per weight, everything counted (examples/quantize/README.md, of Llama-3.1-8B).
_GGUF: Mapping[str, float] = {
    "IQ1_S": 2.00, "IQ1_M": 2.15, "IQ2_XXS": 2.38, "IQ2_XS": 2.59, "IQ2_S": 2.74, "IQ2_M": 2.93,
    "IQ3_XXS": 3.25, "IQ3_XS": 3.50, "IQ3_S": 3.66, "IQ3_M": 3.76, "IQ4_XS": 4.46, "IQ4_NL": 4.68,
    "Q2_K_S": 2.97, "Q2_K": 3.16, "Q3_K_S": 3.64, "Q3_K_M": 4.00, "Q3_K_L": 4.30, "Q4_K_S": 4.67,
    "Q4_K_M": 4.89, "Q5_K_S": 5.57, "Q5_K_M": 5.70, "Q6_K": 6.56, "Q4_0": 4.66, "Q4_1": 5.12, "Q5_0": 5.59,
    "Q5_1": 6.06, "Q8_0": 8.50, "F16": 16.0, "BF16": 16.0, "F32": 32.0, "MXFP4": 4.25, "TQ1_0": 1.69,
    "TQ2_0": 2.06,
}  # fmt: skip

# A mark in a name, bits per weight, and the type that multiplies unless only the weights are quantized.
_FLOATS = (
    ("MXFP4", 4 + 8 / 32, "fp8"),  # with 8-bit activations at best
    ("FP4", 4 + 8 / 16, "fp4"),  # NVFP4: an FP8 scale for 16
    ("MXFP8", 8 + 8 / 32, "fp8"),
    ("FP8", 8 + 2 * _SCALE_BITS / _BLOCK, "fp8"),
)


class Scheme(msgspec.Struct, frozen=True):
    """How weights are stored: bits per weight, scales and zero points included, and the type that multiplies.

    Embedding, head and routers stay in 16 bits, unless `everything` is quantized.
    """

    word: str
    bits: float
    computes: str = "bf16"  # bf16, fp8, fp4, int8; bf16 where only the weights are quantized
    everything: bool = False
    assumed: str = ""  # what the name leaves open and is assumed


def parse_scheme(word: str, group: int | None = None) -> Scheme | None:
    """Parse a storage scheme as FP8, AWQ-4bit, Int4-W4A16, NVFP4, GGUF-Q4_K_M; None if unknown.

    Integers in groups of g (128 by default): b + 16/g bits, with zero points b + 16/g + b/g (AWQ, GPTQ).
    """
    name = word.strip().upper()
    if not name or name in ("BF16", "FP16", "NONE"):
        return Scheme("BF16", 16.0)
    if name == "FP32":
        return Scheme("FP32", 16.0, assumed="engines load FP32 in 16 bits")
    if (scheme := _parse_gguf(name)) is not None:
        return scheme
    for mark, bits, computes_in in _FLOATS:
        if mark in name:  # it computes in bf16 if activations have 16 bits
            return Scheme(word, bits, "bf16" if "A16" in name else computes_in)
    return _parse_integer(name, word, group)


def _parse_gguf(name: str) -> Scheme | None:
    """Parse a kind of GGUF, as Q4_K_M, which is assumed of a GGUF without one; None for another scheme."""
    kind = name.removeprefix("GGUF").strip("-.: ")
    bits = next(
        (_GGUF[suffix] for suffix in sorted(_GGUF, key=len, reverse=True) if kind.endswith(suffix)), None
    )
    if name.startswith("GGUF"):
        assumed = "" if bits else "GGUF taken as Q4_K_M, the commonest"
        return Scheme(
            name if bits else "GGUF-Q4_K_M", bits or _GGUF["Q4_K_M"], everything=True, assumed=assumed
        )
    return Scheme(f"GGUF-{kind}", bits, everything=True) if bits and re.match(r"(I?Q|TQ)\d", kind) else None


def _parse_integer(name: str, word: str, group: int | None) -> Scheme | None:
    """Parse a scheme of integers, of 4 bits unless it says otherwise; None for another scheme.

    AWQ, GPTQ and AutoRound have zero points, W4A16 is symmetric. Groups of 128 are assumed without `group`.
    """
    widths = re.search(r"W(\d+)A(\d+)", name)
    kind = re.search(r"INT(\d)|(\d)-?BIT", name)
    family = re.search(r"AWQ|GPTQ|AUTOROUND|BNB|INT[48]", name)
    if widths is None and kind is None and (family is None or family[0] == "BNB"):
        return None
    bits = int(widths[1]) if widths else int(kind[1] or kind[2]) if kind else 4
    active = int(widths[2]) if widths else 16
    if family and family[0] == "BNB":  # nf4: a 32-bit scale for 64; int8: one a row
        return Scheme(word, bits + 32 / 64 if bits == 4 else 8.0, "bf16" if bits == 4 else "int8")
    if active == 8 and bits == 8:
        return Scheme(word, 8.0, "int8")  # a scale a row
    size = group or _GROUP
    zeros = bits / size if family and family[0] in ("AWQ", "GPTQ", "AUTOROUND") else 0.0
    assumed = "" if group else f"groups of {_GROUP}"
    return Scheme(
        word, bits + _SCALE_BITS / size + zeros, "bf16" if active == 16 else "int8", assumed=assumed
    )

"""Stored: what a checkpoint's safetensors hold, by their headers alone; no weight is read.

The format (github.com/huggingface/safetensors): eight bytes of length, little-endian, as much JSON, then
the tensors.
"""

from __future__ import annotations

import math
import re
import struct
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.plan import model_files
from loadgen.roofline.architecture import Architecture

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
    """Bytes of a checkpoint on the disk."""

    total_bytes: int  # of what is loaded: a head that is the embedding counts once
    dense_bytes: int  # read at every token
    routed_bytes: int  # of all experts of all layers


def read(directory: Path, architecture: Architecture) -> Stored | None:
    """The bytes of a directory's safetensors; None if there are none.

    Left out of what every token reads: the input embedding (one row of it is read), unless it is the head
    too; vision and audio parts; draft layers. Raises UsageError if a header is cut off or does not match its
    file.
    """
    total = dense = routed = 0
    for name, size in chain.from_iterable(map(header, _files(directory))):
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


def header(path: Path) -> list[tuple[str, int]]:
    """The tensors of one file, name and bytes; raises UsageError if the header is cut off or wrong."""
    try:
        size = path.stat().st_size
        head = untrusted.file_head(path, 8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
            raise UsageError(f"{path} is not a safetensors file, or is cut off: copy it again")
        tensors = untrusted.json_value(untrusted.file_head(path, 8 + length)[8:])
    except OSError as error:
        raise UsageError(f"{path}: its header cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path}: its header is not valid JSON: copy it again") from None
    room = size - 8 - length
    if not isinstance(tensors, dict):
        raise UsageError(f"{path}: its header is not a JSON object: copy it again")
    entries = (item for item in tensors.items() if item[0] != "__metadata__")
    return [(name, _tensor_bytes(path, name, entry, room)) for name, entry in entries]


def _tensor_bytes(path: Path, name: str, entry: Any, room: int) -> int:
    fields = untrusted.mapping(entry)
    offsets, shape = _numbers(fields.get("data_offsets")), _numbers(fields.get("shape"))
    if offsets is None or shape is None or len(offsets) != 2:
        raise UsageError(f"{path}: its header is invalid for {name}: copy it again")
    begin, end = offsets
    bits = _BITS.get(str(fields.get("dtype")))
    if not begin <= end <= room or (bits is not None and (end - begin) * 8 != math.prod(shape) * bits):
        raise UsageError(
            f"{path}: {name} is not where its header puts it: the file is cut off or broken: copy it again"
        )
    return end - begin


def _numbers(value: object) -> list[int] | None:
    """A list of whole numbers from 0 up; None of anything else."""
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return None
    return value if all(type(number) is int and number >= 0 for number in value) else None


def _files(directory: Path) -> list[Path]:
    """The files of one copy of the weights; raises UsageError if the index names one that is missing."""
    if paths := sorted(model_files.indexed(directory) or ()):
        missing = next((path for path in paths if not path.is_file()), None)
        if missing is None:
            return paths
        if any(path.is_file() for path in paths):
            raise UsageError(
                f"{missing} is named by the index and is missing: the model is half copied, copy it again"
            )
    files = sorted(directory.glob("*.safetensors"))
    return [path for path in files if not path.name.startswith(("consolidated", "adapter"))] or files

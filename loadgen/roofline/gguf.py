"""GGUF: the metadata at the head of llama.cpp's model files.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import UsageError

# What the model is comes first; after it the tokenizer's arrays, which are not needed.
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


class GgufHead(msgspec.Struct, frozen=True):
    """A file's first bytes, and the single values among its metadata."""

    raw: bytes
    values: dict[str, str | int | float] = msgspec.field(default_factory=dict)

    def kind(self) -> str:
        """How most of the weights are quantized, like Q4_K_M; empty where it is not declared."""
        return _FILE_TYPES.get(self.values.get("general.file_type"), "")


def read_head(path: Path) -> GgufHead:
    """The head of a GGUF file; raises UsageError where it is not one."""
    try:
        raw = untrusted.file_head(path, _HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: the model cannot be read: {error.strerror}") from None
    if raw[:4] != b"GGUF" or len(raw) < 24:
        raise UsageError(f"{path} is not a GGUF file: give a model's directory, or its .gguf file")
    head = GgufHead(raw)
    reader = _Reader(raw, 24)
    try:
        for _ in range(struct.unpack_from("<Q", raw, 16)[0]):
            key = reader.string()
            value = reader.value(reader.number("I"))
            if value is not None:
                head.values[key] = value
    except (struct.error, KeyError, OverflowError, RecursionError):  # the end of the head, or invalid values
        pass
    return head


@dataclass
class _Reader:
    """Reads one value after another; raises struct.error at the end of the bytes."""

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
        """A single value; None of an array, which is skipped."""
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

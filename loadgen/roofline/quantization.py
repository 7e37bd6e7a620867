"""Scheme: how a checkpoint's weights are stored and what computes with them, from its usual name."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

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
    """Bits per stored weight, scales and zero points in them, and the type that multiplies.

    Embedding, head and routers stay in 16 bits, unless `everything` is quantized.
    """

    word: str
    bits: float
    computes: str = "bf16"  # bf16, fp8, fp4, int8; bf16 where only the weights are quantized
    everything: bool = False
    assumed: str = ""  # what the name leaves open and is assumed


def scheme(word: str, group: int | None = None) -> Scheme | None:
    """The scheme of a word as FP8, AWQ-4bit, GPTQ-Int4, Int4-W4A16, NVFP4, GGUF-Q4_K_M; None where unknown.

    Integers in groups of g (128 by default): b + 16/g bits, with zero points b + 16/g + b/g (AWQ, GPTQ).
    """
    name = word.strip().upper()
    if not name or name in ("BF16", "FP16", "NONE"):
        return Scheme("BF16", 16.0)
    if name == "FP32":
        return Scheme("FP32", 16.0, assumed="engines load FP32 in 16 bits")
    return _gguf(name) or _float(name, word) or _integer(name, word, group)


def _gguf(name: str) -> Scheme | None:
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


def _float(name: str, word: str) -> Scheme | None:
    for mark, bits, computes_in in _FLOATS:
        if mark in name:
            return Scheme(word, bits, "bf16" if "A16" in name else computes_in)
    return None


def _integer(name: str, word: str, group: int | None) -> Scheme | None:
    """Integers; AWQ, GPTQ and their like have zero points, compressed-tensors' W4A16 is symmetric."""
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

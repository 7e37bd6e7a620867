"""Model names: the base and the quantization that a path or a hub's name holds."""

from __future__ import annotations

import re

_SPLIT = re.compile(
    r"(.+?)-(BF16|FP16|(?:NV|MX)?FP[48](?:-dynamic)?|AWQ(?:-(?:INT4|4bit))?|GPTQ(?:-(?:Int[48]|[48]bit))?"
    r"|INT[48]|W\d+A\d+)",
    re.IGNORECASE,
)


def split_name(model: str) -> tuple[str, str]:
    """A path's or a hub name's base name and quantization; "" where the name has none.

    `/models/Qwen3-8B-FP8` is ("Qwen3-8B", "FP8"), `Qwen/Qwen3-8B` is ("Qwen3-8B", "").
    """
    parts = [part for part in re.split(r"[/\\]", model) if part] or [""]
    cached = next((part for part in parts if part.startswith("models--")), None)  # …/snapshots/<commit>
    name = cached.split("--")[-1] if cached else parts[-1]
    match = _SPLIT.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")

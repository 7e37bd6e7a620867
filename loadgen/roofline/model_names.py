"""Model names: the base and the quantization that a path or a hub's name holds."""

from __future__ import annotations

import re

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
    """A path's or a hub name's base name and quantization; "" where the name has none.

    `/models/Qwen3-8B-FP8` is ("Qwen3-8B", "FP8"), `Qwen/Qwen3-8B` is ("Qwen3-8B", "").
    """
    parts = [part for part in re.split(r"[/\\]", model) if part] or [""]
    cached = next((part for part in parts if part.startswith("models--")), None)  # …/snapshots/<commit>
    name = cached.split("--")[-1] if cached else parts[-1]
    match = _SPLIT.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def split_gguf(model: str) -> tuple[str, str]:
    """As `split_name`, and of GGUF the kind: `Qwen3-8B-Q4_K_M.gguf` is ("Qwen3-8B", "GGUF-Q4_K_M").

    So is `Qwen/Qwen3-8B-GGUF:Q4_K_M`.
    """
    name = re.split(r"[/\\]", model)[-1]
    found = _GGUF_FILE.fullmatch(name) or _GGUF_HUB.fullmatch(name)
    if found is None:
        return split_name(model)
    kind = "-".join(filter(None, ("GGUF", found[2])))
    return found[1], kind if found[2] or not name.lower().endswith(".gguf") else ""

"""Preset: the embedded engine as a machine at its best, `roofline/<machine>/<model>`, by these formulas.

They are imported where such a preset is named: every other is the engine's own, which starts at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.base.errors import UsageError

if TYPE_CHECKING:
    from loadgen.roofline.ceiling import Ceiling

PREFIX = "roofline/"
_KV_SHARE = 0.9  # of the memory for weights and KV cache, vLLM's default
_STEP_TOKENS, _MOST_TOKENS = 8192, 131_072


def arguments(preset: str, config: Path | None = None) -> list[str]:
    """The engine's own flags for a preset's name; a preset of ours is passed as JSON. Raises UsageError."""
    if not preset.startswith(PREFIX):
        return ["--preset", preset]
    key, slash, model = preset.removeprefix(PREFIX).partition("/")
    if not slash or not model:
        raise UsageError(
            f"--preset {preset}: write roofline/MACHINE/MODEL, such as roofline/jetson-thor/Qwen3-8B-FP8"
        )
    from loadgen.roofline.estimate import ceiling
    from loadgen.roofline.machines import machine

    return ["--preset-json", json.dumps(row(preset, ceiling(model, machine(key), config=config)))]


def row(name: str, bound: Ceiling) -> dict[str, Any]:
    """A ceiling as a row of the engine's presets; raises UsageError where the model does not fit."""
    weights, memory = bound.weights, bound.machine.memory_bytes
    per_token = weights.kv_bytes_per_token + weights.window_kv_bytes_per_token
    tokens = int(_KV_SHARE * memory - weights.total_bytes) // per_token
    if tokens < 1:
        raise UsageError(
            f"--preset {name}: {weights.total_bytes / 1e9:.3g} GB of weights do not fit "
            f"{bound.machine.name}'s {memory / 1e9:.3g} GB"
        )
    return {
        "name": name,
        "model": bound.model,
        "source": f"roofline: {weights.how}; {bound.machine.source}",
        "max_model_len": min(tokens, _MOST_TOKENS),
        "max_num_batched_tokens": _STEP_TOKENS,
        "kv_cache_tokens": tokens,
        "timing": bound.timing(),
    }


def played(preset: str, model: str) -> tuple[str, str] | None:
    """The machine's key and the model that a preset simulates; None if the machine is not in the table."""
    if preset.startswith(PREFIX):
        key, _, model = preset.removeprefix(PREFIX).partition("/")
        return key, model
    from loadgen.roofline.machines import recognised

    machine_named = recognised(preset.partition("/")[0])
    return None if machine_named is None else (machine_named.key, model)

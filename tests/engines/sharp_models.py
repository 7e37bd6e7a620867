"""The tiny model made sure of its tokens, and changed versions of it, as checkpoints to be compared.

Run with the engines' Python, which has torch: `python tests/engines/sharp_models.py MODEL DIRECTORY`.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

SHARP, NOISY, SHUFFLED = "sharp", "noisy", "shuffled"
_GAIN = 8.0  # of the logits: the random model gives all tokens nearly the same probability
_NOISE = 0.1  # of each matrix' standard deviation


def make_models(model: Path, directory: Path) -> None:
    """Write the sharp model, it with noise in each matrix, and it with a layer's rows shuffled."""
    torch: Any = importlib.import_module("torch")
    safetensors: Any = importlib.import_module("safetensors.torch")
    tensors = {
        name: value.float() for name, value in safetensors.load_file(model / "model.safetensors").items()
    }
    tensors["lm_head.weight"] *= _GAIN
    rng = torch.Generator().manual_seed(0)

    def disturb(value: Any) -> Any:
        return value + torch.randn(value.shape, generator=rng) * value.std() * _NOISE * (value.ndim == 2)

    layer = {name for name in tensors if ".layers.1." in name and tensors[name].ndim == 2}
    changed = {
        SHARP: tensors,
        NOISY: {name: disturb(value) for name, value in tensors.items()},
        SHUFFLED: {
            name: value[torch.randperm(len(value), generator=rng)] if name in layer else value
            for name, value in tensors.items()
        },
    }
    for name, made in changed.items():
        shutil.copytree(model, directory / name)
        kept = {key: value.bfloat16().contiguous() for key, value in made.items()}
        safetensors.save_file(kept, directory / name / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    make_models(Path(sys.argv[1]), Path(sys.argv[2]))

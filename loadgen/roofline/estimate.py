"""Known: what is known of a model and a machine, made into the ceiling of a run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.roofline import architecture, checkpoint, models, weights
from loadgen.roofline.architecture import Architecture
from loadgen.roofline.ceiling import Ceiling, Weights
from loadgen.roofline.checkpoint import Checkpoint
from loadgen.roofline.machine import Machine
from loadgen.roofline.quantization import Scheme, scheme


def ceiling(
    model: str,
    machine: Machine,
    *,
    quantization: str = "",
    config: Path | None = None,
    checkpoint_path: str = "",
    kv_dtype: str = "",
) -> Ceiling:
    """What a machine could do with a model at best.

    The shape is of --model-config, else of the checkpoint's own files, else of the table by the model's
    name. How the weights are stored is what is given, else what the files declare, else what the name ends
    in, else what that config declares, else BF16. Raises UsageError: what to pass, or what is broken.
    """
    files = _files(checkpoint_path or model)
    shape = _shape(model, config, files)
    word, group = _stored_as(model, quantization, config, files)
    found = _scheme(word, group)
    directory = Path(os.path.expanduser(files.path)) if files is not None else None
    peaks = machine.peak_flop_per_s
    read: Weights | None = None
    if directory is not None and (gguf := _gguf(directory)):
        read = weights.of_gguf(gguf, shape, found or Scheme("GGUF", 16.0), kv_dtype, peaks)
    elif directory is not None:
        read = weights.of_files(directory, shape, found or Scheme(word, 16.0), kv_dtype, peaks)
    if read is None:
        if found is None:
            raise UsageError(
                f"{model}: nobody here knows how many bits {word} has: without its files there is no roofline"
            )
        read = weights.of_shape(shape, found, kv_dtype, peaks)
    return Ceiling(machine=machine, model=model, weights=read)


def _files(place: str) -> Checkpoint | None:
    """What a place on this machine declares; None where it is but a name. Raises UsageError."""
    return checkpoint.read(place) if place and os.path.exists(os.path.expanduser(place)) else None


def _shape(model: str, config: Path | None, files: Checkpoint | None) -> Architecture:
    if config is not None:
        return architecture.read(config)
    if files is not None and (place := Path(os.path.expanduser(files.path)) / "config.json").is_file():
        return architecture.read(place)
    for name in (model, "" if files is None else files.path):
        if name and (found := models.named(name)) is not None:
            return found
    raise UsageError(f"the shape of {model} is not known here: pass --model-config, its config.json")


def _stored_as(
    model: str, quantization: str, config: Path | None, files: Checkpoint | None
) -> tuple[str, int | None]:
    """The word for how the weights are stored, and how many share a scale where that is told."""
    if quantization:
        return quantization, None
    if files is not None and files.quantization:
        return files.quantization, _group(files.quantization_detail)
    if word := models.suffix(model):
        return word, None
    if config is not None:
        place = config / "config.json" if config.is_dir() else config
        word, detail = checkpoint.quantized(architecture.load(place), place.parent)
        return word, _group(detail)
    found = models.find(model)
    return models.rows()[found.key].stored if found is not None else "", None


def _group(detail: str) -> int | None:
    found = re.search(r"groups of (\d+)", detail)
    return int(found[1]) if found else None


def _scheme(word: str, group: int | None) -> Scheme | None:
    """The scheme of a word; of several joined by + the smallest: nothing is called impossible that is not."""
    parts = [found for part in word.split("+") if (found := scheme(part, group)) is not None]
    return min(parts, key=lambda one: one.bits, default=None)


def _gguf(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return [] if (place / "config.json").is_file() else sorted(place.glob("*.gguf"))

"""Estimate: the machine and the model of a run as far as it reports them, and their ceiling."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path as expanded
from loadgen.base.structs import replace
from loadgen.engines import engines
from loadgen.facts.ceiling import Ceiling, Machine, Weights
from loadgen.facts.run_facts import Facts
from loadgen.features.roofline import models, weights
from loadgen.features.roofline.machines import choose_machine, find_machine, recognise_machine
from loadgen.features.roofline.models import Architecture
from loadgen.features.roofline.roofline_settings import PREFIX, Flags
from loadgen.features.roofline.weights import Scheme, parse_scheme
from loadgen.plan import model_files
from loadgen.server import checkpoint
from loadgen.server.checkpoint import Checkpoint, Quantization

_PASS = "pass --hardware KEY (as jetson-thor) or --bandwidth GB/s"
_PLAIN = ("", "BF16", "FP16", "FP32")
# What an engine quantizes plain weights to.
_ONLINE = {"fp8": "FP8", "bitsandbytes": "BNB-4bit", "mxfp8": "MXFP8"}


def estimate_ceiling(
    model: str,
    machine: Machine,
    *,
    quantization: str = "",
    config: Path | None = None,
    checkpoint_path: str = "",
    kv_dtype: str = "",
) -> Ceiling:
    """Estimate the best that a machine can do with a model.

    The shape is from --model-config, else the checkpoint's own files, else the table by the model's name. How
    the weights are stored is from `quantization`, else the files, else the end of the name, else that config,
    else BF16. Raises UsageError that says what to pass, or what is broken.
    """
    place = checkpoint_path or model
    files = checkpoint.read_checkpoint(place) if place else None
    directory = Path(os.path.expanduser(place)) if files is not None else None
    shape = _find_shape(model, config, directory)
    word, group = _find_storage(model, quantization, config, files)
    # Of several joined by + the smallest, so that no run is wrongly impossible.
    schemes = filter(None, (parse_scheme(part, group) for part in word.split("+")))
    stored, peaks = min(schemes, key=lambda each: each.bits, default=None), machine.peak_flop_per_s
    if stored is not None and peaks and stored.computes not in peaks:
        stored = replace(stored, computes="bf16")  # without such a unit weights are widened
    read: Weights | None = None
    gguf: list[Path] = []
    if directory is not None and directory.is_file():
        gguf = [directory]
    elif directory is not None and not (directory / "config.json").is_file():
        gguf = sorted(directory.glob("*.gguf"))
    if gguf:
        read = weights.weigh_gguf(gguf, shape, stored or Scheme("GGUF", 16.0), kv_dtype)
    elif directory is not None:
        read = weights.weigh_files(directory, shape, stored or Scheme(word, 16.0), kv_dtype)
    if read is None:
        if stored is None:
            raise UsageError(
                f"unknown bit width of {word} ({model}): the model's files are needed for a roofline"
            )
        read = weights.weigh_shape(shape, stored, kv_dtype)
    return Ceiling(machine=machine, model=model, weights=read)


def _find_shape(model: str, config: Path | None, directory: Path | None) -> Architecture:
    """Return the shape from `config`, else the directory's config.json, else the table by either's name.

    Raises UsageError if it is in none.
    """
    if config is None and directory is not None and (directory / "config.json").is_file():
        config = directory
    if config is not None:
        return models.read_architecture(config)
    shapes = (models.find_architecture(name) for name in (model, str(directory or "")) if name)
    if (shape := next(filter(None, shapes), None)) is None:
        raise UsageError(f"the shape of {model} is unknown: pass --model-config, its config.json")
    return shape


def _find_storage(
    model: str, quantization: str, config: Path | None, files: Checkpoint | None
) -> tuple[str, int | None]:
    """Return the name of the weights' storage, and how many share a scale if that is declared, else None.

    The first that has one: `quantization`, the files, the model's name, `config`, the table; "" if none has.
    """
    if quantization:
        return quantization, None
    if files is not None and files.quantization:
        return files.quantization, _read_declared(Path(os.path.expanduser(files.path))).group_size
    if word := models.find_suffix(model):
        return word, None
    if config is not None:
        declared = _read_declared(config)
        return declared.word, declared.group_size
    row = models.find_model(model)
    return models.read_rows()[row.key].stored if row is not None else "", None


def _read_declared(path: Path) -> Quantization:
    """Return how the config.json at a path, or in a directory, declares the weights to be stored.

    Empty if there is none, or it is GGUF.
    """
    file = model_files.find_config(path)
    if file.name.endswith(".gguf") or not file.is_file():
        return Quantization()
    return checkpoint.read_quantization(model_files.read_json_object(file)[1], file.parent)


_KV_SHARE = 0.9  # of the memory for weights and KV cache, vLLM's default
_STEP_TOKENS, _MOST_TOKENS = 8192, 131_072


def make_preset(options: Any) -> str:
    """Make the embedded engine's preset, as JSON, for a command's machine and model; raises UsageError."""
    preset, config = options.preset, options.model_config and expanded(options.model_config)
    key, slash, model = preset.removeprefix(PREFIX).partition("/")
    if not slash or not model:
        raise UsageError(
            f"--preset {preset}: write roofline/MACHINE/MODEL, such as roofline/jetson-thor/Qwen3-8B-FP8"
        )
    return json.dumps(make_preset_row(preset, estimate_ceiling(model, find_machine(key), config=config)))


def make_preset_row(name: str, bound: Ceiling) -> dict[str, Any]:
    """Return a row of the engine's presets from a ceiling; raises UsageError if the model does not fit.

    90 % of the memory is for weights and KV cache.
    """
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


def find_simulated(preset: str, model: str) -> tuple[str, str] | None:
    """Return the machine's key and the model that a preset simulates; None if the machine is unknown.

    The model is that of a roofline's name, else `model`.
    """
    if preset.startswith(PREFIX):
        key, _, model = preset.removeprefix(PREFIX).partition("/")
        return key, model
    machine_named = recognise_machine(preset.partition("/")[0])
    return None if machine_named is None else (machine_named.key, model)


class ModelIdentity(msgspec.Struct, frozen=True):
    """The machine and model that a run reports; "" for what it does not."""

    model: str
    checkpoint_path: str = ""  # where its files are, on this machine
    declared: str = ""  # how they declare the weights to be stored
    as_run: str = ""  # the engine's own name for how it computes them
    kv_dtype: str = ""
    simulated: str = ""  # the embedded engine's preset
    gpu: str = ""  # as NVML names it, several as "4 × …" or with commas
    memory: str = ""  # that the system sees, as "122.8 GiB"
    partitioned: bool = False  # MIG
    devices: int | None = None  # in use; None: not reported


def find_ceiling(subject: ModelIdentity, flags: Flags) -> tuple[Ceiling | None, str]:
    """Return the ceiling of a run and ""; else None, and what is unknown and what to pass.

    The machine is that of the flags, else the simulated one, else the run's GPUs. A simulation of no machine
    has neither.
    """
    played = find_simulated(subject.simulated, subject.model) if subject.simulated else None
    try:
        machine = None
        if flags.names_machine:
            machine = choose_machine(flags.hardware, flags.bandwidth_gb_per_s)
        if machine is not None:
            machine = (
                machine if flags.bandwidth_gb_per_s is not None else _add_devices(machine, subject.devices)
            )
        elif subject.simulated:
            if played is None:
                return None, ""  # made up
            machine = find_machine(played[0])
        else:
            machine = _find_own_machine(subject)
        return _estimate_ceiling(subject, machine, played[1] if played else subject.model, flags), ""
    except UsageError as error:
        return None, str(error)


def _find_own_machine(subject: ModelIdentity) -> Machine:
    """Return the machine of the run's own GPUs, as many as are in use; raises UsageError with what to pass.

    That is if the GPU is unknown, a MIG part, not in the table, or one of several in unknown number.
    """
    if not subject.gpu:
        raise UsageError(f"the memory bandwidth of the machine is unknown: {_PASS}")
    if subject.partitioned:
        raise UsageError(f"of {subject.gpu} only a part is in use (MIG): pass --bandwidth GB/s of that part")
    counted = re.fullmatch(r"(\d+) × (.+)", subject.gpu)
    name, count = (counted[2], int(counted[1])) if counted else (subject.gpu, 1)
    size = re.match(r"[\d.]+", subject.memory)
    row = recognise_machine(name, float(size[0]) if size else None)
    if row is None:
        raise UsageError(f"{subject.gpu} is not in the table of machines: {_PASS}")
    if count > 1 and subject.devices is None:
        raise UsageError(
            f"how many of the {subject.gpu} are in use is unknown: pass --hardware, as {count}x{row.key}"
        )
    return _add_devices(row, subject.devices)


def _add_devices(single: Machine, devices: int | None) -> Machine:
    return single.multiply(devices) if devices and single.devices == 1 else single


def _estimate_ceiling(subject: ModelIdentity, on: Machine, model: str, flags: Flags) -> Ceiling:
    """Estimate the ceiling of a run's model; plain weights that the engine quantized count as such.

    Then the files are only read for their config. Raises UsageError.
    """
    config = expanded(flags.model_config) if flags.model_config is not None else None
    made = _ONLINE.get(subject.as_run) if subject.declared in _PLAIN else None
    directory = subject.checkpoint_path
    if made and directory and config is None and (Path(directory) / "config.json").is_file():
        config = Path(directory)
    return estimate_ceiling(
        model,
        on,
        quantization=made or "",
        config=config,
        checkpoint_path="" if made else directory,
        kv_dtype=subject.kv_dtype,
    )


def add_ceiling(facts: Facts, flags: Flags) -> Facts:
    """Return the facts with the roofline, or why it is unknown, and the number of GPUs.

    Without flags a hosted API's facts, and those of a preset of no machine, stay as they are. Several servers
    have none.
    """
    if engines.find_by_name(facts.server.engine).hosted and flags == Flags():
        return facts
    if facts.targets or len(facts.role_windows) > 1:
        why = "several servers share the load: the batch of each is not known; measure one alone"
        return replace(facts, no_ceiling=why)
    if facts.server.simulated and "/" not in facts.server.simulated and flags == Flags():
        return facts  # a preset of no machine
    bound, why = find_ceiling(identify_model(facts), flags)
    named = 0 if flags.hardware is None else find_machine(flags.hardware).devices
    gpus = facts.gpus or named or facts.gpu_count
    return replace(facts, ceiling=bound, no_ceiling=why, gpus=gpus)


def identify_model(facts: Facts) -> ModelIdentity:
    """Return the machine, the model and its quantization in a run's facts, "" for what is unknown."""
    server, files, engine = facts.server, facts.checkpoint, facts.as_run
    environment = facts.environment
    return ModelIdentity(
        model=server.model if server.simulated else server.model_root or server.model,
        checkpoint_path=files.path if files is not None else "",
        declared=files.quantization if files is not None else "",
        as_run=engine.quantization if engine is not None else "",
        kv_dtype=engine.kv_cache_dtype if engine is not None else "",
        simulated=server.simulated,
        gpu=environment.get("gpu", ""),
        memory=environment.get("memory", ""),
        partitioned=bool(environment.get("gpu_mig")),
        devices=count_devices(facts),
    )


def count_devices(facts: Facts) -> int | None:
    """Count the GPUs that share the model, by the engine's report, its start, or memory; None: unknown."""
    holding = () if facts.sensed is None else facts.sensed.server_gpus
    return facts.tensor_parallel or len(holding) or None

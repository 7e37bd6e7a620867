"""Estimate: the machine and the model of a run as far as it reports them, its weights and its ceiling."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path as expanded
from loadgen.base.structs import replace
from loadgen.engines import engines
from loadgen.facts.ceiling import Ceiling, Machine, Weights
from loadgen.facts.run_facts import Facts
from loadgen.features.roofline import models
from loadgen.features.roofline.machines import choose_machine, find_machine, recognise_machine
from loadgen.features.roofline.models import Architecture
from loadgen.features.roofline.roofline_settings import PREFIX, Flags
from loadgen.plan import model_files
from loadgen.server import checkpoint
from loadgen.server.checkpoint import Checkpoint, Quantization

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
    """Return a tensor's bytes by its entry of a header; raises UsageError if invalid or beyond `room`."""
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
    """Parse a storage scheme as FP8, AWQ-4bit, NVFP4, GGUF-Q4_K_M; "" is BF16, an unknown one None.

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


_PASS = "pass --hardware KEY (as jetson-thor) or --bandwidth GB/s"
_PLAIN = ("", "BF16", "FP16", "FP32")
# An engine quantizes plain weights to these.
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
    # The smallest of several schemes joined by + counts, so that no run is wrongly impossible.
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
    if gguf:  # weighed by the files' size, as if every weight had the same number of bits
        bits = 8 * sum(path.stat().st_size for path in gguf) / shape.total
        scheme = replace(stored or Scheme("GGUF", 16.0), bits=bits, everything=True, assumed="")
        read = weigh_shape(shape, scheme, kv_dtype).model_copy(update={"how": f"the size of {gguf[0]}"})
    elif directory is not None:
        read = weigh_files(directory, shape, stored or Scheme(word, 16.0), kv_dtype)
    if read is None:
        if stored is None:
            raise UsageError(
                f"unknown bit width of {word} ({model}): the model's files are needed for a roofline"
            )
        read = weigh_shape(shape, stored, kv_dtype)
    return Ceiling(machine=machine, model=model, weights=read)


def _find_shape(model: str, config: Path | None, directory: Path | None) -> Architecture:
    """Return the shape by `config`, else the directory's config.json, else the table; raises UsageError."""
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


def find_ceiling(facts: Facts, flags: Flags) -> tuple[Ceiling | None, str]:
    """Return the ceiling of a run and ""; else None, and what is unknown and what to pass.

    The machine is that of the flags, else the simulated one, else the run's GPUs. A simulation of no machine
    has neither.
    """
    server = facts.server
    model = server.model if server.simulated else server.model_root or server.model
    played = find_simulated(server.simulated, model) if server.simulated else None
    try:
        machine = None
        if flags.names_machine:
            machine = choose_machine(flags.hardware, flags.bandwidth_gb_per_s)
        if machine is not None:
            if flags.bandwidth_gb_per_s is None:
                machine = _multiply_one(machine, count_devices(facts))
        elif server.simulated:
            if played is None:
                return None, ""  # made up
            machine = find_machine(played[0])
        else:
            machine = _find_own_machine(facts)
        return _estimate_ceiling(facts, machine, played[1] if played else model, flags), ""
    except UsageError as error:
        return None, str(error)


def _find_own_machine(facts: Facts) -> Machine:
    """Return the machine of the run's own GPUs, as many as are in use; raises UsageError with what to pass.

    That is if the GPU is unknown, a MIG part, not in the table, or one of several in unknown number.
    """
    gpu = facts.environment.get("gpu", "")  # as NVML names it, several as "4 × …" or with commas
    if not gpu:
        raise UsageError(f"the memory bandwidth of the machine is unknown: {_PASS}")
    if facts.environment.get("gpu_mig"):
        raise UsageError(f"of {gpu} only a part is in use (MIG): pass --bandwidth GB/s of that part")
    counted = re.fullmatch(r"(\d+) × (.+)", gpu)
    name, count = (counted[2], int(counted[1])) if counted else (gpu, 1)
    size, devices = re.match(r"[\d.]+", facts.environment.get("memory", "")), count_devices(facts)
    row = recognise_machine(name, float(size[0]) if size else None)
    if row is None:
        raise UsageError(f"{gpu} is not in the table of machines: {_PASS}")
    if count > 1 and devices is None:
        raise UsageError(
            f"how many of the {gpu} are in use is unknown: pass --hardware, as {count}x{row.key}"
        )
    return _multiply_one(row, devices)


def _multiply_one(single: Machine, devices: int | None) -> Machine:
    """Return as many of a machine; the machine itself if the number is unknown or it has several already."""
    return single.multiply(devices) if devices and single.devices == 1 else single


def _estimate_ceiling(facts: Facts, on: Machine, model: str, flags: Flags) -> Ceiling:
    """Estimate the ceiling of a run's model; plain weights that the engine quantized count as such.

    Then the files are only read for their config. Raises UsageError.
    """
    files, engine = facts.checkpoint, facts.as_run
    config = expanded(flags.model_config) if flags.model_config is not None else None
    plain = files is None or files.quantization in _PLAIN
    made = _ONLINE.get(engine.quantization) if plain and engine is not None else None
    directory = files.path if files is not None else ""
    if made and directory and config is None and (Path(directory) / "config.json").is_file():
        config = Path(directory)
    return estimate_ceiling(
        model,
        on,
        quantization=made or "",
        config=config,
        checkpoint_path="" if made else directory,
        kv_dtype=engine.kv_cache_dtype if engine is not None else "",
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
    bound, why = find_ceiling(facts, flags)
    named = 0 if flags.hardware is None else find_machine(flags.hardware).devices
    gpus = facts.gpus or named or facts.gpu_count
    return replace(facts, ceiling=bound, no_ceiling=why, gpus=gpus)


def count_devices(facts: Facts) -> int | None:
    """Count the GPUs that share the model, by the engine's report, its start, or memory; None: unknown."""
    holding = () if facts.sensed is None else facts.sensed.server_gpus
    return facts.tensor_parallel or len(holding) or None

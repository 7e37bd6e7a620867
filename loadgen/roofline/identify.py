"""Identify: the machine and the model of a run, so far as the run reports them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.paths import expand_path as expanded
from loadgen.roofline import estimate
from loadgen.roofline.ceiling import Ceiling
from loadgen.roofline.estimate import estimate_ceiling
from loadgen.roofline.flags import Flags
from loadgen.roofline.machines import Machine, choose_machine, find_machine, recognise_machine

_PASS = "pass --hardware KEY (as jetson-thor) or --bandwidth GB/s"
_PLAIN = ("", "BF16", "FP16", "FP32")
# What an engine quantizes plain weights to.
_ONLINE = {"fp8": "FP8", "bitsandbytes": "BNB-4bit", "mxfp8": "MXFP8"}


class ModelIdentity(msgspec.Struct, frozen=True):
    """A run's machine and model, as it reports them; empty where it does not."""

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
    """The ceiling of a run; else None, and what is unknown and what to pass ("": nothing to report)."""
    played = estimate.find_simulated(subject.simulated, subject.model) if subject.simulated else None
    try:
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
    """The machine of its own GPUs; raises UsageError that says what to pass."""
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

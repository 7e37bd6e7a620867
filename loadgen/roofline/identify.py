"""Subject: which machine and which model a run was of, so far as the run tells."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from loadgen.errors import UsageError
from loadgen.roofline import architecture, preset
from loadgen.roofline.ceiling import Ceiling
from loadgen.roofline.estimate import ceiling
from loadgen.roofline.machine import Machine
from loadgen.roofline.machines import chosen, machine, recognised
from loadgen.workload.paths import place as expanded

_PASS = "pass --hardware KEY (as jetson-thor) or --bandwidth GB/s"
_PLAIN = ("", "BF16", "FP16", "FP32")
_ONLINE = {
    "fp8": "FP8",
    "bitsandbytes": "BNB-4bit",
    "mxfp8": "MXFP8",
}  # what an engine makes of plain weights


class Flags(msgspec.Struct, frozen=True):
    """What the user says of machine and model."""

    hardware: str | None = None
    bandwidth_gb_per_s: float | None = None
    model_config: str | None = None

    def check(self) -> None:
        """Find before a run what these flags could not do after it; raises UsageError."""
        chosen(self.hardware, self.bandwidth_gb_per_s)
        if self.model_config is not None:
            architecture.read(expanded(self.model_config))


class ModelIdentity(msgspec.Struct, frozen=True):
    """What a run tells of its machine and its model; what it does not tell is empty."""

    model: str
    checkpoint_path: str = ""  # where its files are, on this machine
    declared: str = ""  # how they say that the weights are stored
    as_run: str = ""  # the engine's own word for how it computes them
    kv_dtype: str = ""
    simulated: str = ""  # the embedded engine's preset
    gpu: str = ""  # as NVML names it, several as "4 × …" or with commas
    memory: str = ""  # that the system sees, as "122.8 GiB"
    partitioned: bool = False  # MIG
    devices: int | None = None  # that serve; None: not told


def roofline(subject: ModelIdentity, flags: Flags) -> tuple[Ceiling | None, str]:
    """The ceiling of a run; else None, and what is not known and what to pass ("": nothing to say of it)."""
    played = preset.played(subject.simulated, subject.model) if subject.simulated else None
    try:
        known = chosen(flags.hardware, flags.bandwidth_gb_per_s)
        if known is not None:
            known = known if flags.bandwidth_gb_per_s is not None else _all(known, subject.devices)
        elif subject.simulated:
            if played is None:
                return None, ""  # made up
            known = machine(played[0])
        else:
            known = _own(subject)
        return _ceiling(subject, known, played[1] if played else subject.model, flags), ""
    except UsageError as error:
        return None, str(error)


def _own(subject: ModelIdentity) -> Machine:
    """The machine of its own GPUs; raises UsageError that says what to pass."""
    if not subject.gpu:
        raise UsageError(f"the memory bandwidth of its machine is not known: {_PASS}")
    if subject.partitioned:
        raise UsageError(
            f"of {subject.gpu} only a part serves (MIG): pass --bandwidth GB/s, that of the part"
        )
    counted = re.fullmatch(r"(\d+) × (.+)", subject.gpu)
    name, count = (counted[2], int(counted[1])) if counted else (subject.gpu, 1)
    size = re.match(r"[\d.]+", subject.memory)
    found = recognised(name, float(size[0]) if size else None)
    if found is None:
        raise UsageError(f"{subject.gpu} is not in the table: {_PASS}")
    if count > 1 and subject.devices is None:
        raise UsageError(
            f"how many of the {subject.gpu} serve is not told: pass --hardware, as {count}x{found.key}"
        )
    return _all(found, subject.devices)


def _all(one: Machine, devices: int | None) -> Machine:
    return one.times(devices) if devices and one.devices == 1 else one


def _ceiling(subject: ModelIdentity, known: Machine, model: str, flags: Flags) -> Ceiling:
    config = expanded(flags.model_config) if flags.model_config is not None else None
    made = _ONLINE.get(subject.as_run) if subject.declared in _PLAIN else None
    place = subject.checkpoint_path
    if made and place and config is None and (Path(place) / "config.json").is_file():
        config = Path(place)
    return ceiling(
        model,
        known,
        quantization=made or "",
        config=config,
        checkpoint_path="" if made else place,
        kv_dtype=subject.kv_dtype,
    )

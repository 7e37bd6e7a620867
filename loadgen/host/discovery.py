"""Sensors: those that this machine has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadgen.base import untrusted
from loadgen.host.jetson import board
from loadgen.host.nvml import Gpus, gpus
from loadgen.host.process_memory import Processes, System
from loadgen.host.sensor import Absent, Sensor, guarded, name_of


def sensors(root: Path = Path("/")) -> list[Sensor]:
    """The sensors of this machine; an Absent in place of GPUs that are not there, or cannot be read."""
    devices = guarded("NVML", gpus, Absent)
    own = guarded("the board's sensors", lambda: board(root), Absent)
    return [devices, *([] if own is None else [own]), Processes(), System()]


def facts(sensors: Sequence[Sensor]) -> dict[str, str]:
    """What they report of this machine, for the environment."""
    each = (guarded(name_of(sensor), sensor.facts, lambda _: {}) for sensor in sensors)
    return {name: untrusted.text(value) for facts in each for name, value in facts.items()}


def device_memory_bytes() -> int | None:
    """GPU memory in use by all processes, over all GPUs; None where there is none, or one does not report."""
    devices = guarded("NVML", gpus, Absent)
    return guarded("NVML", devices.used_bytes, lambda _: None) if isinstance(devices, Gpus) else None

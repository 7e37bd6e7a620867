"""Sensors: those that this machine has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadgen.protocol import untrusted
from loadgen.telemetry.jetson import board
from loadgen.telemetry.nvml import Gpus, gpus
from loadgen.telemetry.process_memory import Processes, System
from loadgen.telemetry.sensor import Absent, Sensor, guarded, named


def found(root: Path = Path("/")) -> list[Sensor]:
    """What can be read here; in place of GPUs that are not there, or cannot be asked, stands what says so."""
    devices = guarded("NVML", gpus, Absent)
    own = guarded("the board's sensors", lambda: board(root), Absent)
    return [devices, *([] if own is None else [own]), Processes(), System()]


def facts(sensors: Sequence[Sensor]) -> dict[str, str]:
    """What they say of this machine, for the environment."""
    return {name: said for sensor in sensors for name, said in _facts(sensor).items()}


def _facts(sensor: Sensor) -> dict[str, str]:
    """One sensor's facts; none where it fails."""
    said = guarded(named(sensor), sensor.facts, lambda why: {})
    return {name: untrusted.text(value) for name, value in said.items()}


def device_memory_bytes() -> int | None:
    """GPU memory in use by everybody, over all GPUs; None where there is none, or one does not tell."""
    return guarded("NVML", _device_memory_bytes, lambda why: None)


def _device_memory_bytes() -> int | None:
    devices = gpus()
    return devices.used_bytes() if isinstance(devices, Gpus) else None

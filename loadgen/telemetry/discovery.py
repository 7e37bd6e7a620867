"""Sensors: those that this machine has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadgen.protocol import untrusted
from loadgen.telemetry.jetson import board
from loadgen.telemetry.nvml import Gpus, gpus
from loadgen.telemetry.process_memory import Processes, System
from loadgen.telemetry.sensor import Absent, Sensor, guarded, name_of


def sensors(root: Path = Path("/")) -> list[Sensor]:
    """The sensors of this machine; an Absent in place of GPUs that are not there, or cannot be read."""
    devices = guarded("NVML", gpus, Absent)
    own = guarded("the board's sensors", lambda: board(root), Absent)
    return [devices, *([] if own is None else [own]), Processes(), System()]


def facts(sensors: Sequence[Sensor]) -> dict[str, str]:
    """What they report of this machine, for the environment."""
    return {name: text for sensor in sensors for name, text in _facts(sensor).items()}


def _facts(sensor: Sensor) -> dict[str, str]:
    """One sensor's facts; none where it fails."""
    facts = guarded(name_of(sensor), sensor.facts, lambda _: {})
    return {name: untrusted.text(value) for name, value in facts.items()}


def device_memory_bytes() -> int | None:
    """GPU memory in use by all processes, over all GPUs; None where there is none, or one does not report."""
    return guarded("NVML", _device_memory_bytes, lambda _: None)


def _device_memory_bytes() -> int | None:
    devices = gpus()
    return devices.used_bytes() if isinstance(devices, Gpus) else None

"""Sensors: those that this machine has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadgen.hwmon import board
from loadgen.nvml import Gpus, gpus
from loadgen.processes import Processes, System
from loadgen.reading import Sensor


def found(root: Path = Path("/")) -> list[Sensor]:
    """What can be read here; in place of GPUs that are not there stands what says so."""
    own = board(root)
    return [gpus(), *([] if own is None else [own]), Processes(), System()]


def facts(sensors: Sequence[Sensor]) -> dict[str, str]:
    """What they say of this machine, for the environment."""
    return {name: said for sensor in sensors for name, said in sensor.facts().items()}


def device_memory_bytes() -> int | None:
    """GPU memory in use by everybody, over all GPUs; None where there is none, or one does not tell."""
    devices = gpus()
    return devices.used_bytes() if isinstance(devices, Gpus) else None

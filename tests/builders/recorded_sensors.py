"""Sensors of machines that are not at hand, as tests/data/sensors/ has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

DATA = Path(__file__).parents[1] / "data" / "sensors"
ERRORS = {words: code for code, words in pynvml.NVMLError._errcode_to_string.items()}


class RecordedNvml:
    """Answers like pynvml from a file: a text is an error's words."""

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU, NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 0, 1, 2
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1

    def __init__(self, name: str) -> None:
        self.said = json.loads((DATA / f"nvml_{name}.json").read_text("utf-8"))

    def nvmlDeviceGetCount(self) -> int:
        return len(self.said["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return answered(self.said["devices"][index])  # type: ignore[no-any-return]

    def nvmlSystemGetDriverVersion(self) -> str:
        return answered(self.said["driver"], is_text=True)  # type: ignore[no-any-return]

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return answered(self.said["cuda"])  # type: ignore[no-any-return]

    def __getattr__(self, function: str) -> Callable[..., Any]:
        what = function.removeprefix("nvmlDeviceGet")
        assert what != function, function

        def ask(handle: dict[str, Any], *sort: int) -> Any:
            said = answered(handle.get(what, "Not Supported"), is_text=what in ("Name", "VbiosVersion"))
            if what == "ViolationStatus":
                return SimpleNamespace(violationTime=said)
            if what in ("ClockInfo", "MaxClockInfo", "ApplicationsClock"):
                return answered(said.get(str(sort[0]), "Not Supported"))
            if what in ("MemoryInfo", "UtilizationRates"):
                return SimpleNamespace(**said)
            return [SimpleNamespace(**one) for one in said] if "Running" in what else said

        return ask

    def refuse(self, words: str) -> None:
        """Every question to a device from now on."""
        for device in self.said["devices"]:
            for what in device:
                device[what] = words


def answered(said: Any, is_text: bool = False) -> Any:
    if isinstance(said, str) and (not is_text or said in ERRORS):
        raise pynvml.NVMLError(ERRORS[said])
    return said


def tree(root: Path, listing: str) -> Path:
    """The files of a listing, "path = text" a line, | for a new line."""
    for line in listing.splitlines():
        if line and not line.startswith("#"):
            path, _, text = line.partition(" =")
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.strip().replace("|", "\n") + "\n", "utf-8")
    return root

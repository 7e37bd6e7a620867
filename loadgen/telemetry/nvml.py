"""NVML: memory, energy, heat and clocks of NVIDIA GPUs, through nvidia-ml-py."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from loadgen.telemetry.sensor import Absent, Key, Quantity, Questions, Reading
from loadgen.telemetry.throttling import GPU_REASONS

_LIBRARY = "libnvidia-ml.so.1"
_GIB = 1 << 30
# Bits of the clocks event reasons that mean slower than it could be; the others: idle, and clocks asked for.
_REASONS = {0x04: "power limit", **GPU_REASONS}  # the limit is no throttling, and worth to be told beside it
_LEVELS: tuple[tuple[Quantity, str, str, str], ...] = (
    ("temperature_c", "temperature", "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    ("sm_mhz", "SM clock", "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    ("memory_mhz", "memory clock", "nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
)


def gpus(library: str = _LIBRARY) -> Gpus | Absent:
    """The NVIDIA GPUs of this machine; where it has none, why."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return Absent(f"no NVIDIA GPU: {library} cannot be loaded")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Absent(f"no NVIDIA GPU: NVML does not start: {error}")
    return Gpus(pynvml)


class Gpus:
    """Every GPU that NVML shows; `nvml` is the module pynvml, initialised, or what answers like it."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        asked = Questions("NVML", nvml.NVMLError)
        count = asked.ask("its GPUs", nvml.nvmlDeviceGetCount)
        if count == 0:
            asked.refuse("of any GPU", "it finds none")
        handles = {
            f"GPU {i}": asked.ask(f"of GPU {i}", partial(nvml.nvmlDeviceGetHandleByIndex, i))
            for i in range(count or 0)
        }
        self.devices = {where: handle for where, handle in handles.items() if handle is not None}
        self.missing = asked.missing

    def facts(self) -> dict[str, str]:
        """Names, driver, CUDA, power limits (W) and memory (GiB); of several GPUs, what differs is listed."""
        nvml, asked = self.nvml, Questions("NVML", self.nvml.NVMLError)
        if not self.devices:
            return {}
        cuda = asked.ask("CUDA", nvml.nvmlSystemGetCudaDriverVersion_v2)
        names = Counter(self._each(asked, nvml.nvmlDeviceGetName))
        limits = self._each(asked, nvml.nvmlDeviceGetEnforcedPowerLimit)
        sizes = self._each(asked, nvml.nvmlDeviceGetMemoryInfo)
        split = [mode for mode, _ in self._each(asked, nvml.nvmlDeviceGetMigMode)]
        facts = {
            "gpu": ", ".join(f"{n} × {name}" if n > 1 else name for name, n in names.items()),
            "gpus": str(len(self.devices)),
            "gpu_driver": asked.ask("driver", nvml.nvmlSystemGetDriverVersion) or "",
            "gpu_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            "gpu_power_limit": ", ".join(dict.fromkeys(f"{limit / 1e3:g} W" for limit in limits)),
            "gpu_memory": ", ".join(dict.fromkeys(f"{size.total / _GIB:.1f} GiB" for size in sizes)),
            "gpu_mig": "on" if any(split) else "",
        }
        return {name: said for name, said in facts.items() if said}

    def read(self, pids: Sequence[int]) -> Reading:
        """One look at every GPU."""
        looks = [self._look(where, handle, frozenset(pids)) for where, handle in self.devices.items()]
        reading = Reading.merged([*looks, Reading(missing=self.missing)])
        if not pids or any(quantity == "server_bytes" for quantity, _ in reading.values):
            return reading
        unlisted = "no GPU lists a process of the server: its GPU memory is not known by process"
        return Reading(reading.values, reading.held_back, (*reading.missing, unlisted))

    def used_bytes(self) -> int | None:
        """Memory in use on all GPUs by everybody; None where one of them does not tell."""
        asked = Questions("NVML", self.nvml.NVMLError)
        used = [memory.used for memory in self._each(asked, self.nvml.nvmlDeviceGetMemoryInfo)]
        return None if asked.refused or not used else sum(used)

    def _each(self, asked: Questions, question: Any) -> list[Any]:
        """What those GPUs say that answer."""
        answers = [asked.ask("it", partial(question, handle)) for handle in self.devices.values()]
        return [answer for answer in answers if answer is not None]

    def _look(self, where: str, handle: Any, pids: frozenset[int]) -> Reading:
        nvml, asked = self.nvml, Questions(where, self.nvml.NVMLError)
        values: dict[Key, float] = {}
        memory = asked.ask("memory in use", partial(nvml.nvmlDeviceGetMemoryInfo, handle))
        if memory is not None:
            values["device_bytes", where] = memory.used
        listed = self._listed(asked, handle, pids) if pids else None
        if listed is not None:
            values["server_bytes", where] = listed
        spent = asked.ask("energy or power", partial(self._energy, handle), partial(self._power, handle))
        if spent is not None:
            values[spent[0], where] = spent[1]
        for quantity, what, function, sort in _LEVELS:
            level = asked.ask(what, partial(getattr(nvml, function), handle, getattr(nvml, sort)))
            if level is not None:
                values[quantity, where] = level
        mask = asked.ask(
            "why its clocks are held back",
            partial(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
            partial(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),  # of drivers before 535
        )
        held = None if mask is None else tuple((where, why) for bit, why in _REASONS.items() if mask & bit)
        return Reading(values, held, asked.missing)

    def _energy(self, handle: Any) -> tuple[Quantity, float]:
        return "energy_j", self.nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3

    def _power(self, handle: Any) -> tuple[Quantity, float]:
        return "power_w", self.nvml.nvmlDeviceGetPowerUsage(handle) / 1e3

    def _listed(self, asked: Questions, handle: Any, pids: frozenset[int]) -> int | None:
        """Bytes of these processes; None where none of them is on the list.

        A process that computes and draws is on two lists with the same bytes; one that has several MIG
        instances is on one list several times.
        """
        nvml, by_pid = self.nvml, Counter[int]()
        computing = asked.ask("memory by process", partial(nvml.nvmlDeviceGetComputeRunningProcesses, handle))
        drawing = Questions("", nvml.NVMLError).ask(
            "", partial(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        )
        ours = [[p for p in processes or () if p.pid in pids] for processes in (computing, drawing)]
        for processes in ours:
            one = Counter[int]()
            for process in processes:
                one[process.pid] += process.usedGpuMemory or 0
            by_pid |= one
        if any(p.usedGpuMemory is None for processes in ours for p in processes):
            asked.refuse("memory by process", "it lists the processes without it")
            return None
        return by_pid.total() or None

"""NVML: memory, energy, heat and clocks of NVIDIA GPUs, through nvidia-ml-py."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from loadgen.base import untrusted
from loadgen.base.text import GIB
from loadgen.host.machine_state import ClockState, GpuUse, MachineState, PowerCap
from loadgen.host.sensor import LIMITS, Absent, Key, Quantity, Queries, Reading, Sensor, merge_states

_LIBRARY = "libnvidia-ml.so.1"
# Bits of the clocks event reasons that mean a slower clock; the others: idle, and clocks that were requested.
_SLOWER = {
    0x04: LIMITS[0],
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_IDLE, _AS_SET = 0x01, 0x02  # other bits of the same mask
_UNIFIED = ("GB10", "Thor", "Orin", "Xavier")  # in names of GPUs that share the memory of the CPU
_LEVELS: tuple[tuple[Quantity, str, str, str], ...] = (
    ("temperature_c", "temperature", "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    ("sm_mhz", "SM clock", "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    ("memory_mhz", "memory clock", "nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
)


def find_gpus(library: str = _LIBRARY) -> Gpus | Absent:
    """Load NVML and return this machine's NVIDIA GPUs; Absent, with why, if it does not load or start."""
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


def name_reasons(mask: float) -> tuple[str, ...]:
    """Name what slows a GPU by the bits of its clocks event reasons, which DCGM reports too."""
    return tuple(why for bit, why in _SLOWER.items() if int(mask) & bit)


class Gpus(Sensor):
    """The GPUs that NVML shows; `nvml` is the module pynvml, initialised, or a fake of it."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        queries = Queries("NVML", nvml.NVMLError)
        count = queries.get("its GPUs", nvml.nvmlDeviceGetCount)
        if count == 0:
            queries.refuse("any GPU", "it finds none")
        handles = {
            f"GPU {i}": queries.get(f"GPU {i}", partial(nvml.nvmlDeviceGetHandleByIndex, i))
            for i in range(count or 0)
        }
        self.devices = {where: handle for where, handle in handles.items() if handle is not None}
        self.missing = queries.missing

    def facts(self) -> dict[str, str]:
        """Return names, driver, CUDA, power limits (W) and memory (GiB); values that differ are listed."""
        nvml, queries = self.nvml, Queries("NVML", self.nvml.NVMLError)
        if not self.devices:
            return {}
        cuda = queries.get("CUDA", nvml.nvmlSystemGetCudaDriverVersion_v2)
        names = Counter(self._query_all(queries, nvml.nvmlDeviceGetName))
        limits = self._query_all(queries, nvml.nvmlDeviceGetEnforcedPowerLimit)
        sizes = self._query_all(queries, nvml.nvmlDeviceGetMemoryInfo)
        split = [mode for mode, _ in self._query_all(queries, nvml.nvmlDeviceGetMigMode)]
        facts = {
            "gpu": ", ".join(f"{n} × {name}" if n > 1 else name for name, n in names.items()),
            "gpus": str(len(self.devices)),
            "gpu_driver": queries.get("driver", nvml.nvmlSystemGetDriverVersion) or "",
            "gpu_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            "gpu_power_limit": ", ".join(dict.fromkeys(f"{limit / 1e3:g} W" for limit in limits)),
            "gpu_memory": ", ".join(dict.fromkeys(f"{size.total / GIB:.1f} GiB" for size in sizes)),
            "gpu_mig": "on" if any(split) else "",
        }
        return {name: text for name, text in facts.items() if text}

    def read(self, pids: Sequence[int]) -> Reading:
        """Read memory, energy or power, temperature and clocks of every GPU now.

        `missing` has what is refused, and that no GPU lists a process of `pids` if that is so.
        """
        each = [self._read(where, handle, frozenset(pids)) for where, handle in self.devices.items()]
        reading = Reading.merge([*each, Reading(missing=self.missing)])
        if not pids or any(quantity == "server_bytes" for quantity, _ in reading.values):
            return reading
        unlisted = "no GPU lists a process of the server, so its GPU memory is unknown by process"
        return Reading(reading.values, reading.held_back, (*reading.missing, unlisted))

    def list_ids(self) -> list[str]:
        """List the GPUs' UUIDs, as DCGM names them; without those that are not reported."""
        queries = Queries("NVML", self.nvml.NVMLError)
        return self._query_all(queries, self.nvml.nvmlDeviceGetUUID)

    def read_used_bytes(self) -> int | None:
        """Read the bytes in use on all GPUs by all processes; None if one does not report it."""
        queries = Queries("NVML", self.nvml.NVMLError)
        used = [memory.used for memory in self._query_all(queries, self.nvml.nvmlDeviceGetMemoryInfo)]
        return None if queries.refused or not used else sum(used)

    def read_state(self, pids: Sequence[int]) -> MachineState:
        """Read every GPU's settings, heat, memory and other processes now; `missing` has what is refused."""
        queries = Queries("NVML", self.nvml.NVMLError)
        driver = queries.get("driver", self.nvml.nvmlSystemGetDriverVersion) or ""
        each = [self._read_state(where, handle, frozenset(pids)) for where, handle in self.devices.items()]
        return merge_states([MachineState(driver=driver, missing=(*self.missing, *queries.missing)), *each])

    def _read_state(self, where: str, handle: Any, pids: frozenset[int]) -> MachineState:
        """Read one GPU's state now; unified if it is known to share the CPU's memory, or reports none."""
        nvml, queries = self.nvml, Queries(where, self.nvml.NVMLError)
        name = queries.get("name", partial(nvml.nvmlDeviceGetName, handle)) or ""
        memory = queries.get("memory in use", partial(nvml.nvmlDeviceGetMemoryInfo, handle))
        shared = "memory in use" in queries.refused.get("Not Supported", ())
        busy = queries.get("utilisation", partial(nvml.nvmlDeviceGetUtilizationRates, handle))
        watts = queries.get("power", partial(nvml.nvmlDeviceGetPowerUsage, handle))
        others, others_bytes = self._count_others(queries, handle, pids)
        mask = self._read_event_reasons(queries, handle)
        firmware = queries.get("VBIOS", partial(nvml.nvmlDeviceGetVbiosVersion, handle))
        heat = queries.get(
            "temperature", partial(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        )
        # A GPU without a fan is not worth a remark.
        fan = queries.get("", partial(nvml.nvmlDeviceGetFanSpeed, handle))
        use = GpuUse(
            name=untrusted.read_text(name),
            used_bytes=None if memory is None else memory.used,
            total_bytes=None if memory is None else memory.total,
            others=others,
            others_bytes=others_bytes,
            busy_percent=None if busy is None else busy.gpu,
            memory_busy_percent=None if busy is None else busy.memory,
            power_w=None if watts is None else watts / 1e3,
        )
        return MachineState(
            firmware={where: untrusted.read_text(firmware)} if firmware else {},
            clocks=self._read_clocks(where, queries, handle, mask),
            power_caps=self._read_power_cap(where, queries, handle),
            temperature_c={} if heat is None else {where: heat},
            fans={} if fan is None else {f"{where} %": fan},
            held_back=None if mask is None else tuple(f"{where}: {why}" for why in name_reasons(mask)),
            slowdown_us=self._read_slowdowns(where, queries, handle),
            unified=shared or any(each in name for each in _UNIFIED),
            gpus={where: use},
            missing=queries.missing,
        )

    def _read_clocks(
        self, where: str, queries: Queries, handle: Any, mask: int | None
    ) -> dict[str, ClockState]:
        """Read the clocks of a GPU's multiprocessors and memory, as far as they are reported.

        `mask` has the reasons for their level: whether they are pinned is unknown of an idle GPU.
        """
        nvml, clocks = self.nvml, dict[str, ClockState]()
        pinned = None if mask is None or mask & (_IDLE | _AS_SET) == _IDLE else bool(mask & _AS_SET)
        for what, sort in (("SM", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
            now = queries.get(f"{what} clock", partial(nvml.nvmlDeviceGetClockInfo, handle, sort))
            most = queries.get(
                f"greatest {what} clock", partial(nvml.nvmlDeviceGetMaxClockInfo, handle, sort)
            )
            # Only some GPUs have one; the multiprocessors' has the name of their graphics clock.
            names = (sort, nvml.NVML_CLOCK_GRAPHICS) if what == "SM" else (sort,)
            settings = (partial(nvml.nvmlDeviceGetApplicationsClock, handle, name) for name in names)
            limit = queries.get("", *settings)
            if (now, most) != (None, None):
                clocks[f"{where} {what}"] = ClockState(
                    now_mhz=now, limit_mhz=limit, most_mhz=most, pinned=pinned if what == "SM" else None
                )
        return clocks

    def _read_power_cap(self, where: str, queries: Queries, handle: Any) -> dict[str, PowerCap]:
        """Read the power limit in force, its default and its bounds; {} if none of them is reported."""
        nvml = self.nvml
        now = queries.get("power limit", partial(nvml.nvmlDeviceGetEnforcedPowerLimit, handle))
        usual = queries.get(
            "default power limit", partial(nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
        )
        bounds = partial(nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
        limits = (now, usual, *(queries.get("bounds of its power limit", bounds) or (None, None)))
        if limits == (None,) * 4:
            return {}
        now_w, default_w, least_w, most_w = (None if limit is None else limit / 1e3 for limit in limits)
        return {where: PowerCap(now_w=now_w, default_w=default_w, least_w=least_w, most_w=most_w)}

    def _read_slowdowns(self, where: str, queries: Queries, handle: Any) -> dict[str, int]:
        """Read for how long (µs) power and heat have slowed a GPU since its driver was loaded."""
        nvml, slowdown_us = self.nvml, dict[str, int]()
        policies = (("power", nvml.NVML_PERF_POLICY_POWER), ("heat", nvml.NVML_PERF_POLICY_THERMAL))
        for cause, policy in policies:
            status = partial(nvml.nvmlDeviceGetViolationStatus, handle, policy)
            if (counter := queries.get(f"slowdown by {cause}", status)) is not None:
                slowdown_us[f"{where} {cause}"] = counter.violationTime // 1000
        return slowdown_us

    def _count_others(
        self, queries: Queries, handle: Any, pids: frozenset[int]
    ) -> tuple[int | None, int | None]:
        """Count the processes on a GPU that are not in `pids`, and their bytes; each None if unknown.

        Both are unknown where none of `pids` is listed: a container's ids are not the driver's.
        """
        lists = self._list_processes(queries, "its processes", handle)
        used = {process.pid: process.usedGpuMemory for each in lists for process in each}
        if not pids & used.keys():
            return None, None
        others = [size for pid, size in used.items() if pid not in pids]
        return len(others), None if None in others else sum(others)

    def _list_processes(self, queries: Queries, what: str, handle: Any) -> tuple[list[Any], list[Any]]:
        """List the processes that compute on a GPU, noted as `what` if refused, and those that draw."""
        compute = partial(self.nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        graphics = partial(self.nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        # A GPU without graphics is not worth a remark.
        return queries.get(what, compute) or [], queries.get("", graphics) or []

    def _read_event_reasons(self, queries: Queries, handle: Any) -> int | None:
        """Read the bits of why clocks are held back, also by an old driver's query; None if unknown."""
        nvml = self.nvml
        reasons: partial[int] = partial(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        of_old_drivers = partial(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)  # before 535
        return queries.get("why its clocks are held back", reasons, of_old_drivers)

    def _query_all(self, queries: Queries, query: Any) -> list[Any]:
        answers = [queries.get("it", partial(query, handle)) for handle in self.devices.values()]
        return [answer for answer in answers if answer is not None]

    def _read(self, where: str, handle: Any, pids: frozenset[int]) -> Reading:
        """Read one GPU now: memory, that of processes `pids`, energy or else power, heat, clocks, limits."""
        nvml, queries = self.nvml, Queries(where, self.nvml.NVMLError)
        key: Key = ("device_bytes", where)
        queries.note(key, "memory in use", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        if pids and (listed := self._sum_listed(queries, handle, pids)) is not None:
            queries.values["server_bytes", where] = listed
        spent = queries.get(
            "energy or power", partial(self._read_energy, handle), partial(self._read_power, handle)
        )
        if spent is not None:
            queries.values[spent[0], where] = spent[1]
        for quantity, what, function, sort in _LEVELS:
            query = partial(getattr(nvml, function), handle, getattr(nvml, sort))
            queries.note((quantity, where), what, query)
        mask = self._read_event_reasons(queries, handle)
        held = None if mask is None else tuple((where, why) for why in name_reasons(mask))
        return Reading(queries.values, held, queries.missing)

    def _read_energy(self, handle: Any) -> tuple[Quantity, float]:
        return "energy_j", self.nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3

    def _read_power(self, handle: Any) -> tuple[Quantity, float]:
        return "power_w", self.nvml.nvmlDeviceGetPowerUsage(handle) / 1e3

    def _sum_listed(self, queries: Queries, handle: Any, pids: frozenset[int]) -> int | None:
        """Sum the bytes that these processes use on a GPU; None if none is on its lists.

        A process that computes and draws is on two lists with the same bytes; one that has several MIG
        instances is on one list several times.
        """
        by_pid, lists = Counter[int](), self._list_processes(queries, "memory by process", handle)
        ours = [[p for p in processes if p.pid in pids] for processes in lists]
        for processes in ours:
            of_list = Counter[int]()
            for process in processes:
                of_list[process.pid] += process.usedGpuMemory or 0
            by_pid |= of_list
        if any(p.usedGpuMemory is None for processes in ours for p in processes):
            queries.refuse("memory by process", "it lists the processes without their memory")
            return None
        return by_pid.total() or None

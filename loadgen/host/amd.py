"""AMD: power, energy, heat and clocks of AMD GPUs, through amdsmi, where ROCm has installed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.base import untrusted
from loadgen.base.structs import replace
from loadgen.host.machine_state import ClockState, GpuUse, MachineState, PowerCap
from loadgen.host.sensor import (
    HEAT,
    LIMITS,
    Absent,
    PowerSource,
    Quantity,
    Queries,
    Reading,
    Sensor,
    make_state,
    merge_states,
)

_DRIVER = "dev/kfd"  # the device of ROCm: without it no GPU of AMD computes here
_SOURCE = PowerSource("amdsmi")
_WATTS = ("socket_power", "current_socket_power", "average_socket_power")  # by ROCm's release and card
_ENERGY = ("energy_accumulator", "power")  # since ROCm 6.4, and before
_CLOCKS: tuple[tuple[Quantity, str, str], ...] = (
    ("sm_mhz", "clock", "GFX"),
    ("memory_mhz", "memory clock", "MEM"),
)
_MILLI = 1000  # a temperature beyond it is in thousandths
_MICRO = 1e6
_UNSUPPORTED = "Not Supported"  # as amdsmi words it
_MOST_W = 10_000  # a power beyond it is in thousandths: APUs
# Each slows an AMD GPU; the names of amdsmi and of the exporter have this word for it.
VIOLATIONS = {
    ("prochot", "processor_hot"): f"hardware {HEAT}",
    ("ppt", "ppt"): LIMITS[0],
    ("socket_thm", "socket_thermal"): f"{HEAT} of the socket",
    ("vr_thm", "vr_thermal"): f"{HEAT} of the voltage regulators",
    ("hbm_thm", "hbm_thermal"): f"{HEAT} of the memory",
}
# amdsmi reports these for a missing value, one for each width of its numbers.
AMD_BLANKS = tuple(float((1 << bits) - 1) for bits in (16, 32, 64))
# Bits of indep_throttle_status (Linux, amdgpu_smu.h) by their first one and how many there are. The hotspot's
# (36) is always set on some cards.
_THROTTLERS = (
    (0, 8, LIMITS[0]),
    (16, 8, LIMITS[1]),
    (32, 4, HEAT),
    (37, 9, HEAT),
    (46, 2, f"hardware {HEAT}"),
)


def find_amd_gpus(root: Path = Path("/"), first: int = 0) -> AmdGpus | Absent | None:
    """Load amdsmi and return the AMD GPUs, numbered from `first` on; None where there is no driver of theirs.

    Absent, with the reason, if amdsmi is not there or does not start.
    """
    if not (root / _DRIVER).exists():
        return None
    try:
        import amdsmi
    except ImportError:
        return Absent("AMD GPU: the package amdsmi of ROCm is not installed: pip install amdsmi")
    except (OSError, KeyError) as error:
        return Absent(f"AMD GPU: amdsmi cannot load ROCm's library: {untrusted.read_line(str(error))}")
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        return Absent(f"AMD GPU: amdsmi does not start: {untrusted.read_line(str(error))}")
    return AmdGpus(amdsmi, first)


def _read_number(value: object) -> float | None:
    """Read a number of amdsmi; None for N/A, and for the greatest of its width, which means the same."""
    number = untrusted.read_number(value)
    return None if number is None or isinstance(value, str) or number in AMD_BLANKS else number


def _require_number(value: object) -> float:
    if (number := _read_number(value)) is None:
        raise ValueError(_UNSUPPORTED)
    return number


def _pick(fields: object, *names: str) -> float:
    """Return the first of these fields that is a number; raises ValueError if none is."""
    known = untrusted.read_mapping(fields)
    for name in names:
        if (number := _read_number(known.get(name))) is not None:
            return number
    raise ValueError(_UNSUPPORTED)


class AmdGpus(Sensor):
    """The GPUs that amdsmi shows; `amdsmi` is the module, initialised, or a fake of it."""

    def __init__(self, amdsmi: Any, first: int = 0) -> None:
        self.amdsmi = amdsmi
        queries = self._queries("amdsmi")
        handles = queries.get("its GPUs", amdsmi.amdsmi_get_processor_handles) or []
        if not handles and not queries.refused:
            queries.refuse("any GPU", "it finds none")
        self.devices = {f"GPU {first + i}": handle for i, handle in enumerate(handles)}
        self.missing = queries.missing
        self._violations: dict[str, Mapping[str, float]] = {}

    def _queries(self, source: str) -> Queries:
        return Queries(source, self.amdsmi.AmdSmiException, ValueError)

    def facts(self) -> dict[str, str]:
        """Return the GPUs' names, and the release of their driver."""
        names = Counter(self._read_name(self._queries(where), each) for where, each in self.devices.items())
        facts = {
            "gpu": ", ".join(f"{n} × {name}" if n > 1 else name for name, n in names.items() if name),
            "gpus": str(len(self.devices) or ""),
            "gpu_driver": self._read_driver(),
        }
        return {name: text for name, text in facts.items() if text}

    def list_ids(self) -> list[str]:
        """List UUIDs and serial numbers of the GPUs, as the exporter of their metrics names them."""
        smi, ids = self.amdsmi, []
        for where, handle in self.devices.items():
            queries = self._queries(where)
            ids.append(queries.get("UUID", partial(smi.amdsmi_get_gpu_device_uuid, handle)))
            for what, name in (("asic", "asic_serial"), ("board", "product_serial")):
                read = partial(getattr(smi, f"amdsmi_get_gpu_{what}_info"), handle)
                ids.append(untrusted.read_mapping(queries.get(what, read)).get(name))
        return [each for each in ids if isinstance(each, str) and each not in ("", "N/A")]

    def read(self, pids: Sequence[int]) -> Reading:
        """Read memory, energy, power, temperature, clocks and throttling of every GPU now.

        The server's memory is that of processes `pids`. Of a GPU in partitions only the first reports power:
        the others are left out.
        """
        each = [self._read(where, handle, frozenset(pids)) for where, handle in self.devices.items()]
        return Reading.merge([*each, Reading(missing=self.missing)])

    def read_state(self, pids: Sequence[int]) -> MachineState:
        """Read every GPU's clocks, power limit and heat now; `pids` are not used."""
        each = [self._read_state(where, handle) for where, handle in self.devices.items()]
        return merge_states([MachineState(driver=self._read_driver(), missing=self.missing), *each])

    def _read(self, where: str, handle: Any, pids: frozenset[int]) -> Reading:
        """Read one GPU now, and what processes `pids` use of its memory; nothing of a later partition."""
        smi, queries = self.amdsmi, self._queries(where)
        if self._is_later_partition(handle):
            return Reading()
        vram = partial(smi.amdsmi_get_gpu_memory_usage, handle, smi.AmdSmiMemoryType.VRAM)
        queries.note(("device_bytes", where), "memory in use", lambda: _require_number(vram()))
        if pids and (listed := self._sum_listed(queries, handle, pids)):
            queries.values["server_bytes", where] = listed
        # A counter that stands at 0 is one that the card does not have.
        if joules := queries.get("", partial(self._read_energy, handle)):
            queries.values["energy_j", where] = joules
        self._note_levels(where, queries, handle)
        held = self._read_held_back(where, queries, handle)
        draws = {("energy_j", where), ("power_w", where)} & queries.values.keys()
        return Reading(queries.values, held, queries.missing, {where: _SOURCE} if draws else {})

    def _note_levels(self, where: str, queries: Queries, handle: Any) -> None:
        """Query power, heat and clocks of a GPU now."""
        queries.note(("power_w", where), "power", partial(self._read_power, handle))
        queries.note(("temperature_c", where), "temperature", partial(self._read_heat, handle))
        for quantity, what, kind in _CLOCKS:
            queries.note((quantity, where), what, partial(self._read_clock, handle, kind, "clk"))

    def _read_state(self, where: str, handle: Any) -> MachineState:
        """Read one GPU's clocks, power limit, heat and power now; nothing of a later partition."""
        smi, queries = self.amdsmi, self._queries(where)
        if self._is_later_partition(handle):
            return MachineState()
        self._note_levels(where, queries, handle)
        state = make_state(Reading(queries.values))
        for (_, what, kind), name in zip(_CLOCKS, ("SM", "memory"), strict=True):
            most = queries.get(f"greatest {what}", partial(self._read_clock, handle, kind, "max_clk"))
            if most is not None:
                now = state.clocks.get(f"{where} {name}", ClockState())
                state.clocks[f"{where} {name}"] = replace(now, most_mhz=most)
        caps = queries.get("", partial(smi.amdsmi_get_power_cap_info, handle))
        names = ("power_cap", "default_power_cap", "min_power_cap", "max_power_cap")
        limits = [_read_number(untrusted.read_mapping(caps).get(name)) for name in names]
        now_w, default_w, least_w, most_w = (None if limit is None else limit / _MICRO for limit in limits)
        cap = PowerCap(now_w=now_w, default_w=default_w, least_w=least_w, most_w=most_w)
        use = GpuUse(name=self._read_name(queries, handle), power_w=queries.values.get(("power_w", where)))
        return replace(
            state,
            power_caps={where: cap} if cap != PowerCap() else {},
            gpus={where: use},
            missing=queries.missing,
        )

    def _sum_listed(self, queries: Queries, handle: Any, pids: frozenset[int]) -> float:
        """Sum the bytes that these processes use on a GPU; 0 if none is on its list."""
        read = partial(self.amdsmi.amdsmi_get_gpu_process_list, handle)
        listed = map(untrusted.read_mapping, untrusted.read_list(queries.get("memory by process", read)))
        ours = [
            untrusted.read_mapping(each.get("memory_usage")) for each in listed if each.get("pid") in pids
        ]
        return sum(_read_number(memory.get("vram_mem")) or 0 for memory in ours)

    def _read_energy(self, handle: Any) -> float:
        fields = self.amdsmi.amdsmi_get_energy_count(handle)
        return _pick(fields, *_ENERGY) * _pick(fields, "counter_resolution") / _MICRO

    def _read_power(self, handle: Any) -> float:
        watts = _pick(self.amdsmi.amdsmi_get_power_info(handle), *_WATTS)
        return watts / _MILLI if watts > _MOST_W else watts

    def _read_heat(self, handle: Any) -> float:
        smi = self.amdsmi
        kind, now = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        heat = _require_number(smi.amdsmi_get_temp_metric(handle, kind, now))
        return heat / _MILLI if heat > _MILLI else heat

    def _read_clock(self, handle: Any, kind: str, name: str) -> float:
        sort = getattr(self.amdsmi.AmdSmiClkType, kind)
        return _pick(self.amdsmi.amdsmi_get_clock_info(handle, sort), name)

    def _read_name(self, queries: Queries, handle: Any) -> str:
        fields = queries.get("name", partial(self.amdsmi.amdsmi_get_gpu_asic_info, handle))
        return untrusted.read_text(untrusted.read_mapping(fields).get("market_name"))

    def _read_driver(self) -> str:
        first = [partial(self.amdsmi.amdsmi_get_gpu_driver_info, each) for each in self.devices.values()][:1]
        found = self._queries("").get("", *first) if first else None
        return untrusted.read_text(untrusted.read_mapping(found).get("driver_version"))

    def _is_later_partition(self, handle: Any) -> bool:
        """Whether it is a part of a GPU whose first part reports for all of it."""
        read = getattr(self.amdsmi, "amdsmi_get_gpu_kfd_info", None)
        fields = None if read is None else self._queries("").get("", partial(read, handle))
        return bool(_read_number(untrusted.read_mapping(fields).get("current_partition_id")))

    def _read_held_back(
        self, where: str, queries: Queries, handle: Any
    ) -> tuple[tuple[str, str], ...] | None:
        """Read what slowed a GPU since the last reading (MI300), or now (others); None if it is not reported.

        The metrics' accumulators are read, since amdsmi's own violation status waits 0.1 s for each GPU.
        """
        read = partial(self.amdsmi.amdsmi_get_gpu_metrics_info, handle)
        fields = untrusted.read_mapping(queries.get("why its clocks are held back", read))
        counted = {
            why: value
            for (name, _), why in VIOLATIONS.items()
            if (value := _read_number(fields.get(f"{name}_residency_acc"))) is not None
        }
        if counted:
            before, self._violations[where] = self._violations.get(where), counted
            return (
                None
                if before is None
                else tuple((where, why) for why, n in counted.items() if n > before.get(why, n))
            )
        mask = fields.get("indep_throttle_status")
        if not isinstance(mask, int) or mask in (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
            return None
        why = [why for bit, n, why in _THROTTLERS if mask >> bit & ((1 << n) - 1)]
        return tuple((where, each) for each in dict.fromkeys(why))

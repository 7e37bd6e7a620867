"""Sensor discovery: the sensors that this machine has, and those of its CPUs, memory and processes."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import psutil

from loadgen.base import clock, untrusted
from loadgen.base.errors import call_guarded
from loadgen.base.files import read_system_text
from loadgen.features.sensors.sampler import Sampler
from loadgen.host.jetson import find_board
from loadgen.host.machine_state import ClockState, MachineState
from loadgen.host.nvml import Gpus, find_gpus
from loadgen.host.sensor import Absent, PowerSource, Quantity, Queries, Reading, Sensor
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.observation import Local
from loadgen.server.scraper import SAMPLING_SHARE

_CPU_ZONES = re.compile(r"x86_pkg_temp|acpitz|cpu|soc", re.I)
_IDLE_S = 1.0  # of idle power, where there is a sensor
_ZONES = "sys/class/powercap"
_SOURCE = PowerSource("RAPL")
# Packages and their memory are all: cores are in packages, and psys, of the board, is rare.
_KINDS = {"package": "CPU package", "dram": "CPU memory"}
_HOW = "only root may read it: sudo chmod a+r /sys/class/powercap/intel-rapl*/energy_uj, until the next start"


def find_sensors(root: Path = Path("/")) -> list[Sensor]:
    """Find this machine's sensors; an Absent stands for GPUs that are missing or unreadable."""
    return [*_find_power_sensors(root), Processes(), System(root)]


def _find_power_sensors(root: Path) -> list[Sensor]:
    """Find the sensors of GPUs, the board and RAPL; an Absent stands for each that cannot be read."""
    devices = call_guarded("NVML", find_gpus, Absent)
    found: list[Sensor | None] = [devices]
    if (root / "dev/kfd").exists():  # ROCm's driver
        from loadgen.host import amd  # few machines have one

        first = len(devices.devices) if isinstance(devices, Gpus) else 0
        of_amd = call_guarded("amdsmi", lambda: amd.find_amd_gpus(root, first), Absent)
        # If there is an AMD GPU, a missing NVIDIA GPU is no loss.
        found = [of_amd] if isinstance(devices, Absent) else [devices, of_amd]
    found.append(call_guarded("the board's sensors", lambda: find_board(root), Absent))
    if any((root / _ZONES).glob("intel-rapl*")):
        found.append(call_guarded("RAPL", lambda: find_packages(root), Absent))
    return [sensor for sensor in found if sensor is not None]


def start_sensors(local: Local | None, options: Options, display: Display) -> Sampler:
    """Make the sampler of this machine's sensors and of --power-url; sample idle power, shown in `display`.

    Without `local` the server is elsewhere: those of this machine say nothing of it.
    """
    power = [] if local is None else _find_power_sensors(Path("/"))
    others: list[Sensor] = [] if local is None else [Processes(), System()]
    if options.power_url:
        from loadgen.features.sensors.power_urls import make_power_urls

        power.append(make_power_urls(options, list_ids(power)))
    sensors = [*power, *others]
    pids, before_bytes = (tuple, None) if local is None else (local.pids, local.device_before_bytes)
    sensing = Sampler(sensors, pids, before_bytes=before_bytes)
    with display.waiting("measuring idle power", _IDLE_S):
        sensing.sample_idle(_IDLE_S)
    return sensing


def list_ids(sensors: Sequence[Sensor]) -> list[str]:
    """List the ids that exporters give to the sensors' GPUs (UUIDs) and CPU packages (paths of zones)."""
    every = (call_guarded("the GPUs' UUIDs", sensor.list_ids, lambda _: []) for sensor in sensors)
    return [each for ids in every for each in ids]


def read_device_memory_bytes() -> int | None:
    """Read the memory in use on NVIDIA's GPUs, by all processes; None without one, or if one reports none."""
    devices = call_guarded("NVML", find_gpus, Absent)
    return (
        call_guarded("NVML", devices.read_used_bytes, lambda _: None) if isinstance(devices, Gpus) else None
    )


# The kernel walks every page for PSS, 10 ms a GiB, and a process that maps memory meanwhile may have to wait:
# it is read seldom.
_PSS_S = 5.0


class Processes(Sensor):
    """Memory (RSS and PSS) of the server's processes; PSS is slow, so read every 5 s and repeated."""

    def __init__(self, now_ns: Callable[[], int] = clock.now_ns) -> None:
        self._now_ns = now_ns
        self._pss_due_ns = 0
        self._pss = Reading()

    def read(self, pids: Sequence[int]) -> Reading:
        """Read RSS, and PSS where 5 s old; an ended process counts 0, an unreadable one leaves no sum."""
        if not pids:
            return Reading(missing=("host memory: the server's processes are unknown",))
        began_ns = self._now_ns()
        if began_ns >= self._pss_due_ns:
            # Only Linux has PSS: elsewhere psutil's answer has no such attribute.
            self._pss = _sum_processes("pss_bytes", "its PSS", lambda p: p.memory_full_info().pss, pids)
            took_ns = self._now_ns() - began_ns
            self._pss_due_ns = began_ns + max(int(_PSS_S * 1e9), int(took_ns / SAMPLING_SHARE))
        rss = _sum_processes("rss_bytes", "its RSS", lambda p: p.memory_info().rss, pids)
        return Reading.merge((rss, self._pss))


class System(Sensor):
    """Memory use of the whole machine, and the state of its CPUs."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def read(self, pids: Sequence[int]) -> Reading:
        """Read the memory that is not available to a new process: total − MemAvailable."""
        memory = psutil.virtual_memory()
        return Reading({("system_bytes", ""): memory.total - memory.available})

    def read_state(self, pids: Sequence[int]) -> MachineState:
        """Read the CPUs' clocks and governor, heat, fans, BIOS and memory now; `pids` are not used."""
        bios = self._read("class/dmi/id/bios_version")
        zones = {path: read_system_text(path / "type") for path in self._list("class/thermal/thermal_zone*")}
        heat = {
            f"CPU {untrusted.read_text(kind)}": degrees / 1e3
            for path, kind in zones.items()
            if _CPU_ZONES.search(kind)
            and (degrees := untrusted.read_digits(read_system_text(path / "temp"))) is not None
        }
        fans = {
            f"{read_system_text(path.parent / 'name')} {path.name.removesuffix('_input')} rpm": float(speed)
            for path in self._list("class/hwmon/hwmon*/fan*_input")
            if (speed := untrusted.read_digits(read_system_text(path))) is not None
        }
        sizes = {
            match[1]: int(match[2]) << 10
            for match in re.finditer(
                r"(?m)^(\w+): *(\d{1,12}) kB", read_system_text(self.root / "proc/meminfo")
            )
        }
        in_files = ("Buffers", "Cached", "Shmem", "Mapped")
        cache = [
            sizes[name] * sign for name, sign in zip(in_files, (1, 1, -1, -1), strict=True) if name in sizes
        ]
        swap = [sizes[name] for name in ("SwapTotal", "SwapFree") if name in sizes]
        policy = "devices/system/cpu/cpu0/cpufreq"
        governor, driver = (self._read(f"{policy}/scaling_{name}") for name in ("governor", "driver"))
        off = (
            *(("no turbo",) if self._read("devices/system/cpu/intel_pstate/no_turbo") == "1" else ()),
            *(("no boost",) if self._read("devices/system/cpu/cpufreq/boost") == "0" else ()),
        )
        return MachineState(
            power_mode=self._read("firmware/acpi/platform_profile"),
            cpu_governor=", ".join((f"{governor} ({driver})", *off)) if governor else "",
            firmware={"BIOS": bios} if bios else {},
            clocks=self._read_clocks(),
            temperature_c=heat,
            fans=fans,
            memory_bytes=sizes.get("MemTotal"),
            free_bytes=sizes.get("MemFree"),
            available_bytes=sizes.get("MemAvailable"),
            page_cache_bytes=max(sum(cache), 0) if len(cache) == len(in_files) else None,
            swap_bytes=swap[0] - swap[1] if len(swap) == 2 else None,
        )

    def _read_clocks(self) -> dict[str, ClockState]:
        """Read the CPUs' clocks, by their kinds of core: mean now, the lowest limit, the maximum.

        They are pinned if each has one value as its least and greatest.
        """
        kinds: dict[int, list[tuple[int | None, ...]]] = {}
        for policy in self._list("devices/system/cpu/cpufreq/policy*"):
            names = ("cpuinfo_max", "scaling_cur", "scaling_min", "scaling_max")
            most, *rest = (untrusted.read_digits(read_system_text(policy / f"{name}_freq")) for name in names)
            if most is not None:
                kinds.setdefault(most, []).append(tuple(rest))
        clocks = {}
        for most, policies in sorted(kinds.items(), reverse=True):
            now, least, limit = (
                [khz for khz in column if khz is not None] for column in zip(*policies, strict=True)
            )
            clocks["CPU" if len(kinds) == 1 else f"CPU cores of {most / 1e6:.2f} GHz"] = ClockState(
                now_mhz=sum(now) / len(now) / 1e3 if now else None,
                limit_mhz=min(limit) / 1e3 if limit else None,
                most_mhz=most / 1e3,
                pinned=least == limit if least and limit else None,
            )
        return clocks

    def _read(self, path: str) -> str:
        """Read a file under /sys as one printable line; "" if it cannot be read."""
        return untrusted.read_text(read_system_text(self.root / "sys" / path))

    def _list(self, pattern: str) -> list[Path]:
        return sorted((self.root / "sys").glob(pattern))


def _sum_processes(
    quantity: Quantity, name: str, size: Callable[[psutil.Process], int], pids: Sequence[int]
) -> Reading:
    """Sum a size over all processes; without a value, and with the reason, if one cannot be read."""
    queries = Queries("a process of the server", OSError, AttributeError)
    sizes = [queries.get(name, partial(_read_size, size, pid)) for pid in pids]
    readable = [size for size in sizes if size is not None]
    values = {(quantity, ""): sum(readable)} if len(readable) == len(sizes) else {}
    return Reading(values, missing=queries.missing)


def _read_size(size: Callable[[psutil.Process], int], pid: int) -> int:
    """Read a size of a process in bytes, 0 if it has ended; raises PermissionError if it is another's."""
    try:
        return size(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return 0
    except psutil.AccessDenied:
        raise PermissionError(errno.EACCES, "it is another user's") from None  # psutil's words name the pid


class Zone(msgspec.Struct):
    """A counter of energy that begins again at 0 beyond its range."""

    where: str
    path: Path
    range_uj: int  # 0: unknown
    last_uj: int | None = None
    wrapped_uj: int = 0

    def read_joules(self) -> float:
        """Read the energy so far, across the wraps since the first reading; raises OSError, ValueError."""
        try:
            text = (self.path / "energy_uj").read_text("ascii", "replace").strip()
        except PermissionError:
            raise PermissionError(errno.EACCES, _HOW) from None
        value_uj = untrusted.read_digits(text)
        if value_uj is None:
            raise ValueError(f"{untrusted.read_text(text, 40)!r} is no count")
        if self.last_uj is not None and value_uj < self.last_uj:
            # If its range is unknown, what was spent between the last value and the wrap is lost.
            self.wrapped_uj += self.range_uj or self.last_uj
        self.last_uj = value_uj
        return (value_uj + self.wrapped_uj) / 1e6


def find_packages(root: Path = Path("/")) -> Packages | None:
    """Find the machine's RAPL counters; None if it has none, as virtual machines."""
    zones = {zone.where: zone for zone in reversed(_list_zones(root / _ZONES))}
    return Packages(sorted(zones.values(), key=lambda zone: zone.path.name)) if zones else None


def _list_zones(directory: Path) -> list[Zone]:
    """List the zones of packages and memory: those of MSRs, then those of MMIO, mostly the same ones."""
    zones = []
    for kind in ("intel-rapl", "intel-rapl-mmio"):
        for path in sorted(directory.glob(f"{kind}:*")):
            name = read_system_text(path / "name")
            what, _, index = name.partition("-")
            if what in _KINDS:
                # Memory has no number of its own: it is in the package's zone.
                index = index or read_system_text(directory / path.name.rpartition(":")[0] / "name")
                number = untrusted.read_text(index.removeprefix("package-"), 40)
                greatest = untrusted.read_digits(read_system_text(path / "max_energy_range_uj"))
                zones.append(Zone(f"{_KINDS[what]} {number}", path, greatest or 0))
    return zones


class Packages(Sensor):
    """The CPU packages and their memory, as far as RAPL counts their energy."""

    def __init__(self, zones: Sequence[Zone]) -> None:
        self.zones = zones

    def list_ids(self) -> list[str]:
        """List the zones that can be read, as node_exporter names them."""
        readable = self.read(()).sources
        return [f"/{_ZONES}/{zone.path.name}" for zone in self.zones if zone.where in readable]

    def read(self, pids: Sequence[int]) -> Reading:
        """Read each zone's energy so far; `pids` have no effect. Rights that are missing are one line."""
        queries = Queries("RAPL", OSError, ValueError)
        for zone in self.zones:
            queries.note(("package_j", zone.where), zone.where, zone.read_joules)
        sources = {where: _SOURCE for _, where in queries.values}
        return Reading(queries.values, None, queries.missing, sources)

"""Host: what held this machine back in a run; only told where the server runs on it too."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from loadgen.protocol import untrusted
from loadgen.telemetry.environment import bare_variables

_CPU = "/sys/devices/system/cpu"
# They rise only when something throttles: Intel's of cores and packages, Jetson's over-current events.
_COUNTERS = (
    f"{_CPU}/cpu*/thermal_throttle/*_throttle_count",
    "/sys/class/hwmon/hwmon*/oc*_event_cnt",
)
_COOLING = "/sys/class/thermal/cooling_device*"
# With these drivers `powersave` is the governor's ordinary name: the processor chooses its clock.
_OWN_CHOICE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_HELD = 0.9  # of a clock: below it the machine is not what its data sheet says
_COMMAND_S = 5.0
_MOST_BYTES = 1 << 20
_CLOCK = re.compile(r"^(\w+) +MinFreq=(\d+) +MaxFreq=(\d+) +CurrentFreq=(\d+)", re.M)

# NVML's reasons that are no throttling: idle, a clock that was asked for, the power limit under full load.
GPU_REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_GPU_COUNTERS = ("sw_thermal_slowdown", "hw_thermal_slowdown")
# Older drivers have no counters, and still older ones another name: a field they do not know is an error.
_GPU_QUERIES = (
    ",".join(("clocks_event_reasons.active", *(f"clocks_event_reasons_counters.{n}" for n in _GPU_COUNTERS))),
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
)


class HostReader(Protocol):
    """Where a machine tells of itself; what is not there is empty."""

    def paths(self, pattern: str) -> list[str]: ...

    def read(self, path: str) -> str: ...

    def run(self, *command: str) -> str: ...


class HostMachine:
    """This machine; nothing it does or lacks raises."""

    def paths(self, pattern: str) -> list[str]:
        """The files an absolute pattern names, sorted."""
        return sorted(str(path) for path in Path("/").glob(pattern.lstrip("/")))

    def read(self, path: str) -> str:
        """A small file's text."""
        try:
            with Path(path).open("rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", "replace").strip()
        except (OSError, ValueError):
            return ""

    def run(self, *command: str) -> str:
        """What a command prints; empty where there is no such command, or it fails."""
        if shutil.which(command[0]) is None:
            return ""
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMMAND_S,
                check=False,
                env=bare_variables(),
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            return ""
        return "" if done.returncode else done.stdout.decode("utf-8", "replace").strip()


class HostState(msgspec.Struct, frozen=True):
    """What can be read at one moment of what may hold the machine back."""

    counters: Mapping[str, int] = msgspec.field(default_factory=dict)  # each rises when something throttles
    held: tuple[str, ...] = ()  # what holds it back now, in words
    gpu_reasons: tuple[str, ...] = ()  # at this moment, in words


def snapshot(source: HostReader | None = None) -> HostState:
    """The machine's state now; milliseconds where there is nothing to ask but files."""
    source = source or HostMachine()
    counters = {path: _number(source.read(path)) for pattern in _COUNTERS for path in source.paths(pattern)}
    gpu_counters, reasons = _gpu(source)
    return HostState(
        counters={**counters, **gpu_counters},
        held=(*_cpu(source), *_cooling(source), *_jetson(source)),
        gpu_reasons=reasons,
    )


def throttled(before: HostState, after: HostState) -> tuple[str, ...]:
    """What held the machine back between two snapshots, in words."""
    rises: dict[str, int] = {}
    for path, count in after.counters.items():
        what = _counted(path)
        rises[what] = max(rises.get(what, 0), count - before.counters.get(path, count))
    counted = [what.format(rise) for what, rise in rises.items() if rise > 0]
    now = dict.fromkeys((*after.held, *after.gpu_reasons))
    return tuple(untrusted.text(said) for said in (*counted, *now))


def _counted(path: str) -> str:
    """The sentence of a counter, its rise to be put in."""
    if path.startswith("gpu"):
        return f"GPU {path.rpartition('.')[2].replace('_', ' ')} for {{}} µs"
    if "thermal_throttle" in path:
        return "the CPU throttled for heat {} times"
    return "the power supply throttled for over-current {} times"


def _cpu(source: HostReader) -> list[str]:
    policy = f"{_CPU}/cpu0/cpufreq"
    governor, driver = source.read(f"{policy}/scaling_governor"), source.read(f"{policy}/scaling_driver")
    said = []
    if governor == "powersave" and driver not in _OWN_CHOICE:
        said.append(f"CPU governor powersave ({driver}) keeps the lowest clock")
    limit, most = (_number(source.read(f"{policy}/{name}_max_freq")) for name in ("scaling", "cpuinfo"))
    if 0 < limit < _HELD * most:
        said.append(f"CPU limited to {limit / 1e6:.2f} of {most / 1e6:.2f} GHz")
    return said


def _cooling(source: HostReader) -> list[str]:
    """Devices that the kernel cools by slowing them; fans are devices too, and slow nothing."""
    said = []
    for path in source.paths(_COOLING):
        kind = source.read(f"{path}/type")
        slows = kind == "Processor" or re.search(r"cpufreq|devfreq|gpu", kind)
        if slows and _number(source.read(f"{path}/cur_state")) > 0:
            said.append(f"the kernel cools {kind} by slowing it")
    return list(dict.fromkeys(said))


def _jetson(source: HostReader) -> list[str]:
    """A power mode below the one without limits, where the board has that; a pinned clock not held."""
    found = re.search(r"NV Power Mode: *(\S+)", source.run("nvpmodel", "-q"))
    if found is None:
        return []
    said, mode = [], found[1]
    if not mode.startswith("MAXN") and "NAME=MAXN" in source.read("/etc/nvpmodel.conf"):
        said.append(f"Jetson power mode {mode}, MAXN is there")
    clocks = re.findall(
        r"^(\w+) +MinFreq=(\d+) +MaxFreq=(\d+) +CurrentFreq=(\d+)",
        source.run("jetson_clocks", "--show"),
        re.M,
    )
    for name, *figures in clocks:
        low, high, now = (_number(figure) for figure in figures)
        if low == high and now < _HELD * high:
            said.append(f"{name} clock pinned at {high / 1e6:.0f} MHz runs at {now / 1e6:.0f}")
    return said


def _gpu(source: HostReader) -> tuple[dict[str, int], tuple[str, ...]]:
    """Counters in µs by GPU and reason, and the reasons at this moment."""
    for query in _GPU_QUERIES:
        answer = source.run("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits")
        if answer:
            break
    else:
        return {}, ()
    counters, reasons = {}, []
    for gpu, line in enumerate(answer.splitlines()):
        active, *counts = (cell.strip() for cell in line.split(","))
        counters.update(
            {f"gpu{gpu}.{name}": _number(n) for name, n in zip(_GPU_COUNTERS, counts, strict=False)}
        )
        mask = int(active, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", active) else 0
        reasons += [f"GPU {gpu}: {name}" for bit, name in GPU_REASONS.items() if mask & bit]
    return counters, tuple(reasons)


def _number(text: str) -> int:
    return untrusted.digits(text) or 0

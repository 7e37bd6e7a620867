"""Throttling: the reasons that slowed this machine down in a run, if the server runs on it too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadgen.base import untrusted
from loadgen.base.files import read_system_text
from loadgen.features import import_rows
from loadgen.host.environment import run_command

_CPU = "/sys/devices/system/cpu"
# They rise only when something throttles: Intel's of cores and packages, Jetson's over-current events.
_COUNTERS = (f"{_CPU}/cpu*/thermal_throttle/*_throttle_count", "/sys/class/hwmon/hwmon*/oc*_event_cnt")
_COOLING = "/sys/class/thermal/cooling_device*"
# With these drivers `powersave` is the governor's ordinary name: the processor chooses its clock.
_OWN_CHOICE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_HELD = 0.9  # of a clock: below it the machine is slower than its data sheet
_COMMAND_S = 5.0
_CLOCK = re.compile(r"^(\w+) +MinFreq=(\d+) +MaxFreq=(\d+) +CurrentFreq=(\d+)", re.M)


class HostMachine:
    """This machine's files, commands and GPUs; what is missing reads as empty, without errors."""

    def list_paths(self, pattern: str) -> list[str]:
        """List the files that match an absolute glob pattern, sorted."""
        return sorted(str(path) for path in Path("/").glob(pattern.lstrip("/")))

    def read(self, path: str) -> str:
        """Read a file's text; "" if it cannot be read."""
        return read_system_text(Path(path))

    def run(self, *command: str) -> str:
        """Run a command; "" where it does not exist or fails, else its output."""
        return run_command(*command, timeout_s=_COMMAND_S)

    def read_devices(self) -> tuple[dict[str, int], list[str]]:
        """Read each GPU's thermal slowdown so far (µs), and what throttles each GPU now."""
        (feature,) = import_rows("throttling")
        slowdown_us, reasons = feature.read_throttling()
        return slowdown_us, reasons


class HostState(msgspec.Struct, frozen=True):
    """The throttling reasons and counters at one moment."""

    counters: Mapping[str, int] = msgspec.field(default_factory=dict)  # each rises when something throttles
    held: tuple[str, ...] = ()  # what holds it back now, in words


def take_snapshot(source: HostMachine | None = None) -> HostState:
    """Read the machine's throttling state now; takes milliseconds if only files need reading."""
    source = source or HostMachine()
    counters = {
        path: _read_number(source.read(path)) for pattern in _COUNTERS for path in source.list_paths(pattern)
    }
    slowdown_us, reasons = source.read_devices()
    return HostState(
        counters={**counters, **slowdown_us},
        held=(*_read_cpu(source), *_read_cooling(source), *_read_jetson(source), *reasons),
    )


def explain_throttling(before: HostState, after: HostState) -> tuple[str, ...]:
    """List in words what throttled between two snapshots, and what holds the machine back at the later."""
    rises: dict[str, int] = {}
    for path, count in after.counters.items():
        what = _phrase_counter(path)
        rises[what] = max(rises.get(what, 0), count - before.counters.get(path, count))
    counted = [what.format(rise) for what, rise in rises.items() if rise > 0]
    return tuple(untrusted.read_text(line) for line in (*counted, *dict.fromkeys(after.held)))


def _phrase_counter(path: str) -> str:
    """Return the sentence for a counter's file, with {} for its rise."""
    if path.startswith("GPU"):
        return f"{path}: thermal slowdown for {{}} µs"
    if "thermal_throttle" in path:
        return "the CPU throttled for heat {} times"
    return "the power supply throttled for over-current {} times"


def _read_cpu(source: HostMachine) -> list[str]:
    policy = f"{_CPU}/cpu0/cpufreq"
    governor, driver = source.read(f"{policy}/scaling_governor"), source.read(f"{policy}/scaling_driver")
    lines = []
    if governor == "powersave" and driver not in _OWN_CHOICE:
        lines.append(f"CPU governor powersave ({driver}) keeps the lowest clock")
    limit, most = (_read_number(source.read(f"{policy}/{name}_max_freq")) for name in ("scaling", "cpuinfo"))
    if 0 < limit < _HELD * most:
        lines.append(f"CPU limited to {limit / 1e6:.2f} of {most / 1e6:.2f} GHz")
    return lines


def _read_cooling(source: HostMachine) -> list[str]:
    """List the devices that the kernel cools by slowing them; fans slow nothing."""
    lines = []
    for path in source.list_paths(_COOLING):
        kind = source.read(f"{path}/type")
        slows = kind == "Processor" or re.search(r"cpufreq|devfreq|gpu", kind)
        if slows and _read_number(source.read(f"{path}/cur_state")) > 0:
            lines.append(f"the kernel slows {kind} down to cool it")
    return list(dict.fromkeys(lines))


def _read_jetson(source: HostMachine) -> list[str]:
    """List a power mode below the unlimited one, if there is that, and pinned clocks not held."""
    match = re.search(r"NV Power Mode: *(\S+)", source.run("nvpmodel", "-q"))
    if match is None:
        return []
    lines, mode = [], match[1]
    if not mode.startswith("MAXN") and "NAME=MAXN" in source.read("/etc/nvpmodel.conf"):
        lines.append(f"Jetson power mode {mode}, below MAXN")
    for name, *figures in _CLOCK.findall(source.run("jetson_clocks", "--show")):
        low, high, now = (_read_number(figure) for figure in figures)
        if low == high and now < _HELD * high:
            lines.append(f"{name} clock pinned at {high / 1e6:.0f} MHz runs at {now / 1e6:.0f}")
    return lines


def _read_number(text: str) -> int:
    return untrusted.read_digits(text) or 0

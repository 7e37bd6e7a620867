"""Environment: the machine and the software a run was made with, never a secret, and what slowed them down.

What throttles this machine is of interest if the server runs on it too.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec

from loadgen import __version__
from loadgen.base import untrusted
from loadgen.base.errors import call_guarded
from loadgen.base.files import read_system_text
from loadgen.base.text import GIB
from loadgen.host.jetson import Board
from loadgen.host.machine_state import MachineState
from loadgen.host.nvml import find_gpus
from loadgen.host.sensor import LIMITS, Absent

_PACKAGES = ("numpy", "httpx", "httptools", "msgspec", "pydantic", "transformers")
_SETTINGS = {
    "cpu_governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "cpu_frequency_driver": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
    "power_profile": "/sys/firmware/acpi/platform_profile",
    "power_mode": "/var/lib/nvpmodel/status",  # Jetson
    "sched_autogroup": "/proc/sys/kernel/sched_autogroup_enabled",
}
_GIT_S = 1.0
_ROOT = Path(__file__).resolve().parents[2]
_CPU = "sys/devices/system/cpu"
# They rise only when something throttles: Intel's of cores and packages, Jetson's over-current events.
_COUNTERS = (f"{_CPU}/cpu*/thermal_throttle/*_throttle_count", "sys/class/hwmon/hwmon*/oc*_event_cnt")
_COOLING = "sys/class/thermal/cooling_device*"
# These drivers call their ordinary governor `powersave`: the processor chooses its clock.
_OWN_CHOICE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_HELD = 0.9  # of a clock: below it the machine is slower than its data sheet
_HEAT = " heat"  # ends the names of a GPU's counters of thermal slowdown


def describe_machine() -> dict[str, str]:
    """Describe this machine: name of each fact → its text, without facts that are unknown."""
    try:
        os_name = untrusted.read_text(platform.freedesktop_os_release().get("PRETTY_NAME", ""))
    except (OSError, ValueError):  # no such file, or none of UTF-8
        os_name = platform.system()
    memory = ""
    with suppress(ValueError, OSError, AttributeError):  # no such name, or no such system
        memory = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIB:.1f} GiB"
    versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in _PACKAGES}
    for name in (name for name, version in versions.items() if not version):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    described = {
        "loadgen": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": _describe_platform(),
        "os": os_name,
        "machine": platform.machine(),
        "cpu": _read_cpu_model(),
        "cpus": str(count_usable_cpus()),
        "memory": memory,
    }
    settings = {name: untrusted.read_text(read_system_text(Path(path))) for name, path in _SETTINGS.items()}
    return {**described, **{name: str(text) for name, text in {**settings, **versions}.items() if text}}


def count_usable_cpus() -> int:
    """Count the CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def start_git(root: Path = _ROOT) -> Iterator[Callable[[], str]]:
    """Start git; yield a function that waits for the commit we run from, "" for an installed package.

    It has `+dirty` where a tracked file differs. git takes some 20 ms, in which much else can be done. Of the
    environment it gets only what it needs: no key, no hook's GIT_DIR.
    """
    needed = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
    env = {name: os.environ[name] for name in needed if name in os.environ}
    git = ("git", "--no-optional-locks", "-C", str(root))
    command, nothing = (*git, "describe", "--always", "--dirty=+dirty", "--exclude=*"), subprocess.DEVNULL
    started = None
    if (root / ".git").exists():
        with suppress(OSError, ValueError):
            started = subprocess.Popen(
                command, env=env, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing
            )
    if started is None:
        yield str
        return

    @cache
    def read_commit() -> str:
        with suppress(subprocess.TimeoutExpired):
            output, _ = started.communicate(timeout=_GIT_S)
            return "" if started.returncode else output.decode("utf-8", "replace").strip()
        return ""

    with started:
        try:
            yield read_commit
        finally:
            started.kill()  # nothing, where it has ended


def _describe_platform() -> str:
    """Describe the platform as platform.platform() does, without starting a process."""
    if not hasattr(os, "uname"):
        return platform.platform()
    system = os.uname()
    name = f"{system.sysname}-{system.release}-{system.machine}"
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # no such name, or no such C library
        libc = ""
    return f"{name}-with-{libc.replace(' ', '')}" if libc else name


def _read_cpu_model() -> str:
    lines = read_system_text(Path("/proc/cpuinfo")).splitlines()
    if not lines:
        return untrusted.read_text(platform.processor())
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    board = read_system_text(Path("/proc/device-tree/model"))  # ARM: no name of the processor
    return untrusted.read_text(next(named, board or platform.machine()))


class ThrottlingState(msgspec.Struct, frozen=True):
    """The throttling reasons and counters at one moment."""

    counters: Mapping[str, int] = msgspec.field(default_factory=dict)  # each rises when something throttles
    held: tuple[str, ...] = ()  # what holds it back now, in words


def _read_gpus() -> MachineState:
    return call_guarded("NVML", find_gpus, Absent).read_state(())


def read_throttling_state(
    root: Path = Path("/"), read_gpus: Callable[[], MachineState] = _read_gpus
) -> ThrottlingState:
    """Read the machine's throttling state now; takes milliseconds."""
    paths = (path for pattern in _COUNTERS for path in sorted(root.glob(pattern)))
    counters, gpus = {str(path): _read_number(path) for path in paths}, read_gpus()
    counters |= {name: us for name, us in gpus.slowdown_us.items() if name.endswith(_HEAT)}
    reasons = (why for why in gpus.held_back or () if not why.endswith(LIMITS))
    return ThrottlingState(
        counters, (*_list_cpu_limits(root), *_list_cooled(root), *_list_jetson_limits(root), *reasons)
    )


def explain_throttling(before: ThrottlingState, after: ThrottlingState) -> tuple[str, ...]:
    """List in words what throttled between two states, and what holds the machine back at the later."""
    rises: dict[str, int] = {}
    for path, count in after.counters.items():
        if path.startswith("GPU"):
            what = f"{path.removesuffix(_HEAT)}: thermal slowdown for {{}} µs"
        elif "thermal_throttle" in path:
            what = "the CPU throttled for heat {} times"
        else:
            what = "the power supply throttled for over-current {} times"
        rises[what] = max(rises.get(what, 0), count - before.counters.get(path, count))
    counted = [what.format(rise) for what, rise in rises.items() if rise > 0]
    return tuple(untrusted.read_text(line) for line in (*counted, *dict.fromkeys(after.held)))


def _list_cpu_limits(root: Path) -> list[str]:
    """List a governor that keeps the lowest clock, and a limit below 90 % of the greatest, in words."""
    policy, lines = root / _CPU / "cpu0/cpufreq", []
    governor, driver = (read_system_text(policy / f"scaling_{name}") for name in ("governor", "driver"))
    if governor == "powersave" and driver not in _OWN_CHOICE:
        lines.append(f"CPU governor powersave ({driver}) keeps the lowest clock")
    limit, most = (_read_number(policy / f"{name}_max_freq") for name in ("scaling", "cpuinfo"))
    if 0 < limit < _HELD * most:
        lines.append(f"CPU limited to {limit / 1e6:.2f} of {most / 1e6:.2f} GHz")
    return lines


def _list_cooled(root: Path) -> list[str]:
    """List the devices that the kernel cools by slowing them; fans slow nothing."""
    lines = []
    for path in sorted(root.glob(_COOLING)):
        kind = read_system_text(path / "type")
        slows = kind == "Processor" or re.search(r"cpufreq|devfreq|gpu", kind)
        if slows and _read_number(path / "cur_state") > 0:
            lines.append(f"the kernel slows {kind} down to cool it")
    return list(dict.fromkeys(lines))


def _list_jetson_limits(root: Path) -> list[str]:
    """List a power mode below the unlimited one, if there is that, and pinned clocks not held."""
    modes, lines = read_system_text(root / "etc/nvpmodel.conf"), []
    if not modes:
        return []
    board = Board(root)
    mode = board.read_power_mode()
    if mode and not mode.startswith("MAXN") and "NAME=MAXN" in modes:
        lines.append(f"Jetson power mode {mode.partition(' ')[0]}, below MAXN")
    for name, clock in board.read_clocks().items():
        now, limit = clock.now_mhz, clock.limit_mhz
        if clock.pinned and now is not None and limit is not None and now < _HELD * limit:
            lines.append(f"{name} clock pinned at {limit:.0f} MHz runs at {now:.0f}")
    return lines


def _read_number(path: Path) -> int:
    return untrusted.read_digits(read_system_text(path)) or 0

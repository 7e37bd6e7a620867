"""Environment: the machine and the software a run was made with; never a secret."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from loadgen import __version__

_PACKAGES = ("numpy", "httpx", "httptools", "msgspec", "pydantic", "transformers")
_SETTINGS = {
    "cpu_governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "cpu_frequency_driver": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
    "power_profile": "/sys/firmware/acpi/platform_profile",
    "power_mode": "/var/lib/nvpmodel/status",  # Jetson
    "sched_autogroup": "/proc/sys/kernel/sched_autogroup_enabled",
}
_SECRET = ("--header",)
HIDDEN = "***"


def describe() -> dict[str, str]:
    """Facts of this machine, as words."""
    facts = {
        "loadgen": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": _platform(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
    }
    facts.update((name, said) for name, path in _SETTINGS.items() if (said := _first_line(Path(path))))
    for name in _PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return facts


def command_line(argv: Sequence[str] | None = None) -> list[str]:
    """The command as typed, with the values of headers hidden."""
    words, hiding = [], False
    for word in sys.argv if argv is None else argv:
        if word.startswith("-"):
            hiding = word.split("=", 1)[0] in _SECRET
            words.append(f"{_SECRET[0]}={HIDDEN}" if hiding and "=" in word else word)
            continue
        if hiding:
            words.append(f"{word.partition('=')[0]}={HIDDEN}")
        else:
            words.append(word)
    return words


def _platform() -> str:
    """As platform.platform(), which starts a process to learn what it does not print."""
    if not hasattr(os, "uname"):
        return platform.platform()
    system = os.uname()
    name = f"{system.sysname}-{system.release}-{system.machine}"
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # no such name, or no such C library
        libc = ""
    return f"{name}-with-{libc.replace(' ', '')}" if libc else name


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    board = _first_line(Path("/proc/device-tree/model")).rstrip("\0")  # ARM: no name of the processor
    return next(named, board or platform.machine())


def _first_line(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""

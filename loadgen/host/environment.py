"""Environment: the machine and the software a run was made with; never a secret."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from loadgen import __version__
from loadgen.base import untrusted
from loadgen.base.files import read_system_text

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


def describe_machine() -> dict[str, str]:
    """Describe this machine in words, fact by fact."""
    described = {
        "loadgen": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": _describe_platform(),
        "os": _read_os_name(),
        "machine": platform.machine(),
        "cpu": _read_cpu_model(),
        "cpus": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": _read_memory(),
    }
    settings = {name: untrusted.read_text(read_system_text(Path(path))) for name, path in _SETTINGS.items()}
    optional = {**settings, **{name: _find_version(name) for name in _PACKAGES}}
    return {**described, **{name: text for name, text in optional.items() if text}}


def _find_version(package: str) -> str:
    """That of the code in use, else of what is installed; "" where it is not."""
    if loaded := getattr(sys.modules.get(package), "__version__", ""):
        return str(loaded)
    try:
        head = metadata.distribution(package).read_text("METADATA") or ""
    except metadata.PackageNotFoundError:
        return ""
    # Not metadata.version, which reads the package's whole description, milliseconds of it.
    return next((line[9:].strip() for line in head.splitlines() if line.startswith("Version: ")), "")


def run_command(*command: str, timeout_s: float) -> str:
    """Run a command about this machine; "" where it does not exist or fails, else its output.

    It gets only what it needs of the environment: no key, no hook's GIT_DIR.
    """
    needed = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
    env = {name: os.environ[name] for name in needed if name in os.environ}
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return "" if done.returncode else done.stdout.decode("utf-8", "replace").strip()


def read_git_state(root: Path = _ROOT) -> str:
    """The commit we run from, with `+dirty` where a tracked file differs; "" of an installed package.

    It starts a process of some milliseconds, so it is not part of `describe_machine()`.
    """
    if not (root / ".git").exists():
        return ""
    git = ("git", "--no-optional-locks", "-C", str(root))
    return run_command(*git, "describe", "--always", "--dirty=+dirty", "--exclude=*", timeout_s=_GIT_S)


def _describe_platform() -> str:
    """Describe the platform as platform.platform() does, but without the process that it starts."""
    if not hasattr(os, "uname"):
        return platform.platform()
    system = os.uname()
    name = f"{system.sysname}-{system.release}-{system.machine}"
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # no such name, or no such C library
        libc = ""
    return f"{name}-with-{libc.replace(' ', '')}" if libc else name


def _read_os_name() -> str:
    try:
        return untrusted.read_text(platform.freedesktop_os_release().get("PRETTY_NAME", ""))
    except (OSError, ValueError):  # no such file, or none of UTF-8
        return platform.system()


def _read_memory() -> str:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # no such name, or no such system
        return ""
    return f"{total / 2**30:.1f} GiB"


def _read_cpu_model() -> str:
    lines = read_system_text(Path("/proc/cpuinfo")).splitlines()
    if not lines:
        return untrusted.read_text(platform.processor())
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    board = read_system_text(Path("/proc/device-tree/model"))  # ARM: no name of the processor
    return untrusted.read_text(next(named, board or platform.machine()))

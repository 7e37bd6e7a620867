"""Environment: the machine and the software a run was made with; never a secret."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
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
    """Describe this machine: name of each fact → its text, without facts that are unknown."""
    described = {
        "loadgen": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": _describe_platform(),
        "os": _read_os_name(),
        "machine": platform.machine(),
        "cpu": _read_cpu_model(),
        "cpus": str(count_usable_cpus()),
        "memory": _read_memory(),
    }
    settings = {name: untrusted.read_text(read_system_text(Path(path))) for name, path in _SETTINGS.items()}
    optional = {**settings, **{name: _find_version(name) for name in _PACKAGES}}
    return {**described, **{name: text for name, text in optional.items() if text}}


def count_usable_cpus() -> int:
    """Count the CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _find_version(package: str) -> str:
    """Return a package's version, of the imported code or as installed; "" if it is not installed."""
    if loaded := getattr(sys.modules.get(package), "__version__", ""):
        return str(loaded)
    try:
        head = metadata.distribution(package).read_text("METADATA") or ""
    except metadata.PackageNotFoundError:
        return ""
    # Not metadata.version, which reads the package's whole description, milliseconds of it.
    return next((line[9:].strip() for line in head.splitlines() if line.startswith("Version: ")), "")


def run_command(*command: str, timeout_s: float) -> str:
    """Run a command and return its output; "" if it does not exist, fails, or takes too long.

    It gets only what it needs of the environment: no key, no hook's GIT_DIR.
    """
    with _start_command(*command) as read_output:
        return read_output(timeout_s)


@contextmanager
def _start_command(*command: str) -> Iterator[Callable[[float], str]]:
    """Start a command; yield a function (seconds to wait) → output; the block's end kills it.

    It gets only what it needs of the environment: no key, no hook's GIT_DIR.
    """
    needed = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
    env = {name: os.environ[name] for name in needed if name in os.environ}
    nothing = subprocess.DEVNULL
    try:
        started = subprocess.Popen(command, env=env, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing)
    except (OSError, ValueError):
        yield lambda timeout_s: ""
        return

    def read_output(timeout_s: float) -> str:
        try:
            output, _ = started.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return ""
        return "" if started.returncode else output.decode("utf-8", "replace").strip()

    with started:
        try:
            yield read_output
        finally:
            started.kill()  # nothing, where it has ended


@contextmanager
def start_git(root: Path = _ROOT) -> Iterator[Callable[[], str]]:
    """Start git; yield a function that waits for the commit we run from, "" for an installed package.

    It has `+dirty` where a tracked file differs. git takes some 20 ms, in which much else can be done.
    """
    if not (root / ".git").exists():
        yield str
        return
    git = ("git", "--no-optional-locks", "-C", str(root))
    with _start_command(*git, "describe", "--always", "--dirty=+dirty", "--exclude=*") as read_output:
        yield cache(lambda: read_output(_GIT_S))


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

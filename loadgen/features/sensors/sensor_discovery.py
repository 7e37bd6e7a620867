"""Sensor discovery: the sensors that this machine has."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from loadgen.base import clock
from loadgen.base.errors import call_guarded
from loadgen.features.sensors.jetson import find_board
from loadgen.features.sensors.nvml import Gpus, find_gpus
from loadgen.features.sensors.sampler import Sampler
from loadgen.features.sensors.sensor import Absent, Quantity, Queries, Reading, Sensor
from loadgen.run.command.progress import Display
from loadgen.server.scraper import SAMPLING_SHARE

_IDLE_S = 1.0  # of idle power, where there is a sensor


def find_sensors(root: Path = Path("/")) -> list[Sensor]:
    """Find this machine's sensors; an Absent stands for GPUs that are missing or unreadable."""
    devices = call_guarded("NVML", find_gpus, Absent)
    own = call_guarded("the board's sensors", lambda: find_board(root), Absent)
    return [devices, *([] if own is None else [own]), Processes(), System()]


def start_sensors(pids: Callable[[], Sequence[int]], before_bytes: int | None, display: Display) -> Sampler:
    """Make the sampler of this machine's sensors, and sample idle power for 1 s, shown in `display`."""
    sensing = Sampler(find_sensors(), pids, before_bytes=before_bytes)
    with display.waiting("measuring idle power", _IDLE_S):
        sensing.sample_idle(_IDLE_S)
    return sensing


def read_device_memory_bytes() -> int | None:
    """Read the GPU memory in use by all processes; None without GPU, or if one does not report it."""
    devices = call_guarded("NVML", find_gpus, Absent)
    return (
        call_guarded("NVML", devices.read_used_bytes, lambda _: None) if isinstance(devices, Gpus) else None
    )


# For PSS the kernel walks every page, 10 ms a GiB, and a process that maps memory meanwhile may have to wait:
# it is read seldom.
_PSS_S = 5.0


class Processes(Sensor):
    """Memory (RSS and PSS) of the server's processes; PSS is slow, so read every 5 s and repeated."""

    def __init__(self, now_ns: Callable[[], int] = clock.now_ns) -> None:
        self._now_ns = now_ns
        self._pss_due_ns = 0
        self._pss = Reading()

    def read(self, pids: Sequence[int]) -> Reading:
        """Read the processes' RSS now, and their PSS, at most every 5 s; ended processes count 0."""
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
    """Memory use of the whole machine."""

    def read(self, pids: Sequence[int]) -> Reading:
        """Read the memory that is not available to a new process: total − MemAvailable."""
        memory = psutil.virtual_memory()
        return Reading({("system_bytes", ""): memory.total - memory.available})


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
    """Read a size of a process in bytes; 0 if it has ended.

    Raises PermissionError if it is another user's.
    """
    try:
        return size(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return 0
    except psutil.AccessDenied:
        raise PermissionError(errno.EACCES, "it is another user's") from None  # psutil's words name the pid

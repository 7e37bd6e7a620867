"""Processes: host memory of the server's process tree, and of the whole machine."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial

import psutil

from loadgen import clock
from loadgen.telemetry.sensor import LOOKING, Key, Questions, Reading

_GIB = 1 << 30
# For PSS the kernel walks every page, 10 ms a GiB, and a process that maps memory meanwhile may have to wait.
# So it is read seldom.
_PSS_S = 5.0


class Processes:
    """RSS and PSS, summed over the processes; PSS is read 5 s and more apart, and told again between."""

    def __init__(self, now_ns: Callable[[], int] = clock.now_ns) -> None:
        self._now_ns = now_ns
        self._pss_due_ns = 0
        self._pss = Reading()

    def facts(self) -> dict[str, str]:
        """Nothing that stays as it is."""
        return {}

    def read(self, pids: Sequence[int]) -> Reading:
        """One look; a process that has ended has no memory."""
        if not pids:
            return Reading(missing=("host memory: the server's processes are not known",))
        asked = Questions("a process of the server", OSError)
        values: dict[Key, float] = {}
        rss = _sum(asked, "its RSS", _rss, pids)
        if rss is not None:
            values["rss_bytes", ""] = rss
        began_ns = self._now_ns()
        if began_ns >= self._pss_due_ns:
            self._pss = _walked(pids)
            took_ns = self._now_ns() - began_ns
            self._pss_due_ns = began_ns + max(int(_PSS_S * 1e9), int(took_ns / LOOKING))
        return Reading.merged((Reading(values, missing=asked.missing), self._pss))


class System:
    """Memory of the whole machine."""

    def facts(self) -> dict[str, str]:
        """How much there is."""
        return {"memory": f"{psutil.virtual_memory().total / _GIB:.1f} GiB"}

    def read(self, pids: Sequence[int]) -> Reading:
        """What is not available to a new process: total − MemAvailable."""
        memory = psutil.virtual_memory()
        return Reading({("system_bytes", ""): memory.total - memory.available})


def _walked(pids: Sequence[int]) -> Reading:
    # Only Linux tells PSS: elsewhere psutil's answer has no such attribute.
    asked = Questions("a process of the server", OSError, AttributeError)
    pss = _sum(asked, "its PSS", _pss, pids)
    return Reading({} if pss is None else {("pss_bytes", ""): pss}, missing=asked.missing)


def _sum(
    asked: Questions, what: str, size: Callable[[psutil.Process], int], pids: Sequence[int]
) -> int | None:
    """The sum over the processes; None, never a part of it, where one of them refuses."""
    sizes = [asked.ask(what, partial(_of, pid, size)) for pid in pids]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _rss(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _pss(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss)


def _of(pid: int, size: Callable[[psutil.Process], int]) -> int:
    try:
        return size(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return 0
    except psutil.AccessDenied:
        raise PermissionError(errno.EACCES, "it is another user's") from None  # psutil's words name the pid

"""Memory room: how many bytes all responses in flight may hold, by free memory and the process's limits."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from loadgen.base.files import read_system_text

MIB = 1 << 20
_ROOT = Path("/")
_SHARE = 4  # of the free memory a fourth: decoding, journal and pipe need the rest
_LEAST_BYTES = 16 * MIB
_USUAL_BYTES = 512 * MIB  # for answers that are longer than was asked for
_TOKEN_BYTES = 4096  # of a token's message, with logprobs
_OF_LIMITS = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
READ_COST = 200  # bytes that a read takes, however small: its objects and timestamps


def limit_open_bytes(streams: int, longest: int, processes: int = 1, root: Path = _ROOT) -> int:
    """Compute how many bytes one process's responses may hold together without exhausting memory.

    What `streams` answers of `longest` tokens need and more, at most a fourth of the free, at least 16 MiB.
    Of the machine's memory each of the `processes` has its part; a limit on a process is its own.
    """
    needed = _USUAL_BYTES + streams * longest * _TOKEN_BYTES
    shared = min(_find_free_of_machine(root)) // processes
    return max(min(needed, min((shared, *_find_free_of_process(root))) // _SHARE), _LEAST_BYTES)


def _find_free_of_machine(root: Path) -> Iterator[int]:
    """Yield the machine's free bytes, and those that each control group of this process has left."""
    free = re.search(r"^MemAvailable: +(\d+) kB$", read_system_text(root / "proc/meminfo"), re.MULTILINE)
    if free is not None:
        yield int(free[1]) * 1024
    else:
        from psutil import virtual_memory  # no Linux

        yield virtual_memory().available
    for line in read_system_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if not controllers:
            yield from _find_free_of_groups(root / "sys/fs/cgroup", place, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            yield from _find_free_of_groups(base, place, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _find_free_of_groups(base: Path, place: str, limit: str, usage: str) -> Iterator[int]:
    """Yield the bytes that a control group and its ancestors have left, inactive file cache included."""
    inside = Path(os.path.normpath("/" + place.lstrip("/"))).relative_to("/")
    for group in (base / inside, *(base / above for above in inside.parents)):
        most, used = _read_number(group / limit), _read_number(group / usage)
        if most is None or used is None:
            continue
        lines = read_system_text(group / "memory.stat").splitlines()
        kept = dict(line.split(" ", 1) for line in lines if " " in line)
        cache = kept.get("inactive_file", "0")
        yield max(most - used + (int(cache) if cache.isdecimal() else 0), 0)


def _find_free_of_process(root: Path) -> Iterator[int]:
    """Yield the bytes that the process limits RLIMIT_AS and RLIMIT_DATA leave."""
    status = read_system_text(root / "proc/self/status").splitlines()
    sizes = {line.partition(":")[0]: line.split()[1] for line in status if line.startswith("Vm")}
    for limit, name in _OF_LIMITS:
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            yield max(soft - int(sizes.get(name, "0")) * 1024, 0)


def _read_number(path: Path) -> int | None:
    """Read the number in a file; None if it holds none, as `max`."""
    text = read_system_text(path)
    return int(text) if text.isdecimal() else None


class MemoryGauge:
    """Checks cheaply whether this process has grown by more than some bytes."""

    def __init__(self, most_bytes: int, file: Path = _ROOT / "proc/self/statm") -> None:
        self._pages = most_bytes // resource.getpagesize()
        try:
            self._file = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1  # no Linux
        self._began = self._read_resident()

    def is_passed(self) -> bool:
        """Whether the process has grown by more; True where that cannot be known."""
        return self._file < 0 or self._read_resident() - self._began > self._pages

    def close(self) -> None:
        """Close the /proc file that it reads."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read_resident(self) -> int:
        if self._file < 0:
            return 0
        return int(os.pread(self._file, 128, 0).split()[1])

"""Pinning: workers are kept away from a server's CPUs where both are on one machine and some are to spare."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_PER_WORKER = 2  # one CPU to capture, one to decode
_SYSTEM = Path("/sys/devices/system/cpu")
_LIST = "cpu{}/topology/thread_siblings_list"


def spare_cpus(
    pids: Collection[int],
    workers: int,
    affinity: Callable[[int], set[int]] = os.sched_getaffinity,
    system: Path = _SYSTEM,
) -> tuple[int, ...]:
    """The CPUs that workers are to run on: those that none of these processes may use.

    Whole cores where there are enough of these. () where the server may run anywhere, too few CPUs are left
    for two to a worker, or this process is kept away from the server already.
    """
    allowed = affinity(0)
    taken = set().union(*(affinities(pid, affinity) for pid in pids))
    if not taken & allowed:
        return ()
    near = {cpu: siblings(cpu, system) for cpu in allowed - taken}
    return chosen(near, taken, _PER_WORKER * workers)


def chosen(near: Mapping[int, set[int]], taken: set[int], least: int) -> tuple[int, ...]:
    """Of CPUs that are free, each with those of its core, at least `least`, ascending; () where too few."""
    apart = [cpu for cpu, core in near.items() if not core & taken]
    for cpus in (apart, list(near)):
        if len(cpus) >= least:
            return tuple(sorted(cpus))
    return ()


def affinities(pid: int, affinity: Callable[[int], set[int]]) -> set[int]:
    """The CPUs that any thread of a process may run on; of one that has ended, none."""
    cpus: set[int] = set()
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            cpus |= affinity(int(thread))
    return cpus


def siblings(cpu: int, system: Path = _SYSTEM) -> set[int]:
    """The CPUs of the same core, itself among them."""
    with suppress(OSError, ValueError):
        return set(numbers((system / _LIST.format(cpu)).read_text("ascii")))
    return {cpu}


def numbers(text: str) -> Iterator[int]:
    """The CPUs of a list as the kernel writes it, 0-3,8; raises ValueError."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def words(cpus: Iterable[int]) -> str:
    """CPUs as the kernel writes a list of them, 0-3,8."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)

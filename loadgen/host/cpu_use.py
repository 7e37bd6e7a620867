"""CPU use: the CPU time of server, client and all other processes during a run on one machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from loadgen.base import clock, untrusted
from loadgen.base.errors import call_guarded
from loadgen.base.files import read_system_text

_PROC = Path("/proc")
_BUSY = 3  # of a CPU's columns: user, nice and system; interrupts belong to no process
# After a process's name: user and system time, its own and its reaped children's; start; number of columns.
_OWN, _STARTED, _COLUMNS = slice(11, 15), 19, 20


class CpuUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mean number of busy CPUs during a run, of those on which server and client may run."""

    duration_s: float
    cpus: int
    server: float | None  # its processes and what they started; None: they are not known
    client: float  # this program and what it started: with workers, and with the embedded engine
    others: float | None  # neither; None: not known
    # Share of the time in which any process waited for a CPU (PSI); None: unknown.
    waiting: float | None = None

    @property
    def busy(self) -> float:
        """The busy CPUs of server, client and others together, as far as they are known."""
        return self.client + (self.server or 0.0) + (self.others or 0.0)


class ProcessTime(msgspec.Struct, frozen=True):
    """The CPU time of a process and its ended children, and when it began."""

    cpu_s: float
    began: int  # clock ticks since the machine started


class CpuTimes(msgspec.Struct, frozen=True):
    """A reading of the kernel's CPU time counters."""

    at_ns: int
    ticks: int  # clock ticks since the machine started
    busy_s: Mapping[int, float]  # by CPU
    server: Mapping[int, ProcessTime]  # by process
    ours: Mapping[int, ProcessTime]  # this program's children that run
    own_s: float  # this process and its children that have ended
    waiting_us: int | None  # in which any process waited for a CPU
    allowed: frozenset[int]  # CPUs that server and client may run on


def read_times(server_pids: Collection[int], proc: Path = _PROC) -> CpuTimes:
    """Read the CPU times now; what cannot be read is left out."""
    own, mine = os.times(), os.getpid()
    server = _read_processes(server_pids, proc)
    allowed = set[int]()
    for pid in (mine, *server) if hasattr(os, "sched_getaffinity") else ():
        with suppress(OSError):
            allowed |= os.sched_getaffinity(pid)
    ours = _read_processes(set(_list_descendants(mine, proc)) - set(server_pids), proc)
    busy_s = {}
    for line in read_system_text(proc / "stat").splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and (number := untrusted.read_digits(name[3:])) is not None:
            busy_s[number] = sum(map(int, columns[:_BUSY])) / _ticks_per_s()
    pressure = read_system_text(proc / "pressure" / "cpu").splitlines()
    waits = (line for line in pressure if line.startswith("some "))
    return CpuTimes(
        at_ns=clock.now_ns(),
        ticks=int(time.clock_gettime(time.CLOCK_BOOTTIME) * _ticks_per_s()),
        busy_s=busy_s,
        server=server,
        ours=ours,
        own_s=own.user + own.system + own.children_user + own.children_system,
        waiting_us=next((untrusted.read_digits(line.rpartition("total=")[2]) for line in waits), None),
        allowed=frozenset(allowed),
    )


def subtract_times(before: CpuTimes, after: CpuTimes, server_known: bool) -> CpuUse | None:
    """Compute the CPU use between two readings; None if they have no CPU or no time in common.

    `others` is None unless the server's processes were read, or are `server_known` to be our children.
    """
    duration_s = (after.at_ns - before.at_ns) / 1e9
    cpus = (before.allowed | after.allowed) & before.busy_s.keys() & after.busy_s.keys()
    if duration_s <= 0 or not cpus:
        return None
    busy_s = sum(after.busy_s[cpu] - before.busy_s[cpu] for cpu in cpus)
    server_s = _sum_rise_s(before.server, after.server, before.ticks)
    client_s = after.own_s - before.own_s + _sum_rise_s(before.ours, after.ours, before.ticks)
    known = server_known or bool(after.server)
    waiting = None
    if before.waiting_us is not None and after.waiting_us is not None:
        waiting = min(max(after.waiting_us - before.waiting_us, 0) / 1e6 / duration_s, 1.0)
    return CpuUse(
        duration_s=duration_s,
        cpus=len(cpus),
        server=server_s / duration_s if after.server else None,
        client=max(client_s, 0.0) / duration_s,
        others=max(busy_s - server_s - client_s, 0.0) / duration_s if known else None,
        waiting=waiting,
    )


class CpuWatch(msgspec.Struct, eq=False):
    """Measures the CPU use of one run, by readings at its begin and end; errors never affect the run.

    `server_known`: the server is among this program's own children, whichever `pids` there are.
    """

    pids: Callable[[], Sequence[int]]
    server_known: bool = False
    use: CpuUse | None = None

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Read the CPU times at the block's begin and end, and set `use`; None stays if a reading fails."""
        before = self._read()
        try:
            yield
        finally:
            after = self._read()
            if before is not None and after is not None:
                self.use = subtract_times(before, after, self.server_known)

    def _read(self) -> CpuTimes | None:
        return call_guarded("the CPUs", lambda: read_times(self.pids()), lambda _: None)


def format_use(use: CpuUse) -> str:
    """Describe the CPU use in one line."""
    parts = [] if use.server is None else [f"server {use.server:.2f}"]
    parts.append(f"client {use.client:.2f}")
    parts += [] if use.others is None else [f"other processes {use.others:.2f}"]
    waited = (
        "" if use.waiting is None else f"; a process waited for one {100 * use.waiting:.0f} % of the time"
    )
    return f"busy CPUs of {use.cpus}: {', '.join(parts)}{waited}"


def _sum_rise_s(before: Mapping[int, ProcessTime], after: Mapping[int, ProcessTime], began: int) -> float:
    """Sum the CPU seconds that the processes of `after` took since `before`.

    Of a process that `before` lacks all count if it began at tick `began` or later, else none.
    """
    total = 0.0
    for pid, now in after.items():
        earlier = before.get(pid)
        if earlier is not None and earlier.began == now.began:
            total += now.cpu_s - earlier.cpu_s
        elif now.began >= began:
            total += now.cpu_s
    return total


def _read_processes(pids: Iterable[int], proc: Path) -> dict[int, ProcessTime]:
    """Read the CPU time of each process by its id, without those that are gone."""
    processes = {}
    for pid in pids:
        # The name stands in parentheses and may hold anything.
        fields = read_system_text(proc / str(pid) / "stat").rpartition(")")[2].split()
        if len(fields) >= _COLUMNS:
            ticks = sum(map(int, fields[_OWN]))
            processes[pid] = ProcessTime(ticks / _ticks_per_s(), int(fields[_STARTED]))
    return processes


def _list_descendants(pid: int, proc: Path) -> Iterator[int]:
    """Yield the process ids below one, as the kernel lists the children of its threads."""
    for children in (proc / str(pid) / "task").glob("*/children"):
        for child in read_system_text(children).split():
            yield int(child)
            yield from _list_descendants(int(child), proc)


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK")

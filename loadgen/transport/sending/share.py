"""Share: the requests and slots of a plan that one capturing process has, and when it begins to send."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np

from loadgen.base.arrays import Int64

_SPIN_NS = 1_200_000  # a poll sleeps whole milliseconds, rounded up
_TURN_S = 0.001
_READY_NS = 20_000_000  # from the moment that all are ready to the start: each learns of it in time

_INDEX_BYTES = 8


class Share(msgspec.Struct, frozen=True):
    """One of `of` equal shares of a plan, counted from 0: one per process, over all shards and workers.

    Slots are numbered so that no two processes have the same: slot k of this one is `number + of * k`.
    """

    number: int = 0
    of: int = 1

    @property
    def name(self) -> str:
        """The share as --shard writes it: 0/4."""
        return f"{self.number}/{self.of}"

    def split(self, workers: int) -> list[Share]:
        """Divide this share among workers; together they send what this one would."""
        return [Share(self.number + self.of * worker, self.of * workers) for worker in range(workers)]

    def list_indices(self, count: int, sessions: Int64 | None = None) -> Int64:
        """List the plan indices of this share, ascending; `sessions`: each request's, none divided."""
        if sessions is None:
            return np.arange(self.number, count, self.of, dtype=np.int64)
        _, ranks = np.unique(sessions[:count], return_inverse=True)
        return np.flatnonzero(ranks % self.of == self.number).astype(np.int64)

    def count_slots(self, most: int) -> int:
        """Count how many of `most` slots belong to this share."""
        return len(range(self.number, most, self.of))

    def number_slot(self, position: int) -> int:
        """Return the number of this share's slot at a position."""
        return self.number + self.of * position


WHOLE = Share()


class Order(Protocol):
    """The requests that one process sends, as plan indices in order; iterated once."""

    shared: bool  # what this process claims can be sent by no other, and others may have free slots

    def __len__(self) -> int:
        """How many there are at most."""
        ...

    def __iter__(self) -> Iterator[int]:
        """The plan index of each, which from then on is for this process to send."""
        ...

    def list_taken(self, count: int) -> Sequence[int]:
        """List the first `count` requests given out, in any process that shares this order."""
        ...

    def list_claimed(self) -> Sequence[int]:
        """List the requests that only this process may send: given out, or assigned beforehand."""
        ...

    def list_unanswered(self, sent: int, have: Collection[int]) -> Sequence[int]:
        """List the requests that were sent and did not come back; `have` are those that did."""
        ...


class Listed:
    """An order of requests assigned beforehand: int64[requests], or a range."""

    shared = False

    def __init__(self, indices: Sequence[int] | Int64) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return map(int, self.indices)

    def list_taken(self, count: int) -> list[int]:
        return [int(index) for index in self.indices[:count]]

    def list_claimed(self) -> list[int]:
        return self.list_taken(len(self.indices))

    def list_unanswered(self, sent: int, have: Collection[int]) -> list[int]:
        return [index for index in self.list_taken(sent) if index not in have]


class Queue:
    """An order that several processes of a closed loop take from, each when a slot is free.

    All read one file without a name at one shared position, which the kernel moves at each read: no request
    is given out twice, and there is no lock to be left locked by a process that dies. Make it before the
    fork. Raises OSError where such a file cannot be made.
    """

    def __init__(self, indices: Int64) -> None:
        self._length = len(indices)
        self._file = _make_shared_file(indices.astype(np.int64).tobytes()) if indices.size else -1

    def __len__(self) -> int:
        return self._length

    def take_next(self) -> int:
        """Take the plan index of the next request; -1 if none is left."""
        data = os.read(self._file, _INDEX_BYTES) if self._file >= 0 else b""
        return int.from_bytes(data, "little", signed=True) if data else -1

    def close(self) -> None:
        """Close this process's file descriptor."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Shared:
    """One process's order over a Queue; the parent can read what it took."""

    shared = True

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._log = memoryview(mmap.mmap(-1, _INDEX_BYTES * max(len(queue), 1))).cast("q")

    def __len__(self) -> int:
        return len(self.queue)

    def __iter__(self) -> Iterator[int]:
        at, log = 0, self._log
        while (index := self.queue.take_next()) >= 0:
            log[at] = index + 1  # 0: nothing was taken
            at += 1
            yield index

    def list_taken(self, count: int) -> list[int]:
        return [index - 1 for index in self._log[:count].tolist()]

    def list_claimed(self) -> list[int]:
        """List all requests that this process took."""
        return self.list_taken(int(np.count_nonzero(np.frombuffer(self._log, np.int64))))

    def list_unanswered(self, sent: int, have: Collection[int]) -> list[int]:
        return [index for index in self.list_taken(sent) if index not in have]


def _make_shared_file(data: bytes) -> int:
    """Make an unnamed file with this content, whose read position forked processes share."""
    file, view = os.memfd_create("loadgen-requests", os.MFD_CLOEXEC), memoryview(data)
    try:
        while view:
            view = view[os.write(file, view) :]
        # The kernel locks the position of a file that was opened, and not of one that was made like this.
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(file)


class RunStart(Protocol):
    """The instant from which a plan's times count, CLOCK_MONOTONIC in nanoseconds."""

    def begin_ns(self, now_ns: int) -> int:
        """Return that instant, for a process that is ready now; 0 while it is not known."""
        ...


class AtOnce:
    """A start as soon as the process is ready."""

    def begin_ns(self, now_ns: int) -> int:
        return now_ns


class At:
    """A start at a fixed instant, even if it has passed: then what is due is sent late, and recorded so."""

    def __init__(self, instant_ns: int) -> None:
        self.instant_ns = instant_ns

    def begin_ns(self, now_ns: int) -> int:
        return self.instant_ns


class Together:
    """A start at one instant for several processes, once all are ready; make it before the fork.

    The process that forked them calls `release`, a few hundred times a second, and counts as ready what has
    ended.
    """

    def __init__(self, processes: int, earliest_ns: int = 0) -> None:
        self.processes, self.earliest_ns = processes, earliest_ns
        self._view = memoryview(mmap.mmap(-1, 8 * (1 + processes))).cast("q")

    def make_start(self, process: int) -> TogetherStart:
        """Make the start that process number `process`, from 0, waits for."""
        return TogetherStart(self._view, process)

    def is_ready(self, process: int) -> bool:
        """Whether process number `process` is ready."""
        return bool(self._view[1 + process])

    def release(self, now_ns: int, ended: set[int]) -> bool:
        """Set the instant once every process is ready or has ended; returns whether it is set."""
        if not self._view[0] and all(
            self._view[1 + process] or process in ended for process in range(self.processes)
        ):
            self._view[0] = max(now_ns + _READY_NS, self.earliest_ns)
        return self._view[0] > 0


class TogetherStart:
    """The start of one of the processes of `Together`."""

    def __init__(self, view: memoryview, process: int) -> None:
        self._view, self._process = view, process

    def begin_ns(self, now_ns: int) -> int:
        self._view[1 + self._process] = 1
        return int(self._view[0])


def wait_for_start(start: RunStart, now_ns: Callable[[], int], turn: Callable[[float], bool]) -> int:
    """Wait for the start, and return when it was (ns).

    `turn` is called with how long it may take, in seconds; once it gives True this returns at once, and the
    time now if the start is not known.
    """
    while True:
        ready_ns = now_ns()
        begin_ns = start.begin_ns(ready_ns)
        if 0 < begin_ns <= ready_ns or turn(0.0 if 0 < begin_ns < ready_ns + _SPIN_NS else _TURN_S):
            return begin_ns or ready_ns

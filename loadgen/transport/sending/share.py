"""Share: which requests of a plan one capturing process sends, and which slots are its own."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np

from loadgen.base.arrays import Int64

_INDEX_BYTES = 8


class Share(msgspec.Struct, frozen=True):
    """One of `of` equal parts of a plan, counted from 0: those of all shards, and of their workers.

    Slots are numbered so that no two processes have the same: slot k of this one is `number + of * k`.
    """

    number: int = 0
    of: int = 1

    def split(self, workers: int) -> list[Share]:
        """This part in as many smaller ones: what they send together is what this one would."""
        return [Share(self.number + self.of * worker, self.of * workers) for worker in range(workers)]

    def list_indices(self, count: int, sessions: Int64 | None = None) -> Int64:
        """The plan indices of this part, ascending; with `sessions`, of each request, none is divided."""
        if sessions is None:
            return np.arange(self.number, count, self.of, dtype=np.int64)
        _, ranks = np.unique(sessions[:count], return_inverse=True)
        return np.flatnonzero(ranks % self.of == self.number).astype(np.int64)

    def count_slots(self, most: int) -> int:
        """How many of `most` slots are this part's."""
        return len(range(self.number, most, self.of))

    def number_slot(self, position: int) -> int:
        """The number of this part's slot at a position."""
        return self.number + self.of * position


WHOLE = Share()


class Order(Protocol):
    """The requests that one process sends, by plan index and in their order; gone through once."""

    shared: bool  # what this process claims can be sent by no other, and others may have free slots

    def __len__(self) -> int:
        """How many there are at most."""
        ...

    def __iter__(self) -> Iterator[int]:
        """The plan index of each, which from then on is for this process to send."""
        ...

    def list_taken(self, count: int) -> Sequence[int]:
        """List the first `count` that were given out, in any process that shares this order."""
        ...

    def list_claimed(self) -> Sequence[int]:
        """List all that are for this process only to send: given out, or chosen beforehand."""
        ...

    def list_unanswered(self, sent: int, have: Collection[int]) -> Sequence[int]:
        """List the requests that were sent and did not come back."""
        ...


class Listed:
    """Requests that were chosen beforehand: int64[requests], or a range."""

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
    """Requests that several processes take from, each when it has a slot for one (a closed loop).

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
        """Take the plan index of the next request; -1: none is left."""
        data = os.read(self._file, _INDEX_BYTES) if self._file >= 0 else b""
        return int.from_bytes(data, "little", signed=True) if data else -1

    def close(self) -> None:
        """Close this process's end."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Shared:
    """One process's turns at a queue; what it took can be read in the process that forked it."""

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
        """All that it took."""
        return self.list_taken(int(np.count_nonzero(np.frombuffer(self._log, np.int64))))

    def list_unanswered(self, sent: int, have: Collection[int]) -> list[int]:
        return [index for index in self.list_taken(sent) if index not in have]


def _make_shared_file(data: bytes) -> int:
    """Make a file without a name that holds this, whose position one process moves at a time."""
    file = os.memfd_create("loadgen-requests", os.MFD_CLOEXEC)
    try:
        _write_all(file, data)
        # The kernel locks the position of a file that was opened, and not of one that was made like this.
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]

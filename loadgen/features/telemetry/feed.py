"""Feed: gives a sink the records of a run while it goes on, in a thread that nothing waits for.

The records left at the end have a thread of their own, which no longer gives way: a busy machine would starve
it, and a thread may not take back the priority that it gave up.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.errors import Broken, make_guarded
from loadgen.records.journal import Journal, Tail
from loadgen.records.record import Records

_EVERY_S, _TURN_S = 0.5, 0.1
_LOWEST = 19  # nice
_LAST_S = 0.5  # for a sink that is abandoned to notice


class Sink(Protocol):
    """Takes a run's records elsewhere; its methods are a feed's thread's to call, and may raise and block."""

    name: str

    @property
    def progress(self) -> int:
        """A number that grows while the sink gets on with what it was given."""

    def take(self, records: Records, rows: Int64) -> None:
        """Take the records of some rows, each of them once."""

    def finish(self, records: Records, rows: Int64) -> None:
        """Take the rows that `take` did not get of all records, int64[rows], and end."""

    def abandon(self) -> None:
        """End what `take` or `finish` waits for, called once by another thread."""


def _give_way() -> None:
    """Have this thread take the CPU after all others: a server on this machine, capture and decoding."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)


class Feed:
    """Follows the journal of a run for one sink; what it fails at is kept in `error`.

    It takes frames whose tokens are all counted: others wait for the end, when texts have been counted.
    """

    def __init__(self, sink: Sink, journal: Journal) -> None:
        self.sink, self.error = sink, ""
        self._tail = Tail(journal)
        self._taken: list[Int64] = []  # plan indices
        self._over, self._abandoned = threading.Event(), False
        self._follower = self._make_thread(self._run)
        self._thread = self._follower  # the one under way

    def _make_thread(self, target: Callable[[], object]) -> threading.Thread:
        return threading.Thread(target=target, name=f"telemetry-{self.sink.name}", daemon=True)

    def start(self) -> None:
        """Start to follow; call it after the last fork."""
        self._follower.start()

    def finish(self, records: Records, patience_s: float, most_s: float = math.inf) -> None:
        """Give the sink what it did not get of all records, and wait until it ended.

        No longer than `most_s` seconds, nor than `patience_s` without progress.
        """
        self._over.set()
        self._thread = self._make_thread(lambda: self._give_rest(records))
        self._thread.start()
        begin_s = moved_s = time.monotonic()
        progress = self.sink.progress
        while self._thread.is_alive() and time.monotonic() < min(moved_s + patience_s, begin_s + most_s):
            self._thread.join(_TURN_S)
            if (now := self.sink.progress) != progress:
                progress, moved_s = now, time.monotonic()
        self.end()

    def end(self) -> None:
        """End what is under way; a thread that waits for its sink is left to itself."""
        self._over.set()
        if self._thread.is_alive() and not self._abandoned:
            self._abandoned = True
            self.sink.abandon()
            self._thread.join(_LAST_S)

    def _run(self) -> None:
        _give_way()
        while not self.error and not self._over.wait(_EVERY_S):
            self._guard(self._follow)

    def _give_rest(self, records: Records) -> None:
        if self._follower.is_alive():
            self._follower.join()
        if not self.error:
            taken = np.concatenate([np.zeros(0, np.int64), *self._taken])
            rest = np.flatnonzero(~np.isin(records.index, taken))
            self._guard(lambda: self.sink.finish(records, rest))

    def _guard(self, call: Callable[[], None]) -> None:
        """Call the sink; what it raises is kept in `error`."""
        broken: list[Broken] = []
        make_guarded(self.sink.name, call, None, broken)
        if broken:
            self.error = broken[0].why

    def _follow(self) -> None:
        for part in self._tail.read():
            if self._over.is_set():
                return  # what is not taken is there at the end
            if all(counted or text is None for counted, text in zip(part.usage, part.texts, strict=True)):
                self._taken.append(part.index)
                self.sink.take(part, np.arange(len(part)))

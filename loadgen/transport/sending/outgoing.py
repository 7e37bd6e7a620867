"""Outgoing: a process's requests in their order, built before they are due."""

from __future__ import annotations

from collections import deque

import numpy as np

from loadgen.transport.sending.job import Job

_MOST_READY, _MOST_READY_BYTES = 16384, 64 << 20  # how far requests are built ahead
_NONE_LEFT = -1


class Outgoing:
    """The requests that are still to send; times are nanoseconds.

    `count` is how many requests there will be: the most there can be, until the last has been claimed. While
    `next` is below it, the next request is claimed, and for this process to send.
    """

    reconnects = 0  # of sessions, which these requests are none of

    def __init__(self, job: Job) -> None:
        self.job = job
        self.count = job.count
        self.next = self.built = self.late_bodies = 0
        self._order = iter(job.order)
        self._claimed: deque[int] = deque()  # plan indices whose requests are not built
        self._ready: deque[tuple[int, bytes]] = deque()
        self._ready_bytes = 0
        # What is claimed by one process cannot be sent by another whose slots are free.
        self._most_ready = min(_MOST_READY, job.most_slots) if job.order.shared else _MOST_READY
        self._claim()

    def due_ns(self, begin_ns: int) -> int:
        """When the next request of an open loop that began then is due."""
        assert self.job.offsets_ns is not None
        return begin_ns + int(self.job.offsets_ns[self.next])

    def count_waiting(self, begin_ns: int, now_ns: int) -> int:
        """How many requests of an open loop are due and not sent."""
        assert self.job.offsets_ns is not None
        return int(np.searchsorted(self.job.offsets_ns, now_ns - begin_ns, "right")) - self.next

    def take(self) -> tuple[int, bytes]:
        """The next request, and its position in the plan."""
        if self._ready:
            index, request = self._ready.popleft()
            self._ready_bytes -= len(request)
        else:
            index = self._claimed.popleft()
            request = self.job.make_request(index)
            self.late_bodies += 1
            self.built += 1
        self.next += 1
        if not self._ready and not self._claimed:
            self._claim()
        return index, request

    def build_ahead(self) -> bool:
        """Build one more request; False where all are built, or as many as may wait."""
        full = len(self._ready) >= self._most_ready or self._ready_bytes >= _MOST_READY_BYTES
        if full or not (self._claimed or self._claim()):
            return False
        index = self._claimed.popleft()
        request = self.job.make_request(index)
        self.built += 1
        self._ready.append((index, request))
        self._ready_bytes += len(request)
        return True

    def bodies_digest(self) -> str:
        """A fingerprint of the bodies that were sent, which only sessions have."""
        return ""

    def _claim(self) -> bool:
        """Make one more request this process's; False where there is none left."""
        if self.next + len(self._ready) >= self.count:
            return False
        index = next(self._order, _NONE_LEFT)
        if index == _NONE_LEFT:
            self.count = self.next + len(self._ready)
            return False
        self._claimed.append(index)
        return True

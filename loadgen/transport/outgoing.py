"""Outgoing: a job's requests in the order of the plan, built before they are due."""

from __future__ import annotations

from collections import deque

import numpy as np

from loadgen.transport.job import Job

_MOST_READY, _MOST_READY_BYTES = 16384, 64 << 20  # how far requests are built ahead


class Outgoing:
    """What is still to send; times are nanoseconds."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.count = job.count  # to send: what has been sent, once the time for it is up
        self.next = self.built = self.late_bodies = 0
        self._ready: deque[bytes] = deque()
        self._ready_bytes = 0

    def due_ns(self, begin_ns: int) -> int:
        """When the next request of an open loop that began then is due."""
        assert self.job.offsets_ns is not None
        return begin_ns + int(self.job.offsets_ns[self.next])

    def waiting(self, begin_ns: int, now_ns: int) -> int:
        """How many requests of an open loop are due and not sent."""
        assert self.job.offsets_ns is not None
        return int(np.searchsorted(self.job.offsets_ns, now_ns - begin_ns, "right")) - self.next

    def take(self) -> tuple[int, bytes]:
        """The next request, and its position in the plan."""
        if self._ready:
            request = self._ready.popleft()
            self._ready_bytes -= len(request)
        else:
            request = self.job.request(self.next)
            self.late_bodies += 1
            self.built += 1
        self.next += 1
        return self.next - 1, request

    def build_ahead(self) -> bool:
        """Build one more request; False where all are built, or as many as may wait."""
        full = len(self._ready) >= _MOST_READY or self._ready_bytes >= _MOST_READY_BYTES
        if full or self.built >= self.count:
            return False
        request = self.job.request(self.built)
        self.built += 1
        self._ready.append(request)
        self._ready_bytes += len(request)
        return True

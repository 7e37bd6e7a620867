"""Sender: which request goes out over which connection, and when the next one may."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from loadgen.transport.capture import Counters
from loadgen.transport.failure import Failure
from loadgen.transport.sending.gate import NEVER_NS, Gate, make_cancelling, make_gates
from loadgen.transport.sending.job import SPIN_NS, Job
from loadgen.transport.tcp_connection import Pool, Slot

_MOST_READY, _MOST_READY_BYTES = 16384, 64 << 20  # how far requests are built ahead
_NONE_LEFT = -1


class Outgoing:
    """The requests that are still to be sent, in order; times are nanoseconds.

    `count` is how many requests there will be: the most there can be, until the last has been claimed. While
    `next` is below it, the next request is claimed, and for this process to send.
    """

    reconnects = 0  # of sessions, which these requests are none of

    def __init__(self, job: Job) -> None:
        self.job = job
        self.count = job.count
        self.next = self.built = self.late_bodies = 0
        self.newest = _NONE_LEFT  # plan index of the request that was built last
        self._order = iter(job.order)
        self._claimed: deque[int] = deque()  # plan indices whose requests are not built
        self._ready: deque[tuple[int, bytes]] = deque()
        self._ready_bytes = 0
        # A request that one process has claimed cannot be sent by another whose slots are free.
        self._most_ready = min(_MOST_READY, job.most_slots) if job.order.shared else _MOST_READY
        self._claim()

    def due_ns(self, begin_ns: int) -> int:
        """Return when (ns) the next request of an open loop that began at `begin_ns` is due."""
        assert self.job.offsets_ns is not None
        return begin_ns + int(self.job.offsets_ns[self.next])

    def count_waiting(self, begin_ns: int, now_ns: int) -> int:
        """Count the requests of an open loop that are due and not sent."""
        assert self.job.offsets_ns is not None
        return int(np.searchsorted(self.job.offsets_ns, now_ns - begin_ns, "right")) - self.next

    def take(self) -> tuple[int, bytes]:
        """Take the next request, built now if it is not ready: its plan index and its HTTP bytes."""
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
        """Build one more request ahead; False if all are built, or as many as may wait."""
        full = len(self._ready) >= self._most_ready or self._ready_bytes >= _MOST_READY_BYTES
        if full or not (self._claimed or self._claim()):
            return False
        self.newest = index = self._claimed.popleft()
        request = self.job.make_request(index)
        self.built += 1
        self._ready.append((index, request))
        self._ready_bytes += len(request)
        return True

    def bodies_digest(self) -> str:
        """Return "": only sessions hash the bodies they send."""
        return ""

    def _claim(self) -> bool:
        """Claim one more request for this process; if none is left set `count` and return False."""
        if self.next + len(self._ready) >= self.count:
            return False
        index = next(self._order, _NONE_LEFT)
        if index == _NONE_LEFT:
            self.count = self.next + len(self._ready)
            return False
        self._claimed.append(index)
        return True


class Sender:
    """Gives due requests to free slots: a closed loop's as slots become free, an open loop's by its plan."""

    def __init__(
        self, job: Job, pool: Pool, out: Outgoing, counters: Counters, send: Callable[[Slot], None]
    ) -> None:
        self.job, self.pool, self.out, self.counters, self.send = job, pool, out, counters, send
        self.now_ns = pool.network.now_ns
        self.begin_ns = 0
        self.gates: tuple[Gate, ...] = ()
        self.branches = 0  # of the pool's slots, those in which nothing begins
        self.cancelling = make_cancelling(job)

    def begin(self, begin_ns: int) -> None:
        """Set the instant from which the plan's times count, and make the job's gates."""
        self.begin_ns, self.gates = begin_ns, make_gates(self.job, begin_ns)

    def send_due(self) -> None:
        """Send the due requests over free slots, opening more if needed; after the duration, end the plan."""
        if 0 < self.job.duration_ns <= self.now_ns() - self.begin_ns:
            self.out.count = self.out.next
        if self.job.offsets_ns is not None:
            self._send_open()
            return
        free, out = self.pool.free, self.out
        while free and out.next < out.count and self._passes():
            slot = free.popleft()
            self._take(slot, self._freed_ns(slot))
            self.send(slot)
            self.note_sent(slot)

    def _send_open(self) -> None:
        """Send due requests that the gates pass over free slots; if none is left, dial one more than wait."""
        pool, out = self.pool, self.out
        now_ns = self.now_ns()
        if out.next == out.count or (pool.free and out.due_ns(self.begin_ns) > now_ns):
            return
        while pool.free and out.next < out.count and (due_ns := out.due_ns(self.begin_ns)) <= now_ns:
            if not self._passes():
                return
            slot = pool.free.popleft()
            self._take(slot, due_ns)
            self.send(slot)
            self.note_sent(slot)
        if pool.free:
            return
        waiting, spare = out.count_waiting(self.begin_ns, now_ns), pool.dialing
        while spare <= waiting and len(pool.slots) - self.branches < self.job.most_places:  # one more
            pool.open()
            spare += 1

    def _passes(self) -> bool:
        """Whether all gates let one more request pass."""
        return not self.gates or all(gate.is_open(self.now_ns()) for gate in self.gates)

    def _freed_ns(self, slot: Slot) -> int:
        """Return since when (ns) a closed loop could have sent over a slot."""
        return max(slot.freed_ns, self.begin_ns, *(gate.opened_ns for gate in self.gates))

    def note_sent(self, slot: Slot) -> None:
        """Note that a slot's request went out for the first time."""
        self._note_gated(slot)
        if self.cancelling is not None:
            self.cancelling.note_sent(slot)

    def _note_gated(self, slot: Slot) -> None:
        for gate in self.gates:
            gate.note_sent(slot)

    def _take(self, slot: Slot, intended_ns: int) -> None:
        """Give the next request, which should go out at `intended_ns`, to a slot; count it as sent."""
        slot.index, slot.request = self.out.take()
        slot.intended_ns = intended_ns
        self.counters.publish_sent(self.out.next)

    def take_unsent(self, slot: Slot) -> None:
        """Give a slot whose connection failed the request that is due, if any, so that it fails with it."""
        if not (self.begin_ns and self.out.next < self.out.count and self._passes()):
            return
        closed_loop = self.job.offsets_ns is None
        due_ns = self._freed_ns(slot) if closed_loop else self.out.due_ns(self.begin_ns)
        if due_ns <= self.now_ns():
            self._take(slot, due_ns)
            self._note_gated(slot)

    def note_ended(self, slot: Slot, failure: Failure | None, end_ns: int) -> None:
        """Note that a slot's request ended, and with which failure."""
        for gate in self.gates:
            gate.note_ended(end_ns)

    def take_free(self, slot: Slot) -> None:
        """Add a slot that is connected and has no request to the free ones."""
        self.pool.free.append(slot)

    def redial_ns(self, slot: Slot) -> int:
        """Return when (ns) to reconnect a slot; 0: no request is left for it."""
        return self.now_ns() if self.out.next < self.out.count else 0

    def wait_ns(self) -> int:
        """Return how long (ns) until there may be something to send or cancel that no socket event shows."""
        now_ns = self.now_ns()
        wait_ns = NEVER_NS if self.cancelling is None else self.cancelling.wait_ns(now_ns)
        if not self.pool.free or self.out.next == self.out.count:
            return wait_ns
        if not self._passes():
            return min(wait_ns, *(gate.wait_ns(now_ns) for gate in self.gates))
        due_ns = now_ns if self.job.offsets_ns is None else self.out.due_ns(self.begin_ns)
        return min(wait_ns, due_ns - now_ns - SPIN_NS)


def make_sender(
    job: Job, pool: Pool, counters: Counters, send: Callable[[Slot], None]
) -> tuple[Outgoing, Sender]:
    """Make a job's outgoing requests, and the sender that gives them to the slots of a pool."""
    out = Outgoing(job)
    return out, Sender(job, pool, out, counters, send)

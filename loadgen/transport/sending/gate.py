"""Gate: a limit that holds a request back though it is due and a connection is free for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from loadgen.settings.load_schedule import ConcurrencySteps
from loadgen.transport.deadlines import Stream, find_unfinished_read
from loadgen.transport.sending.job import Job

NEVER_NS = 1 << 62
_SCAN_NS = 1_000_000  # between two searches for first tokens: more often would find nothing new
SPIN_NS = 1_200_000  # an epoll sleeps whole milliseconds, rounded up: the last one is spun


class Gate(Protocol):
    """One limit on the requests under way; all times are nanoseconds of one clock."""

    opened_ns: int  # when it last began to let a request pass; 0: it never held one back

    def is_open(self, now_ns: int) -> bool:
        """Whether one more request may be sent."""
        ...

    def wait_ns(self, now_ns: int) -> int:
        """How long to wait before asking again, where it did not open and no request ends before."""
        ...

    def note_sent(self, stream: Stream) -> None:
        """Note a request that was sent, or that ended in the attempt."""
        ...

    def note_ended(self, end_ns: int) -> None:
        """Note that a request ended."""
        ...


class ConcurrencyGate:
    """A limit on the requests under way that changes over time; what is under way is never cut."""

    def __init__(self, steps: ConcurrencySteps, begin_ns: int) -> None:
        self.steps, self.begin_ns = steps, begin_ns
        self.opened_ns = self.under_way = 0
        self._shut = False
        self._changed_ns = self._ended_ns = 0
        self._limit, self._until_ns = 0, begin_ns

    def is_open(self, now_ns: int) -> bool:
        if now_ns >= self._until_ns:
            self._go_on(now_ns)
        if self.under_way >= self._limit:
            self._shut = True
        elif self._shut:
            self._shut = False
            self.opened_ns = max(self._changed_ns, self._ended_ns)
        return not self._shut

    def _go_on(self, now_ns: int) -> None:
        """Take the limit that holds now, since when it does, and until when."""
        while now_ns >= self._until_ns:
            self._changed_ns = self._until_ns
            next_ns = self.steps.next_ns(self._changed_ns - self.begin_ns)
            self._until_ns = NEVER_NS if next_ns < 0 else self.begin_ns + next_ns
        self._limit = self.steps.limit(self._changed_ns - self.begin_ns)

    def wait_ns(self, now_ns: int) -> int:
        return self._until_ns - now_ns - SPIN_NS

    def note_sent(self, stream: Stream) -> None:
        self.under_way += 1

    def note_ended(self, end_ns: int) -> None:
        self.under_way -= 1
        self._ended_ns = end_ns


@dataclass(slots=True)
class _Prefill:
    """A request that had no token when it was last examined."""

    stream: Stream
    index: int  # that the stream has while it is this request's
    scanned: int = 0  # reads in which no token is left to be found


class PrefillGate:
    """A limit on the requests that were sent and have no token yet.

    Pings and response heads do not count as tokens. Answers are searched only while the limit holds a request
    back, and at most once a millisecond.
    """

    def __init__(self, most: int, token_seen: Callable[[bytes], bool]) -> None:
        self.most, self.token_seen = most, token_seen
        self.opened_ns = self._ended_ns = self._scan_ns = 0
        self._prefills: list[_Prefill] = []

    def is_open(self, now_ns: int) -> bool:
        if len(self._prefills) >= self.most and now_ns >= self._scan_ns:
            self._scan_ns = now_ns + _SCAN_NS
            self._prefills = [prefill for prefill in self._prefills if self._goes_on(prefill)]
        return len(self._prefills) < self.most

    def _goes_on(self, prefill: _Prefill) -> bool:
        stream = prefill.stream
        if stream.index != prefill.index:
            self.opened_ns = max(self.opened_ns, self._ended_ns)
            return False
        reads = stream.list_since(prefill.scanned)
        if reads and self.token_seen(b"".join(reads)):
            self.opened_ns = max(self.opened_ns, stream.seen_at(prefill.scanned + len(reads) - 1))
            return False
        prefill.scanned += find_unfinished_read(reads)
        return True

    def wait_ns(self, now_ns: int) -> int:
        return _SCAN_NS

    def note_sent(self, stream: Stream) -> None:
        if stream.index >= 0:
            self._prefills.append(_Prefill(stream, stream.index))

    def note_ended(self, end_ns: int) -> None:
        self._ended_ns = end_ns


def make_gates(job: Job, begin_ns: int) -> tuple[Gate, ...]:
    """Make the gates of a job that began at that time; most have none."""
    gates: list[Gate] = []
    if job.concurrency_steps is not None:
        gates.append(ConcurrencyGate(job.concurrency_steps, begin_ns))
    if job.prefill_concurrency is not None:
        gates.append(PrefillGate(job.prefill_concurrency, job.token_seen))
    return tuple(gates)

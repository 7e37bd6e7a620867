"""Gate: limits beyond the number of slots that hold a due request back, and requests that are given up."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadgen.plan.planned_requests import Cancellations, ConcurrencySteps
from loadgen.transport.deadlines import Stream, find_unfinished_read
from loadgen.transport.sending.job import SPIN_NS, Job

NEVER_NS = 1 << 62
_SCAN_NS = 1_000_000  # between two searches for first tokens: more often would find nothing new
_COUNT_NS = 2_000_000  # between two counts of tokens
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")


class Gate(Protocol):
    """A limit on the requests in flight that may hold due requests back; times are ns of one clock."""

    opened_ns: int  # when it last began to let a request pass; 0: it never held one back

    def is_open(self, now_ns: int) -> bool:
        """Whether one more request may be sent now."""

    def wait_ns(self, now_ns: int) -> int:
        """How long to wait before calling `is_open` again if no request ends before."""

    def note_sent(self, stream: Stream) -> None:
        """Note a request that is sent now, or fails at once; its `sent_ns` may not be set yet."""

    def note_ended(self, end_ns: int) -> None:
        """Note that a request ended."""


class ScheduleGate:
    """Limits requests in flight by a schedule of concurrency; those in flight are never cut."""

    def __init__(self, steps: ConcurrencySteps, begin_ns: int) -> None:
        self.steps, self.begin_ns = steps, begin_ns
        self.opened_ns = self.under_way = 0
        self._shut = False
        self._changed_ns = self._ended_ns = 0
        self._limit, self._until_ns = 0, begin_ns

    def is_open(self, now_ns: int) -> bool:
        """Whether fewer are in flight than the schedule allows now; sets `opened_ns` if it was shut."""
        if now_ns >= self._until_ns:
            while now_ns >= self._until_ns:
                self._changed_ns = self._until_ns
                next_ns = self.steps.next_ns(self._changed_ns - self.begin_ns)
                self._until_ns = NEVER_NS if next_ns < 0 else self.begin_ns + next_ns
            self._limit = self.steps.limit(self._changed_ns - self.begin_ns)
        if self.under_way >= self._limit:
            self._shut = True
        elif self._shut:
            self._shut = False
            self.opened_ns = max(self._changed_ns, self._ended_ns)
        return not self._shut

    def wait_ns(self, now_ns: int) -> int:
        return self._until_ns - now_ns - SPIN_NS

    def note_sent(self, stream: Stream) -> None:
        self.under_way += 1

    def note_ended(self, end_ns: int) -> None:
        self.under_way -= 1
        self._ended_ns = end_ns


class PrefillGate:
    """Limits the requests in flight that have no token yet.

    Pings and response heads do not count as tokens. Answers are searched only while the limit holds a request
    back, and at most once a millisecond.
    """

    def __init__(self, most: int, token_seen: Callable[[bytes], bool]) -> None:
        self.most, self.token_seen = most, token_seen
        self.opened_ns = self._ended_ns = self._scan_ns = 0
        # Requests in flight without a token when last searched for one: the index that the stream has while
        # it is this request's, and the reads in which no token is left to be found.
        self._prefills: list[tuple[Stream, int, int]] = []

    def is_open(self, now_ns: int) -> bool:
        """Whether fewer than `most` lack a token; at the limit their new reads are searched for one."""
        if len(self._prefills) >= self.most and now_ns >= self._scan_ns:
            self._scan_ns = now_ns + _SCAN_NS
            prefills, self._prefills = self._prefills, []
            for stream, index, scanned in prefills:
                if stream.index != index:
                    self.opened_ns = max(self.opened_ns, self._ended_ns)
                    continue
                reads = stream.list_since(scanned)
                if reads and self.token_seen(b"".join(reads)):
                    self.opened_ns = max(self.opened_ns, stream.seen_at(scanned + len(reads) - 1))
                    continue
                self._prefills.append((stream, index, scanned + find_unfinished_read(reads)))
        return len(self._prefills) < self.most

    def wait_ns(self, now_ns: int) -> int:
        return _SCAN_NS

    def note_sent(self, stream: Stream) -> None:
        if stream.index >= 0:
            self._prefills.append((stream, stream.index, 0))

    def note_ended(self, end_ns: int) -> None:
        self._ended_ns = end_ns


def make_gates(job: Job, begin_ns: int) -> tuple[Gate, ...]:
    """Make the gates of a job that began at `begin_ns`; most jobs have none."""
    gates: list[Gate] = []
    if job.concurrency_steps is not None:
        gates.append(ScheduleGate(job.concurrency_steps, begin_ns))
    if job.max_requests is not None:
        always = ConcurrencySteps(np.zeros(1, np.int64), np.array([job.max_requests]))
        gates.append(ScheduleGate(always, begin_ns))
    if job.prefill_concurrency is not None:
        gates.append(PrefillGate(job.prefill_concurrency, job.token_seen))
    return tuple(gates)


@dataclass(slots=True)
class _Counted:
    """A request in flight whose messages with text are counted."""

    stream: Stream
    index: int
    most: int  # tokens
    reads: int = 0  # that were searched
    rest: bytes = b""  # of them, that may be the begin of a message
    tokens: int = 0


class Cancelling:
    """Selects the requests in flight to cancel as planned; times are nanoseconds of one clock.

    A request is cancelled a time after it was sent, or once enough messages with text have come, which are
    counted every two milliseconds.
    """

    def __init__(self, cancellations: Cancellations, count: Callable[[bytes], int]) -> None:
        self.cancellations, self.count = cancellations, count
        # Due time, number among all, plan index, and how long after it was sent.
        self._waiting: list[tuple[int, int, int, int, Stream]] = []
        self._numbers = itertools.count()
        self._counted: list[_Counted] = []
        self._scan_ns = 0

    def note_sent(self, stream: Stream) -> None:
        """Note a sent request, which may be one to cancel; if it is sent again, the last time counts."""
        if (index := stream.index) < 0:
            return
        point = self.cancellations.find_point(index)
        if after_ns := point.after_ns:
            due = stream.sent_ns + after_ns, next(self._numbers), index, after_ns, stream
            heapq.heappush(self._waiting, due)
        known = any(counted.stream is stream and counted.index == index for counted in self._counted)
        if point.after_tokens and not known:
            self._counted.append(_Counted(stream, index, point.after_tokens))

    def take_due(self, now_ns: int) -> list[Stream]:
        """Return the requests to cancel now, each once."""
        due: list[Stream] = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            _, _, index, after_ns, stream = heapq.heappop(self._waiting)
            if stream.index == index and stream.sent_ns + after_ns <= now_ns:  # else it ended or was resent
                due.append(stream)
        if self._counted and now_ns >= self._scan_ns:
            self._scan_ns = now_ns + _COUNT_NS
            self._counted = [counted for counted in self._counted if counted.stream.index == counted.index]
            for counted in self._counted:
                self._count_tokens(counted)
            due += [counted.stream for counted in self._counted if counted.tokens >= counted.most]
            self._counted = [counted for counted in self._counted if counted.tokens < counted.most]
        return due

    def _count_tokens(self, counted: _Counted) -> None:
        """Add the messages with text that new reads completed; a begun message waits in `rest`."""
        if not (reads := counted.stream.list_since(counted.reads)):
            return
        counted.reads += len(reads)
        data = counted.rest + b"".join(reads)
        end = max((data.rfind(ending) + len(ending) for ending in _EVENT_ENDS if ending in data), default=0)
        counted.tokens += self.count(data[:end])
        counted.rest = data[end:]

    def wait_ns(self, now_ns: int) -> int:
        """How long to wait before calling `take_due` again if nothing arrives before."""
        waiting = self._waiting
        while waiting and waiting[0][-1].index != waiting[0][2]:  # it ended by itself
            heapq.heappop(waiting)
        timed_ns = waiting[0][0] - now_ns - SPIN_NS if waiting else NEVER_NS
        return min(timed_ns, _COUNT_NS) if self._counted else timed_ns


def make_cancelling(job: Job) -> Cancelling | None:
    """Make what selects the requests of a job to cancel; None if it cancels none."""
    return None if job.cancellations is None else Cancelling(job.cancellations, job.token_messages)

"""Cancelling: the requests under way that the plan gives up now."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from loadgen.plan.cancellations import Cancellations
from loadgen.transport.deadlines import Stream
from loadgen.transport.sending.gate import NEVER_NS, SPIN_NS
from loadgen.transport.sending.job import Job

_SCAN_NS = 2_000_000  # between two counts of tokens
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")


class Cancelling(Protocol):
    """The requests under way that are to be given up; all times are nanoseconds of one clock."""

    def note_sent(self, stream: Stream) -> None:
        """Note a request that was sent, or sent again: the last time of sending counts."""
        ...

    def take_due(self, now_ns: int) -> list[Stream]:
        """Take the requests that are to be given up now, each once."""
        ...

    def wait_ns(self, now_ns: int) -> int:
        """How long to wait before asking again, where nothing comes before."""
        ...


class AfterTime:
    """Gives a request up some time after it was sent."""

    def __init__(self, cancellations: Cancellations) -> None:
        self.chosen, self.after_ns = cancellations.chosen, cancellations.point.after_ns
        self._waiting: deque[tuple[int, Stream, int]] = deque()  # when it is due, and its plan index

    def note_sent(self, stream: Stream) -> None:
        if stream.index >= 0 and self.chosen[stream.index]:
            self._waiting.append((stream.sent_ns + self.after_ns, stream, stream.index))

    def take_due(self, now_ns: int) -> list[Stream]:
        due: list[Stream] = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            _, stream, index = self._waiting.popleft()
            if stream.index == index and stream.sent_ns + self.after_ns <= now_ns:
                due.append(stream)
        return due

    def wait_ns(self, now_ns: int) -> int:
        waiting = self._waiting
        while waiting and waiting[0][1].index != waiting[0][2]:  # it ended by itself
            waiting.popleft()
        return waiting[0][0] - now_ns - SPIN_NS if waiting else NEVER_NS


@dataclass(slots=True)
class _Counted:
    """A request whose messages with text are counted."""

    stream: Stream
    index: int
    reads: int = 0  # that were searched
    rest: bytes = b""  # of them, that may be the begin of a message
    tokens: int = 0


class AfterTokens:
    """Gives a request up once enough messages with text have come, as found every two milliseconds."""

    def __init__(self, cancellations: Cancellations, count: Callable[[bytes], int]) -> None:
        self.chosen, self.most, self.count = cancellations.chosen, cancellations.point.after_tokens, count
        self._counted: list[_Counted] = []
        self._scan_ns = 0

    def note_sent(self, stream: Stream) -> None:
        known = any(counted.stream is stream and counted.index == stream.index for counted in self._counted)
        if stream.index >= 0 and self.chosen[stream.index] and not known:
            self._counted.append(_Counted(stream, stream.index))

    def take_due(self, now_ns: int) -> list[Stream]:
        if now_ns < self._scan_ns or not self._counted:
            return []
        self._scan_ns = now_ns + _SCAN_NS
        self._counted = [counted for counted in self._counted if counted.stream.index == counted.index]
        for counted in self._counted:
            self._scan(counted)
        due = [counted.stream for counted in self._counted if counted.tokens >= self.most]
        if due:
            self._counted = [counted for counted in self._counted if counted.tokens < self.most]
        return due

    def _scan(self, counted: _Counted) -> None:
        reads = counted.stream.list_since(counted.reads)
        if not reads:
            return
        counted.reads += len(reads)
        data = counted.rest + b"".join(reads)
        ends = (data.rfind(ending) + len(ending) for ending in _EVENT_ENDS if ending in data)
        end = max(ends, default=0)
        counted.tokens += self.count(data[:end])
        counted.rest = data[end:]

    def wait_ns(self, now_ns: int) -> int:
        return _SCAN_NS if self._counted else NEVER_NS


def make_cancelling(job: Job) -> Cancelling | None:
    """Make what gives up requests of a job; None where it gives up none."""
    cancellations = job.cancellations
    if cancellations is None:
        return None
    if cancellations.point.after_tokens:
        return AfterTokens(cancellations, job.token_messages)
    return AfterTime(cancellations)

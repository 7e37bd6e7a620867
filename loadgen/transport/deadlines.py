"""Deadlines: when a request has taken too long, for every transport alike."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from loadgen.base.clock import SECOND_NS
from loadgen.transport.capture import Capture
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.sending.job import Job

_STOPPED_NS = SECOND_NS  # a sweep that comes so much later than due was not late, but stopped
# An idle connection that the server closes while a request is on its way is lost within a round trip. What
# is lost later was in the server's hands: to send it again would hide a failure, and the time it cost.
_RACE_NS = 100_000_000
_LOOK_EVERY_NS = 10_000_000_000  # so that one search has little to read, no matter what a stream sends
_LOOKS_NS = 2_000_000  # for the searches of one sweep that can wait: other streams are unread meanwhile
_MOST_BYTES = 1 << 20  # of one search: no message of a token is longer
_MOST_READS = 1024  # over which a message that has begun is searched for
_WIDER = 4  # each window is this many times as wide as the one before: a third is read twice, no more


class Deadlines:
    """Decides when requests time out or stall, not counting the time that this process was stopped.

    A stream without a recent token is found by searching each byte about once.
    """

    def __init__(
        self, job: Job, streams: Callable[[], Iterable[Stream]], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.limits, self.token_seen, self.streams, self.now_ns = job.limits, job.token_seen, streams, now_ns
        self.stopped_ns = 0  # the longest time in which nothing ran
        # A stream is checked for tokens this often, not for its deadline alone.
        self.inspect_ns = min(SECOND_NS, job.limits.stall_timeout_ns // 4 or SECOND_NS)
        self.every_ns = min(_LOOK_EVERY_NS, job.limits.stall_timeout_ns // 4)
        self.token_ns = 0  # when a stream last got a token, as far as is known
        self._swept_ns = self._searched_ns = self._spent_ns = 0

    def put_off(self, late_ns: int, now_ns: int) -> bool:
        """Note how late a sweep comes; if this process was stopped, extend all deadlines and return True.

        A process that was stopped (Ctrl-Z, a paused container, a suspended machine) finds deadlines passed
        whose answers lie unread in its sockets: the time counts against no request, and --stall-timeout
        begins again.
        """
        self.stopped_ns = max(self.stopped_ns, late_ns)
        if late_ns < _STOPPED_NS:
            return False
        for stream in self.streams():
            stream.excused_ns += late_ns
            stream.progress_ns = now_ns
        return True

    def find_timeout(self, stream: Stream, now_ns: int) -> Failure | None:
        """Return the failure of a request that has exceeded --request-timeout; None if it has not."""
        limit_ns = self.limits.request_timeout_ns
        if limit_ns and now_ns - stream.sent_ns - stream.excused_ns > limit_ns:
            return Failure(FailureKind.TIMEOUT, f"not finished within {self.limits.timeout_flag}")
        return None

    def find_stall(self, stream: Stream, now_ns: int) -> Failure | None:
        """Return the failure of a stream that got no token for --stall-timeout; searches its new reads.

        One without its first token may be waiting in the server's queue: it is stalled only when no other
        stream got a token either. Reads that need no answer yet are searched for 2 ms of a sweep at most.
        """
        if not self.limits.stall_timeout_ns:
            return None
        if self._is_overdue(stream, now_ns):
            self._search(stream, now_ns)
            if not stream.begun and self._is_overdue(stream, now_ns) and self._searched_ns != now_ns:
                self._searched_ns = now_ns
                for other in self.streams():
                    self._search(other, now_ns)
                    if now_ns - self.token_ns <= self.limits.stall_timeout_ns:
                        break
            if self._is_overdue(stream, now_ns):
                return Failure(FailureKind.STALL, "no token within --stall-timeout")
        elif now_ns - max(stream.looked_ns, stream.progress_ns) > self.every_ns:
            if self._swept_ns != now_ns:
                self._swept_ns, self._spent_ns = now_ns, 0
            if self._spent_ns < _LOOKS_NS:
                self._search(stream, now_ns)
        return None

    def _is_overdue(self, stream: Stream, now_ns: int) -> bool:
        last_ns = stream.progress_ns if stream.begun else max(stream.progress_ns, self.token_ns)
        return now_ns - last_ns > self.limits.stall_timeout_ns

    def _search(self, stream: Stream, now_ns: int) -> None:
        """Search a stream's new reads for its last token, once per sweep, and note when that came."""
        if stream.looked_ns == now_ns:
            return
        stream.looked_ns, began_ns = now_ns, self.now_ns()
        reads = stream.list_since(stream.scanned)
        read = find_last_token_read(reads, self.token_seen)
        if read is not None:
            stream.begun = True
            stream.progress_ns = max(stream.progress_ns, stream.seen_at(stream.scanned + read))
            self.token_ns = max(self.token_ns, stream.progress_ns)
            stream.scanned += read
        else:
            stream.scanned += find_unfinished_read(reads)
        self._spent_ns += self.now_ns() - began_ns


def is_closed_while_idle(stream: Stream, now_ns: int) -> bool:
    """Whether a request whose connection was lost was sent at most 0.1 s ago, so that it may be sent again.

    The caller checks that the connection had served before, and that no byte came.
    """
    return now_ns - stream.sent_ns - stream.excused_ns <= _RACE_NS


def fail_unanswered(stream: Stream, now_ns: int, error: Exception | None) -> Failure:
    """Make the TRUNCATED failure of a request without a byte of an answer; `error` None: it was closed."""
    after_s = (now_ns - stream.sent_ns) / SECOND_NS
    why = f" ({error})" if error is not None and str(error) else ""
    detail = f"the connection was closed after {after_s:.2f} s without a byte of a response{why}"
    return Failure(FailureKind.TRUNCATED, detail)


@dataclass(eq=False, kw_only=True, slots=True)
class Stream:
    """A request in flight, as every transport sees it; times are nanoseconds."""

    index: int = -1  # position in the plan; -1: none
    intended_ns: int = 0
    sent_ns: int = 0
    excused_ns: int = 0  # for how long this process was stopped meanwhile
    resends: int = 0
    begun: bool = False  # a token was seen
    progress_ns: int = 0  # when the last token came, as far as is known; when it was sent
    looked_ns: int = 0  # when its tokens were last searched for
    scanned: int = 0  # reads in which no token is left to be found
    inspect_ns: int = 0  # when it is to be checked for tokens again

    def make_capture(self, slot: int, end_ns: int, **more: Any) -> Capture:
        """Make a capture of the request; `more` are further fields."""
        return Capture(self.index, slot, self.intended_ns, self.sent_ns, end_ns, resends=self.resends, **more)

    def list_since(self, count: int) -> list[bytes]:
        """Return the reads after the first `count`."""
        raise NotImplementedError

    def seen_at(self, read: int) -> int:
        """Return when the client had received a read (ns)."""
        raise NotImplementedError


def find_last_token_read(reads: list[bytes], token_seen: Callable[[bytes], bool]) -> int | None:
    """Find the index of the read in which the last complete token came; None if none did.

    A message may begin in one read and end in a later one, so reads are not judged one by one: the last one,
    then the last few, then more, each time so much more that all of it stays in proportion to their bytes.
    """
    count, wide, begin, size = len(reads), 1, len(reads), 0
    seen = False
    while begin > 0 and size <= _MOST_BYTES and not seen:
        after, begin = begin, max(count - wide, 0)
        size += sum(map(len, reads[begin:after]))
        seen = token_seen(b"".join(reads[begin:]))
        wide *= _WIDER
    if not seen:
        return None
    # The last read to begin with is found, then the first to end with: those between have it all.
    each = range(count)
    first = bisect_left(each, True, begin + 1, after, key=lambda i: not token_seen(b"".join(reads[i:]))) - 1
    return bisect_left(each, True, first, count - 1, key=lambda i: token_seen(b"".join(reads[first : i + 1])))


def find_unfinished_read(reads: list[bytes]) -> int:
    """Return the index of the last of the last 1024 reads with an event's end, else of the first of these."""
    least = max(len(reads) - _MOST_READS, 0)
    ended = (i for i in range(len(reads) - 1, least, -1) if b"\n\n" in reads[i] or b"\r\n\r\n" in reads[i])
    return next(ended, least)

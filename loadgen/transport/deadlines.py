"""Deadlines: when a request under way has taken too long, the same for both transports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from loadgen.base.clock import SECOND_NS
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.job import Job
from loadgen.transport.stalls import Stalls, Stream

_STOPPED_NS = SECOND_NS  # a sweep that comes so much later than due was not late, but stopped
# An idle connection that the server closes while a request is on its way is lost within a round trip. What
# is lost later was in the server's hands: to send it again would hide a failure, and the time it cost.
_RACE_NS = 100_000_000


class Deadlines:
    """Gives up on requests for the server's delays, never for those of this process."""

    def __init__(
        self, job: Job, streams: Callable[[], Iterable[Stream]], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.limits, self.streams = job.limits, streams
        self.stalls = Stalls(job.limits.stall_timeout_ns, job.token_seen, streams, now_ns)
        self.stopped_ns = 0  # the longest time in which nothing ran
        # How often a stream is checked for tokens, not for its deadline alone.
        self.inspect_ns = min(SECOND_NS, job.limits.stall_timeout_ns // 4 or SECOND_NS)

    def put_off(self, late_ns: int, now_ns: int) -> bool:
        """Note how much later than due a sweep comes; whether nothing may be judged before the next one.

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

    def timed_out(self, stream: Stream, now_ns: int) -> Failure | None:
        """The failure of a request that took longer than --request-timeout."""
        limit_ns = self.limits.request_timeout_ns
        if limit_ns and now_ns - stream.sent_ns - stream.excused_ns > limit_ns:
            return Failure(FailureKind.TIMEOUT, f"not finished within {self.limits.timeout_flag}")
        return None

    def stalled(self, stream: Stream, now_ns: int) -> Failure | None:
        """The failure of a stream without a token for --stall-timeout."""
        if self.stalls.stalled(stream, now_ns):
            return Failure(FailureKind.STALL, "no token within --stall-timeout")
        return None


def closed_while_idle(stream: Stream, now_ns: int) -> bool:
    """Whether a kept connection was lost so soon after a request that no answer can have begun.

    For the caller to know: that the connection had served before, and that no byte came.
    """
    return now_ns - stream.sent_ns - stream.excused_ns <= _RACE_NS


def unanswered(stream: Stream, now_ns: int, error: Exception | None) -> Failure:
    """The failure of a request whose connection was lost without a byte of an answer."""
    after_s = (now_ns - stream.sent_ns) / SECOND_NS
    why = f" ({error})" if error is not None and str(error) else ""
    detail = f"the connection was closed after {after_s:.2f} s without a byte of an answer{why}"
    return Failure(FailureKind.TRUNCATED, detail)

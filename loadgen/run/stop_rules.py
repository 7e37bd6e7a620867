"""Stop rules: when a run is to end before its plan, decided from its failures and from time alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadgen.base.clock import SECOND_NS
from loadgen.base.text import format_count
from loadgen.settings.run_settings import DEAD, DRAIN_S, Tolerance
from loadgen.transport.failure import NO_EVIDENCE, Failure, FailureKind

if TYPE_CHECKING:
    from loadgen.run.saturation import SaturationRule


@dataclass
class StopRules:
    """The rules of one run, and what they have seen of it.

    Each request is noted as it ends, and `reason` is polled a few times a second. A cancelled request, or
    one lost with the process that sent it, is no evidence about the server, and is not counted.
    """

    max_failures: Tolerance | None = None
    max_consecutive: int | None = None  # None: DEAD of them, while there is no success; 0: no such rule
    max_duration_s: float | None = None
    drain_s: float = DRAIN_S
    saturation: SaturationRule | None = None
    sessions: bool = False  # whose conversations grow to the model's context limit: that is no failure
    saturated: bool = field(default=False, init=False)  # that is why it ended
    ended: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    in_a_row: int = field(default=0, init=False)
    last: Failure | None = field(default=None, init=False)
    fired: str = field(default="", init=False)  # the first reason that there was

    @property
    def cut_after_s(self) -> float | None:
        """After how long what is still under way is cut; None: never."""
        return None if self.max_duration_s is None else self.max_duration_s + self.drain_s

    def duration_ns(self, planned_ns: int) -> int:
        """For how long requests are sent, given the workload's own duration; 0: no limit, as `Job` has it."""
        if self.max_duration_s is None:
            return planned_ns
        most_ns = int(self.max_duration_s * SECOND_NS)
        return min(planned_ns, most_ns) if planned_ns else most_ns

    def note(self, failure: Failure | None, count: int = 1) -> None:
        """Count a request that has ended, or several in a row; None: it succeeded."""
        if failure is not None and failure.kind in NO_EVIDENCE:
            return
        if self.sessions and failure is not None and failure.kind is FailureKind.CONTEXT_LIMIT:
            return
        self.ended += count
        self.failed += count * (failure is not None)
        self.in_a_row = self.in_a_row + count if failure is not None else 0
        self.last = failure or self.last

    def reason(self, elapsed_s: float, under_way: int = 0) -> str:
        """Why the run is to end now, "" where it is to go on; once there was a reason it stays.

        `elapsed_s` is since the first request could be sent, `under_way` how many requests would be cut.
        """
        self.fired = (
            self.fired
            or self._failures()
            or self._time(elapsed_s, under_way)
            or self._saturation(elapsed_s, under_way)
        )
        return self.fired

    def summary(self, elapsed_s: float, not_sent: int, planned_ns: int = 0) -> str:
        """Which rule ended the run, once it is over; "" where none did.

        Where everything under way ended in time there was nothing to cut, and it is the `not_sent` requests
        of the plan that say that --max-duration ended it; of a plan without a number of requests, the time
        for which it sends.
        """
        limit_s = self.max_duration_s
        if self.fired or limit_s is None or elapsed_s < limit_s:
            return self.fired
        left_s = planned_ns / SECOND_NS - limit_s
        if not (not_sent or left_s > 0):
            return ""
        left = f"{format_count(not_sent, 'request')}" if not_sent else f"those of the last {left_s:g} s"
        return f"--max-duration {limit_s:g} s: {left} were not sent; what was under way ended"

    def _failures(self) -> str:
        last = f", the last with {self.last.kind}: {self.last.detail}".rstrip(": ") if self.last else ""
        tolerance, row = self.max_failures, self.max_consecutive
        if tolerance is not None and tolerance.exceeded(self.failed, self.ended):
            return f"--max-failures {tolerance}: {self.failed} of {self.ended} requests failed{last}"
        if row is None and self.failed == self.ended >= DEAD:
            return f"the first {self.failed} requests all failed{last} (--max-consecutive-failures 0 goes on)"
        if row and self.in_a_row >= row:
            return (
                f"--max-consecutive-failures {row}: {format_count(self.in_a_row, 'request')} in a row "
                f"failed{last}"
            )
        return ""

    def _saturation(self, elapsed_s: float, under_way: int) -> str:
        shown = "" if self.saturation is None else self.saturation.reason(elapsed_s, under_way)
        self.saturated = bool(shown)
        return f"--stop-when-saturated: {shown}" if shown else ""

    def _time(self, elapsed_s: float, under_way: int) -> str:
        if self.cut_after_s is None or elapsed_s < self.cut_after_s:
            return ""
        still = f"still under way after the --drain-timeout of {self.drain_s:g} s"
        verb = "was" if under_way == 1 else "were"
        return (
            f"--max-duration {self.max_duration_s:g} s: {format_count(under_way, 'request')} {still} "
            f"{verb} cut"
        )

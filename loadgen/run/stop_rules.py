"""Stop rules: what ends a run before its plan: failures, time, and a saturated server."""

from __future__ import annotations

import math

import msgspec

from loadgen.base.clock import SECOND_NS
from loadgen.base.text import format_count
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile
from loadgen.records.record import Record
from loadgen.run.command.options import Options
from loadgen.run.command.progress import SentCounters
from loadgen.run.saturation_rule import BegunRequest, SaturationRule
from loadgen.settings.run_settings import DEAD, DRAIN_S, Tolerance
from loadgen.transport.failure import NO_EVIDENCE, Failure, FailureKind


class StopRules(msgspec.Struct):
    """The rules that may end one run early, and what they have seen of it.

    Each request is noted as it ends, and `reason` is polled a few times a second. A cancelled request, or one
    lost with the process that sent it, is no evidence about the server, and is not counted.
    """

    max_failures: Tolerance | None = None
    max_consecutive: int | None = None  # None: DEAD of them, while there is no success; 0: no such rule
    max_duration_s: float | None = None
    drain_s: float = DRAIN_S
    saturation: SaturationRule | None = None
    sessions: bool = False  # whose conversations grow to the model's context limit: that is no failure
    saturated: bool = False  # that is why it ended
    ended: int = 0
    failed: int = 0
    in_a_row: int = 0
    last: Failure | None = None
    fired: str = ""  # the first reason that there was

    @property
    def cut_after_s(self) -> float | None:
        """Seconds after which requests in flight are cut off; None: never."""
        return None if self.max_duration_s is None else self.max_duration_s + self.drain_s

    def duration_ns(self, planned_ns: int) -> int:
        """Return for how long to send requests, given the plan's own limit; 0: no limit."""
        if self.max_duration_s is None:
            return planned_ns
        most_ns = int(self.max_duration_s * SECOND_NS)
        return min(planned_ns, most_ns) if planned_ns else most_ns

    def note(self, failure: Failure | None, count: int = 1) -> None:
        """Count `count` ended requests of one outcome (None: success), if it is evidence about the server.

        Not counted are requests cancelled, or lost with a process, and turns of a session too long for the
        model.
        """
        if failure is not None and failure.kind in NO_EVIDENCE:
            return
        if self.sessions and failure is not None and failure.kind is FailureKind.CONTEXT_LIMIT:
            return
        self.ended += count
        self.failed += count * (failure is not None)
        self.in_a_row = self.in_a_row + count if failure is not None else 0
        self.last = failure or self.last

    def reason(self, elapsed_s: float, counters: SentCounters) -> str:
        """Return why the run must end now, "" if it goes on; a reason once given stays.

        `elapsed_s` is since the first request could be sent, `counters` are of requests sent and ended.
        """
        self.fired = self.fired or self._judge_failures()
        if self.fired or (self.max_duration_s is None and self.saturation is None):
            return self.fired
        under_way = max(counters.sent - counters.ended, 0)  # which would be cut
        if self.cut_after_s is not None and elapsed_s >= self.cut_after_s:
            still = f"still under way after the --drain-timeout of {self.drain_s:g} s"
            verb = "was" if under_way == 1 else "were"
            cut = f"{format_count(under_way, 'request')} {still} {verb} cut"
            self.fired = f"--max-duration {self.max_duration_s:g} s: {cut}"
        if not self.fired and self.saturation is not None:
            shown = self.saturation.reason(elapsed_s, under_way)
            self.saturated = bool(shown)
            self.fired = f"--stop-when-saturated: {shown}" if shown else ""
        return self.fired

    def summarize(self, elapsed_s: float, not_sent: int, planned_ns: int = 0) -> str:
        """Return which rule ended a run that is over; "" if none did.

        It is the rule that fired. If none did, --max-duration ended a run that took as long if `not_sent`
        requests were left, or `planned_ns` is longer; what was under way had then ended by itself.
        """
        limit_s = self.max_duration_s
        if self.fired or limit_s is None or elapsed_s < limit_s:
            return self.fired
        left_s = planned_ns / SECOND_NS - limit_s
        if not (not_sent or left_s > 0):
            return ""
        left = f"{format_count(not_sent, 'request')}" if not_sent else f"those of the last {left_s:g} s"
        return f"--max-duration {limit_s:g} s: {left} were not sent; what was under way ended"

    def _judge_failures(self) -> str:
        """Explain which rule on failures ends the run; "" if none does."""
        last = f", the last with {self.last.kind}: {self.last.detail}".rstrip(": ") if self.last else ""
        tolerance, row = self.max_failures, self.max_consecutive
        if tolerance is not None and tolerance.is_exceeded(self.failed, self.ended):
            return f"--max-failures {tolerance}: {self.failed} of {self.ended} requests failed{last}"
        if row is None and self.failed == self.ended >= DEAD:
            return f"the first {self.failed} requests all failed{last} (--max-consecutive-failures 0 goes on)"
        if row and self.in_a_row >= row:
            return (
                f"--max-consecutive-failures {row}: {format_count(self.in_a_row, 'request')} in a row "
                f"failed{last}"
            )
        return ""


def read_begin(record: Record) -> BegunRequest | None:
    """Read when a request was sent and got its first token; None if it failed or got none."""
    if record.failure is not None or not len(record.arrival_ns):
        return None
    return record.index, record.sent_ns, int(record.arrival_ns[0])


def has_one_rate(profile: Profile) -> bool:
    """Whether a profile's load has a single constant rate of requests.

    That of a trace, a schedule, a ramp or bursts changes by itself; that of sessions is of their first turns.
    """
    changes = profile.timed or profile.shaped or profile.sends_sessions
    return math.isfinite(profile.request_rate) and not changes


def make_stop_rules(options: Options, plan: Plan | None = None) -> StopRules:
    """Make the stop rules of one run; saturation is judged only for a plan with one rate."""
    rules = StopRules(
        options.max_failures,
        options.max_consecutive_failures,
        options.max_duration_s,
        options.drain_timeout_s,
    )
    rules.sessions = plan is not None and plan.turns is not None
    if options.stop_when_saturated and plan is not None and has_one_rate(plan.profile) and not rules.sessions:
        rules.saturation = SaturationRule(plan.profile.request_rate)
    return rules

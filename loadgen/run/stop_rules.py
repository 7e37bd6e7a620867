"""Stop rules: what ends a run before its plan: failures, time, and a saturated server."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.text import format_count
from loadgen.plan.plan import Plan
from loadgen.plan.profile import Profile
from loadgen.records.record import Record
from loadgen.run.command.options import Options
from loadgen.run.command.progress import SentCounters
from loadgen.settings.run_settings import DEAD, DRAIN_S, Tolerance
from loadgen.transport.failure import NO_EVIDENCE, Failure, FailureKind

# A request's place in the plan, when it was sent, and when its first token came (ns).
BegunRequest = tuple[int, int, int]
LEAST = 40  # requests that have ended before anything is judged
_LEAST_JUDGED = 24  # of them in the window
_WINDOW = 2 / 3  # of the time in which they were sent: the first third may be a cold start
_TREND_Z = 5.0
_BLOCKS = 8
_LAG_T = 3.25
_LEAST_LAG = 0.1  # of the planned time between requests; and of the window, by which TTFT rises
_FLIGHT_SIGMAS = 2.0  # of a Poisson count, by which the requests in flight have risen
_PAIRED = 256  # requests of which each pair is compared
_HELD = 2048  # requests that are kept: of more, an even part
_EVERY_S = 0.5


class SaturationRule(msgspec.Struct):
    """Decides from an open loop's ended requests whether the server is saturated at the planned rate.

    Three signs must hold at once, each of which a healthy server shows too at times:

    * TTFT rises, by the trend test of Mann and Kendall over the requests in order of sending, and by a tenth
      of the window's length. It also rises in a burst.
    * Requests in flight rise by two standard deviations, as they do until the first answers end, and in a
      burst.
    * First tokens come over a tenth more slowly than the plan's rate sends requests, in successive blocks so
      evenly that Student's t of their lags shows it. A server that is catching up after a burst is faster
      than the plan; one that is idle may get fewer requests than planned, but then TTFT does not rise.
    """

    rate_per_s: float
    _begun: list[BegunRequest] = []
    _every: int = 1  # of the plan's requests that are kept
    _times_s: list[float] = []  # at which requests in flight were counted
    _flights: list[int] = []
    _judged_s: float = -math.inf

    def note_several(self, several: Iterable[BegunRequest]) -> None:
        """Keep ended requests that had a first token; of more than 2048, those of every 2nd, 4th, … index."""
        self._begun += [begun for begun in several if not begun[0] % self._every]
        while len(self._begun) > _HELD:
            self._every *= 2
            self._begun = [begun for begun in self._begun if not begun[0] % self._every]

    def reason(self, elapsed_s: float, in_flight: int) -> str:
        """Explain with figures that the server is saturated; "" if that is not shown, or not judged now.

        It is judged every 0.5 s at most, once 40 requests are kept; each time the number in flight is kept.
        `elapsed_s` is since the first request could be sent.
        """
        if elapsed_s - self._judged_s < _EVERY_S:
            return ""
        self._judged_s = elapsed_s
        self._times_s.append(elapsed_s)
        self._flights.append(in_flight)
        return self._judge(in_flight) if len(self._begun) >= LEAST else ""

    def _judge(self, in_flight: int) -> str:
        """Explain with figures that all three signs hold over the last two thirds of the sending.

        "" if one does not, or fewer than 24 requests were sent then.
        """
        rows = np.array(sorted(self._begun), np.int64)
        first_sent_ns, last_sent_ns = int(rows[0, 1]), int(rows[-1, 1])
        window_ns = int(_WINDOW * (last_sent_ns - first_sent_ns))
        index, sent_ns, first_ns = rows[rows[:, 1] >= last_sent_ns - window_ns].T
        if len(index) < _LEAST_JUDGED:
            return ""
        ttft_ns, block = first_ns - sent_ns, len(index) // _BLOCKS
        before_s, after_s = (float(np.median(part)) / 1e9 for part in (ttft_ns[:block], ttft_ns[-block:]))
        place = bisect_left(self._times_s, (int(sent_ns[0]) - first_sent_ns) / 1e9)
        before = self._flights[min(place, len(self._flights) - 1)]  # by the first count after that time
        share = measure_paces(index, first_ns) * self.rate_per_s
        lag = float(share.mean()) - 1
        shown = (
            in_flight - before > _FLIGHT_SIGMAS * math.sqrt(in_flight)
            and after_s - before_s > _LEAST_LAG * window_ns / 1e9
            and lag > _LEAST_LAG
            and lag * math.sqrt(_BLOCKS) > _LAG_T * float(share.std(ddof=1))
            and trend_z(ttft_ns) > _TREND_Z
        )
        if not shown:
            return ""
        return (
            f"TTFT rose from {before_s:.2f} to {after_s:.2f} s and requests in flight from {before} to "
            f"{in_flight}; first tokens came at {100 / (1 + lag):.0f} % of the rate of {self.rate_per_s:g} "
            "requests/s"
        )


def measure_paces(index: Int64, first_ns: Int64) -> Float64:
    """Compute the mean seconds between first tokens, float64[8], in each of 8 blocks of successive requests.

    It is the time from a block's first request to the next block's by their distance in the plan: requests
    between that have not ended count too.
    """
    edges = np.linspace(0, len(index) - 1, _BLOCKS + 1).astype(np.int64)
    paces_s: Float64 = np.diff(first_ns[edges]) / 1e9 / np.diff(index[edges])
    return paces_s


def trend_z(values: Int64) -> float:
    """Return Mann and Kendall's S of a series in standard deviations: 0 without a trend, > 0 if it rises.

    Of a series over 256 values an even part is compared.
    """
    some = values[:: math.ceil(len(values) / _PAIRED)]
    n = len(some)
    earlier, later = np.triu_indices(n, 1)
    rises = float(np.sign(some[later] - some[earlier]).sum())
    return rises / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


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

"""Evidence: figures of how a run went, from its records; the rules decide what is doubtful."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from loadgen.base.arrays import Bool, Float64, Int64, sum_exactly
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.rule import Find, Rule, Source
from loadgen.engines import engines
from loadgen.facts.run_facts import Calibration, Facts
from loadgen.figures import steady_state
from loadgen.figures.distribution import find_least_passing
from loadgen.figures.metrics import Metrics
from loadgen.figures.per_request import PerRequest
from loadgen.figures.session_rows import SessionRows, find_dry_ns, find_sessions
from loadgen.figures.steady_state import Unsteady
from loadgen.plan.planned_requests import RECORDED, Waits
from loadgen.plan.request_sources import MADE
from loadgen.records.record import Records
from loadgen.server.server_counters import ServerSample, ServerWindow
from loadgen.settings.data_settings import RANDOM
from loadgen.transport.failure import CUT_OFF, FailureKind

T = TypeVar("T")
LEAST_TOKENS = 8  # of an answer that is judged: fewer may well come at once (speculative decoding)
USAGE, COUNTERS = "usage", "the server's counters"  # who reports what a prefix cache held
LEAST_GAUGES = 5
_LEAST_OF_A_TAIL = 10  # requests
LATE_GAPS = 0.2  # of the mean gap
LEAST_WAVES, _MOST_WAVES = 8, 200  # the normal approximation of S is poor below; above, pairs only cost
_LEAST_LATER = 5
_TEMPLATED = ("/chat/completions", "/responses", "/messages")  # APIs
_TEMPLATE = 32  # tokens of a usual chat template, which every prompt begins with
_UNSTAMPED = 0.01  # the read of a response's end has no timestamp, so one per request is normal


class Trend(msgspec.Struct, frozen=True):
    """The result of a Mann-Kendall test for a monotonic trend in a series, with its Theil-Sen slope."""

    n: int
    probability: float  # of as strong a trend by chance: two-sided, normal approximation
    change: float  # slope × (n − 1) / median: the drift over the series, 0.1 is 10 %

    @classmethod
    def fit(cls, values: Sequence[float] | Float64) -> Trend | None:
        """Test a series in time for a trend; None if it is too short, or not positive.

        S = Σ sign(x_j − x_i) over i < j, Var(S) = n(n − 1)(2n + 5) / 18 (ties make it less: the test stays on
        the safe side), z = (S − sign S) / √Var(S).
        """
        series = np.asarray(values, np.float64)
        n = len(series)
        if n < LEAST_WAVES or not np.median(series) > 0:
            return None
        i, j = np.triu_indices(n, 1)
        rise = series[j] - series[i]
        s = float(np.sign(rise).sum())
        z = (s - math.copysign(1, s)) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18) if s else 0.0
        slope = float(np.median(rise / (j - i)))
        return cls(n, math.erfc(abs(z) / math.sqrt(2)), slope * (n - 1) / float(np.median(series)))


class FirstWave(msgspec.Struct, frozen=True):
    """The first requests of a run compared with those in its middle."""

    size: int
    first_ms: float  # median
    later_ms: float  # median
    ratio: float  # median of the first ÷ 90th percentile of the later ones, after what explains a difference
    waves: float  # that the later ones are


@cache
def least_samples(percentile: float) -> tuple[int, int]:
    """Return how many samples a percentile needs for a point, and for a bound at 99 % confidence.

    1 / (1 − q): one sample is expected beyond it; ln 0.01 / ln q: the largest sample lies beyond it in 99 %
    (Wilks 1941). Below the median the same holds for the other end; extremes need one.
    """
    q = max(percentile, 100 - percentile) / 100
    if q >= 1:
        return 1, 1
    return math.ceil(round(1 / (1 - q), 6)), find_least_passing(0, 100 * q)


def percent(share: float) -> str:
    """Format a share as percent with up to three digits, as 12.3 %."""
    return f"{100 * share:.3g} %"


def overlap_mean(begin_ns: Int64, end_ns: Int64, window: tuple[int, int]) -> float:
    """Compute the mean number of intervals open at once in a window (ns), by Little's law."""
    low, high = window
    inside = np.minimum(end_ns, high) - np.maximum(begin_ns, low)
    return float(sum_exactly(inside.clip(0))) / (high - low)


def sum_overlapping(begin_ns: Int64, end_ns: Int64, weight: Int64) -> Int64:
    """Sum, for each interval, the weights of all that overlap it, itself included: int64[intervals]."""
    starts, ends = np.argsort(begin_ns), np.argsort(end_ns)
    begun = np.concatenate([[0], np.cumsum(weight[starts])])
    over = np.concatenate([[0], np.cumsum(weight[ends])])
    total: Int64 = (
        begun[np.searchsorted(begin_ns[starts], end_ns, side="left")]
        - over[np.searchsorted(end_ns[ends], begin_ns, side="right")]
    )
    return total


def wave_medians(values: Float64, size: int) -> Float64:
    """Compute the median of each `size` successive values; an incomplete last wave is left out.

    Requests that ran together are alike, so they count as one observation.
    """
    whole = len(values) // size
    return np.median(values[: whole * size].reshape(whole, size), axis=1)


class AnswerShapes(msgspec.Struct, frozen=True):
    """Times (ns) and counts of each success with LEAST_TOKENS or more and a message, int64[answers]."""

    rows: Int64  # in the records
    tokens: Int64
    first_tokens: Int64  # of the first message; 0 where the tokens of each are not known
    messages: Int64
    instants: Int64  # at which messages came
    at_first: Int64  # messages that came at the first of them
    first_ns: Int64  # sent → first message
    span_ns: Int64  # first → last message
    second_ns: Int64  # first → second message; 0 where there is one
    text_late_ns: Int64  # first message → first text; 0 where it has text, or none has

    @classmethod
    def from_records(cls, records: Records) -> AnswerShapes:
        """Compute the times and counts of the answers in these records."""
        messages = np.diff(records.start)
        instants, first = np.zeros_like(messages), np.zeros_like(messages)
        at_first = np.zeros_like(messages)
        second, last, tokens = np.zeros_like(messages), np.zeros_like(messages), np.zeros_like(messages)
        for block in records.blocks():
            counts, begins = np.diff(block.start), block.start[:-1]
            some, rows = counts > 0, slice(block.first, block.last)
            moved = np.concatenate([[0], np.cumsum(np.diff(block.arrival_ns, prepend=0) != 0)])
            ends = block.start[1:]
            instants[rows][some] = 1 + moved[ends[some]] - moved[begins[some] + 1]
            first[rows][some] = block.arrival_ns[begins[some]]
            tokens[rows][some] = block.tokens[begins[some]]
            last[rows][some] = block.arrival_ns[ends[some] - 1]
            like_first = np.cumsum(block.arrival_ns == first[rows].repeat(counts))
            before = np.concatenate([[0], like_first])
            at_first[rows] = before[ends] - before[begins]
            second[rows][some] = block.arrival_ns[(begins + (counts > 1))[some]]
        judged: Bool = records.ok & (messages > 0) & (records.output_tokens >= LEAST_TOKENS)
        at = np.flatnonzero(judged)
        text_ns = np.where(records.text_ns == -1, first, records.text_ns)
        return cls(
            rows=at,
            tokens=records.output_tokens[at],
            first_tokens=np.where(records.exact_tokens > 0, tokens, 0)[at],
            messages=messages[at],
            instants=instants[at],
            at_first=at_first[at],
            first_ns=(first - records.sent_ns)[at],
            span_ns=(last - first)[at],
            second_ns=(second - first)[at],
            text_late_ns=(text_ns - first)[at],
        )

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)  # columns of numbers are not to be compared by accident
class MeasuredRun:
    """The facts and records of a run: what a `Result` and the evidence of its verdict have alike."""

    facts: Facts
    records: Records

    @cached_property
    def waits(self) -> Waits | None:
        """What the requests of sessions wait for; None: each for the one before it, or no sessions."""
        return self.facts.make_waits()

    @cached_property
    def sessions(self) -> SessionRows | None:
        """The sessions that the requests belong to; None if the run has no sessions."""
        turns = self.facts.session_turns
        return find_sessions(self.records, turns, self.waits) if turns else None

    @cached_property
    def parts(self) -> dict[Callable[[Any], Any], Any]:
        """What was derived from facts and records alone, by its function."""
        return {}

    def derive(self, make: Callable[[Self], T]) -> T:
        """Return make(self), computed once, also for the Result that is judged.

        `make` may read facts and records alone.
        """
        if make not in self.parts:
            self.parts[make] = make(self)
        part: T = self.parts[make]
        return part


@dataclass(frozen=True, eq=False)
class RunEvidence(MeasuredRun):
    """A run to be judged, and figures derived from it that the rules compare with their thresholds."""

    metrics: Metrics  # of all records
    quoted: Metrics | None = None  # those that are reported; None: the same
    parts: dict[Callable[[Any], Any], Any] = field(default_factory=dict)  # a Result's, where one is judged

    @cached_property
    def per_request(self) -> PerRequest:
        """The quantities of each request that figures are computed from."""
        return PerRequest.from_records(self.records, self.facts.ask())

    @cached_property
    def shapes(self) -> AnswerShapes:
        """Times and counts of the messages and tokens of each answer."""
        return AnswerShapes.from_records(self.records)

    @property
    def sources(self) -> set[Source]:
        """The kinds of data that this run has for rules to judge."""
        available = {
            Source.RUN: True,
            Source.COUNTERS: self.window is not None,
            Source.GAUGES: len(self.samples) >= LEAST_GAUGES,
            Source.SELFTEST: self.calibration is not None,
            Source.ROOFLINE: self.facts.ceiling is not None and self.facts.whole_load,
        }
        return {source for source, present in available.items() if present}

    @property
    def calibration(self) -> Calibration | None:
        """The self-test of the transport that this run used; None if there was none."""
        measured = self.facts.calibration
        return measured if measured and measured.transport == self.facts.client.transport else None

    @cached_property
    def begins(self) -> Bool:
        """Marks the requests that rate or concurrency start, bool[requests]: first turns, or all."""
        sessions = self.sessions
        return np.ones(len(self.records), np.bool_) if sessions is None else sessions.begins

    @cached_property
    def held_spans_ns(self) -> tuple[Int64, Int64]:
        """From when to when (ns) each sent request, or session, took up concurrency, int64[…] each."""
        if self.sessions is not None:
            return self.sessions.spans_ns(self.records)
        return self.records.sent_ns[self.records.sent], self.records.end_ns[self.records.sent]

    @property
    def noun(self) -> str:
        """The noun for the units of the load: requests, or sessions."""
        return "requests" if self.sessions is None else "sessions"

    @cached_property
    def window(self) -> ServerWindow | None:
        """The server's counters over the run; None if not scraped, or if they count other runs too."""
        return self.facts.own_window

    @cached_property
    def samples(self) -> tuple[ServerSample, ...]:
        """The samples of the server's gauges that show both running and waiting requests."""
        samples = self.window.samples if self.window else ()
        return tuple(each for each in samples if each.running is not None and each.waiting is not None)

    @property
    def closed_loop(self) -> bool:
        """Whether a slot sends its next request when its last answer ends, not at a planned time."""
        return self.facts.held_concurrency is not None

    @property
    def uneven(self) -> bool:
        """Whether the planned rate changes during the run: by a schedule, ramp, bursts or a trace."""
        return self.facts.data.schedule is not None or self.facts.profile.shaped

    @property
    def burst_period_ns(self) -> int:
        """The time from one planned burst to the next; 0 without bursts."""
        bursts = self.facts.profile.periodic
        return 0 if bursts is None else round(bursts.every_s * SECOND_NS)

    @cached_property
    def late_ns(self) -> Int64:
        """How much later than due each request was sent, int64[requests sent]; of sessions first turns."""
        return (self.records.sent_ns - self.records.intended_ns)[self.records.sent & self.begins]

    @property
    def late_p99_ms(self) -> float:
        """P99 of how much later than due requests were sent; NaN if none was."""
        return float(np.percentile(self.late_ns, 99)) / MS_NS if len(self.late_ns) else math.nan

    @cached_property
    def target(self) -> int:
        """The requested concurrency, of sessions if there are any; without a limit, the mean reached."""
        own = self.facts.own_sessions or self.facts.own_requests
        return max(1, min(self.facts.held_concurrency or round(self._mean_held), own))

    @property
    def _mean_held(self) -> float:
        """The mean number of requests, or sessions, in flight."""
        if self.sessions is None:
            return self.metrics.mean_concurrency
        begin_ns, end_ns = self.held_spans_ns
        span_ns = int(end_ns.max() - begin_ns.min()) if len(begin_ns) else 0
        return sum_exactly(end_ns - begin_ns) / span_ns if span_ns else 0.0

    @property
    def hosted(self) -> bool:
        """Whether the server is a hosted API, of which only its answers are known."""
        return engines.find_by_name(self.facts.server.engine).hosted

    @property
    def ignores_eos(self) -> bool:
        """Whether requests ask that no answer ends early (ignore_eos)."""
        return self.facts.profile.ignore_eos and not self.facts.ignore_eos_refused

    @cached_property
    def held_ns(self) -> tuple[int, int] | None:
        """The time (begin, end) between ramp and drain: the steady window, untrimmed; None without one."""
        begins = None if self.sessions is None else self.begins
        target = self.target if self.closed_loop else None
        held = steady_state.find_held_ns(self.records, target, begins, self.facts.queues)
        return None if isinstance(held, Unsteady) else held

    @property
    def held_concurrency(self) -> float | None:
        """The mean concurrency between ramp and drain; None without a steady window."""
        if self.held_ns is None:
            return None
        return overlap_mean(*self.held_spans_ns, self.held_ns)

    @cached_property
    def middle(self) -> Bool:
        """Marks the requests sent after the first wave and ended before the drain, bool[requests].

        Of sessions these are turns of those that began after the first wave of them.
        """
        rows = np.flatnonzero(self.records.sent & self.begins)
        order = np.argsort(self.records.sent_ns[rows], kind="stable")
        later = np.zeros(len(self.records), np.bool_)
        later[rows[order[self.target :]]] = True
        if self.sessions is not None:
            later = np.repeat(later[self.sessions.first[:-1]], self.sessions.sent)
        finish = self.held_ns[1] if self.held_ns else 0
        within: Bool = later & (self.records.end_ns <= finish)
        return within

    def tpot_trend(self) -> Trend | None:
        """Test TPOT for a trend over waves of `target` requests; None if few, or the load changes."""
        if self.facts.profile.shaped:
            return None
        which = np.flatnonzero(self.middle & self.per_request.has_tpot)
        values = self.per_request.tpot_ns()
        if self.sessions is not None:  # whose contexts grow: each is one value, the mean of its turns
            which, values = self.sessions.means(which, values)
        ordered = which[np.argsort(self.records.sent_ns[which], kind="stable")]
        return Trend.fit(wave_medians(values[ordered], self._wave(len(ordered))))

    def throughput_trend(self) -> Trend | None:
        """Test output tokens per second for a trend, over the time that each wave of answers took.

        None in an open loop, without a steady window, or of sessions: the first ones' contexts grow together.
        """
        if not self.closed_loop or self.held_ns is None or self.sessions is not None:
            return None
        begin, finish = self.held_ns
        ended = np.flatnonzero(
            self.per_request.ok & (self.records.end_ns > begin) & (self.records.end_ns <= finish)
        )
        ended = ended[np.argsort(self.records.end_ns[ended], kind="stable")]
        wave = self._wave(len(ended))
        tokens = np.cumsum(self.per_request.output_tokens[ended])[wave - 1 :: wave]
        taken_ns = np.diff(self.records.end_ns[ended][wave - 1 :: wave])
        return Trend.fit(np.diff(tokens) / np.maximum(taken_ns, 1) * SECOND_NS)

    def _wave(self, requests: int) -> int:
        """Return the requests per wave: the target concurrency, more if waves would be too many."""
        return max(self.target, math.ceil(requests / _MOST_WAVES))

    @property
    def misses_first_wave(self) -> bool:
        """Whether the run is too short to compare its first wave with later ones."""
        changes, some = self.facts.profile.shaped, self.per_request.ok.any()
        return bool(some) and not changes and self.first_ttft() is None and self.first_tpot() is None

    @property
    def misses_trends(self) -> bool:
        """Whether the run is too short to have a trend."""
        timed = self.per_request.has_tpot.any()
        return bool(timed) and not self.facts.profile.shaped and self.tpot_trend() is None

    def first_ttft(self) -> FirstWave | None:
        """Compare the first wave's TTFT with later ones, per prompt token that was awaited at the same time.

        None if there are few, or the load changes.
        """
        of = np.flatnonzero(self.per_request.has_ttft & self.begins)
        weight = self.per_request.input_tokens[of].clip(1)
        together = sum_overlapping(self.records.sent_ns[of], self.per_request.first_ns[of], weight)
        return self._compare_first_wave(of, self.per_request.ttft_ns[of], together)

    def first_tpot(self) -> FirstWave | None:
        """Compare the first wave's TPOT with later ones; None if there are few, or the load changes."""
        of = np.flatnonzero(self.per_request.has_tpot & self.begins)
        return self._compare_first_wave(of, self.per_request.tpot_ns()[of], np.ones(len(of), np.int64))

    def _compare_first_wave(self, of: Int64, values_ns: NDArray[Any], per: Int64) -> FirstWave | None:
        """Compare values of rows `of`, divided by `per`: the first wave's median with the P90 of the middle.

        None if there are few, or the load changes.
        """
        if self.facts.profile.shaped:  # the waves are under different loads
            return None
        first = np.argsort(self.records.sent_ns[of], kind="stable")[: self.target]
        later = self.middle[of]
        if later.sum() < max(_LEAST_LATER, self.target):
            return None
        each_ns = values_ns / per.clip(1)  # 0 only where an answer came before its request
        usual = float(np.percentile(each_ns[later], 90))
        return FirstWave(
            size=len(first),
            first_ms=float(np.median(values_ns[first])) / MS_NS,
            later_ms=float(np.median(values_ns[later])) / MS_NS,
            ratio=float(np.median(each_ns[first]) / usual) if usual else 0.0,
            waves=int(later.sum()) / self.target,
        )

    @property
    def failed(self) -> int:
        """Requests that failed, without those that a signal, a stop rule or the client itself cut off.

        A session that grew to the model's context limit ended there: that turn is not among them either.
        """
        return sum(self.failed_kinds.values())

    @property
    def context_ends(self) -> int:
        """Sessions that ended at the model's context limit, after a turn that succeeded."""
        if self.sessions is None:
            return 0
        grown = self.records.mark_kinds({FailureKind.CONTEXT_LIMIT}) & (self.sessions.turn > 1)
        return len(np.unique(self.sessions.session[grown]))

    @property
    def failed_kinds(self) -> dict[str, int]:
        """The number of failed requests of each kind."""
        grown = {FailureKind.CONTEXT_LIMIT.value: self.context_ends}
        tallies = self.metrics.failures.items()
        return {kind: tally.count - grown.get(kind, 0) for kind, tally in tallies if kind not in CUT_OFF}

    @property
    def judged(self) -> int:
        """Requests that could fail: all but those cancelled as planned, or past the context limit."""
        return self.metrics.requests - self.metrics.cancelled - self.context_ends

    @property
    def stamped(self) -> bool:
        """Whether 1 % of reads at most, or one a request, have no kernel timestamp; True without reads."""
        health = self.metrics.health
        return health.unstamped_reads <= max(_UNSTAMPED * health.reads, len(self.records))

    @cached_property
    def usual_lag_ms(self) -> float:
        """The median over the answers of the client's mean read lag, of all reads or of the shared ones.

        A client that is late now and then did not gather the others, as one that is always late did.
        """
        records = self.records
        timed, shared = records.reads - records.unstamped_reads, records.shared_reads
        lag_ns = np.maximum(
            records.lag_sum_ns / np.maximum(timed, 1), records.shared_lag_ns / np.maximum(shared, 1)
        )[records.ok]
        return float(np.median(lag_ns)) / MS_NS if len(lag_ns) else 0.0

    @property
    def reads_late(self) -> bool:
        """Whether the client's read lag explains that messages were coalesced into one read.

        Waits that exceed the gap in 1 % of reads have a mean of 0.22 gaps (exponential: e^(−1/0.22) = 1 %).
        Where the client only stalls now and then, messages coalesce during the stalls: they get the timestamp
        of the last one, anywhere in the last gap, so they waited half a gap on average; messages that a
        server writes at once do not.
        """
        health = self.metrics.health
        return max(health.lag_mean_ms, health.shared_lag_ms) > LATE_GAPS * self.metrics.itl.mean_ms

    def in_flight(self, at_ns: int) -> int:
        """Count the requests, or sessions, in flight at a moment (ns)."""
        sent_ns, end_ns = self.held_spans_ns
        return int(((sent_ns <= at_ns) & (end_ns > at_ns)).sum())


def expected_reuse(facts: Facts) -> float | None:
    """Return the share of prompt tokens, 0 to 1, that an initially empty cache should hold; None: unknown."""
    if facts.session_turns:  # whose prompts repeat their own history: session-forgotten judges that
        return None
    if facts.data.reuse is not None:
        return facts.data.reuse
    profile = facts.profile
    if facts.data.kind != RANDOM or profile.prefix_groups > 1:
        return None
    return profile.prefix_len / (profile.prefix_len + profile.input_len)


def explain_reuse(run: RunEvidence) -> float | None:
    """Return the most of the prompt tokens that the plan itself lets a cache find, 0 to 1; None: unknown.

    It is the share that is planned, or of recorded prompts what they share by their bytes; in a session at
    least what was sent there before; and a chat template, which every prompt begins with.
    """
    facts, records, texts = run.facts, run.records, run.facts.shared_texts
    recorded = facts.data.kind not in MADE or facts.prompt_format == RECORDED
    templated = urlsplit(facts.server.url).path.endswith(_TEMPLATED)
    share, template = expected_reuse(facts) or 0.0, _TEMPLATE if templated else 0
    if texts is not None:
        share, template = texts.share, texts.template_tokens
    elif facts.session_turns and not recorded:
        template += facts.profile.prefix_len
    elif facts.data.reuse is None and (recorded or expected_reuse(facts) is None):
        return None
    which = np.flatnonzero(records.ok)
    tokens = np.where(records.input_tokens < 0, records.planned_input, records.input_tokens)[which].clip(0)
    before = np.zeros_like(tokens)
    if run.sessions is not None:
        for own in np.split(np.arange(len(which)), np.flatnonzero(np.diff(run.sessions.session[which])) + 1):
            sent = np.maximum.accumulate((tokens + records.output_tokens[which].clip(0))[own])
            before[own[1:]] = sent[:-1]
    most = np.minimum(np.maximum(before, share * tokens + template), tokens)
    return max(float(most.sum()) / max(int(tokens.sum()), 1), facts.data.reuse or 0.0)


def reported_reuse(facts: Facts, records: Records) -> dict[str, tuple[int, int]]:
    """Return (cached, all) prompt tokens by who reports them, usage or counters; without empty ones."""
    window = facts.own_window
    # llama.cpp's timings have them where usage does not.
    cached = np.where(records.cached_tokens < 0, records.server_cached_tokens, records.cached_tokens)
    counted = records.ok & (cached >= 0)
    inputs = np.where(records.input_tokens < 0, records.planned_input, records.input_tokens)
    by = {USAGE: (int(cached[counted].sum()), int(inputs[counted].clip(0).sum()))}
    if window is not None and None not in (window.prefix_hits, window.prefix_queries):
        by[COUNTERS] = (window.prefix_hits or 0, window.prefix_queries or 0)
    return {source: (hits, queries) for source, (hits, queries) in by.items() if queries}


def mark_counted(facts: Facts, records: Records, rows: SessionRows | None) -> Bool:
    """Mark the records that figures are computed from, bool[requests]; `rows` are their sessions.

    In a closed loop of sessions, those that ended before the first slot had no session left to begin: what
    follows is under less and less load. All, where the run was cut short, or nothing succeeded before that.
    """
    every = np.ones(len(records), np.bool_)
    if rows is None or facts.held_concurrency is None or facts.partial or facts.lost:
        return every
    until_ns = find_dry_ns(rows, records, facts.profile.duration_ns, facts.own_sessions, facts.queues)
    if until_ns is None:
        return every
    within: Bool = records.end_ns <= until_ns
    return within if (within & records.ok).any() else every


def has_tail(facts: Facts) -> bool:
    """Whether a run has a tail that is explained unasked: not of fewer than ten requests."""
    return facts.requests >= _LEAST_OF_A_TAIL


def limit_doubts(
    facts: Sequence[str | Callable[[Facts], object]], *doubts: Rule[RunEvidence]
) -> tuple[Rule[RunEvidence], ...]:
    """Limit doubts to the runs in which a fact, or what is made of facts, is not empty.

    Without them none of these can hold: their `find` is then not called. A fact of a fact is named with a
    dot, and is empty where the first is None.
    """
    of_run = [partial(_read_fact, each.split(".")) if isinstance(each, str) else each for each in facts]

    def limit(find: Find[RunEvidence]) -> Find[RunEvidence]:
        return lambda run: find(run) if any(read(run.facts) for read in of_run) else None

    return tuple(replace(doubt, find=limit(doubt.find)) for doubt in doubts)


def _read_fact(names: Sequence[str], facts: Facts) -> object:
    """Return the fact of the first name, of that the next name's; None where one of them is None."""
    found: object = facts
    for name in names:
        found = None if found is None else getattr(found, name)
    return found

"""Client findings: signs that this machine, not the server, made the figures."""

from __future__ import annotations

import math
from urllib.parse import urlsplit

import msgspec
import numpy as np

from loadgen.metrics.record import UNKNOWN
from loadgen.validity.calibration import HELD_PERCENT
from loadgen.validity.evidence import RunEvidence, percent

SHARED = 0.01  # of the messages; of the mean TTFT; of P99 ITL
LAG_GAPS, CORES = 0.1, 0.8  # of the mean gap, of a core
LATE_BODIES = 0.01  # of the requests
HEADROOM = 2  # times
STEP_MS, FAR_STEP_MS = 1.0, 1000.0
IMPOSSIBLE = 0.01  # of the reads, of the answers
STOPPED_S = 1.0  # no scheduler keeps a process that can run waiting for so long
_UNRELIABLE = "median and percentiles of ITL are of reads"


def reads_late(case: RunEvidence) -> str:
    """Messages shared a read because the client came late, or nobody knows why."""
    health, harms = case.metrics.health, _harms(case)
    if not harms:
        return ""
    late = f"read {health.shared_lag_ms:.3g} ms late on average, all reads {health.lag_mean_ms:.3g} ms"
    why = f"{late} (worst {health.lag_max_ms:.3g})" if case.stamped else "without kernel stamps"
    return (
        f"{percent(health.shared_share)} of messages shared a read, {why}{_starved(case)}: {', '.join(harms)}"
    )


def _harms(case: RunEvidence) -> list[str]:
    """What is wrong by more than SHARED if messages that shared a read came a gap apart."""
    metrics, health, harms = case.metrics, case.metrics.health, []
    late = _late(case)
    away = late or health.lag_max_ms > metrics.itl.mean_ms  # for a gap or more, once: what came then met
    excess_ms = health.with_first * metrics.itl.mean_ms / health.answers if health.with_first else 0.0
    if late and excess_ms > SHARED * metrics.ttft.mean_ms:
        harms.append(f"TTFT is some {excess_ms:.3g} ms too long (mean)")
    if late and health.shared_share > SHARED:
        harms.append(_UNRELIABLE)
    elif away and health.p99_gap_excess > SHARED:
        harms.append(f"P99 ITL is some {percent(health.p99_gap_excess)} too long")
    return harms


def messages_together(case: RunEvidence) -> str:
    """Messages shared a read because they were sent so."""
    share = case.metrics.health.shared_share
    if share <= SHARED or _late(case):
        return ""
    return f"{percent(share)} of messages shared a read, and the client was not late: {_UNRELIABLE}"


def _late(case: RunEvidence) -> bool:
    """Whether the client came late, or nobody knows."""
    return case.reads_late or not case.stamped


def _starved(case: RunEvidence) -> str:
    """The likely cause on one machine: the scheduler shares by session, not by need."""
    environment = case.facts.environment
    local = (urlsplit(case.facts.server.url).hostname or "").startswith(("127.", "localhost", "::1"))
    if not local or environment.get("sched_autogroup") != "1":
        return ""
    return f"; client and server share {environment.get('cpus', 'few')} CPUs, by session (sched_autogroup)"


def client_busy(case: RunEvidence) -> str:
    """The client was busy and its stamps show it."""
    if case.stamped or case.client_cores < CORES:
        return ""
    busy = f"{case.client_cores:.2f} of a core busy"
    return f"user-space stamps and {busy}: every latency holds the client's delay"


def busy_loop(case: RunEvidence) -> str:
    """The client was busy, and its stamps do not show it."""
    health, gap_ms = case.metrics.health, case.metrics.itl.mean_ms
    if not case.stamped or not (case.client_cores >= CORES or health.lag_mean_ms > LAG_GAPS * gap_ms):
        return ""
    return f"{case.client_cores:.2f} of a core busy, reads {health.lag_mean_ms:.3g} ms after their stamps"


def unstamped(case: RunEvidence) -> str:
    """The kernel did not time the reads."""
    health = case.metrics.health
    if case.stamped:
        return ""
    return f"{health.unstamped_reads} of {health.reads} reads carry the client's own stamp, not the kernel's"


def late_bodies(case: RunEvidence) -> str:
    """Requests were not built when they were due."""
    late = case.facts.client.late_bodies
    return f"{late} requests were not ready when due" if late > LATE_BODIES * case.metrics.requests else ""


def beyond_capacity(case: RunEvidence) -> str:
    """The load is more than the client could measure truly."""
    return _load(case, 1.0, math.inf)


def headroom(case: RunEvidence) -> str:
    """The load is near what the client can measure truly."""
    return _load(case, 1 / HEADROOM, 1.0)


def _load(case: RunEvidence, above: float, most: float) -> str:
    """Where a self-test found no load too high, beyond its highest nothing is known."""
    measured, rate_per_s = case.calibration, case.metrics.messages_per_s
    share = measured.share(rate_per_s) if measured else 0.0
    if measured is None or not above < share <= most or (share > 1 and not measured.capacity_bounded):
        return ""
    if not measured.capacity_tokens_per_s:
        held = f"no load that it tried had a P99 gap error under {HELD_PERCENT:g} %"
        return f"{rate_per_s:.0f} messages/s; {held} (self-test)"
    capacity = f"{measured.capacity_messages_per_s:.0f} the most at a P99 gap error under {HELD_PERCENT:g} %"
    return f"{rate_per_s:.0f} messages/s, {capacity} (self-test)"


def clock_unusable(case: RunEvidence) -> str:
    """The wall clock, which stamps the reads, went so wrong that no latency can be believed."""
    clock = _clock(case)
    return "; ".join(filter(None, (clock.step, clock.contradiction))) if clock.unusable else ""


def impossible_timestamps(case: RunEvidence) -> str:
    """A few reads have timestamps that cannot be."""
    clock = _clock(case)
    return "" if clock.unusable else clock.contradiction


def clock_stepped(case: RunEvidence) -> str:
    """The wall clock jumped, and kernel timestamps with it."""
    clock = _clock(case)
    return "" if clock.unusable else clock.step


class _Clock(msgspec.Struct, frozen=True):
    """What speaks against the clock that timed the reads."""

    step_ms: float
    impossible: int  # reads whose kernel timestamp contradicts the client's own clock
    reads: int
    backwards: int  # answers with a token before the request was sent, or before the token before it
    answers: int

    @property
    def unusable(self) -> bool:
        """A small step is in a few latencies; one of a second, or one in many reads, is in the figures."""
        many = self.impossible > IMPOSSIBLE * self.reads or self.backwards > IMPOSSIBLE * self.answers
        return many or abs(self.step_ms) > FAR_STEP_MS

    @property
    def step(self) -> str:
        if abs(self.step_ms) <= STEP_MS:
            return ""
        far = abs(self.step_ms) >= FAR_STEP_MS
        by = f"{self.step_ms / 1000:.3g} s" if far else f"{self.step_ms:.3g} ms"
        return f"the wall clock stepped by {by} in the run"

    @property
    def contradiction(self) -> str:
        said = []
        if self.impossible:
            share = percent(self.impossible / max(self.reads, 1))
            said.append(
                f"{self.impossible} of {self.reads} reads ({share}) had a kernel timestamp that cannot be "
                "and carry the client's own"
            )
        if self.backwards:
            of = f"in {self.backwards} of {self.answers} answers"
            said.append(f"{of} a token has a time before its request's or the token's before it")
        return "; ".join(said)


def _clock(case: RunEvidence) -> _Clock:
    records, least_ns = case.records, int(STEP_MS * 1e6)
    impossible = records.columns.get("impossible_stamps")  # runs of earlier versions have no such column
    begun = case.each.first_ns != UNKNOWN
    early = case.each.first_ns[begun] < records.sent_ns[begun] - least_ns
    wrong = {*np.flatnonzero(begun)[early].tolist()}
    for block in records.blocks():
        late = np.flatnonzero(np.diff(block.arrival_ns) < -least_ns)  # from message i to i + 1
        late = late[~np.isin(late + 1, block.start)]  # not from one answer to the next
        wrong |= {*(block.first - 1 + np.searchsorted(block.start, late, side="right")).tolist()}
    return _Clock(
        step_ms=case.facts.client.clock_step_ms,
        impossible=0 if impossible is None else int(impossible.clip(0).sum()),
        reads=case.metrics.health.reads,
        backwards=len(wrong),
        answers=int(np.count_nonzero(begun)),
    )


def client_stopped(case: RunEvidence) -> str:
    """The client did not run for a while; the kernel timed what came meanwhile."""
    return _stopped(case) if case.stamped else ""


def stopped_unstamped(case: RunEvidence) -> str:
    """The client did not run for a while, and nobody timed what came meanwhile."""
    return "" if case.stamped else _stopped(case)


def _stopped(case: RunEvidence) -> str:
    stopped_s = case.facts.client.stopped_s
    if stopped_s <= STOPPED_S:
        return ""
    harm = (
        "the kernel timed what arrived, and nothing was sent meanwhile: the load asked for was not held"
        if case.stamped
        else "every latency of what was under way then is too long by up to that"
    )
    return f"the client itself did not run for {stopped_s:.1f} s: {harm}"


def journal(case: RunEvidence) -> str:
    """What had finished was not safe on disk while the run went on."""
    said = case.facts.journal_error
    return f"the journal could not be written in full: {said}" if said else ""


def throttled(case: RunEvidence) -> str:
    """Something held this machine back."""
    return "; ".join(case.facts.throttled)

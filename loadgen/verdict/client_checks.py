"""Client checks: this machine, not the server, made the figures."""

from __future__ import annotations

import math
from functools import partial

import msgspec
import numpy as np

from loadgen.base.rule import Evidence, Origin, Rule, invalid, join_evidence, note, suspect
from loadgen.base.urls import is_this_machine
from loadgen.records.record import UNKNOWN
from loadgen.verdict.arrival_checks import held_answers
from loadgen.verdict.evidence import LATE_GAPS, RunEvidence, percent

SHARED = 0.01  # of the messages; of the mean TTFT; of P99 ITL
LAG_GAPS, CORES = 0.1, 0.8  # of the mean gap, of a core
LATE_BODIES = 0.01  # of the requests
STEP_MS, FAR_STEP_MS = 1.0, 1000.0
IMPOSSIBLE = 0.01  # of the reads, of the answers
PAUSED_S = 0.1  # at once: a busy client waits for less, but where all CPUs are taken
LONG_TAIL, OF_TAIL = 2.0, 0.5  # a P99 in medians; of a P99
STOPPED_S = 1.0  # a process that has a share of a CPU does not wait for so long
OTHERS, MOST_OTHERS, BUSY, WAITING = 0.05, 0.3, 0.8, 0.2  # of the CPUs; of the time
RELAY = 0.1  # of the client's CPU time: what takes less does not generate tokens
USUAL_CPU_S = 3.0  # below it the share is larger: the kernel counts in ticks, and programs begin and end
LOSSY = 0.01  # of the answers
_UNRELIABLE = "median and percentiles of ITL are of reads, not of chunks"
_OR_LOST = " (or segments came out of order: not known of this run)"
_CLOCK_REMEDY = "run again once the clock is synchronized (chronyc tracking, timedatectl)"
_STOPPED_REMEDY = (
    "where all CPUs were busy: start server and client from one shell (or by --launch), leave the client a "
    "core (taskset), or share CPUs by process: sysctl kernel.sched_autogroup_enabled=0; else run on a "
    "machine that stays awake, and pause neither the client nor its container"
)


@suspect(
    "reads-late",
    f"more than {percent(SHARED)} of the chunks were coalesced into a read, or enough that mean TTFT or "
    "P99 ITL is that much too long, and the client was late (mean read lag, of all or of these reads, over "
    f"{percent(LATE_GAPS)} of the mean gap; for P99, once over a gap) or has no kernel timestamps",
    "leave the client a core (taskset), or share CPUs by process: sysctl kernel.sched_autogroup_enabled=0; "
    "where it did not run at all, pause neither the client nor its container",
    origin=Origin.READING,
)
def reads_late(run: RunEvidence) -> Evidence | None:
    """Find evidence that messages were coalesced because the client read late, or may have."""
    health, harms = run.metrics.health, _list_harms(run)
    if not harms or held_answers(run) is not None:
        return None
    lag = f"read lag {health.shared_lag_ms:.3g} ms mean of these, {health.lag_mean_ms:.3g} ms of all"
    why = f"{lag}, {health.lag_max_ms:.3g} ms max" if run.stamped else "without kernel timestamps"
    share = percent(health.shared_share)
    causes = f"{why}{_describe_pause(run)}{explain_starving(run)}"
    return f"{share} of chunks coalesced into a read, {causes}: {', '.join(harms)}"


def _describe_pause(run: RunEvidence) -> str:
    """Describe, after `; `, for how long the client did not run at once; "" if it was not long."""
    stopped_s = run.facts.client.stopped_s
    return f"; the client did not run for {stopped_s:.2g} s at once" if stopped_s > PAUSED_S else ""


def _list_harms(run: RunEvidence) -> list[str]:
    """List the figures that are off by more than SHARED if coalesced messages were really a gap apart."""
    metrics, health, late, harms = run.metrics, run.metrics.health, _is_late(run), []
    # The client was away for a gap or more, once: what came then coalesced.
    away = late or health.lag_max_ms > metrics.itl.mean_ms
    excess_ms = health.with_first * metrics.itl.mean_ms / health.answers if health.with_first else 0.0
    if late and excess_ms > SHARED * metrics.ttft.mean_ms:
        harms.append(f"mean TTFT is about {excess_ms:.3g} ms too long")
    if late and health.shared_share > SHARED:
        harms.append(_UNRELIABLE)
    elif away and health.p99_gap_excess > SHARED:
        harms.append(f"P99 ITL is about {percent(health.p99_gap_excess)} too long")
    return harms


@note(
    "messages-together",
    f"more than {percent(SHARED)} of the chunks were coalesced into a read and the client was not late: "
    "the server writes several at once",
    "read TPOT instead of ITL",
)
def messages_together(run: RunEvidence) -> Evidence | None:
    """Find evidence that messages were coalesced because the server sent them so."""
    share = run.metrics.health.shared_share
    if share <= SHARED or _is_late(run) or held_answers(run) is not None:
        return None
    return f"{percent(share)} of chunks coalesced into a read, and the client was not late: {_UNRELIABLE}"


def _is_late(run: RunEvidence) -> bool:
    return run.reads_late or not run.stamped


def explain_starving(run: RunEvidence) -> str:
    """Explain, after `; `, that client and server here share CPU time by session; "" if they do not."""
    environment = run.facts.environment
    if not is_this_machine(run.facts.server.url) or environment.get("sched_autogroup") != "1":
        return ""
    return f"; client and server share {environment.get('cpus', 'few')} CPUs by session (sched_autogroup)"


@suspect(
    "client-busy",
    f"without kernel timestamps, the client used {CORES} of a core or more: one loop is one core, and reads "
    f"wait for it; or it did not run for over {PAUSED_S} s at once, {percent(OF_TAIL)} of P99 TTFT or ITL or "
    f"more, which is {LONG_TAIL:g} times the median or more",
    "use --transport wire, or spread the load over several clients; where it did not run, pause neither "
    "the client nor its container",
    origin=Origin.READING,
)
def client_busy(run: RunEvidence) -> Evidence | None:
    """Find evidence that the client was busy, or paused, and its timestamps include the delay."""
    causes = (
        [f"{run.facts.client.busy_cores:.2f} of a core busy"] if run.facts.client.busy_cores >= CORES else []
    )
    # P99s that are long, and that the client stood still for so long at once that it may be why.
    stopped_s, waits = run.facts.client.stopped_s, (("TTFT", run.metrics.ttft), ("ITL", run.metrics.itl))
    tails = [
        f"P99 {name} is {each.p99_ms:.3g} ms"
        for name, each in waits
        if each.n and LONG_TAIL * each.median_ms <= each.p99_ms <= 1000 * stopped_s / OF_TAIL
    ]
    if tails and PAUSED_S < stopped_s <= STOPPED_S:
        causes.append(f"{' and '.join(tails)}{_describe_pause(run)}")
    if run.stamped or not causes:
        return None
    return f"user-space timestamps and {'; '.join(causes)}: latencies include the client's delay"


@note(
    "busy-loop",
    f"kernel timestamps, and {CORES} of a core busy or a mean read lag over {percent(LAG_GAPS)} of the mean "
    "gap: figures stay true until chunks are coalesced (reads-late)",
    "leave the client a core, or spread the load over several clients",
)
def busy_loop(run: RunEvidence) -> Evidence | None:
    """Find evidence that the client was busy, though kernel timestamps exclude the delay."""
    health, gap_ms, cores = run.metrics.health, run.metrics.itl.mean_ms, run.facts.client.busy_cores
    late = health.lag_mean_ms > LAG_GAPS * gap_ms and held_answers(run) is None  # whose gaps are nothing
    if not run.stamped or not (cores >= CORES or late):
        return None
    return f"{cores:.2f} of a core busy, mean read lag {health.lag_mean_ms:.3g} ms"


@note(
    "unstamped",
    "more reads lack a kernel timestamp than 1 % and one per request (a response's end may): latencies "
    "include the client's delay, which `loadgen selftest` measures",
    "use --transport wire on Linux",
)
def reads_not_timed(run: RunEvidence) -> Evidence | None:
    """Find evidence that more reads lack a kernel timestamp than responses' ends explain."""
    health = run.metrics.health
    reads = f"{health.unstamped_reads} of {health.reads} reads"
    return None if run.stamped else f"{reads} have the client's own timestamp, not the kernel's"


@note(
    "late-bodies",
    f"more than {percent(LATE_BODIES)} of the request bodies were not built when due; concurrency-not-held "
    "and sends-late show what it cost",
    "shorten the prompts, lower --request-rate, or give the client a core",
)
def late_bodies(run: RunEvidence) -> Evidence | None:
    """Find evidence that request bodies were not built when they were due."""
    late = run.facts.client.late_bodies
    many = late > LATE_BODIES * run.metrics.requests
    return f"{late} request bodies were not built when due" if many else None


@invalid(
    "clock-unusable",
    f"the wall clock stepped by more than {FAR_STEP_MS / 1000:.0f} s, or over {percent(IMPOSSIBLE)} of the "
    "reads have an impossible kernel timestamp (later than the client's read, or long before it), or in over "
    f"{percent(IMPOSSIBLE)} of the responses a token precedes its request or the token before it",
    _CLOCK_REMEDY,
)
def clock_unusable(run: RunEvidence) -> Evidence | None:
    """Find evidence that the wall clock, which timestamps reads, was too wrong to believe any latency."""
    clock = _count_clock_faults(run)
    return join_evidence((clock.step, clock.contradiction)) if clock.unusable else None


@suspect(
    "impossible-timestamps",
    f"up to {percent(IMPOSSIBLE)} of the reads have an impossible kernel timestamp, or of the responses a "
    "token before its request or the token before it: the wall clock stepped, and other reads near them may "
    "be off undetected",
    _CLOCK_REMEDY,
    origin=Origin.CLIENT,
)
def impossible_timestamps(run: RunEvidence) -> Evidence | None:
    """Find evidence that a few reads have impossible timestamps."""
    clock = _count_clock_faults(run)
    return None if clock.unusable else clock.contradiction


@suspect(
    "clock-stepped",
    f"the wall clock stepped against the monotonic clock by more than {STEP_MS:.0f} ms; kernel timestamps "
    "are wall-clock time, so latencies across the step are off by it",
    _CLOCK_REMEDY,
    origin=Origin.CLIENT,
)
def clock_stepped(run: RunEvidence) -> Evidence | None:
    """Find evidence that the wall clock stepped, and kernel timestamps with it."""
    clock = _count_clock_faults(run)
    return None if clock.unusable else clock.step


class _Clock(msgspec.Struct, frozen=True):
    """Counts that show whether the clock that timed the reads was wrong."""

    step_ms: float
    impossible: int  # reads whose kernel timestamp contradicts the client's own clock
    reads: int
    backwards: int  # answers with a token before the request was sent, or before the token before it
    answers: int
    losses_known: bool  # whether the kernel counts segments that came out of order

    @property
    def unusable(self) -> bool:
        """Whether the fault spoils the figures: a step of over 1 s, or over 1 % of reads or answers wrong."""
        many = self.impossible > IMPOSSIBLE * self.reads or self.backwards > IMPOSSIBLE * self.answers
        return many or abs(self.step_ms) > FAR_STEP_MS

    @property
    def step(self) -> Evidence | None:
        if abs(self.step_ms) <= STEP_MS:
            return None
        far = abs(self.step_ms) >= FAR_STEP_MS
        by = f"{self.step_ms / 1000:.3g} s" if far else f"{self.step_ms:.3g} ms"
        return f"the wall clock stepped by {by} during the run"

    @property
    def contradiction(self) -> Evidence | None:
        """The timestamps of reads and tokens that cannot be true, in words; None without any."""
        parts = []
        if self.impossible:
            share = percent(self.impossible / max(self.reads, 1))
            parts.append(
                f"{self.impossible} of {self.reads} reads ({share}) had an impossible kernel timestamp and "
                "use the client's own" + ("" if self.losses_known else _OR_LOST)
            )
        if self.backwards:
            of = f"in {self.backwards} of {self.answers} responses"
            parts.append(f"{of} a token precedes its request or the token before it")
        return join_evidence(parts)


def _count_clock_faults(run: RunEvidence) -> _Clock:
    """Count impossible timestamps, and answers with a token over 1 ms before its request or predecessor."""
    records, least_ns = run.records, int(STEP_MS * 1e6)
    begun = run.per_request.first_ns != UNKNOWN
    early = run.per_request.first_ns[begun] < records.sent_ns[begun] - least_ns
    wrong = {*np.flatnonzero(begun)[early].tolist()}
    for block in records.blocks():
        late = np.flatnonzero(np.diff(block.arrival_ns) < -least_ns)  # from message i to i + 1
        # Intervals do not span two responses; isin, which is the same, would import for 10 ms.
        ends, begins = (np.searchsorted(block.start, late + 1, side) for side in ("right", "left"))
        late = late[ends == begins]
        wrong |= {*(block.first - 1 + np.searchsorted(block.start, late, side="right")).tolist()}
    return _Clock(
        step_ms=run.facts.client.clock_step_ms,
        impossible=int(records.impossible_stamps.clip(0).sum()),
        reads=run.metrics.health.reads,
        backwards=len(wrong),
        answers=int(np.count_nonzero(begun)),
        losses_known=bool((records.out_of_order >= 0).any()),
    )


@suspect(
    "other-processes",
    f"the server is on this machine, and other processes took over {percent(OTHERS)} of the CPUs that server "
    f"and client may run on (in a run below {USUAL_CPU_S:.0f} s as many times more as it is shorter, "
    f"{percent(MOST_OTHERS)} at most), while over {percent(BUSY)} of these "
    f"were busy and, where the kernel reports it, a process waited for one over {percent(WAITING)} of the "
    "time; next to a healthy server others take about 1 %, and its own processes are not among them",
    "run again with nothing else on this machine (top shows what it is), or pin the server and the client to "
    "CPUs of their own (taskset) and the others to the rest",
    origin=Origin.MACHINE,
)
def other_processes(run: RunEvidence) -> Evidence | None:
    """Find evidence that other processes took the CPUs that server and client needed."""
    use = run.facts.cpu_use
    if use is None or use.others is None or misses_others(run):
        return None
    waited = use.waiting is None or use.waiting > WAITING
    share = min(OTHERS * max(1.0, USUAL_CPU_S / use.duration_s), MOST_OTHERS)
    if not waited or use.others <= share * use.cpus or use.busy <= BUSY * use.cpus:
        return None
    own = f"{use.client:.2f} by the client" + (f", {use.server:.2f} by the server" if use.server else "")
    waiting = (
        "" if use.waiting is None else f", and a process waited for one {percent(use.waiting)} of the time"
    )
    return f"other processes took {use.others:.2f} of {use.cpus} CPUs ({own}){waiting}"


def misses_others(run: RunEvidence) -> bool:
    """Whether it is unknown what other processes took of the CPUs; False for a shard or a hosted API."""
    use = run.facts.cpu_use
    if run.hosted or not run.facts.whole_load:
        return False
    # A proxy that listens for the server takes next to nothing: the server is then among the others.
    relayed = use is not None and use.server is not None and use.server < RELAY * use.client
    return use is None or use.others is None or relayed


def _find_losses(run: RunEvidence, above: float, most: float) -> Evidence | None:
    """Find lost or overtaken TCP segments in a share of the answers over `above` and up to `most`."""
    records = run.records
    answered = int(np.count_nonzero(records.reads))
    late, again = records.out_of_order.clip(0), records.retransmitted.clip(0)
    lost = int(np.count_nonzero(late + again))
    if not above * answered < lost <= most * answered:
        return None
    counts = (
        f"{int(late.sum())} came after a later one" if late.any() else "",
        f"{int(again.sum())} of requests were sent again" if again.any() else "",
    )
    return (
        f"TCP segments were lost or overtaken on the way in {lost} of {answered} responses "
        f"({', '.join(filter(None, counts))}): what was sent after them waited"
    )


_LOSSY_REMEDY = (
    "find where the network loses or reorders packets (ip -s link, nstat), or measure nearer to the server"
)
network_lossy = suspect(
    "network-lossy",
    f"in over {percent(LOSSY)} of the responses TCP segments came out of order, or the request's were lost "
    "and sent again, by the kernel's count: the network lost or reordered them, and latencies include the "
    "wait for them; what was read over 1 ms after its kernel timestamp counts as arrived when it was read",
    _LOSSY_REMEDY,
)(partial(_find_losses, above=LOSSY, most=math.inf))
network_losses = note(
    "network-losses",
    f"as network-lossy, in up to {percent(LOSSY)} of the responses: their latencies alone include the wait",
    _LOSSY_REMEDY,
)(partial(_find_losses, above=0.0, most=LOSSY))


def _describe_stop(run: RunEvidence, stamped: bool) -> Evidence | None:
    """Describe that the client did not run for over 1 s, if its reads have kernel timestamps as `stamped`."""
    stopped_s = run.facts.client.stopped_s
    if stopped_s <= STOPPED_S or run.stamped is not stamped:
        return None
    harm = (
        "the kernel timed what arrived, but nothing was sent: the requested load was not held"
        if stamped
        else "latencies of the requests in flight are too long by up to that"
    )
    use, waited = run.facts.cpu_use, ""
    if use is not None and use.busy > BUSY * use.cpus:  # it waited for a busy CPU rather than being paused
        by_session = run.facts.environment.get("sched_autogroup") == "1"
        shared = ", shared by session (sched_autogroup)" if by_session else ""
        waited = f" ({use.busy:.2f} of {use.cpus} CPUs were busy{shared})"
    return f"the client process did not run for {stopped_s:.1f} s{waited}: {harm}"


client_stopped = suspect(
    "client-stopped",
    f"the client did not run for more than {STOPPED_S:.0f} s (suspended, its container paused, or all CPUs "
    "taken): kernel timestamps stay true, but nothing was sent meanwhile",
    _STOPPED_REMEDY,
    origin=Origin.CLIENT,
)(partial(_describe_stop, stamped=True))
stopped_unstamped = invalid(
    "stopped-unstamped",
    f"without kernel timestamps, the client did not run for more than {STOPPED_S:.0f} s (suspended, its "
    "container paused, or all CPUs taken): latencies include that time",
    _STOPPED_REMEDY,
)(partial(_describe_stop, stamped=False))


journal: Rule[RunEvidence] = note(
    "journal",
    "the journal of finished requests could not be written in full during the run: had the client been "
    "killed, they would have been lost",
    "give --run-dir a writable disk with free space",
)(lambda run: f"the journal could not be written in full: {run.facts.journal_error}")


machine_throttled: Rule[RunEvidence] = suspect(
    "throttled",
    "this machine, which also runs the server, was throttled: a governor or power mode below its best, or a "
    "throttling counter that rose during the run",
    "cool it, set governor and power mode (cpupower, nvpmodel, jetson_clocks), and run again",
)(lambda run: join_evidence(run.facts.throttled))

"""Shard checks: of a load that several processes made, some were lost, began apart, or have other clocks."""

from __future__ import annotations

from functools import partial

import numpy as np

from loadgen.base.clock import MS_NS
from loadgen.base.rule import Evidence, Origin, invalid, join_evidence, suspect
from loadgen.base.text import list_first
from loadgen.verdict.evidence import RunEvidence, limit_doubts, percent

CLOCK_MS = 10.0  # by which a shard's times may be off
APART = (0.01, 10.0)  # of the duration, and ms: both exceeded
_MOST_NAMED = 4  # shards, workers


@invalid(
    "load-lost",
    "a worker or a shard was lost with the requests that it had not finished: throughput, concurrency and "
    "what depends on them are not those of the requested load",
    "run again; a lost process's own log, or the kernel's (out of memory), has the cause",
    origin=Origin.CLIENT,
)
def load_lost(run: RunEvidence) -> Evidence | None:
    """Find evidence that a part of the load was never sent."""
    lost = run.facts.lost
    more = f"and {len(lost) - _MOST_NAMED} more were lost" if len(lost) > _MOST_NAMED else None
    return join_evidence((*lost[:_MOST_NAMED], more))


@suspect(
    "rest-of-the-load",
    "as load-lost: latencies are those of the other requests, which had a server under less load",
    "read them as those of a lower load, or run again",
    origin=Origin.CLIENT,
)
def rest_of_the_load(run: RunEvidence) -> Evidence | None:
    """Find evidence that remaining requests met a server with less load, as others were lost."""
    if not run.facts.lost:
        return None
    left = f"{run.metrics.completed} of {run.facts.requests} requests succeeded"
    return f"{left}: their latencies are under less load than was requested"


@suspect(
    "shards-started-apart",
    f"the shards of a merged run began at different times, by more than {percent(APART[0])} of the duration "
    f"and {APART[1]:.0f} ms, beyond what their clocks may be off: the load is not that of the plan",
    "give all shards the same --start-at, late enough for the slowest to be ready",
)
def shards_started_apart(run: RunEvidence) -> Evidence | None:
    """Find evidence that shards began over 1 % of the duration and 10 ms apart, clock errors deducted."""
    begun = [row for row in run.facts.shards if row.began_ns]
    unsure_ms = max((row.error_ns for row in begun), default=0) / MS_NS
    steps = run.facts.profile.concurrency_steps  # of which a shard may have its first slot later
    opens_ns = [0 if steps is None else steps.divide(row.number, row.of).opens_ns for row in begun]
    began_ns = [row.began_ns - opens for row, opens in zip(begun, opens_ns, strict=True)]
    apart_ms = _measure_apart_ns(run, began_ns) / MS_NS - max(unsure_ms, 0.0)
    if apart_ms <= max(APART[0] * run.metrics.duration_s * 1e3, APART[1]):
        return None
    return (
        f"{len(begun)} shards began {apart_ms:.4g} ms apart: all were to send their part of the plan at once"
    )


def _measure_apart_ns(run: RunEvidence, began_ns: list[int]) -> int:
    """Compute how much later than the first shard the last one began, at least (ns).

    At a rate, request i is due before request i + 1, whichever shards they are of: what contradicts that is
    the time between two starts. Else every shard sends its first request once it has a slot.
    """
    if len(began_ns) < 2:
        return 0
    if not run.facts.profile.open_loop:
        return max(began_ns) - min(began_ns)
    due_ns = run.records.intended_ns[run.records.sent & run.begins]
    return int((np.maximum.accumulate(due_ns) - due_ns).max(initial=0))


@suspect(
    "clock-offset",
    f"shards of a merged run had different clocks, and the offset between two is not known to {CLOCK_MS:.0f} "
    "ms: duration, throughput, concurrency and peaks need it; latencies do not, each is of one clock",
    "synchronize the machines' clocks (chronyc tracking), or use --cluster, which measures the offsets",
)
def clock_offset(run: RunEvidence) -> Evidence | None:
    """Find evidence that a shard's clock is at an offset that is unknown, or known to over 10 ms."""
    unsure = []
    if unknown := [row.name for row in run.facts.shards if row.error_ns < 0]:
        unsure.append(f"{_name_shards(unknown)} at an unknown offset")
    if large := [row for row in run.facts.shards if row.error_ns > CLOCK_MS * MS_NS]:
        worst_ms = max(row.error_ns for row in large) / MS_NS
        names = _name_shards([row.name for row in large])
        unsure.append(f"{names} at an offset that is known to ± {worst_ms:.3g} ms")
    needing = "duration, throughput, concurrency and peaks may be off by it, latencies are not"
    return join_evidence(f"{how} to the clock of the first one: {needing}" for how in unsure)


def _name_shards(names: list[str]) -> str:
    return f"shard{'s' if len(names) > 1 else ''} {list_first(names, _MOST_NAMED)}"


limit = partial(limit_doubts, ("lost", "shards"))

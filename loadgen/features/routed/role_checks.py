"""Role checks: whether a server behind the router ended while it was measured."""

from __future__ import annotations

from functools import partial

from loadgen.base.rule import Evidence, Origin, Source, invalid, join_evidence
from loadgen.server.role_window import RoleWindow
from loadgen.verdict.evidence import RunEvidence, limit_doubts


@invalid(
    "worker-ended",
    "a server of --metrics-url answered before the run and not after it, or one of its counters went "
    "backwards: it ended or restarted, and the others had its load",
    "find in that server's log why it ended, then run again",
    Source.COUNTERS,
    origin=Origin.LOAD,
)
def worker_ended(run: RunEvidence) -> Evidence | None:
    """Find evidence that a server behind the router ended or restarted during the run."""
    return join_evidence(
        map(describe_end, (each for each in run.facts.role_windows if each.ended_s is not None))
    )


def describe_end(server: RoleWindow) -> str:
    """Describe when a server ended or restarted, by its scrapes."""
    by = f"by {server.ended_s or 0.0:.1f} s"
    if server.restarted:
        return f"{server.label} restarted {by}"
    return f"{server.label} ended {by}: {server.ended_why.rstrip('.') or 'it did not answer'}"


limit = partial(limit_doubts, ("role_windows",))

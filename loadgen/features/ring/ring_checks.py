"""Ring checks: whether the packet ring saw every segment, and none waited for this client."""

from __future__ import annotations

from functools import partial

from loadgen.base.rule import Evidence, Origin, note, suspect
from loadgen.verdict.client_checks import explain_starving
from loadgen.verdict.evidence import RunEvidence, limit_doubts, percent

HELD = 0.01  # of the segments: P99 ITL is of a hundredth of the gaps


@suspect(
    "acks-late",
    f"over the packet ring more than {percent(HELD)} of the segments came as soon as the client had read, "
    "over 2 ms late, the one before them (less those by chance): a server with Nagle's algorithm sends on "
    "once that is acknowledged",
    "leave the client a core (taskset), or switch Nagle's algorithm off in the server (TCP_NODELAY)",
    origin=Origin.READING,
)
def acks_late(run: RunEvidence) -> Evidence | None:
    """Find evidence that over 1 % of the segments waited for acknowledgements which the client sent late."""
    client = run.facts.client
    if client.held_segments <= HELD * client.segments:
        return None
    share = percent(client.held_segments / client.segments)
    return (
        f"{share} of the segments waited for the client to acknowledge the one before, which it read late"
        f"{explain_starving(run)}: percentiles of ITL have the client's delay in them"
    )


@note(
    "ring-incomplete",
    "the packet ring did not show every segment of some requests, as it had no room or did not see the "
    "connection: those have the timestamps of their sockets' reads (reads-late shows what that costs)",
    "leave the client a core, or spread the load over several clients",
)
def ring_incomplete(run: RunEvidence) -> Evidence | None:
    """Find evidence that requests were timed by reads although there was a packet ring."""
    client = run.facts.client
    if not client.fallen_back:
        return None
    return (
        f"{client.fallen_back} of {run.metrics.requests} requests are timed by reads: the packet ring lost "
        f"{client.dropped_segments} of {client.segments + client.dropped_segments} segments"
    )


limit = partial(limit_doubts, ("client.held_segments", "client.fallen_back"))

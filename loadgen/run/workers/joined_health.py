"""The health of several capturing processes as one."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.features.sessions.session_job import join_digests
from loadgen.run.firing import NO_HEALTH
from loadgen.transport.sending.job import Health


def joined(several: Sequence[Health]) -> Health:
    """What capturing processes that ran side by side report together.

    Of what one process does to its own streams (held back, stopped, the busiest) the worst counts.
    """
    if not several:
        return NO_HEALTH
    return Health(
        started_ns=min(health.started_ns for health in several),
        ended_ns=max(health.ended_ns for health in several),
        cpu_ns=sum(health.cpu_ns for health in several),
        busiest_cpu_ns=max(health.cpu_ns for health in several),
        backlog_bytes=max(health.backlog_bytes for health in several),
        stopped_ns=max(health.stopped_ns for health in several),
        clock_step_ns=max(health.clock_step_ns for health in several),
        late_bodies=sum(health.late_bodies for health in several),
        segments=sum(health.segments for health in several),
        dropped_segments=sum(health.dropped_segments for health in several),
        fallen_back=sum(health.fallen_back for health in several),
        held_segments=sum(health.held_segments for health in several),
        reconnects=sum(health.reconnects for health in several),
        bodies_digest=join_digests(health.bodies_digest for health in several),
        instead=next((health.instead for health in several if health.instead), ""),
    )

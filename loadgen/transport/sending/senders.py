"""Senders: the choice of a job's sender: of requests of their own, or of turns of sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loadgen.transport.epoll.connection import Slot
from loadgen.transport.epoll.pool import Pool
from loadgen.transport.sending.job import Counters, Job
from loadgen.transport.sending.outgoing import Outgoing
from loadgen.transport.sending.sender import Sender

if TYPE_CHECKING:
    from loadgen.features.sessions.turn_queue import TurnQueue


def make_sender(
    job: Job, pool: Pool, counters: Counters, send: Callable[[Slot], None]
) -> tuple[Outgoing | TurnQueue, Sender]:
    """Make a job's outgoing requests, and the sender that gives them to the slots of a pool."""
    if job.sessions is None:
        out = Outgoing(job)
        return out, Sender(job, pool, out, counters, send)
    from loadgen.features.sessions.session_sending import SessionSender  # few runs have sessions
    from loadgen.features.sessions.turn_queue import TurnQueue

    turns = TurnQueue(job, job.sessions)
    return turns, SessionSender(job, pool, turns, counters, send)

"""Httpx sessions: the turns of a session one after another, over the client of its first one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loadgen.transport.failure import CUT_SHORT, Failure
from loadgen.transport.portable.httpx_stream import Exchange
from loadgen.transport.sending.job import Job
from loadgen.transport.sending.session_job import SessionJob
from loadgen.transport.sending.session_sending import TurnPace, make_pace
from loadgen.transport.sending.turn_queue import TurnQueue

Exchanged = Callable[[Exchange], Awaitable[Failure | None]]


class HttpxSessions:
    """Sends what follows a session's first turn, each turn when it is due and the one before it succeeded."""

    def __init__(self, job: Job, sessions: SessionJob, begin_ns: int) -> None:
        self.job, self.begin_ns = job, begin_ns
        self.turns = TurnQueue(job, sessions)
        self.pace: TurnPace = make_pace(sessions, begin_ns)

    async def run(self, first: Exchange, exchange: Exchanged) -> None:
        """Send all turns of the session of a first one, as long as each succeeds."""
        turn: Exchange | None = first
        _, first.request = self.turns.first.take()
        due_ns = self.pace.first_ns(first.slot, first.intended_ns)
        if due_ns:
            first.intended_ns = due_ns
            await self._wait(first, due_ns)
        while turn is not None and not self._is_over(turn):
            index = turn.index
            self.turns.note_sent(index, turn.request)
            failure = await exchange(turn)
            self.turns.reconnects += turn is not first and turn.connect_begin_ns > 0
            turn = await self._make_next(turn, index, failure)

    async def _make_next(self, turn: Exchange, index: int, failure: Failure | None) -> Exchange | None:
        """The turn after the one of this index, once it is due; None: there is none."""
        slot, end_ns = turn.slot, turn.now_ns()
        if failure is not None and failure.kind not in CUT_SHORT:
            self.turns.drop(index)
            return None
        if not self.turns.has_next(index):
            self.turns.forget(index)
            return None
        capture = turn.capture(failure, self.job.share)
        capture.index = index
        ended = self.turns.note_ended(capture, turn.got)
        if failure is not None and not self.turns.judge(ended):
            return None
        due_ns = self.pace.next_ns(slot, index + 1, end_ns)
        await self._wait(turn, due_ns)
        if not self.turns.judge(ended):
            return None
        following = Exchange(slot, turn.link, turn.now_ns, turn.on_sent, index=index + 1, intended_ns=due_ns)
        following.request = self.turns.take(index + 1)
        return following

    async def _wait(self, turn: Exchange, due_ns: int) -> None:
        while (left_ns := due_ns - turn.now_ns()) > 0:  # noqa: ASYNC110  # absolute, never early
            await asyncio.sleep(left_ns / 1e9)

    def _is_over(self, turn: Exchange) -> bool:
        """Whether the time for sending is over."""
        return 0 < self.job.duration_ns <= turn.now_ns() - self.begin_ns

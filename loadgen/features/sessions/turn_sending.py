"""Turn sending: the turns of a session go out one after another, over the connection of its first one."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import msgspec

from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.plan.planned_requests import Turns
from loadgen.transport.capture import A_READ, NO_STAMP, Capture, Counters, join_reads, pack_int64s
from loadgen.transport.failure import CUT_SHORT, Failure
from loadgen.transport.sending.job import DIGEST_BYTES, SPIN_NS, Job, Listed, Share, join_digests, split_body
from loadgen.transport.sending.sender import Outgoing, Sender
from loadgen.transport.tcp_connection import Pool, Slot, State

Answer = dict[str, Any]  # a message as the next turn's history has it; empty where that is recorded
# A connection that the server closed between two turns is opened again so long before the next one is due, or
# three times as long as it took before: enough for a handshake far away, and shorter than idle ones are kept.
_AHEAD_NS, _MOST_AHEAD_NS = 300 * MS_NS, 2 * SECOND_NS
_NEW_SESSION = -1  # in place of the index of a turn
_MODEL = re.compile(rb'"model":"(?:[^"\\]|\\.)*"')  # the first key of a body


class TurnOrder(Listed):
    """The sessions that one process sends, by the plan index of their first turns."""

    def __init__(self, turns: Turns, sessions: Sequence[int]) -> None:
        super().__init__([int(turns.begins[session]) for session in sessions])
        self._ends = [turns.end(session) for session in sessions]

    @property
    def requests(self) -> int:
        """The number of turns of all these sessions."""
        return sum(self._ends) - sum(map(int, self.indices))

    def list_claimed(self) -> list[int]:
        """List all turns of these sessions, sent or not."""
        return [index for session in self._list_sessions() for index in session]

    def list_unanswered(self, sent: int, have: Collection[int]) -> list[int]:
        """List the first turns not in `have`, one a session, begun ones first, `sent` − len(have) of them."""
        missing = max(sent - len(have), 0)
        waiting = [next((i for i in session if i not in have), -1) for session in self._list_sessions()]
        begun = (begin in have for begin in self.indices)
        order = sorted(zip(begun, waiting, strict=True), key=lambda each: not each[0])
        return [index for _, index in order if index >= 0][:missing]

    def _list_sessions(self) -> Iterator[range]:
        return (range(int(begin), end) for begin, end in zip(self.indices, self._ends, strict=True))


class SessionJob(msgspec.Struct, frozen=True):
    """The sessions of a plan, as a job needs them.

    `answer_of` is the answer in a turn's capture, None where the turn failed. `body_after` is the body of a
    plan index with the server's own answers as its history; None: the history is what the plan has.
    """

    turns: Turns
    answer_of: Callable[[Capture], Answer | None]
    body_after: Callable[[int, Sequence[Answer]], bytes] | None = None
    header: str = ""  # that names the session in each of its turns
    users: int = 0  # each with a session at a time and turns at `user_rate_per_s`; 0: turns have delays
    user_rate_per_s: float = 0.0

    def find_session(self, index: int) -> int:
        """Return the number, from 0, of the session with the request of a plan index."""
        return bisect_right(self.turns.begins, index) - 1

    def find_end(self, index: int) -> int:
        """Return the plan index after the last turn of a request's session."""
        return self.turns.end(self.find_session(index))

    def make_headers(self, index: int, prefix: str) -> tuple[tuple[str, str], ...]:
        """Return the header with the session's name, the same in all its turns; () if none is wanted."""
        return ((self.header, f"{prefix}session-{self.find_session(index)}"),) if self.header else ()

    def make_sender(
        self, job: Job, pool: Pool, counters: Counters, send: Callable[[Slot], None]
    ) -> tuple[TurnQueue, SessionSender]:
        """Make the turns of a job, and the sender that gives them to the slots of a pool."""
        turns = TurnQueue(job, self)
        return turns, SessionSender(job, pool, turns, counters, send)

    def make_exchanges(self, job: Job, begin_ns: int) -> SessionExchanges:
        """Make the sender of turns for a transport that awaits each request."""
        return SessionExchanges(job, self, begin_ns)


@dataclass(eq=False, slots=True)
class EndedTurn:
    """A turn whose whole answer has arrived and is not judged yet."""

    index: int
    capture: Capture
    got: Sequence[Any]  # reads, as a transport gathers them
    judged: bool = False
    succeeded: bool = False


class BodiesDigest:
    """A hash of request bodies, in whatever order they are sent, without the model's name."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, body: bytes) -> None:
        """Add the hash of one body, without the model's name."""
        body = _MODEL.sub(b"", body, count=1)
        hashed = hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
        self._sum += int.from_bytes(hashed, "little")

    def hex(self) -> str:
        """Return the sum of the bodies' hashes, whatever their order, as hex digits; "" without a body."""
        return join_digests((f"{self._sum:x}",))


class TurnQueue:
    """The turns of a job's sessions: first turns in `first`, later ones after their answers.

    `count` is how many turns there will be: the most there can be, as a failed turn ends its session. `next`
    is how many were sent.
    """

    def __init__(self, job: Job, sessions: SessionJob) -> None:
        assert isinstance(job.order, TurnOrder)
        self.job, self.sessions = job, sessions
        self.first = Outgoing(job)
        self.count, self.next = job.order.requests, 0
        self.reconnects = 0  # turns that went over another connection than the one before them
        self._late_bodies = 0
        self._digest = BodiesDigest()
        self._answers: dict[int, list[Answer]] = {}  # of sessions under way, by number
        self._ended: deque[EndedTurn] = deque()  # to be judged
        self._to_build: dict[int, None] = {}  # turns whose history is known, in their order
        self._built: dict[int, bytes] = {}
        self._sent: deque[bytes] = deque()  # requests, to be part of the digest

    @property
    def built(self) -> int:
        """The number of first turns that are built."""
        return self.first.built

    @property
    def late_bodies(self) -> int:
        """The number of requests whose body was not built when they were due."""
        return self.first.late_bodies + self._late_bodies

    def has_next(self, index: int) -> bool:
        """Whether a turn is followed by another one of its session."""
        return index + 1 < self.sessions.find_end(index)

    def note_sent(self, index: int, request: bytes) -> None:
        """Note that a turn is sent, so that the next one can be built ahead if its history is known."""
        self.next += 1
        self._sent.append(request)
        if self.sessions.body_after is None and self.has_next(index):
            self._to_build[index + 1] = None

    def take(self, index: int) -> bytes:
        """Return the HTTP request of a due turn whose previous answer is judged, built now if not ready."""
        request = self._built.pop(index, None)
        if request is None:
            self._to_build.pop(index, None)
            self._late_bodies += self.sessions.body_after is None  # else it may be known just now
            request = self._build(index)
        return request

    def note_ended(self, capture: Capture, got: Sequence[Any]) -> EndedTurn:
        """Queue an ended turn, to be judged later by `build_ahead` or `judge`, and return it.

        `got` holds its reads, as a transport gathers them.
        """
        turn = EndedTurn(capture.index, capture, got)
        self._ended.append(turn)
        return turn

    def judge(self, turn: EndedTurn) -> bool:
        """Decode a turn's answer once, and return whether it succeeded, so that the next one follows.

        A failed one ends its session. A live answer is kept for the next turn's body.
        """
        if turn.judged:
            return turn.succeeded
        turn.judged, capture, got = True, turn.capture, turn.got
        capture.raw, capture.read_lengths = join_reads(got[::A_READ])
        reads = got[2::A_READ]
        capture.seen_ns, capture.kernel = pack_int64s(reads), NO_STAMP * len(reads)
        answer = self.sessions.answer_of(capture)
        turn.got, turn.succeeded = (), answer is not None
        if answer is None:
            self.drop(turn.index)
        elif self.sessions.body_after is not None:
            self._answers.setdefault(self.sessions.find_session(turn.index), []).append(answer)
            self._to_build[turn.index + 1] = None
        return turn.succeeded

    def drop(self, index: int) -> None:
        """End a session with this turn: later turns are not sent."""
        self.forget(index)
        self._built.pop(index + 1, None)
        self._to_build.pop(index + 1, None)
        if self.next < self.count:  # or the time for sending is over
            self.count -= self.sessions.find_end(index) - index - 1

    def forget(self, index: int) -> None:
        """Drop the answers kept for the session of a turn, of which no turn follows."""
        self._answers.pop(self.sessions.find_session(index), None)

    def close(self) -> None:
        """Send nothing more: the time for that is over."""
        self.count, self.first.count = self.next, self.first.next
        self._to_build.clear()

    def build_ahead(self) -> bool:
        """Judge an answer, build a request ahead or hash a sent body; False if there is nothing to do."""
        while self._ended and self._ended[0].judged:
            self._ended.popleft()
        if self._ended:
            self.judge(self._ended.popleft())
        elif self._to_build:
            index = next(iter(self._to_build))
            del self._to_build[index]
            self._built[index] = self._build(index)
        elif not self.first.build_ahead():
            if not self._sent:
                return False
            self._digest.add(split_body(self._sent.popleft()))
        return True

    def bodies_digest(self) -> str:
        """Hash what was sent and not hashed yet, and return the digest of all bodies."""
        while self._sent:
            self._digest.add(split_body(self._sent.popleft()))
        return self._digest.hex()

    def _build(self, index: int) -> bytes:
        """Return the HTTP request of a turn, with the server's answers in it if they are live."""
        after = self.sessions.body_after
        if after is None:
            return self.job.make_request(index)
        answers = self._answers.get(self.sessions.find_session(index), ())
        return self.job.make_request(index, after(index, answers))


# When it is due, its slot's number (of which there is one: no two compare further), its index, its slot.
Waiting = tuple[int, int, int, Slot, EndedTurn | None]


class TurnPace(Protocol):
    """When the turns of the sessions over one slot are due, in nanoseconds."""

    def first_ns(self, slot: int, end_ns: int) -> int:
        """Return when the slot's next session begins, after the one before ended; 0: at once."""

    def next_ns(self, slot: int, index: int, end_ns: int) -> int:
        """Return when turn `index` is due, whose previous answer ended at `end_ns`; call it once a turn."""


class Delays:
    """A pace at which each turn is due some time after the previous answer: thinking, or a tool's work."""

    def __init__(self, sessions: SessionJob) -> None:
        self.delays_ns = sessions.turns.delays_ns

    def first_ns(self, slot: int, end_ns: int) -> int:
        return 0

    def next_ns(self, slot: int, index: int, end_ns: int) -> int:
        return end_ns + int(self.delays_ns[index])


class UserRate:
    """A pace at which each slot is a user with turns due at a fixed rate; a turn waits for the answer."""

    def __init__(self, sessions: SessionJob, begin_ns: int) -> None:
        self.period_ns = round(SECOND_NS / sessions.user_rate_per_s)
        self.begin_ns, self.users = begin_ns, sessions.users
        self._turns: dict[int, int] = {}  # of each slot, so far

    def first_ns(self, slot: int, end_ns: int) -> int:
        return self.next_ns(slot, _NEW_SESSION, end_ns)

    def next_ns(self, slot: int, index: int, end_ns: int) -> int:
        """Return when the slot's next turn is due, not before `end_ns`, and count it.

        Users are spread out.
        """
        turns = self._turns.get(slot, 0)
        self._turns[slot] = turns + 1
        planned_ns = self.begin_ns + slot * self.period_ns // self.users + turns * self.period_ns
        return max(planned_ns, end_ns)


def make_pace(sessions: SessionJob, begin_ns: int) -> TurnPace:
    """Make the pace of a job's turns that begins at `begin_ns`."""
    return UserRate(sessions, begin_ns) if sessions.users else Delays(sessions)


class SessionSender(Sender):
    """Starts sessions as its base starts requests, and keeps each one's slot until its last turn."""

    def __init__(
        self, job: Job, pool: Pool, turns: TurnQueue, counters: Counters, send: Callable[[Slot], None]
    ) -> None:
        super().__init__(job, pool, turns.first, counters, send)
        self.turns = turns
        self.pace = make_pace(turns.sessions, 0)
        self._waiting: list[Waiting] = []  # a heap
        self._due_ns: dict[Slot, int] = {}  # of the slots in it

    def begin(self, begin_ns: int) -> None:
        """Begin sending at `begin_ns`, and give each free slot the time of its first session."""
        super().begin(begin_ns)
        self.pace = make_pace(self.turns.sessions, begin_ns)
        slots = list(self.pool.free)
        self.pool.free.clear()
        for slot in slots:
            self.take_free(slot)

    def send_due(self) -> None:
        """Send the turns and first turns that are due; after the job's duration nothing more."""
        if 0 < self.job.duration_ns <= self.now_ns() - self.begin_ns:
            self.turns.close()
            return
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.now_ns():
            due_ns, _, index, slot, before = heapq.heappop(waiting)
            del self._due_ns[slot]
            if index == _NEW_SESSION:
                if self.out.next < self.out.count:
                    self._give(slot, *self.out.take(), due_ns)
            elif before is None or self.turns.judge(before):
                self.turns.reconnects += not (slot.served and slot.intake.state is State.IDLE)
                self._give(slot, index, self.turns.take(index), due_ns)
            else:
                self.take_free(slot)
                slot.retry_ns = self.now_ns() if slot.intake.state is State.CLOSED else 0
        self._send_due()

    def _give(self, slot: Slot, index: int, request: bytes, due_ns: int) -> None:
        """Send a request over its session's slot, reconnecting first if needed."""
        self._assign(slot, index, request, due_ns)
        state = slot.intake.state
        if state is State.IDLE:
            self.send(slot)
            self.note_sent(slot)
        elif state is State.CLOSED:
            self.pool.dial(slot)

    def _take(self, slot: Slot, intended_ns: int) -> None:
        self._assign(slot, *self.out.take(), intended_ns)

    def _assign(self, slot: Slot, index: int, request: bytes, due_ns: int) -> None:
        """Put a turn into a slot, and count it as sent."""
        slot.index, slot.request, slot.intended_ns = index, request, due_ns
        self.turns.note_sent(index, request)
        self.counters.publish_sent(self.turns.next)

    def take_unsent(self, slot: Slot) -> None:
        if slot not in self._due_ns:
            super().take_unsent(slot)

    def note_ended(self, slot: Slot, failure: Failure | None, end_ns: int) -> None:
        """Note an answer's end, and let the slot wait for its session's next turn.

        A failed turn ends the session, unless it was only cut short and its answer is judged a success.
        """
        super().note_ended(slot, failure, end_ns)
        index, turns = slot.index, self.turns
        if failure is not None and failure.kind not in CUT_SHORT:
            turns.drop(index)
        elif turns.has_next(index):
            ended = turns.note_ended(slot.make_capture(slot.number, end_ns, failure=failure), slot.intake.got)
            if failure is not None and not turns.judge(ended):
                return
            self._wait(self.pace.next_ns(slot.number, index + 1, end_ns), index + 1, slot, ended)
        else:
            turns.forget(index)

    def take_free(self, slot: Slot) -> None:
        """Keep a free slot for its session's next turn, or give it to the next session."""
        if slot in self._due_ns:
            return
        due_ns = self.pace.first_ns(slot.number, slot.freed_ns) if self.begin_ns else 0
        if due_ns:
            self._wait(due_ns, _NEW_SESSION, slot, None)
        elif slot.intake.state is State.IDLE:
            self.pool.free.append(slot)

    def _wait(self, due_ns: int, index: int, slot: Slot, before: EndedTurn | None) -> None:
        self._due_ns[slot] = due_ns
        heapq.heappush(self._waiting, (due_ns, slot.number, index, slot, before))

    def redial_ns(self, slot: Slot) -> int:
        """Return when a waiting slot's connection is opened again: 0.3 to 2 s before its turn is due."""
        due_ns = self._due_ns.get(slot)
        if due_ns is None:
            return super().redial_ns(slot)
        ahead_ns = min(max(_AHEAD_NS, 3 * slot.connect_ns), _MOST_AHEAD_NS)
        return max(due_ns - ahead_ns, self.now_ns())

    def wait_ns(self) -> int:
        wait_ns = super().wait_ns()
        return min(wait_ns, self._waiting[0][0] - self.now_ns() - SPIN_NS) if self._waiting else wait_ns


class TurnExchange(Protocol):
    """A request in flight over a transport that awaits each."""

    index: int  # position in the plan; -1 once it is over
    slot: int
    intended_ns: int
    connect_begin_ns: int  # 0: the connection was open
    request: bytes
    now_ns: Callable[[], int]
    got: Sequence[Any]

    def capture(self, failure: Failure | None, share: Share) -> Capture: ...
    def follow(self, index: int, intended_ns: int, request: bytes) -> Self: ...


E = TypeVar("E", bound=TurnExchange)


class SessionExchanges:
    """Sends a session's turns after the first, each when due and if the one before succeeded."""

    def __init__(self, job: Job, sessions: SessionJob, begin_ns: int) -> None:
        self.job, self.begin_ns, self.reconnects = job, begin_ns, 0
        self.turns = TurnQueue(job, sessions)
        self.pace: TurnPace = make_pace(sessions, begin_ns)
        self.build_ahead, self.bodies_digest = self.turns.build_ahead, self.turns.bodies_digest

    async def run(self, first: E, exchange: Callable[[E], Awaitable[Failure | None]]) -> None:
        """Send all turns of the session that begins with `first`, as long as each succeeds."""
        turn: E | None = first
        _, first.request = self.turns.first.take()
        due_ns = self.pace.first_ns(first.slot, first.intended_ns)
        if due_ns:
            first.intended_ns = due_ns
            await self._wait(first, due_ns)
        while turn is not None and not 0 < self.job.duration_ns <= turn.now_ns() - self.begin_ns:
            index = turn.index
            self.turns.note_sent(index, turn.request)
            failure = await exchange(turn)
            self.reconnects += turn is not first and turn.connect_begin_ns > 0
            turn = await self._make_next(turn, index, failure)

    async def _make_next(self, turn: E, index: int, failure: Failure | None) -> E | None:
        """Wait until the next turn is due and return it; None if there is none, or this one failed.

        A failed turn ends its session, unless it was only cut short and its answer is judged a success.
        """
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
        return turn.follow(index + 1, due_ns, self.turns.take(index + 1))

    async def _wait(self, turn: TurnExchange, due_ns: int) -> None:
        while (left_ns := due_ns - turn.now_ns()) > 0:  # noqa: ASYNC110  # absolute, never early
            await asyncio.sleep(left_ns / 1e9)

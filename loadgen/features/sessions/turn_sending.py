"""Turn sending: each turn of a session goes out, a think time after the answers that it waits for.

Bodies are built ahead of time. An answer is judged first, and what of it the next turn sends back is taken
from it.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import Turns
from loadgen.records import decoded_stream
from loadgen.records.decode import Decoder
from loadgen.transport.capture import A_READ, NO_STAMP, Capture, Counters, join_reads, pack_int64s
from loadgen.transport.failure import CUT_SHORT, Failure, FailureKind
from loadgen.transport.httpx_transport import Exchange, HttpxTransport
from loadgen.transport.sending.job import DIGEST_BYTES, SPIN_NS, Job, Listed, join_digests, split_body
from loadgen.transport.sending.sender import Outgoing, Sender
from loadgen.transport.tcp_connection import Pool, Slot, State
from loadgen.wire import sse
from loadgen.wire.openai import REASONING_FIELDS, TOKEN, ChatChoice, Dialect, Message, read_written

TurnAnswer = dict[str, Any]  # a message as the next turn's history has it; empty where that is recorded
MAIN = 0  # the lane of a session's main line
_MODEL = re.compile(rb'"model":"(?:[^"\\]|\\.)*"')  # the first key of a body, or after a salt of ours
_SALT = re.compile(rb'"\w+":"loadgen-[0-9a-f]{32}",')


class SessionJob(msgspec.Struct, frozen=True):
    """The sessions of a plan, as a job sends them.

    `answer_of` is the answer in a turn's capture, None where the turn failed. `body_after` is the body of a
    plan index with the server's own answers as its history; None: the history is what the plan has.
    """

    turns: Turns
    answer_of: Callable[[Capture], TurnAnswer | None]
    body_after: Callable[[int, Sequence[TurnAnswer]], bytes] | None = None
    header: str = ""  # that names the session in each of its turns
    users: int = 0  # each with a session at a time and turns at `user_rate_per_s`; 0: turns have delays
    user_rate_per_s: float = 0.0

    def make_headers(self, index: int, prefix: str) -> tuple[tuple[str, str], ...]:
        """Return the header with the session's name, the same in all its turns; () if none is wanted."""
        if not self.header:
            return ()
        return ((self.header, f"{prefix}session-{bisect_right(self.turns.begins, index) - 1}"),)

    def count_slots(self, sessions: int) -> int:
        """Count the connections that `sessions` at once take at most: one for each lane of each."""
        waits = self.turns.waits
        if waits is None or not len(waits.lanes):
            return sessions
        return sessions + sessions * int(waits.lanes.max())

    def count_least_slots(self, sessions: int) -> int:
        """Count the connections that `sessions` at once need to begin what one answer of each releases.

        That is one each, and of the widest sessions the most other lanes that wait for one answer.
        """
        fans = np.sort(_count_fans(self.turns))
        return sessions + int(fans[max(len(fans) - sessions, 0) :].sum())

    def make_turns_and_sender(
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


class OpenSession:
    """A session under way: what each of its requests still waits for, by its place in the session.

    A request is over once it has ended, or is dropped since one that it waits for has failed. `slots` has
    what the requests of a lane go over, for the sender.
    """

    def __init__(self, turns: Turns, number: int, begin_ns: int) -> None:
        self.number, self.begin_ns = number, begin_ns
        self.begin, end = turns.begins[number : number + 2].tolist()
        # Each request has its predecessors, by place in the session, and its lane.
        count, waits = end - self.begin, turns.waits
        self.before, self.lanes = [[], *([place] for place in range(count - 1))], [MAIN] * count
        if waits is not None:
            starts = waits.starts[self.begin : end + 1]
            before = (waits.before[starts[0] : starts[-1]] - self.begin).tolist()
            self.before = [before[first:last] for first, last in pairwise((starts - starts[0]).tolist())]
            self.lanes = waits.lanes[self.begin : end].tolist()
        self.left = end - self.begin  # requests that are not over
        self.lane_left = Counter(self.lanes)
        self.over = bytearray(self.left)
        self.waited_for: list[list[int]] = [[] for _ in self.before]  # by whom: the requests after each
        for place, earlier in enumerate(self.before):
            for each in earlier:
                self.waited_for[each].append(place)
        self.unended = list(map(len, self.before))
        self.unknown = self.unended.copy()  # of them, those without which the body cannot be made
        self.ready_ns = [begin_ns] * self.left  # the last end of what each waits for
        self.ended_ns = begin_ns  # the last end of all
        self.ended: dict[int, EndedTurn] = {}  # whose answers are not judged
        self.answers: dict[int, list[TurnAnswer]] = {}  # live ones, by lane
        self.begun: set[int] = {MAIN}  # lanes
        self.slots: dict[int, Any] = {}
        self.roots = list_roots(turns, number)

    def find_lane(self, index: int) -> int:
        """Return the lane of a request."""
        lane: int = self.lanes[index - self.begin]
        return lane


def list_roots(turns: Turns, number: int) -> list[int]:
    """List the plan indices of a session's requests after the first that wait for none."""
    if turns.waits is None:
        return []
    begin, end = turns.begins[number : number + 2].tolist()
    counts = np.diff(turns.waits.starts[begin : end + 1])
    roots: list[int] = (begin + 1 + np.flatnonzero(counts[1:] == 0)).tolist()
    return roots


def _count_fans(turns: Turns) -> Int64:
    """Count, of each session, the most lanes besides the main one that one answer begins, int64[sessions]."""
    fans, waits = np.zeros(len(turns), np.int64), turns.waits
    if waits is None or not waits.lanes.any():
        return fans
    waited, sessions = np.diff(waits.starts), turns.list_sessions()
    aside = np.flatnonzero((waited <= 1) & (waits.lanes > 0))
    after, follows = turns.begins[sessions[aside]], waited[aside] == 1
    after[follows] = waits.before[waits.starts[aside[follows]]]
    lanes = np.unique(np.stack((after, waits.lanes[aside])), axis=1)
    answers, counts = np.unique(lanes[0], return_counts=True)
    np.maximum.at(fans, sessions[answers], counts)
    return fans


class TurnQueue:
    """The turns of a job's sessions: first turns in `first`, others once those they wait for are answered.

    `count` is how many turns there will be: the most there can be, as a failed turn drops those that wait for
    it. `next` is how many were sent. `soon` has those that begin a lane and wait for a request in flight,
    `over` the lanes that no request is left for, the main one last: a sender takes both.
    """

    def __init__(self, job: Job, sessions: SessionJob) -> None:
        assert isinstance(job.order, TurnOrder)
        self.job, self.sessions = job, sessions
        self.first = Outgoing(job)
        self.count, self.next = job.order.requests, 0
        self.reconnects = 0  # turns that went over another connection than the one of their lane before them
        self.soon: set[int] = set()
        self.over: deque[tuple[OpenSession, int]] = deque()
        self._begins: list[int] = sessions.turns.begins.tolist()  # found ten times as fast in a list
        self._late_bodies = 0
        self._digest = 0  # the sum of the hashes of sent bodies, whatever their order
        self._under_way: dict[int, OpenSession] = {}  # by number
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

    def find(self, index: int) -> OpenSession:
        """Return the session under way with this request; raises KeyError if it is over."""
        return self._under_way[self._find_session_number(index)]

    def _find_session_number(self, index: int) -> int:
        return bisect_right(self._begins, index) - 1

    def begin(self, index: int, begin_ns: int) -> OpenSession:
        """Begin the session whose first turn is `index`, due at `begin_ns`, and return it."""
        number = self._find_session_number(index)
        session = self._under_way[number] = OpenSession(self.sessions.turns, number, begin_ns)
        return session

    def note_sent(self, index: int, request: bytes) -> None:
        """Note that a turn is sent, so that later ones can be built ahead if their history is known."""
        self.next += 1
        self._sent.append(request)
        session = self.find(index)
        session.begun.add(session.find_lane(index))
        for place in session.waited_for[index - session.begin]:
            if (
                session.before[place][-1] == index - session.begin
                and session.lanes[place] not in session.begun
            ):
                self.soon.add(session.begin + place)
        if self.sessions.body_after is None:
            self._note_known(session, index)

    def take(self, index: int) -> bytes:
        """Return the HTTP request of a due turn that `may_send`, built now if it is not ready."""
        request = self._built.pop(index, None)
        if request is None:
            self._to_build.pop(index, None)
            self._late_bodies += self.sessions.body_after is None  # else it may be known just now
            request = self._make_request(index)
        return request

    def end(
        self,
        index: int,
        failure: Failure | None,
        end_ns: int,
        capture: Callable[[], tuple[Capture, Sequence[Any]]],
    ) -> list[int]:
        """Note that a turn ended, and list the turns that now wait for none, in the plan's order.

        A failed turn drops those that wait for it, unless it was only cut short and its answer is judged a
        success. An answer is judged later, by `build_ahead` or `judge`, if any turn waits for it; `capture`
        makes its capture, and gives its reads as a transport gathers them.
        """
        session = self.find(index)
        ended = index - session.begin
        if failure is not None and failure.kind not in CUT_SHORT:
            self.drop(index)
        elif any(not session.over[place] for place in session.waited_for[ended]):
            turn = session.ended[ended] = EndedTurn(index, *capture())
            self._ended.append(turn)
            if failure is not None:
                self.judge(turn)
        self._note_over(session, ended, end_ns)
        released = []
        for place in session.waited_for[ended]:
            session.unended[place] -= 1
            session.ready_ns[place] = max(session.ready_ns[place], end_ns)
            if not (session.unended[place] or session.over[place]):
                released.append(session.begin + place)
        return released

    def may_send(self, session: OpenSession, index: int) -> bool:
        """Whether all that a released turn waits for succeeded; judges those that are not judged yet."""
        place = index - session.begin
        for each in session.before[place]:
            if (turn := session.ended.get(each)) is not None and not self.judge(turn):
                return False
        return not session.over[place]

    def judge(self, turn: EndedTurn) -> bool:
        """Decode a turn's answer once, and return whether it succeeded, so that others follow.

        A failed one drops those. A live answer is kept for the next turn's body.
        """
        if turn.judged:
            return turn.succeeded
        turn.judged, capture, got = True, turn.capture, turn.got
        turn.got = ()
        session = self._under_way.get(self._find_session_number(turn.index))
        if session is None:
            return False  # all that waited for it was dropped
        capture.raw, capture.read_lengths = join_reads(got[::A_READ])
        reads = got[2::A_READ]
        capture.seen_ns, capture.kernel = pack_int64s(reads), NO_STAMP * len(reads)
        answer = self.sessions.answer_of(capture)
        turn.succeeded = answer is not None
        session.ended.pop(turn.index - session.begin, None)
        if answer is None:
            self.drop(turn.index)
        elif self.sessions.body_after is not None:
            session.answers.setdefault(session.find_lane(turn.index), []).append(answer)
            self._note_known(session, turn.index)
        return turn.succeeded

    def drop(self, index: int) -> None:
        """Drop the turns that wait for a failed one, directly or not: they are not sent."""
        session = self.find(index)
        dropped, to_drop = 0, list(session.waited_for[index - session.begin])
        while to_drop:
            place = to_drop.pop()
            if session.over[place]:
                continue
            dropped += 1
            to_drop += session.waited_for[place]
            self._built.pop(session.begin + place, None)
            self._to_build.pop(session.begin + place, None)
            self.soon.discard(session.begin + place)
            self._note_over(session, place, 0)
        if self.next < self.count:  # or the time for sending is over
            self.count -= dropped

    def close(self) -> None:
        """Stop: lower the counts to what was sent, and forget what is to be built."""
        self.count, self.first.count = self.next, self.first.next
        self._to_build.clear()
        self.soon.clear()

    def build_ahead(self) -> bool:
        """Judge an answer, build a request ahead or hash a sent body; False if there is nothing to do."""
        while self._ended and self._ended[0].judged:
            self._ended.popleft()
        if self._ended:
            self.judge(self._ended.popleft())
        elif self._to_build:
            index = next(iter(self._to_build))
            del self._to_build[index]
            self._built[index] = self._make_request(index)
        elif self.first.build_ahead():
            number = self._find_session_number(self.first.newest)
            self._to_build.update(dict.fromkeys(list_roots(self.sessions.turns, number)))
        elif not self._sent:
            return False
        else:
            self._hash_sent()
        return True

    def bodies_digest(self) -> str:
        """Hash what was sent and not hashed yet, and return the digest of all bodies; "" without any."""
        while self._sent:
            self._hash_sent()
        return join_digests((f"{self._digest:x}",))

    def _hash_sent(self) -> None:
        """Add the hash of a body that was sent, without the model's name and a run's salt."""
        body = _MODEL.sub(b"", _SALT.sub(b"", split_body(self._sent.popleft()), count=1), count=1)
        hashed = hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
        self._digest += int.from_bytes(hashed, "little")

    def _note_known(self, session: OpenSession, index: int) -> None:
        """Count a turn's answer as known to those after it; queue the ones that lack no other to be built."""
        for place in session.waited_for[index - session.begin]:
            session.unknown[place] -= 1
            if not (session.unknown[place] or session.over[place]):
                self._to_build[session.begin + place] = None

    def _note_over(self, session: OpenSession, place: int, end_ns: int) -> None:
        """Note that a request has ended or is dropped, and which lanes, or the session, that leaves over."""
        session.over[place] = 1
        session.left -= 1
        session.ended_ns = max(session.ended_ns, end_ns)
        lane = session.lanes[place]
        session.lane_left[lane] -= 1
        if lane != MAIN and not session.lane_left[lane]:
            self.over.append((session, lane))
        if not session.left:
            self.over.append((session, MAIN))
            del self._under_way[session.number]

    def _make_request(self, index: int) -> bytes:
        """Build a turn's HTTP request, with the server's own answers of its lane if these are sent back."""
        after = self.sessions.body_after
        session = self._under_way.get(self._find_session_number(index))
        if after is None or session is None:
            return self.job.make_request(index)
        answers = session.answers.get(session.find_lane(index))
        return self.job.make_request(index, None if answers is None else after(index, answers))


# A connection that the server closed between two turns is opened again so long before the next one is due, or
# three times as long as it took before: enough for a handshake far away, and shorter than idle ones are kept.
_AHEAD_NS, _MOST_AHEAD_NS = 300 * MS_NS, 2 * SECOND_NS
_NEW_SESSION = -1  # in place of the index of a turn


class TurnOrder(Listed):
    """The sessions that one process sends, by the plan index of their first turns."""

    def __init__(self, turns: Turns, sessions: Sequence[int]) -> None:
        super().__init__([int(turns.begins[session]) for session in sessions])
        self._ends = [turns.end(session) for session in sessions]
        self._waits = turns.waits

    @property
    def requests(self) -> int:
        """The number of turns of all these sessions."""
        return sum(self._ends) - sum(map(int, self.indices))

    def list_claimed(self) -> list[int]:
        """List all turns of these sessions, sent or not."""
        return [index for session in self._list_sessions() for index in session]

    def list_unanswered(self, sent: int, have: Collection[int]) -> list[int]:
        """List at most `sent` − len(have) turns not in `have` that wait for none but those in it.

        Those of sessions that have begun come first.
        """
        missing = max(sent - len(have), 0)
        begun, others, waits = list[int](), list[int](), self._waits
        for session in self._list_sessions():
            left = [index for index in session if index not in have]
            if session[0] not in have:
                others += left[:1]
            elif waits is None:
                begun += left[:1]
            else:
                begun += [index for index in left if all(each in have for each in waits.list_before(index))]
        return [*begun, *others][:missing]

    def _list_sessions(self) -> Iterator[range]:
        return (range(int(begin), end) for begin, end in zip(self.indices, self._ends, strict=True))


class TurnPace:
    """When the turns of sessions are due, in nanoseconds.

    Each is due some time after what it waits for, for thinking or a tool's work. Or each slot is a user, with
    turns at a fixed rate, which wait for the answer before; users are spread out.
    """

    def __init__(self, sessions: SessionJob, begin_ns: int) -> None:
        self._delays_ns, self._users, self._begin_ns = sessions.turns.delays_ns, sessions.users, begin_ns
        self._period_ns = round(SECOND_NS / sessions.user_rate_per_s) if sessions.users else 0
        self._turns: dict[int, int] = {}  # of each slot, so far

    def first_ns(self, slot: int, end_ns: int) -> int:
        """Return when the slot's next session begins, which counts as a user's turn; 0 without users."""
        return self.next_ns(slot, _NEW_SESSION, end_ns) if self._users else 0

    def next_ns(self, slot: int, index: int, end_ns: int) -> int:
        """Return when turn `index` is due, of which the last that it waits for ended at `end_ns`.

        Each call counts as one more turn of the user in that slot.
        """
        if not self._users:
            return end_ns + int(self._delays_ns[index])
        turns = self._turns.get(slot, 0)
        self._turns[slot] = turns + 1
        planned_ns = self._begin_ns + slot * self._period_ns // self._users + turns * self._period_ns
        return max(planned_ns, end_ns)


# Due time, number of the slot that its session began in, index, slot, session.
Waiting = tuple[int, int, int, Slot, OpenSession | None]


class SessionSender(Sender):
    """Starts sessions as its base starts requests, and their other turns when what they wait for has ended.

    A session keeps the slot that it began in until its last turn has ended, and that has its main line. Its
    other lanes have slots of their own, `branches` of the pool's, which they pass on. One is opened where a
    turn that begins a lane waits for a request in flight and no branch's slot is free.
    """

    def __init__(
        self, job: Job, pool: Pool, turns: TurnQueue, counters: Counters, send: Callable[[Slot], None]
    ) -> None:
        super().__init__(job, pool, turns.first, counters, send)
        self.turns = turns
        self.pace = TurnPace(turns.sessions, 0)
        self._waiting: list[Waiting] = []  # a heap
        self._due_ns: dict[Slot, int] = {}  # of the slots in it
        self._lanes: dict[Slot, tuple[OpenSession, int]] = {}  # of the slots that have one
        self._branches: set[Slot] = set()
        self._spare: deque[Slot] = deque()  # branches without a lane, connected or not

    def begin(self, begin_ns: int) -> None:
        """Begin sending at `begin_ns`, and give each free slot the time of its first session."""
        super().begin(begin_ns)
        self.pace = TurnPace(self.turns.sessions, begin_ns)
        slots = list(self.pool.free)
        self.pool.free.clear()
        for slot in slots:
            self.take_free(slot)

    def send_due(self) -> None:
        """Send the turns that are due, and then the first turns; after the job's duration nothing more."""
        if 0 < self.job.duration_ns <= self.now_ns() - self.begin_ns:
            self.turns.close()
            return
        if self.turns.over:
            self._release_lanes()
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.now_ns() and self._passes():
            due_ns, _, index, slot, session = heapq.heappop(waiting)
            del self._due_ns[slot]
            if session is None:
                if self.out.next < self.out.count:
                    self._give(slot, *self.out.take(), due_ns)
            elif self.turns.may_send(session, index):
                if session.find_lane(index) in session.begun:
                    self.turns.reconnects += not (slot.served and slot.intake.state is State.IDLE)
                self._give(slot, index, self.turns.take(index), due_ns)
            else:
                self._release_slot(slot, session)
                self._release_lanes()
        super().send_due()

    def _give(self, slot: Slot, index: int, request: bytes, due_ns: int) -> None:
        """Put a turn into a slot and send it, or connect first where the connection is closed."""
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
        """Put a turn into a slot, and count it as sent; a first one begins its session."""
        slot.index, slot.request, slot.intended_ns = index, request, due_ns
        for gate in self.gates:
            gate.note_sent(slot)
        if slot in self._lanes:
            self.turns.note_sent(index, request)
        else:
            session = self.turns.begin(index, due_ns)
            self.turns.note_sent(index, request)
            session.slots[MAIN] = slot
            self._lanes[slot] = session, MAIN
            for root in session.roots:
                self._wait_for(root, session)
        # A connection for each turn that begins a lane once a request in flight has ended.
        lacking = len(self.turns.soon) - self._count_ready() if self.turns.soon else 0
        if lacking > 0:
            closed = [other for other in self._spare if other.intake.state is State.CLOSED][:lacking]
            for other in closed:
                if not other.retry_ns:  # else it is opened then
                    self.pool.dial(other)
            self._spare.extend(self._open_branch() for _ in range(lacking - len(closed)))
        self.counters.publish_sent(self.turns.next)

    def _note_gated(self, slot: Slot) -> None:
        """Leave the gates as they are: a turn passes them as it is given to its slot."""

    def take_unsent(self, slot: Slot) -> None:
        if not (slot in self._due_ns or slot in self._lanes or slot in self._branches):
            super().take_unsent(slot)

    def note_ended(self, slot: Slot, failure: Failure | None, end_ns: int) -> None:
        """Note an answer's end, and let the turns that waited for it alone wait for their time."""
        super().note_ended(slot, failure, end_ns)
        session = self.turns.find(slot.index)

        def capture() -> tuple[Capture, Sequence[Any]]:
            return slot.make_capture(slot.number, end_ns, failure=failure), slot.intake.got

        for released in self.turns.end(slot.index, failure, end_ns, capture):
            self._wait_for(released, session)
        self._release_lanes(slot)

    def _wait_for(self, index: int, session: OpenSession) -> None:
        """Let a released turn wait until it is due, in its lane's slot: its own, a spare or a new one."""
        lane, place = session.find_lane(index), session.slots[MAIN]
        slot = session.slots.get(lane)
        if slot is None:
            # A branch's without a lane: a connected one, else one that is to be, or a new one.
            ranks = {State.IDLE: 0, State.CONNECTING: 1, State.HANDSHAKING: 1}
            slot = min(self._spare, key=lambda spare: ranks.get(spare.intake.state, 2), default=None)
            if slot is None:
                slot = self._open_branch()
            else:
                self._spare.remove(slot)
            session.slots[lane] = slot
            self._lanes[slot] = session, lane
            self.turns.soon.discard(index)
        ready_ns = session.ready_ns[index - session.begin]
        self._push(self.pace.next_ns(place.number, index, ready_ns), place.number, index, slot, session)

    def _open_branch(self) -> Slot:
        self.pool.open()
        slot = self.pool.slots[-1]
        self._branches.add(slot)
        self.branches += 1
        return slot

    def _count_ready(self) -> int:
        return sum(slot.intake.state is not State.CLOSED for slot in self._spare)

    def _release_lanes(self, ending: Slot | None = None) -> None:
        """Take back the slots of lanes that are over; the caller frees `ending` itself."""
        over = self.turns.over
        while over:
            session, lane = over.popleft()
            slot = session.slots.get(lane)
            if slot is not None and slot not in self._due_ns:
                self._release_slot(slot, session, ending)

    def _release_slot(self, slot: Slot, session: OpenSession, ending: Slot | None = None) -> None:
        """Take a slot back if its lane is over, and give the one that a session began in to the next."""
        lane = self._lanes[slot][1] if slot in self._lanes else MAIN
        if slot not in self._lanes or session.lane_left[lane] or (lane == MAIN and session.left):
            return
        del self._lanes[slot], session.slots[lane]
        if lane != MAIN:
            self._spare.append(slot)
            return
        slot.freed_ns = session.ended_ns
        if slot is not ending:
            self.take_free(slot)
            slot.retry_ns = self.now_ns() if slot.intake.state is State.CLOSED else 0

    def take_free(self, slot: Slot) -> None:
        """Keep a free slot for its lane's next turn, or give it to the next session."""
        if slot in self._due_ns or slot in self._lanes or slot in self._branches:
            return
        due_ns = self.pace.first_ns(slot.number, slot.freed_ns) if self.begin_ns else 0
        if due_ns:
            self._push(due_ns, slot.number, _NEW_SESSION, slot, None)
        elif slot.intake.state is State.IDLE:
            self.pool.free.append(slot)

    def _push(self, due_ns: int, place: int, index: int, slot: Slot, session: OpenSession | None) -> None:
        self._due_ns[slot] = due_ns
        heapq.heappush(self._waiting, (due_ns, place, index, slot, session))
        if slot.intake.state is State.CLOSED and session is not None:
            slot.retry_ns = self.redial_ns(slot)

    def redial_ns(self, slot: Slot) -> int:
        """Return when a waiting slot's connection is opened again: 0.3 to 2 s before its turn is due.

        A lane whose next turn waits for others has no time yet: 0.
        """
        due_ns = self._due_ns.get(slot)
        if due_ns is not None:
            ahead_ns = min(max(_AHEAD_NS, 3 * slot.connect_ns), _MOST_AHEAD_NS)
            return max(due_ns - ahead_ns, self.now_ns())
        if slot in self._lanes:
            return 0
        if slot in self._branches:
            return self.now_ns() if self._count_ready() < len(self.turns.soon) else 0
        return super().redial_ns(slot)

    def wait_ns(self) -> int:
        wait_ns = super().wait_ns()
        if not self._waiting or not self._passes():  # which an answer's end opens
            return wait_ns
        return min(wait_ns, self._waiting[0][0] - self.now_ns() - SPIN_NS)


class SessionExchanges:
    """Sends the turns of sessions, each when it is due and those that it waits for have succeeded."""

    def __init__(self, job: Job, sessions: SessionJob, begin_ns: int) -> None:
        self.job, self.begin_ns, self.reconnects = job, begin_ns, 0
        self.turns = TurnQueue(job, sessions)
        self.pace = TurnPace(sessions, begin_ns)
        self.build_ahead, self.bodies_digest = self.turns.build_ahead, self.turns.bodies_digest

    async def run(self, first: Exchange, carrier: HttpxTransport) -> None:
        """Send all turns of the session that begins with `first`, as long as those they wait for succeed."""
        _, first.request = self.turns.first.take()
        due_ns = self.pace.first_ns(first.slot, first.intended_ns)
        if due_ns:
            first.intended_ns = due_ns
            await self.wait(first, due_ns)
        session = self.turns.begin(first.index, first.intended_ns)
        session.slots[MAIN] = first
        async with asyncio.TaskGroup() as tasks:
            sending = _SessionExchange(self, session, carrier, tasks, first.slot)
            for root in session.roots:
                sending.start(root)
            await sending.send_lane(first)

    def is_over(self, now_ns: int) -> bool:
        """Whether the time in which turns are sent has passed."""
        return 0 < self.job.duration_ns <= now_ns - self.begin_ns

    async def wait(self, turn: Exchange, due_ns: int) -> None:
        """Sleep until `due_ns` by the turn's clock; return at once if that is past."""
        while (left_ns := due_ns - turn.now_ns()) > 0:  # noqa: ASYNC110  # absolute, never early
            await asyncio.sleep(left_ns / 1e9)


@dataclass
class _SessionExchange:
    """The turns of one session, of which each lane's are sent by a task."""

    owner: SessionExchanges
    session: OpenSession
    carrier: HttpxTransport
    tasks: asyncio.TaskGroup
    place: int  # the slot that the session began in

    def start(self, index: int) -> None:
        """Start the task that sends a turn, which waits for no other any more, when it is due."""
        self.tasks.create_task(self._begin_lane(index))

    async def _begin_lane(self, index: int) -> None:
        """Send a turn when it is due, and its lane's after it, over the lane's exchange or a new branch."""
        session = self.session
        before = session.slots.get(lane := session.find_lane(index))
        if before is None:
            before = session.slots[lane] = self.carrier.open_branch()
        if (turn := await self._make_turn(before, index)) is not None:
            await self.send_lane(turn)

    async def send_lane(self, turn: Exchange | None) -> None:
        """Send a turn and those of its lane after it, until one waits for another lane's."""
        owner, session = self.owner, self.session
        while turn is not None and not owner.is_over(turn.now_ns()):
            index = turn.index
            later = session.find_lane(index) in session.begun and index != session.begin
            owner.turns.note_sent(index, turn.request)
            failure = await self.carrier.send_turn(turn)
            owner.reconnects += later and turn.connect_begin_ns > 0
            next_index = self._note_ended(turn, index, failure)
            turn = None if next_index is None else await self._make_turn(turn, next_index)
        if turn is not None:
            self.carrier.leave_gates()  # else those that wait there would wait for ever
        self._close_lanes()

    def _note_ended(self, turn: Exchange, index: int, failure: Failure | None) -> int | None:
        """Note a turn's end, start the other lanes' turns that waited for it, and return its lane's next."""
        session, end_ns = self.session, turn.now_ns()
        lane, own = session.find_lane(index), None
        session.slots[lane] = turn

        def capture() -> tuple[Capture, Sequence[Any]]:
            made = turn.capture(failure, self.owner.job.share)
            made.index = index
            return made, turn.got

        for released in self.owner.turns.end(index, failure, end_ns, capture):
            if session.find_lane(released) == lane:
                own = released
            else:
                self.start(released)
        self._close_lanes()
        return own

    async def _make_turn(self, before: Exchange, index: int) -> Exchange | None:
        """Wait until a turn is due and all gates are open, and return it; None if it is dropped."""
        owner, session = self.owner, self.session
        ready_ns = session.ready_ns[index - session.begin]
        due_ns = owner.pace.next_ns(self.place, index, ready_ns)
        await owner.wait(before, due_ns)
        if not owner.turns.may_send(session, index):
            return None
        await self.carrier.pass_gates(before)
        return before.follow(index, due_ns, owner.turns.take(index))

    def _close_lanes(self) -> None:
        over = self.owner.turns.over
        while over:
            session, lane = over.popleft()
            exchange = session.slots.pop(lane, None)
            if lane != MAIN and exchange is not None:
                self.carrier.close_branch(exchange)


def make_turns(
    plan: Plan, turns: Turns, sessions: Sequence[int], headers: Iterable[tuple[str, str]]
) -> tuple[TurnOrder, SessionJob]:
    """Make the order of these sessions, and what judges answers and sends turns; raises UsageError.

    It raises where `--session-header` names one of the `headers`, which would have two values, and for
    results of tools in sessions whose history the server keeps.
    """
    profile = plan.profile
    if profile.session_header.lower() in {name.lower() for name, _ in headers}:
        raise UsageError(
            f"--session-header {profile.session_header} and --header give it two values: leave one out"
        )
    if plan.dialect.keeps_history and getattr(plan.requests, "held", {}).get("tool"):
        raise UsageError(
            "--assistant server: the conversations have results of tools, which the server's own responses "
            "did not call: pass --assistant live or recorded"
        )
    answered = profile.assistant != "recorded"
    # Its decoder is its own, since the run's counts what it decodes; the same lengths make both judge alike.
    planned = (plan.requests.input_lens, plan.requests.output_lens)
    decoder = Decoder(plan.dialect, profile.stream, planned=planned)
    goes_on = plan.cancellations is not None and bool(plan.cancellations.own)
    job = SessionJob(
        turns,
        answer_of=_make_live_judge(decoder, plan.dialect) if answered else _make_judge(decoder, goes_on),
        body_after=plan.body_after if answered else None,
        header=profile.session_header,
        users=profile.users or 0,
        user_rate_per_s=profile.user_rate or 0.0,
    )
    return TurnOrder(turns, sessions), job


def _make_judge(decoder: Decoder, goes_on: bool = False) -> Callable[[Capture], TurnAnswer | None]:
    """Make the judge of turns whose answers are not sent back: it returns {} for success, else None.

    With `goes_on` a turn that is cancelled as planned counts as one: its client went on when recorded.
    """

    def answer_of(capture: Capture) -> TurnAnswer | None:
        failure = decoder.decode(capture).failure
        went_on = goes_on and failure is not None and failure.kind is FailureKind.USER_CANCELLED
        return {} if failure is None or went_on else None

    return answer_of


def _make_live_judge(decoder: Decoder, dialect: Dialect) -> Callable[[Capture], TurnAnswer | None]:
    """Make the judge of turns whose answers the next ones need: their message or state, None if failed."""
    judged = _make_judge(decoder)

    def answer_of(capture: Capture) -> TurnAnswer | None:
        if judged(capture) is None:
            return None
        answer = decoded_stream.unframe(capture)
        lines: bytes | bytearray
        if decoder.streamed:
            lines = sse.read_events(answer.body, answer.complete).lines
        else:
            lines = sse.join_lines(answer.body)
        return (
            dialect.read_state(lines)
            if dialect.keeps_history
            else _make_message(dialect.read_messages(lines))
        )

    return answer_of


def _make_message(messages: Iterable[Message]) -> dict[str, Any]:
    """Make the assistant's message from a chat answer: content, and reasoning under the server's key.

    Its tool calls are left out: there are results for those of the recorded answer alone.
    """
    content, reasoning, begun = "", dict.fromkeys(REASONING_FIELDS, ""), False
    for choice in (choice for message in messages for choice in message.choices or ()):
        if begun and choice.is_repeat():
            continue
        begun = begun or choice.classify() == TOKEN
        delta = choice.delta or choice.message if isinstance(choice, ChatChoice) else None
        if choice.index != 0 or delta is None:
            continue
        content += read_written(delta.content).answer
        for key in REASONING_FIELDS:
            reasoning[key] += read_written(getattr(delta, key), True).reasoning
    given = {key: text for key, text in reasoning.items() if text}
    return {"role": "assistant", "content": content, **given}

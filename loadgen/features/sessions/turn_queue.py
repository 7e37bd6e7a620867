"""Turn queue: which requests of the sessions under way may be sent, and their bodies, built ahead of time."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.plan.planned_requests import Turns
from loadgen.transport.capture import A_READ, NO_STAMP, Capture, join_reads, pack_int64s
from loadgen.transport.sending.job import DIGEST_BYTES, Job, join_digests, split_body
from loadgen.transport.sending.sender import Outgoing

TurnAnswer = dict[str, Any]  # a message as the next turn's history has it; empty where that is recorded
MAIN = 0  # the lane of a session's main line
_MODEL = re.compile(rb'"model":"(?:[^"\\]|\\.)*"')  # the first key of a body, or after a salt of ours
_SALT = re.compile(rb'"\w+":"loadgen-[0-9a-f]{32}",')


class SessionPlan(msgspec.Struct, frozen=True):
    """The sessions of a plan, as they are sent.

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
        # What each request waits for, by place in the session, and the lane of each.
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

    def __init__(self, job: Job, sessions: SessionPlan, count: int) -> None:
        self.job, self.sessions = job, sessions
        self.first = Outgoing(job)
        self.count, self.next = count, 0
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

    def has_followers(self, index: int) -> bool:
        """Whether a turn that is not dropped waits for this one."""
        session = self.find(index)
        return any(not session.over[place] for place in session.waited_for[index - session.begin])

    def note_ended(self, capture: Capture, got: Sequence[Any]) -> EndedTurn:
        """Queue an ended turn, to be judged later by `build_ahead` or `judge`, and return it.

        `got` holds its reads, as a transport gathers them.
        """
        turn = EndedTurn(capture.index, capture, got)
        session = self.find(turn.index)
        session.ended[turn.index - session.begin] = turn
        self._ended.append(turn)
        return turn

    def release(self, index: int, end_ns: int) -> list[int]:
        """Note that a turn ended, and list the turns that now wait for none, in the plan's order."""
        session = self.find(index)
        self._note_over(session, index - session.begin, end_ns)
        released = []
        for place in session.waited_for[index - session.begin]:
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

"""Turn queue: the turns still to send, each built and each answer judged before it matters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.features.sessions.session_job import Answer, BodiesDigest, SessionJob, TurnOrder
from loadgen.transport.capture import A_READ, NO_STAMP, Capture, join_reads, pack_int64s
from loadgen.transport.sending.job import Job, split_body
from loadgen.transport.sending.sender import Outgoing


@dataclass(eq=False, slots=True)
class EndedTurn:
    """A turn whose answer is there and may not be judged yet."""

    index: int
    capture: Capture
    got: Sequence[Any]  # reads, as a transport gathers them
    judged: bool = False
    succeeded: bool = False


class TurnQueue:
    """The turns of a job's sessions; `first` has the first ones, the others follow their answers.

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
        """How many first turns are built."""
        return self.first.built

    @property
    def late_bodies(self) -> int:
        """Requests whose body was not ready when they were due."""
        return self.first.late_bodies + self._late_bodies

    def has_next(self, index: int) -> bool:
        """Whether a turn is followed by another one of its session."""
        return index + 1 < self.sessions.find_end(index)

    def note_sent(self, index: int, request: bytes) -> None:
        """Note that a turn is sent: from now on the next one can be built, where nothing of it is unknown."""
        self.next += 1
        self._sent.append(request)
        if self.sessions.body_after is None and self.has_next(index):
            self._to_build[index + 1] = None

    def take(self, index: int) -> bytes:
        """The request of a turn that is due, whose answer before it has been judged."""
        request = self._built.pop(index, None)
        if request is None:
            self._to_build.pop(index, None)
            self._late_bodies += self.sessions.body_after is None  # else it may be known just now
            request = self._build(index)
        return request

    def note_ended(self, capture: Capture, got: Sequence[Any]) -> EndedTurn:
        """Note that a turn has its whole answer, which is judged later."""
        turn = EndedTurn(capture.index, capture, got)
        self._ended.append(turn)
        return turn

    def judge(self, turn: EndedTurn) -> bool:
        """Whether a turn succeeded, so that the next one follows; otherwise its session is over."""
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
        """End a session with this turn: what follows is not sent."""
        self.forget(index)
        self._built.pop(index + 1, None)
        self._to_build.pop(index + 1, None)
        if self.next < self.count:  # or the time for sending is over
            self.count -= self.sessions.find_end(index) - index - 1

    def forget(self, index: int) -> None:
        """Forget the session of a turn that was its last."""
        self._answers.pop(self.sessions.find_session(index), None)

    def close(self) -> None:
        """Send nothing any more: the time for that is over."""
        self.count, self.first.count = self.next, self.first.next
        self._to_build.clear()

    def build_ahead(self) -> bool:
        """Do one piece of the work that can wait; False where there is none."""
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
        """A fingerprint of the bodies that were sent."""
        while self._sent:
            self._digest.add(split_body(self._sent.popleft()))
        return self._digest.hex()

    def _build(self, index: int) -> bytes:
        after = self.sessions.body_after
        if after is None:
            return self.job.make_request(index)
        answers = self._answers.get(self.sessions.find_session(index), ())
        return self.job.make_request(index, after(index, answers))

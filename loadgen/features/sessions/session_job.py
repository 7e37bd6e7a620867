"""Session job: the sessions of a job, whose requests are their turns."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from loadgen.plan.planned_requests import Turns
from loadgen.transport.capture import Capture
from loadgen.transport.sending.share import Listed

Answer = dict[str, Any]  # a message as the next turn's history has it; empty where that is recorded
_DIGEST_BYTES = 16
_MODEL = re.compile(rb'"model":"(?:[^"\\]|\\.)*"')  # the first key of a body


class SessionJob(msgspec.Struct, frozen=True):
    """The sessions of a job, of a whole plan.

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
        """The session of a plan index."""
        return bisect_right(self.turns.begins, index) - 1

    def find_end(self, index: int) -> int:
        """The plan index after that of the last turn of a request's session."""
        return self.turns.end(self.find_session(index))

    def make_headers(self, index: int, prefix: str) -> tuple[tuple[str, str], ...]:
        """The header that is the same in all turns of a request's session."""
        return ((self.header, f"{prefix}session-{self.find_session(index)}"),) if self.header else ()


class TurnOrder(Listed):
    """The sessions that one process sends, by the plan index of their first turns."""

    def __init__(self, turns: Turns, sessions: Sequence[int]) -> None:
        super().__init__([int(turns.begins[session]) for session in sessions])
        self._ends = [turns.end(session) for session in sessions]

    @property
    def requests(self) -> int:
        """The turns of all these sessions."""
        return sum(self._ends) - sum(map(int, self.indices))

    def list_claimed(self) -> list[int]:
        """List all turns of these sessions, whether or not an earlier one fails."""
        return [index for session in self._sessions() for index in session]

    def list_unanswered(self, sent: int, have: Collection[int]) -> list[int]:
        """List as many turns as have no answer: those of sessions under way, as far as is known."""
        missing = max(sent - len(have), 0)
        waiting = [next((i for i in session if i not in have), -1) for session in self._sessions()]
        begun = (begin in have for begin in self.indices)
        order = sorted(zip(begun, waiting, strict=True), key=lambda each: not each[0])
        return [index for _, index in order if index >= 0][:missing]

    def _sessions(self) -> Iterator[range]:
        return (range(int(begin), end) for begin, end in zip(self.indices, self._ends, strict=True))


class BodiesDigest:
    """A fingerprint of bodies, in whatever order they are sent, without the model's name."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, body: bytes) -> None:
        """Take one more body."""
        body = _MODEL.sub(b"", body, count=1)
        hashed = hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
        self._sum += int.from_bytes(hashed, "little")

    def hex(self) -> str:
        """The fingerprint so far; "" without a body."""
        return _format_hex(self._sum)


def join_digests(digests: Iterable[str]) -> str:
    """The fingerprint of all bodies that several processes sent; "" if empty."""
    return _format_hex(sum(int(digest, 16) for digest in digests if digest))


def _format_hex(bodies: int) -> str:
    return f"{bodies % (1 << 8 * _DIGEST_BYTES):0{2 * _DIGEST_BYTES}x}" if bodies else ""

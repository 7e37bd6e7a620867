"""Turn order: the turns of sessions that one process sends, and a fingerprint of their bodies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from loadgen.plan.planned_requests import Turns
from loadgen.transport.sending.share import Listed

Answer = dict[str, Any]  # a message as the next turn's history has it; empty where that is recorded
_DIGEST_BYTES = 16
_MODEL = re.compile(rb'"model":"(?:[^"\\]|\\.)*"')  # the first key of a body


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

"""Faults: what a server can do wrong to one request in three, and what is to come of each.

The rows are in `faults_http` and `faults_stream`; `test_faults` plays them over both
transports.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fakes.scripted_server import DONE, HEAD, LAST, Answer, Asked, End, ScriptedServer, chunk, token, usage
from loadgen.transport.failure import FailureKind

K = FailureKind
INPUT, OUTPUT = 5, 3  # tokens asked of each request
EVERY = 3  # of so many requests one meets the fault
STALL_S = 0.3
# A fault that waits for a timeout is met once, so that the table is played in a minute.
ONCE, TWICE = EVERY, 2 * EVERY
Script = Callable[[Asked], Answer]

A, Z, U = token(), token("z", "length"), usage(OUTPUT)
WHOLE: list[bytes] = [A, A, Z, U, DONE]
BODY = b"".join(WHOLE)


@dataclass(frozen=True)
class Ending:
    """What is to come of a request that meets the fault.

    `says` is a regular expression, found in the failure's detail whatever the case. A success has as many
    output tokens as `tokens`, by the server's count where `usage`, and this finish reason.
    """

    kind: FailureKind | None
    says: str = ""
    tokens: int = OUTPUT
    usage: bool = True
    reason: str = "length"


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    name: str
    answer: Answer | Script  # to each third request
    ending: Ending
    httpx: Ending | None = None  # over that transport; None: the same
    resent: int | None = 0  # how often each that meets it is sent again; None: as chance has it
    doubts: frozenset[str] = frozenset()  # about the answers, besides many-failures
    requests: int = TWICE
    stall_s: float = STALL_S
    request_s: float = 0.0
    answer_bytes: int = 0  # the most that an answer may have; 0: as it is by default
    api: str = "completions"
    whole: Sequence[bytes] = field(default_factory=lambda: WHOLE)  # the events of a response in order

    def script(self, asked: Asked) -> Answer:
        """What the server does: the fault to every third request, the whole answer to the others."""
        if not meets(index_of(asked)):
            return events(*self.whole)
        return self.answer(asked) if callable(self.answer) else self.answer

    def over(self, transport: str) -> Ending:
        """What is to come of it over a transport."""
        return self.httpx if transport == "httpx" and self.httpx is not None else self.ending


def meets(index: int) -> bool:
    """Whether a request of the plan meets the fault: neither the first, nor the last of its connection."""
    return index % EVERY == 1


def index_of(asked: Asked) -> int:
    """The position of a request in the plan."""
    found = re.search(r"^x-request-id: loadgen-(\d+)\r?$", asked.head, re.M | re.I)
    assert found is not None, asked.head
    return int(found[1])


def succeeds(tokens: int = OUTPUT, usage: bool = True, reason: str = "length") -> Ending:
    """The request is answered, whatever else the server did."""
    return Ending(None, "", tokens, usage, reason)


def fails(kind: FailureKind, says: str) -> Ending:
    """The request fails in this way, and says why."""
    return Ending(kind, says)


@dataclass
class FaultyServer(ScriptedServer):
    """A scripted server that may answer before it has read."""

    reads_bodies: bool = True

    def _request(self, sock: socket.socket) -> tuple[str, bytes]:
        if self.reads_bodies:
            return super()._request(sock)
        data = bytearray()
        while b"\r\n\r\n" not in data:
            data += self._read(sock)
        return data.partition(b"\r\n\r\n")[0].decode("latin-1"), b""


# Answers.


def whole_answer() -> Answer:
    """What a server in order sends."""
    return events(*WHOLE)


def events(*sent: bytes, last: bytes = LAST, end: End = End.KEEP) -> Answer:
    """A chunked stream, each event a chunk and a write."""
    return Answer([HEAD, *map(chunk, sent), *([last] if last else [])], end)


def cut(*sent: bytes, end: End = End.CLOSE) -> Answer:
    """A chunked stream without its last chunk."""
    return events(*sent, last=b"", end=end)


def raw(data: bytes, end: End = End.KEEP) -> Answer:
    """These bytes in one write."""
    return Answer([data], end)


def headed(*lines: str, body: bytes = BODY, status: str = "HTTP/1.1 200 OK", end: End = End.KEEP) -> Answer:
    """A stream under a head of one's own."""
    head = "\r\n".join([status, "content-type: text/event-stream", *lines])
    return Answer([f"{head}\r\n\r\n".encode("latin-1"), body], end)


def refused(status: str, body: bytes = b'{"error":{"message":"not you"}}', *lines: str) -> Answer:
    """A whole answer of another status than 200."""
    head = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *lines]
    return Answer(["\r\n".join([*head, "\r\n"]).encode("latin-1") + body])


def lasting(piece: bytes, times: int, gap_s: float) -> list[bytes | float]:
    """A piece again and again."""
    return [each for _ in range(times) for each in (piece, gap_s)]


def pieces(data: bytes, count: int) -> Sequence[bytes]:
    """The data in so many writes, or one for each byte."""
    size = -(-len(data) // count)
    return [data[at : at + size] for at in range(0, len(data), size)]

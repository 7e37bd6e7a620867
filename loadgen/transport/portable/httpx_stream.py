"""Httpx stream: one request of the portable transport under way, and its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadgen.transport.capture import A_READ, Capture
from loadgen.transport.deadlines import Stream, fail_unanswered
from loadgen.transport.epoll.connection import quicken_acks, shorten_ack_delay
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.memory_room import READ_COST
from loadgen.transport.sending.share import Share
from loadgen.transport.tcp_losses import UNKNOWN_LOSSES, Losses, read_losses
from loadgen.wire.http1 import LONGEST_HEAD_BYTES

_SHOWN_BYTES = 40  # of what is no HTTP


@dataclass
class Link:
    """A slot's connection: whether a byte came, which httpx does not report and a resend depends on."""

    received: int = 0  # bytes
    closed: bool = False  # by the server, in order
    begin: bytes = b""  # the first few of an answer
    losses: Losses = UNKNOWN_LOSSES  # of the connection, when it was last read

    def tap(self, stream: Any) -> None:
        """Count what is read of a network stream of httpcore's, and have it acknowledged.

        httpx sends a request in two writes, and after them the kernel would wait with each acknowledgement.
        """
        read, sock = stream.read, stream.get_extra_info("socket")
        self.losses = UNKNOWN_LOSSES
        if sock is not None:
            shorten_ack_delay(sock)

        async def count_read(*arguments: Any, **named: Any) -> bytes:
            data: bytes = await read(*arguments, **named)
            if sock is not None:
                quicken_acks(sock)
                self.losses = read_losses(sock)
            self.received += len(data)
            if len(self.begin) < _SHOWN_BYTES:
                self.begin += data[: _SHOWN_BYTES - len(self.begin)]
            self.closed = not data
            return data

        stream.read = count_read


@dataclass(eq=False)
class Exchange(Stream):
    """One request under way, filled in as it goes."""

    slot: int
    link: Link
    now_ns: Callable[[], int]
    on_sent: Callable[[Stream], None]
    connect_begin_ns: int = 0
    connect_ns: int = 0
    status: int = 0
    retry_after: str = ""
    got: list[Any] = field(default_factory=list)  # as the wire transport's, without the kernel's time
    size: int = 0  # bytes of the body
    before: int = 0  # bytes that the connection had brought when this was sent
    losses: Losses = UNKNOWN_LOSSES  # of the connection, up to then
    request: bytes = b""  # head and body, where it was built before it was due
    limit: asyncio.Timeout | None = None  # rescheduled to now to give the request up
    given_up: Failure | None = None

    def list_since(self, count: int) -> list[bytes]:
        return self.got[count * A_READ :: A_READ]

    def seen_at(self, read: int) -> int:
        return int(self.got[read * A_READ + 2])

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """httpcore's own events: when it dialed, and when it was about to write the request."""
        if event == "connection.connect_tcp.started":
            self.connect_begin_ns = self.now_ns()
        elif event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self.link.tap(info["return_value"])
        elif event.endswith("send_request_headers.started"):
            self.note_sent()

    def note_sent(self) -> None:
        """Take the time of sending; where it is sent again, the first one: what was lost is part of it."""
        now_ns = self.now_ns()
        if not self.resends:
            self.sent_ns = now_ns
        self.progress_ns, self.before, self.link.begin = now_ns, self.link.received, b""
        self.losses = self.link.losses
        if self.connect_begin_ns:
            self.connect_ns = now_ns - self.connect_begin_ns
        self.on_sent(self)

    @property
    def held_bytes(self) -> int:
        """How much memory what was got of it takes."""
        return self.size + len(self.got) // A_READ * READ_COST

    @property
    def came(self) -> int:
        """Bytes of an answer, whatever they are."""
        return self.link.received - self.before

    def explain_no_head(self, http2: bool) -> Failure | None:
        """Explain what is wrong with bytes that httpx still takes for the beginning of a head."""
        begin = self.link.begin
        if self.status:
            return None
        if self.came > LONGEST_HEAD_BYTES:
            detail = f"a response head of more than {LONGEST_HEAD_BYTES} bytes, with any 1xx ones before it"
            return Failure(FailureKind.MALFORMED, detail)
        if not http2 and begin[:5] != b"HTTP/"[: len(begin)]:
            return Failure(FailureKind.MALFORMED, f"not an HTTP response: {begin!r}")
        return None

    def explain_loss(self, error: httpx.TransportError, http2: bool) -> Failure:
        """How a request that was sent came to its end."""
        if isinstance(error, httpx.LocalProtocolError):  # its words may quote a header
            return Failure(FailureKind.CONNECT, "the request cannot be sent as HTTP")
        ended = isinstance(error, httpx.NetworkError) or self.link.closed
        if ended and not self.came:
            cause = error if isinstance(error, httpx.NetworkError) else None
            return fail_unanswered(self, self.now_ns(), cause)
        malformed = isinstance(error, httpx.RemoteProtocolError) and not ended and not http2
        kind = FailureKind.MALFORMED if malformed else FailureKind.TRUNCATED
        return Failure(kind, str(error) or type(error).__name__)

    def give_up(self, failure: Failure) -> bool:
        """End it at once with this failure, where nothing has ended it yet; whether that is so."""
        if self.given_up is not None or self.limit is None:
            return False
        self.given_up = failure
        self.limit.reschedule(asyncio.get_running_loop().time())
        return True

    def capture(self, failure: Failure | None, share: Share) -> Capture:
        """Make a capture of the exchange, but for the bytes that it got."""
        lost = self.link.losses.subtract(self.losses)
        return self.make_capture(
            share.number_slot(self.slot),
            self.now_ns(),
            connect_ns=self.connect_ns,
            framed=False,
            status=self.status,
            retry_after=self.retry_after,
            failure=failure,
            out_of_order=lost.out_of_order,
            retransmitted=lost.retransmitted,
        )

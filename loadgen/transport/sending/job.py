"""Job: the requests that a transport sends, where, when, and when it gives up."""

from __future__ import annotations

import hashlib
import mmap
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.urls import check_headers, check_path, check_request_id_prefix
from loadgen.plan.planned_requests import Cancellations
from loadgen.plan.profile import Profile
from loadgen.settings.load_schedule import ConcurrencySteps
from loadgen.settings.run_settings import Sending
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.memory_room import MIB
from loadgen.transport.sending.share import WHOLE, AtOnce, Order, RunStart, Share


class Target(msgspec.Struct, frozen=True):
    """Where requests go: a resolved address, the path of the request line, and TLS."""

    scheme: str
    host: str
    port: int
    path: str
    address: tuple[int, tuple[str | int, ...]]  # address family and sockaddr
    headers: tuple[tuple[str, str], ...]
    tls: ssl.SSLContext | None = None
    delay_acks: bool = False  # it sends without waiting for them: every other message is soon enough
    sources: tuple[str, ...] = ()  # addresses that the connections come from, in turn; (): the kernel chooses

    def __post_init__(self) -> None:
        """Raises UsageError where a part could alter the request beyond its own place."""
        check_path(self.host, "--base-url")
        check_path(self.path)
        check_headers(self.headers)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    def choose_source(self, position: int) -> str:
        """Choose the local address for the connection of the slot at a position; "": the kernel's choice."""
        return self.sources[position % len(self.sources)] if self.sources else ""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    def make_head(self, length: int, own: tuple[tuple[str, str], ...]) -> bytes:
        """Make the request line and headers for a body of `length` bytes; `own` are more headers."""
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"host: {self.authority}",
            "content-type: application/json",
            f"content-length: {length}",
            *(f"{name}: {value}" for name, value in (*own, *self.headers)),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Limits(msgspec.Struct, frozen=True):
    """When a request is ended as failed, by time or size; 0 means never."""

    request_timeout_ns: int = 0  # from sending to the end
    timeout_flag: str = "--request-timeout"  # that set it
    stall_timeout_ns: int = 0  # without a token, no matter what else arrives
    connect_timeout_ns: int = 30_000_000_000
    answer_bytes: int = 64 << 20  # of one answer, head included: more is not an answer to what was asked

    open_bytes: int = 0  # of all answers under way together, with what waits to be decoded; 0: no limit

    def refuse_for_room(self, held: int) -> Failure:
        """Make the failure of the largest response, `held` bytes, when all together hold too much."""
        return Failure(
            FailureKind.MEMORY,
            f"cut off at {held / MIB:.1f} MiB, the largest: the answers under way held more than the "
            f"{self.open_bytes // MIB} MiB that this client may use for them",
        )

    def refuse_length(self, announced: int = 0) -> Failure:
        """Make the failure of a response longer than allowed, or that announces so."""
        announcement = f"{announced} bytes announced, " if announced else ""
        return Failure(
            FailureKind.MALFORMED,
            f"{announcement}larger than the limit of {self.answer_bytes >> 20} MiB for one answer",
        )


class Job(msgspec.Struct, frozen=True):
    """The requests of a plan that one process sends to one target.

    `offsets_ns` is int64[count], when each is due after the start (open loop); None means as soon as one of
    the `max_concurrency` slots is free (closed loop). Once `duration_ns` have passed since the start no
    request is sent any more, and those under way are finished; 0 means no such limit.
    """

    target: Target
    order: Order  # which requests, by plan index
    body: Callable[[int], bytes]  # of a plan index
    offsets_ns: Int64 | None  # of sessions the first turns'
    max_concurrency: int | None
    limits: Limits = Limits()
    token_seen: Callable[[bytes], bool] = lambda tail: b"data:" in tail
    token_messages: Callable[[bytes], int] = lambda piece: piece.count(b"data:")
    request_id_prefix: str = "loadgen-"
    rate_per_s: float = float("inf")
    duration_ns: int = 0
    http2: bool = False  # only the httpx transport speaks it
    profile: Profile = Profile()  # of which a transport may need settings that have no field here
    sending: Sending = Sending()  # and so with those of the run
    share: Share = WHOLE  # whose slots these are
    start: RunStart = AtOnce()
    concurrency_steps: ConcurrencySteps | None = None  # of a closed loop; `max_concurrency` is the most
    prefill_concurrency: int | None = None  # the most that were sent and have no token yet
    cancellations: Cancellations | None = None
    sessions: Sessions | None = None  # of which `order` has the first turns; None: requests of their own

    def __post_init__(self) -> None:
        """Raises UsageError where the prefix cannot be sent."""
        check_request_id_prefix(self.request_id_prefix)

    def make_request(self, index: int, body: bytes | None = None) -> bytes:
        """Make the HTTP request `index`, head and body; None: the body as planned."""
        body = self.body(index) if body is None else body
        return self.target.make_head(len(body), self.make_own_headers(index)) + body

    def make_own_headers(self, index: int) -> tuple[tuple[str, str], ...]:
        """Make the headers that differ from request to request."""
        name = ("x-request-id", f"{self.request_id_prefix}{index}")
        more = () if self.sessions is None else self.sessions.make_headers(index, self.request_id_prefix)
        return (name, *more)

    @property
    def count(self) -> int:
        """The most requests, or sessions, that this process may send."""
        return len(self.order)

    @property
    def most_slots(self) -> int:
        """The most connections that this process may have open."""
        return min(self.count, self.max_concurrency or self.count)

    @property
    def reads_at_once(self) -> bool:
        """Whether tokens decide what is sent or cancelled, so that none may wait unread in a socket."""
        by_tokens = self.cancellations is not None and self.cancellations.point.after_tokens > 0
        return by_tokens or self.prefill_concurrency is not None

    @property
    def first_slots(self) -> int:
        """The number of connections to open before the first request.

        All those of a closed loop: where its limit rises, no request waits for a handshake then.
        """
        if self.offsets_ns is None or not np.isfinite(self.rate_per_s):
            return self.most_slots
        return min(self.most_slots, max(16, int(2 * self.rate_per_s)))


_DIGEST_BYTES = 16
_MODEL = re.compile(rb'"model":"(?:[^"\\]|\\.)*"')  # the first key of a body


class BodiesDigest:
    """A hash of request bodies, in whatever order they are sent, without the model's name."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, body: bytes) -> None:
        """Add the hash of one body, without the model's name."""
        body = _MODEL.sub(b"", body, count=1)
        hashed = hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
        self._sum += int.from_bytes(hashed, "little")

    def hex(self) -> str:
        """Return the sum of the bodies' hashes, whatever their order, as hex digits; "" without a body."""
        return _format_hex(self._sum)


def join_digests(digests: Iterable[str]) -> str:
    """Combine the hashes of the bodies that several processes sent; "" if empty."""
    return _format_hex(sum(int(digest, 16) for digest in digests if digest))


def _format_hex(bodies: int) -> str:
    return f"{bodies % (1 << 8 * _DIGEST_BYTES):0{2 * _DIGEST_BYTES}x}" if bodies else ""


def split_body(request: bytes) -> bytes:
    """Return the body of an HTTP request."""
    return request.partition(b"\r\n\r\n")[2]


class Sessions(Protocol):
    """The sessions of a job whose requests are their turns; it provides the sender for these."""

    def make_headers(self, index: int, prefix: str) -> tuple[tuple[str, str], ...]:
        """Make the headers that request `index` carries as a turn of its session."""
        ...

    def make_sender(
        self, job: Job, pool: Any, counters: Counters, send: Callable[[Any], None]
    ) -> tuple[Any, Any]:
        """Make the job's turns, as an `Outgoing`, and the `Sender` that gives them to a pool's slots."""
        ...

    def make_exchanges(self, job: Job, begin_ns: int) -> TurnExchanges:
        """Make the sender of turns for a transport that awaits each request."""
        ...


class TurnExchanges(Protocol):
    """Sends the turns of sessions, each when it is due and the one before it succeeded."""

    reconnects: int  # turns that went over another connection than the one before them

    async def run(self, first: Any, exchange: Callable[[Any], Awaitable[Failure | None]]) -> None:
        """Send all turns of the session that begins with `first`, as long as each succeeds."""
        ...

    def build_ahead(self) -> bool:
        """Build one request ahead of time; False if there is none to build."""
        ...

    def bodies_digest(self) -> str:
        """Return a hash of the bodies that were sent."""
        ...


class Health(msgspec.Struct, tag="health", array_like=True):
    """The capturing process's report on itself at its end; times in nanoseconds."""

    started_ns: int
    ended_ns: int
    cpu_ns: int
    backlog_bytes: int  # most captures held back at once, waiting for the decoder
    stopped_ns: int = 0  # longest time that the capturing loop did not run: stopped, suspended, or starved
    clock_step_ns: int = 0  # largest change of CLOCK_REALTIME against CLOCK_MONOTONIC in the run
    late_bodies: int = 0  # requests whose body was not ready when they were due
    segments: int = 0  # of TCP, that a packet ring timed
    dropped_segments: int = 0  # that the ring had no room for
    fallen_back: int = 0  # requests that have their sockets' timestamps although there is a ring
    instead: str = ""  # why there is none, and what is used instead, where one was asked for
    busiest_cpu_ns: int = 0  # of the busiest process where there were several; `cpu_ns` is the sum then
    reconnects: int = 0  # turns of sessions before which the server had closed their connection
    bodies_digest: str = ""  # of the bodies of sessions' turns that were sent
    held_segments: int = 0  # that came late, as a server with Nagle's algorithm waited for our late reads


class CaptureFault(msgspec.Struct, tag="fault", array_like=True):
    """The exception that ended a capturing process, in one line."""

    reason: str


class Counters:
    """Four int64 in memory shared by the capturing process, which writes, and the live display."""

    def __init__(self) -> None:
        self._view = memoryview(mmap.mmap(-1, 4096)).cast("q")

    def publish(self, sent: int, ended: int, reads: int) -> None:
        """Publish how many requests were sent and ended and how many reads there were, and count a beat."""
        view = self._view
        view[0], view[1], view[2] = sent, ended, reads
        view[3] += 1

    def publish_sent(self, sent: int) -> None:
        """Publish the number of sent requests at once, so that it is right if the process is killed."""
        self._view[0] = sent

    @property
    def sent(self) -> int:
        return self._view[0]

    @property
    def ended(self) -> int:
        return self._view[1]

    @property
    def reads(self) -> int:
        return self._view[2]

    @property
    def beats(self) -> int:
        """How often they were published; a process that is not stopped does so ten times a second."""
        return self._view[3]


class Transport(Protocol):
    """Sends a job's requests and delivers one Capture for each."""

    def run(self) -> Health: ...


class TransportChoice(msgspec.Struct, frozen=True):
    """The name of a transport in `TRANSPORTS`, and why it was chosen; "" if it was requested."""

    name: str
    why: str = ""


class TransportKind(msgspec.Struct, frozen=True):
    """A row of the table of transports: how one is made and when it is chosen; a feature may add one."""

    name: str
    made_by: str  # its module and type, which the runs import that use it
    privileged: bool = False  # it opens a socket that needs a capability, and nothing more
    one_address: str = ""  # why its connections cannot come from several addresses; "": they can
    needs_epoll: bool = True
    uses_httpx: bool = False  # which goes through the proxies of the environment

    def explain_refusal(self) -> str:
        """Explain why this machine cannot run it, and what to grant; "" if it can."""
        return ""

    def choose(self, target: Target, streams: int, asked: bool) -> TransportChoice | None:
        """Choose this transport, or one in its place, for `streams` streams; None: no opinion."""
        return TransportChoice(self.name) if asked else None

    def has_own_ports(self, target: Target, connections: int) -> bool:
        """Whether it finds source ports for its connections by itself."""
        return False

    def count_held_files(self, slots: int) -> int:
        """Count the open files it needs besides the connections of `slots` slots."""
        return 0

"""Job: the requests that one process sends: which share of a plan, from when, where, when it gives up.

A `Share` is one of N equal parts of a plan, an `Order` the requests of it as they are taken, a `RunStart` the
instant from which their times count. A transport sends a job's requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.urls import check_headers, check_path, check_request_id_prefix
from loadgen.plan.planned_requests import Cancellations, ConcurrencySteps
from loadgen.plan.profile import Profile
from loadgen.settings.run_settings import SendOptions
from loadgen.settings.shard_settings import WHOLE, Share
from loadgen.transport.capture import Counters, Health
from loadgen.transport.failure import Failure, FailureKind

if TYPE_CHECKING:
    import ssl  # 7 ms, which a command that reads runs does without

DIGEST_BYTES = 16  # of a body's hash
SPIN_NS = 1_200_000  # an epoll sleeps whole milliseconds, rounded up: the last one is spun
_TURN_S = 0.001


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
            f"cut off at {held / 2**20:.1f} MiB, the largest: the responses under way held more than the "
            f"{self.open_bytes >> 20} MiB that this client may use for them",
        )

    def refuse_length(self, announced: int = 0) -> Failure:
        """Make the failure of a response longer than allowed, or that announces so."""
        announcement = f"{announced} bytes announced, " if announced else ""
        return Failure(
            FailureKind.MALFORMED,
            f"{announcement}larger than the limit of {self.answer_bytes >> 20} MiB for one response",
        )


class Order(Protocol):
    """The requests that one process sends, as plan indices in order; iterated once."""

    shared: bool  # what this process claims can be sent by no other, and others may have free slots

    def __len__(self) -> int:
        """How many there are at most."""

    def __iter__(self) -> Iterator[int]:
        """The plan index of each, which from then on is for this process to send."""

    def list_taken(self, count: int) -> Sequence[int]:
        """List the first `count` requests given out, in any process that shares this order."""

    def list_claimed(self) -> Sequence[int]:
        """List the requests that only this process may send: given out, or assigned beforehand."""

    def list_unanswered(self, sent: int, have: Collection[int]) -> Sequence[int]:
        """List the requests that were sent and did not come back; `have` are those that did."""


class Listed:
    """An order of requests assigned beforehand: int64[requests], or a range."""

    shared = False

    def __init__(self, indices: Sequence[int] | Int64) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return map(int, self.indices)

    def list_taken(self, count: int) -> list[int]:
        return [int(index) for index in self.indices[:count]]

    def list_claimed(self) -> list[int]:
        return self.list_taken(len(self.indices))

    def list_unanswered(self, sent: int, have: Collection[int]) -> list[int]:
        return [index for index in self.list_taken(sent) if index not in have]


class RunStart(Protocol):
    """The instant from which a plan's times count, CLOCK_MONOTONIC in nanoseconds."""

    def begin_ns(self, now_ns: int) -> int:
        """Return that instant, for a process that is ready now; 0 while it is not known."""


class AtOnce:
    """A start as soon as the process is ready."""

    def begin_ns(self, now_ns: int) -> int:
        return now_ns


class At:
    """A start at a fixed instant, even if it has passed: then what is due is sent late, and recorded so."""

    def __init__(self, instant_ns: int) -> None:
        self.instant_ns = instant_ns

    def begin_ns(self, now_ns: int) -> int:
        return self.instant_ns


def wait_for_start(start: RunStart, now_ns: Callable[[], int], turn: Callable[[float], bool]) -> int:
    """Wait for the start, and return when it was (ns).

    `turn` is called with how long it may take, in seconds; once it gives True this returns at once, and the
    time now if the start is not known.
    """
    while True:
        ready_ns = now_ns()
        begin_ns = start.begin_ns(ready_ns)
        if 0 < begin_ns <= ready_ns or turn(0.0 if 0 < begin_ns < ready_ns + SPIN_NS else _TURN_S):
            return begin_ns or ready_ns


# Makes the headers, each a name and a value, that a feature adds to the request of a plan index.
MoreHeaders = Callable[[int], tuple[tuple[str, str], ...]]


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
    http2: bool = False  # only the httpx transport can send it
    profile: Profile = Profile()  # of which a transport may need settings that have no field here
    sending: SendOptions = SendOptions()  # and so with those of the run
    share: Share = WHOLE  # whose slots these are
    start: RunStart = AtOnce()
    concurrency_steps: ConcurrencySteps | None = None  # of a closed loop; `max_concurrency` is the most
    prefill_concurrency: int | None = None  # the most that were sent and have no token yet
    max_requests: int | None = None  # of sessions, the most in flight
    cancellations: Cancellations | None = None
    sessions: Sessions | None = None  # of which `order` has the first turns; None: requests of their own
    more_headers: MoreHeaders = lambda index: ()

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
        return (name, *more, *self.more_headers(index))

    @property
    def count(self) -> int:
        """The most requests, or sessions, that this process may send."""
        return len(self.order)

    @property
    def most_places(self) -> int:
        """The most requests, or sessions, that may be under way at once."""
        return min(self.count, self.max_concurrency or self.count)

    @property
    def most_slots(self) -> int:
        """The most connections that this process may have open."""
        return self.most_places if self.sessions is None else self.sessions.count_slots(self.most_places)

    @property
    def least_slots(self) -> int:
        """The number of connections that it needs: the first ones, and the lanes of their sessions."""
        first = self.first_slots
        return first if self.sessions is None else self.sessions.count_least_slots(first)

    @property
    def reads_at_once(self) -> bool:
        """Whether tokens decide what is sent or cancelled, so that none may wait unread in a socket."""
        by_tokens = self.cancellations is not None and self.cancellations.counts_tokens
        return by_tokens or self.prefill_concurrency is not None

    @property
    def first_slots(self) -> int:
        """The number of connections to open before the first request: of an open loop two for each request/s.

        At least 16 of these if its limit allows 16; all those of a closed loop, so that where its limit rises
        no request waits for a handshake.
        """
        if self.offsets_ns is None or not np.isfinite(self.rate_per_s):
            return self.most_places
        return min(self.most_places, max(16, int(2 * self.rate_per_s)))


class Sessions(Protocol):
    """The sessions of a job whose requests are their turns; it provides the sender for these."""

    def make_headers(self, index: int, prefix: str) -> tuple[tuple[str, str], ...]:
        """Make the headers that request `index` carries as a turn of its session."""

    def count_slots(self, sessions: int) -> int:
        """Count the connections that `sessions` at once take at most."""

    def count_least_slots(self, sessions: int) -> int:
        """Count the connections of `sessions` at once, the widest, where one answer begins most lanes."""

    def make_turns_and_sender(
        self, job: Job, pool: Any, counters: Counters, send: Callable[[Any], None]
    ) -> tuple[Any, Any]:
        """Make the job's turns, as an `Outgoing`, and the `Sender` that gives them to a pool's slots."""

    def make_exchanges(self, job: Job, begin_ns: int) -> TurnExchanges:
        """Make the sender of turns for a transport that awaits each request."""


class TurnExchanges(Protocol):
    """Sends the turns of sessions, each when it is due and those that it waits for have succeeded."""

    reconnects: int  # turns that went over another connection than the one of their lane before them

    async def run(self, first: Any, carrier: Any) -> None:
        """Send all turns of the session that begins with `first`, as long as those they wait for succeed."""

    def build_ahead(self) -> bool:
        """Build one request ahead of time; False if there is none to build."""

    def bodies_digest(self) -> str:
        """Return a hash of the bodies that were sent."""


def join_digests(digests: Iterable[str]) -> str:
    """Combine the hashes of the bodies that several processes sent; "" if empty."""
    bodies = sum(int(digest, 16) for digest in digests if digest)
    return f"{bodies % (1 << 8 * DIGEST_BYTES):0{2 * DIGEST_BYTES}x}" if bodies else ""


def split_body(request: bytes) -> bytes:
    """Return the body of an HTTP request."""
    return request.partition(b"\r\n\r\n")[2]


class Transport(Protocol):
    """Sends a job's requests and delivers one Capture for each."""

    def run(self) -> Health: ...


class TransportChoice(msgspec.Struct, frozen=True):
    """The name of a transport in `TRANSPORTS`, and why it was chosen; "" if it was requested."""

    name: str
    why: str = ""


class TransportKind(msgspec.Struct, frozen=True):
    """A row of the table of transports: what one needs, and when it is chosen."""

    name: str
    privileged: bool = False  # it opens a socket that needs a capability, and nothing more
    one_address: str = ""  # why its connections cannot come from several addresses; "": they can
    needs_epoll: bool = True
    uses_httpx: bool = False  # which goes through the proxies of the environment

    def explain_missing_right(self) -> str:
        """Explain which right it lacks on this machine, and what to grant; "" if none."""
        return ""

    def choose(self, target: Target, streams: int, asked: bool) -> TransportChoice | None:
        """Choose this transport, or one in its place; None: no opinion. `asked`: the user named it."""
        return TransportChoice(self.name) if asked else None

    def has_own_ports(self, target: Target, connections: int) -> bool:
        """Whether it finds source ports for its connections by itself."""
        return False

    def count_held_files(self, slots: int) -> int:
        """Count the open files it needs besides the connections of `slots` slots."""
        return 0

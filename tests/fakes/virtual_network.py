"""A network without a kernel: a server that plays its script in virtual time, and the sockets to it.

What it plays are (instant, connection, bytes): instants are exact, and nothing is waited for. `VirtualServer`
takes the scripts of `ScriptedServer`. The epoll transport gets it as its network; `virtual_loop` gives it to
the httpx transport.
"""

from __future__ import annotations

import errno
import re
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from fakes.scripted_server import TRANSPORTS, Answer, Asked, End, target_of
from fakes.virtual_ring import NEAR_THE_END, VirtualRing
from fakes.virtual_time import VirtualTime
from loadgen.features.ring.ring_transport import RingTransport
from loadgen.transport.capture import Counters, Outbox
from loadgen.transport.epoll_transport import EpollTransport
from loadgen.transport.httpx_transport import HttpxTransport
from loadgen.transport.network import Received
from loadgen.transport.sending.job import Job, Target, Transport
from loadgen.transport.tcp_connection import SO_TIMESTAMPNS

LATENCY_NS = 20_000  # one way
WRITE_NS = 10_000  # a write of the server's; what it writes next arrives so much later
POLL_NS = 2_000  # a poll of the client's, or a turn of its event loop
WINDOW_BYTES = 1 << 20  # unread: then the server's writes wait
PORT, _FIRST_FD = 8000, 1000  # the files' numbers are beyond those of real ones
_TIMESPEC = struct.Struct("qq")
_LENGTH = re.compile(rb"^content-length: *(\d+)\r?$", re.M | re.I)
_READ, _WRITE, _ENDED = select.EPOLLIN, select.EPOLLOUT, select.EPOLLIN | select.EPOLLRDHUP
_BROKEN = _ENDED | select.EPOLLHUP | select.EPOLLERR


@dataclass
class Connection:
    """One connection, between a client's end and the server's."""

    server: VirtualServer
    number: int
    on_change: Callable[[], None] = lambda: None  # the client's: something arrived
    port: int = 0  # the client's
    seq: int = 0  # of the server's next byte
    connected: bool = False
    refused: bool = False
    closed: bool = False  # by the client
    ended: bool = False  # FIN arrived at the client
    broken: bool = False  # RST arrived at the client
    unread: deque[tuple[bytes, int]] = field(default_factory=deque)  # arrived, when (CLOCK_REALTIME, ns)
    unread_bytes: int = 0
    on_room: Callable[[], None] | None = None  # the server's, while its writes wait

    @property
    def readable(self) -> bool:
        """Whether a read would return at once."""
        return bool(self.unread or self.ended or self.broken)

    def read(self, size: int) -> tuple[bytes, int]:
        """What arrived and the kernel's timestamp of the last of it; raises as a socket's recv does."""
        parts, wall_ns = list[bytes](), 0
        while self.unread and size:
            data, wall_ns = self.unread.popleft()
            if len(data) > size:
                self.unread.appendleft((data[size:], wall_ns))
                data = data[:size]
            size -= len(data)
            parts.append(data)
        if not parts and self.broken:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if not parts and not self.ended:
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        data = b"".join(parts)
        self.unread_bytes -= len(data)
        if self.on_room is not None and self.unread_bytes < WINDOW_BYTES:
            go_on, self.on_room = self.on_room, None
            self.server.time.after(LATENCY_NS, go_on)
        return data, wall_ns

    def write(self, data: bytes) -> None:
        """Send something to the server; raises as a socket's send does."""
        if self.broken:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self.server.time.after(LATENCY_NS, partial(self.server.receive, self, data))

    def close(self) -> None:
        """Close the client's end; the server sees it later."""
        if not self.closed:
            self.closed = True
            self.server.time.after(LATENCY_NS, partial(self.server.left_by, self))

    def arrive(self, data: bytes) -> None:
        """Have bytes at the client now."""
        if data and not self.closed and not self.broken:
            self.server.tap(self.port, self.seq, data)
            self.seq += len(data)
            self.unread.append((data, self.server.time.wall_ns()))
            self.unread_bytes += len(data)
            self.on_change()

    def end(self, reset: bool = False) -> None:
        """Have the server's end of it at the client now."""
        if not self.closed and not self.broken:
            self.ended, self.broken = True, reset
            self.on_change()


@dataclass
class VirtualServer:
    """Answers each request as `script` says, in virtual time; a context manager, as the real one is."""

    script: Callable[[Asked], Answer]
    greeting: bytes = b""  # written as soon as a connection is made
    accepts: Callable[[int], bool] = lambda number: True  # False: reset at once
    refuses: bool = False  # nothing listens
    died: bool = False  # open connections are reset
    silent: bool = False  # no connection is ever made
    poll_ns: int = POLL_NS
    room: int = 1 << 20  # segments that a ring has room for
    connections: int = 0
    asked: list[Asked] = field(default_factory=list)
    time: VirtualTime = field(default_factory=VirtualTime)
    address: tuple[str, int] = ("127.0.0.1", PORT)
    tap: Callable[..., None] = lambda *_, **__: None  # of every segment to the client: port, seq, payload
    away_ns: Callable[[int], int] = lambda now_ns: 0  # how long the client does not run from this poll on
    cpu_share: float = 0.1  # of a core that the client uses
    tcp_info: Callable[[Connection], bytes] = lambda connection: b""  # b"": of a kernel that counts nothing
    heed: Callable[[Asked], None] = lambda asked: None  # called before a request is answered

    def __post_init__(self) -> None:
        self._received: dict[int, bytearray] = {}
        self._on_connection: dict[int, int] = {}
        self._playing: set[int] = set()
        self._gone: set[int] = set()

    def __enter__(self) -> VirtualServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def base_url(self) -> str:
        host, port = self.address
        return f"http://{host}:{port}"

    def target(self) -> Target:
        """Where a job finds this server."""
        return target_of("127.0.0.1", PORT)

    def connect(self, connected: Callable[[Connection], None], port: int = 0) -> Connection:
        """Begin to connect; `connected` is called once it is, or is refused."""
        connection = Connection(self, -1, port=port)
        if not self.silent:
            self.time.after(2 * LATENCY_NS, partial(self._accept, connection, connected))
        return connection

    def _accept(self, connection: Connection, connected: Callable[[Connection], None]) -> None:
        if connection.closed:
            return
        connection.refused, connection.connected = self.refuses, not self.refuses
        if not self.refuses:
            self.connections += 1
            number = connection.number = self.connections
            connection.seq = NEAR_THE_END + number
            self.tap(connection.port, connection.seq - 1, b"", opens=True)
            self._received[number], self._on_connection[number] = bytearray(), 0
        connected(connection)
        if not self.refuses and not self.accepts(number):
            self.leave(connection, reset=True)
        elif self.greeting:
            self.write(connection, self.greeting)

    def receive(self, connection: Connection, data: bytes) -> None:
        """Take what a client sent, and answer the request that is whole with it."""
        if connection.number in self._gone or self.died:
            self.time.after(LATENCY_NS, partial(connection.end, reset=True))
            return
        received = self._received[connection.number]
        received += data
        end = received.find(b"\r\n\r\n")
        if end < 0 or connection.number in self._playing:
            return
        head = bytes(received[:end])
        length = _LENGTH.search(head)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(received) < whole:
            return
        body = bytes(received[end + 4 : whole])
        del received[:whole]
        on_connection = self._on_connection[connection.number]
        self._on_connection[connection.number] += 1
        asked = Asked(connection.number, on_connection, len(self.asked), head.decode("latin-1"), body)
        self.asked.append(asked)
        self.heed(asked)
        self.answer(connection, asked)

    def answer(self, connection: Connection, asked: Asked) -> None:
        """Begin to answer a request as the script says."""
        self._playing.add(connection.number)
        answer = self.script(asked)
        self._play(connection, iter(answer.pieces), answer.end)

    def left_by(self, connection: Connection) -> None:
        """Note that the client closed a connection."""

    def _play(
        self, connection: Connection, pieces: Iterator[bytes | float], end: End, piece: bytes | float = 0.0
    ) -> None:
        """Play a piece, and the others after it; the end comes with the last of them."""
        if connection.closed:
            return
        if isinstance(piece, bytes):
            self.write(connection, piece)
        after = next(pieces, None)
        if after is not None:
            go_on = partial(self._play, connection, pieces, end, after)
            delay_ns = WRITE_NS if isinstance(after, bytes) else round(after * 1e9)
            if connection.unread_bytes >= WINDOW_BYTES:
                connection.on_room = go_on
            else:
                self.time.after(delay_ns, go_on)
            return
        if end is End.KEEP:
            self._playing.discard(connection.number)
            self.receive(connection, b"")
        elif end is End.HALF:
            self.time.after(LATENCY_NS, connection.end)
        elif end is not End.HANG:
            self.leave(connection, end is End.RESET)

    def write(self, connection: Connection, data: bytes) -> None:
        """Send something to the client."""
        if self.died:
            self.leave(connection, reset=True)
        self.time.after(LATENCY_NS, partial(connection.arrive, data))

    def leave(self, connection: Connection, reset: bool) -> None:
        """Close the server's end."""
        self._gone.add(connection.number)
        self.time.after(LATENCY_NS, partial(connection.end, reset))

    def transport(self, name: str) -> Callable[[Job, Outbox, Counters], Transport]:
        """A transport that has this server for its network and its clock."""
        from fakes.virtual_loop import VirtualLoop

        def build(job: Job, outbox: Outbox, counters: Counters) -> Transport:
            if TRANSPORTS[name] is RingTransport:
                return RingTransport(job, outbox, counters, self, VirtualRing(self, self.room))
            if name != "httpx":
                return EpollTransport(job, outbox, counters, self)
            return HttpxTransport(job, outbox, counters, self, lambda: VirtualLoop(self))

        return build

    # As the epoll transport's network.

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return self.time.ns

    def wall_ns(self) -> int:
        """CLOCK_REALTIME."""
        return self.time.wall_ns()

    def cpu_ns(self) -> int:
        """The client's CPU time."""
        return int(self.time.ns * self.cpu_share)

    def pass_poll(self) -> None:
        """Let the time of a poll pass, and that in which the client does not run."""
        self.time.pass_by(self.poll_ns + self.away_ns(self.time.ns))

    def sleep(self, seconds: float) -> None:
        """As time.sleep."""
        self.time.sleep(seconds)

    def socket(self, family: int) -> VirtualSocket:
        """A socket that can only be connected to this server."""
        return VirtualSocket(self, self.poller())

    def poller(self) -> VirtualPoller:
        """The one poll."""
        if not hasattr(self, "_poller"):
            self._poller = VirtualPoller(self)
        return self._poller


class VirtualPoller:
    """As an epoll that reports each arrival once; real files are watched too, and never waited for."""

    def __init__(self, server: VirtualServer) -> None:
        self.server, self.time = server, server.time
        self.fds = count(_FIRST_FD)
        self.watched: dict[int, int] = {}
        self.sockets: dict[int, VirtualSocket] = {}
        self._news: dict[int, None] = {}  # in the order in which they came
        self._real = select.poll()
        self._patience_ms = 0  # while the pipe to a thread is full: that one works in real time

    def fileno(self) -> int:
        return -1

    def pending(self) -> bool:
        """Whether a poll would find something, or may."""
        return bool(self._news or self._real.poll(0))

    def register(self, fd: int, events: int) -> None:
        """Watch a file."""
        if fd not in self.sockets:
            self._real.register(fd, events)
            return
        self.watched[fd] = events
        self.tell(fd)

    def modify(self, fd: int, events: int) -> None:
        """Watch for other events; what there is now is told again."""
        if fd not in self.sockets:
            self._real.modify(fd, events)
            self._patience_ms = 5000 if events & _WRITE else 0
            return
        self.watched[fd] = events
        self.tell(fd)

    def unregister(self, fd: int) -> None:
        """Watch a file no more."""
        self.watched.pop(fd, None)
        self._news.pop(fd, None)

    def tell(self, fd: int) -> None:
        """Something happened on a file."""
        if fd in self.watched:
            self._news[fd] = None

    def poll(self, timeout_s: float, most_events: int) -> list[tuple[int, int]]:
        """What happened, or what happens first until the timeout."""
        self.server.pass_poll()
        until_ns = self.time.ns + round(timeout_s * 1e9)
        found = self._take(most_events, self._patience_ms if timeout_s else 0)
        while not found and timeout_s and self.time.step(until_ns):
            found = self._take(most_events)
        return found

    def close(self) -> None:
        """Watch nothing more."""
        self.watched.clear()
        self._news.clear()
        self._real = select.poll()

    def _take(self, most: int, patience_ms: int = 0) -> list[tuple[int, int]]:
        found = list(self._real.poll(patience_ms))
        for fd in list(self._news):
            if len(found) == most:
                break
            del self._news[fd]
            events = self.sockets[fd].events()
            mask = events & (self.watched[fd] | select.EPOLLHUP | select.EPOLLERR)
            if mask:
                found.append((fd, mask))
        return found


class VirtualSocket:
    """As a client's TCP socket that never blocks."""

    def __init__(self, server: VirtualServer, poller: VirtualPoller) -> None:
        self.server, self.poller = server, poller
        self.fd = next(poller.fds)
        self.connection: Connection | None = None
        self.stamped, self.port, self.least_bytes = False, 0, 1  # the last: that are reported (SO_RCVLOWAT)
        poller.sockets[self.fd] = self

    def fileno(self) -> int:
        return self.fd

    def bind(self, address: Any) -> None:
        self.port = address[1]

    def connect_ex(self, address: Any) -> int:
        self.connection = self.server.connect(lambda _: self.poller.tell(self.fd), self.port)
        self.connection.on_change = lambda: self.poller.tell(self.fd)
        return errno.EINPROGRESS

    def events(self) -> int:
        """What there is of it, as an epoll says it."""
        connection = self.connection
        assert connection is not None
        if connection.refused:
            return _BROKEN | _WRITE
        if not connection.connected:
            return 0
        found = _WRITE | (_READ if connection.unread_bytes >= self.least_bytes else 0)
        return found | (_BROKEN if connection.broken else _ENDED if connection.ended else 0)

    def send(self, data: Any) -> int:
        assert self.connection is not None
        self.connection.write(bytes(data))
        return len(data)

    def recv(self, size: int) -> bytes:
        return self.recvmsg(size, 0)[0]

    def recvmsg(self, size: int, ancillary_size: int) -> Received:
        assert self.connection is not None
        data, wall_ns = self.connection.read(size)
        timespec = _TIMESPEC.pack(*divmod(wall_ns, 1_000_000_000))
        told = [(socket.SOL_SOCKET, SO_TIMESTAMPNS, timespec)] if self.stamped and data else []
        return data, told, 0, None

    def getsockopt(self, level: int, option: int, *length: int) -> Any:
        assert self.connection is not None
        if length:
            return self.server.tcp_info(self.connection)[: length[0]]
        return errno.ECONNREFUSED if self.connection.refused else 0

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.stamped |= (level, option) == (socket.SOL_SOCKET, SO_TIMESTAMPNS)
        if (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            self.least_bytes = value
            self.poller.tell(self.fd)

    def shutdown(self, how: int) -> None:
        if self.connection is not None:
            self.connection.close()

    def close(self) -> None:
        del self.poller.sockets[self.fd]
        if self.connection is not None:
            self.connection.close()


@dataclass
class KeepAliveServer(VirtualServer):
    """Closes a connection that was idle for so long after an answer, as uvicorn does."""

    keep_alive_s: float = 5.0

    def receive(self, connection: Connection, data: bytes) -> None:
        """Take what a client sent; without data an answer is over."""
        super().receive(connection, data)
        if not data:
            idle = partial(self._close_idle, connection, self._on_connection[connection.number])
            self.time.after(round(self.keep_alive_s * 1e9), idle)

    def _close_idle(self, connection: Connection, answered: int) -> None:
        if self._on_connection[connection.number] == answered and connection.number not in self._gone:
            self.leave(connection, reset=False)

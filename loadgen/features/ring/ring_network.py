"""Ring network: sockets that are read rarely and in large pieces, and a poll that knows when.

A socket of a plain connection reports data only when much of it waits (SO_RCVLOWAT): its window stays open,
and a token costs nothing. Segments in the ring show when there is something to do: a response's head came, or
what may be its end. What they fail to show is found seconds later, when every socket is read.
"""

from __future__ import annotations

import math
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.features.ring.packet_ring import Frames, PacketRing
from loadgen.features.ring.segments import TAIL, Rows, SegmentLog, measure_payload
from loadgen.features.ring.source_ports import SourcePorts
from loadgen.transport.capture import A_READ
from loadgen.transport.network import Network, Poller, Received, Socket, read_clock_ahead_ms
from loadgen.transport.tcp_connection import SO_TIMESTAMPNS, TIMESPEC, ReadBuffer, State

_WAITING_BYTES = 64 << 20  # unread in all sockets together, about
_LEAST_READ, _MOST_READ = 4096, 1 << 18  # bytes that wait in one before it is read
# From N segments per second on they are taken some at a time, with a rest between that delays the sight of a
# response's end, and nothing else.
_RESTS_S = ((16000, 0.001), (4000, 0.0005))
# Where sockets are read at once, since a server may wait for acknowledgements: as the epoll transport's.
_RESTS_AT_ONCE_S = ((4000, 0.0002),)
_SHORT_REST_S = 0.00005  # until a socket has the bytes of a segment that was seen
_LEARN_NS = 100_000_000
_LONGEST_ROUND_NS = 4_000_000_000  # in which every socket is read once
_TURN_NS = 10_000_000
SEQUENCE = 1 << 32
_HALF = SEQUENCE // 2

ANCILLARY_BYTES = 64
_RECORD_HEAD = 5  # bytes of a TLS record's header: type, version, length
_RECORD_TYPES, _LONGEST_RECORD = range(20, 25), (1 << 14) + 2048


class RingSocket:
    """A TCP socket bound to one of our ports, which counts the bytes read from it."""

    def __init__(self, sock: Socket, port: int, poller: RingPoller) -> None:
        self.sock, self.port, self.poller, self.fd = sock, port, poller, sock.fileno()
        self.bind, self.connect_ex, self.shutdown = sock.bind, sock.connect_ex, sock.shutdown
        self.getsockopt, self.setsockopt = sock.getsockopt, sock.setsockopt
        self.begin_seq = -1  # of the server's first byte; -1: the ring has not shown it
        # Of the connection: read; known to have come, and to be looked at.
        self.read_bytes = self.due_bytes = 0
        self.delivered_bytes = 0  # with the responses before this one
        self.owed = 0  # responses whose segments are still to be looked for
        self.rows: Rows | None = None  # those segments, once it has ended
        self.clock_ms: int | None = None  # of TCP's timestamps less CLOCK_MONOTONIC

    def fileno(self) -> int:
        return self.fd

    def send(self, data: Any) -> int:
        if self.poller.has_seen(self):
            # The head of its response is to be read.
            self.poller.eager[self.port] = self.poller.least_bytes > 1
        else:
            self.read_at_once()
        return self.sock.send(data)

    def recv(self, size: int) -> bytes:
        data = self.sock.recv(size)
        self.read_bytes += len(data)
        return data

    def recvmsg(self, size: int, ancillary_size: int) -> Received:
        received = self.sock.recvmsg(size, ancillary_size)
        count = len(received[0])
        self.read_bytes += count
        if count == size:
            self.poller.hint(self)
        return received

    def close(self) -> None:
        self.poller.forget(self)

    def read_clock(self, now_ns: Callable[[], int]) -> None:
        """Read what the connection's clock of TCP's timestamps is ahead of CLOCK_MONOTONIC, if not known."""
        if self.clock_ms is None:
            self.clock_ms = read_clock_ahead_ms(self.sock, now_ns)

    def holds_more(self) -> bool:
        """Whether bytes were read from the kernel and not returned yet."""
        return False

    def open(self) -> None:
        """Have the kernel report the socket only when much can be read (SO_RCVLOWAT)."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self.poller.least_bytes)

    def read_at_once(self) -> None:
        """Have the kernel report every byte: the ring does not capture this connection."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


class SealedSocket(RingSocket):
    """A RingSocket under TLS: each read is one record, stamped with its position in the connection.

    The position is (−bytes of the connection up to the record's end, the socket's own timestamp in ns) in the
    form of a timespec. Which record ends a response cannot be seen, so each is read as it comes.
    """

    def __init__(self, sock: Socket, port: int, poller: RingPoller) -> None:
        super().__init__(sock, port, poller)
        self._buffer = bytearray()
        self._stamp_ns = 0
        self.opened_bytes = 0  # handed on

    def open(self) -> None:
        """Leave the kernel's reports as they are: every byte is reported."""

    def send(self, data: Any) -> int:
        return self.sock.send(data)

    def recv(self, size: int) -> bytes:
        return self.recvmsg(size, 0)[0]

    def recvmsg(self, size: int, ancillary_size: int) -> Received:
        flags, address = 0, None
        if not (length := self._record()):
            data, ancillary, flags, address = self.sock.recvmsg(size, max(ancillary_size, ANCILLARY_BYTES))
            self.read_bytes += len(data)
            if not data:
                rest, self._buffer = bytes(self._buffer), bytearray()
                return rest, ancillary, flags, address
            if ancillary:
                seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
                self._stamp_ns = seconds * SECOND_NS + nanoseconds
            self._buffer += data
            if not (length := self._record()):
                raise BlockingIOError
        record = bytes(self._buffer[:length])
        del self._buffer[:length]
        self.opened_bytes += length
        if self._record():
            self.poller.hint(self)
        place = TIMESPEC.pack(-self.opened_bytes, self._stamp_ns)
        return record, [(socket.SOL_SOCKET, SO_TIMESTAMPNS, place)], flags, address

    def holds_more(self) -> bool:
        """Whether a complete record was read and not returned yet."""
        return self._record() > 0

    def _record(self) -> int:
        """Return the bytes of the complete record at the buffer's begin; 0: incomplete; all if not TLS."""
        buffer = self._buffer
        if len(buffer) < _RECORD_HEAD:
            return 0
        length = int.from_bytes(buffer[3:_RECORD_HEAD])
        if buffer[0] not in _RECORD_TYPES or length > _LONGEST_RECORD:
            return len(buffer)
        return _RECORD_HEAD + length if len(buffer) >= _RECORD_HEAD + length else 0


def list_places(got: Sequence[Any]) -> Int64:
    """List where in the connection (bytes) each record of a SealedSocket's reads ends, int64[reads]."""
    return -np.frombuffer(b"".join(got[1::A_READ]), np.int64)[::2]


def restore_timestamps(got: Sequence[Any]) -> list[Any]:
    """Replace the positions in a SealedSocket's reads by the sockets' own timestamps."""
    stamped = list(got)
    for i in range(1, len(stamped), A_READ):
        place, stamp_ns = TIMESPEC.unpack(stamped[i])
        if place < 0:
            stamped[i] = TIMESPEC.pack(*divmod(stamp_ns, SECOND_NS))
    return stamped


class RingPoller:
    """A poller that adds a read event for each connection whose segments show something to read."""

    def __init__(self, network: Network, source: PacketRing, streams: int, round_ns: int) -> None:
        self.network, self.source, self.log = network, source, SegmentLog()
        self.round_ns = min(round_ns or _LONGEST_ROUND_NS, _LONGEST_ROUND_NS)
        self.inner = inner = network.poller()
        self.fileno, self.close = inner.fileno, inner.close
        self.register, self.modify, self.unregister = inner.register, inner.modify, inner.unregister
        self.now_ns = network.now_ns
        self.least_bytes = min(max(_WAITING_BYTES // max(streams, 1), _LEAST_READ), _MOST_READ)
        self.by_fd: Sequence[ReadBuffer | None] = ()  # the pool's
        self.ports: SourcePorts | None = None
        self.eager = np.zeros(1 << 16, np.bool_)  # by port: each segment is to be looked at
        self.by_port: dict[int, RingSocket] = {}
        self.segments = self.dropped = 0
        self.closed = False
        self._hints: dict[RingSocket, int] = {}  # to be read; when that was last tried
        self._round: deque[RingSocket] = deque()
        self._turn_ns = self._learned_ns = self.now_ns()
        self._learned = 0  # segments
        self._rest_s = 0.0

    def add(self, sock: RingSocket) -> None:
        """Watch a connection."""
        self.by_port[sock.port] = sock
        self.log.open(sock.port)
        self._round.append(sock)
        sock.open()

    def forget(self, sock: RingSocket) -> None:
        """Stop watching a connection and close it; its segments are kept if a response still needs them."""
        self.by_port.pop(sock.port, None)
        self._hints.pop(sock, None)
        if sock.owed:
            self.take()
            sock.rows = self.log.take(sock.port)
        if self.ports is not None:
            self.ports.end_connection(sock.sock, sock.port)

    def hint(self, sock: RingSocket) -> None:
        """Have a connection read at the next poll."""
        self._hints[sock] = 0

    def has_seen(self, sock: RingSocket) -> bool:
        """Whether the ring has the server's SYN of a connection; if not, new segments are taken first."""
        if sock.begin_seq < 0:
            self.take()
        return sock.begin_seq >= 0

    def poll(self, timeout_s: float, most_events: int) -> list[tuple[int, int]]:
        """Return the events so far, or the first until the timeout."""
        if not timeout_s:
            return self._look(most_events)
        until_ns = self.now_ns() + int(timeout_s * 1e9)
        events: list[tuple[int, int]] = []
        while not events and (left_ns := until_ns - self.now_ns()) > 0:
            if self._rest_s or self._hints:
                self.network.sleep(self._rest_s or _SHORT_REST_S)
            else:
                self.source.wait(self.inner, left_ns / 1e9)
            events = self._look(most_events)
        return events

    def _look(self, most_events: int) -> list[tuple[int, int]]:
        events = self.inner.poll(0, most_events)
        # The ring shows a segment before its socket has it: a hint stays until what is due was read.
        for sock, tried_ns in [*self._hints.items()]:
            intake = self.by_fd[sock.fd]
            if not tried_ns or (sock.read_bytes < sock.due_bytes and intake is not None):
                continue
            del self._hints[sock]
            # Once the head of a plain response was read, only segments that may end it count.
            if intake is not None and intake.tail and intake.slot.tls is None:
                self.eager[sock.port] = False  # its end is marked, or closes the connection
        self.take()
        now_ns = self.now_ns()
        if now_ns - self._turn_ns > _TURN_NS:
            self._go_round(now_ns)
        if self._hints:
            reported = {fd for fd, _ in events}
            for sock, tried_ns in self._hints.items():
                if now_ns - tried_ns > _SHORT_REST_S * 1e9 and sock.fd not in reported:
                    self._hints[sock] = now_ns
                    events.append((sock.fd, select.EPOLLIN))
        return events

    def take(self) -> None:
        """Take new segments from the ring and note which connections to read."""
        if self.closed:
            return
        frames = self.source.take()
        if frames is not None:
            self.segments += len(frames)
            seen_ns = self.now_ns()
            for begin in range(0, len(frames), TAIL):
                self._note(frames[begin : begin + TAIL], seen_ns)
        if lost := self.source.drops():
            self.dropped += lost
            for sock in self.by_port.values():
                self.hint(sock)

    def _note(self, frames: Frames, seen_ns: int) -> None:
        ports = frames["port"].astype(np.uint16)
        self.log.add(frames, ports, seen_ns)
        shown = self.eager[ports]
        shown |= frames["kept"] & 1 == 0  # marked
        if shown.any():
            self._show(self.log.read_tail(len(frames))[shown])

    def _show(self, rows: Rows) -> None:
        """Note the connections to read, by segments that may begin or end a response."""
        sizes = measure_payload(rows, self.source.headers)
        for port, seq, size in zip(rows["port"].tolist(), rows["seq"].tolist(), sizes.tolist(), strict=True):
            sock = self.by_port.get(port)
            if sock is None:
                continue
            if not size:  # a SYN
                sock.begin_seq = (seq + 1) % SEQUENCE
            elif self.least_bytes == 1:
                continue  # its epoll reports every byte
            elif sock.begin_seq >= 0:
                end = (
                    sock.read_bytes
                    + (seq + size - sock.begin_seq - sock.read_bytes + _HALF) % SEQUENCE
                    - _HALF
                )
                sock.due_bytes = max(sock.due_bytes, end)
            self.hint(sock)

    def _go_round(self, now_ns: int) -> None:
        """Hint at some busy sockets, each once in `round_ns`; set the rest between polls by segments/s."""
        share = min((now_ns - self._turn_ns) / self.round_ns, 1.0)
        self._turn_ns = now_ns
        for _ in range(math.ceil(len(self._round) * share)):
            sock = self._round.popleft()
            if self.by_port.get(sock.port) is not sock:
                continue
            self._round.append(sock)
            intake = self.by_fd[sock.fd]
            if intake is not None and intake.state is State.BUSY:
                self._hints.setdefault(sock, 0)
        if now_ns - self._learned_ns > _LEARN_NS:
            per_s = (self.segments - self._learned) * 1e9 / (now_ns - self._learned_ns)
            self._learned, self._learned_ns = self.segments, now_ns
            rests_s = _RESTS_S if self.least_bytes > 1 else _RESTS_AT_ONCE_S
            self._rest_s = next((rest_s for least, rest_s in rests_s if per_s > least), 0.0)


class RingNetwork:
    """A network whose sockets use ports of ours, and whose poller is the ring's."""

    def __init__(self, network: Network, ports: SourcePorts, poller: RingPoller, sealed: bool) -> None:
        self.network, self.ports, self._poller = network, ports, poller
        self.now_ns, self.wall_ns, self.cpu_ns = network.now_ns, network.wall_ns, network.cpu_ns
        self.sleep = network.sleep
        self.kind = SealedSocket if sealed else RingSocket
        poller.ports = ports

    def socket(self, family: int) -> Socket:
        """Open a socket at one of our ports; at any port if none is left."""
        bound = self.ports.take()
        if bound is None:
            return self.network.socket(family)
        sock = self.kind(*bound, self._poller)
        self._poller.add(sock)
        return sock

    def poller(self) -> Poller:
        """Return the ring's poller."""
        return self._poller

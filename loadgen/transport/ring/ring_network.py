"""Ring network: sockets that are read rarely and in large pieces, and a poll that knows when.

A socket of a plain connection reports data only when much of it waits (SO_RCVLOWAT): its window stays open,
and a token costs nothing. Segments in the ring show when there is something to do: a response's head came, or
what may be its end. What they fail to show is found seconds later, when every socket is read.
"""

from __future__ import annotations

import math
import select
from collections import deque
from collections.abc import Sequence

import numpy as np

from loadgen.transport.epoll.connection import ReadBuffer, State
from loadgen.transport.network import Network, Poller, Socket
from loadgen.transport.ring.packet_ring import Frames, SegmentSource
from loadgen.transport.ring.ring_sockets import RingSocket, SealedSocket
from loadgen.transport.ring.segments import TAIL, Rows, SegmentLog, measure_payload
from loadgen.transport.ring.source_ports import SourcePorts

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


class RingPoller:
    """An epoll's events, and a reading event for each connection that segments show something of."""

    def __init__(self, network: Network, source: SegmentSource, streams: int, round_ns: int) -> None:
        self.network, self.source, self.log = network, source, SegmentLog()
        self.round_ns = min(round_ns or _LONGEST_ROUND_NS, _LONGEST_ROUND_NS)
        self.inner = network.poller()
        self.now_ns = network.now_ns
        self.least_bytes = min(max(_WAITING_BYTES // max(streams, 1), _LEAST_READ), _MOST_READ)
        self.by_fd: Sequence[ReadBuffer | None] = ()  # the pool's
        self.ports: SourcePorts | None = None
        self.eager = np.zeros(1 << 16, np.bool_)  # by port: each segment is to be looked at
        self.by_port: dict[int, RingSocket] = {}
        self.marked = source.headers.marked
        self.segments = self.dropped = 0
        self.closed = False
        self._hints: dict[RingSocket, int] = {}  # to be read; when that was last tried
        self._round: deque[RingSocket] = deque()
        self._turn_ns = self._learned_ns = self.now_ns()
        self._learned = 0  # segments
        self._rest_s = 0.0

    def fileno(self) -> int:
        return self.inner.fileno()

    def register(self, fd: int, events: int) -> None:
        self.inner.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        self.inner.modify(fd, events)

    def unregister(self, fd: int) -> None:
        self.inner.unregister(fd)

    def close(self) -> None:
        self.inner.close()

    def add(self, sock: RingSocket) -> None:
        """Look after a connection."""
        self.by_port[sock.port] = sock
        self.log.open(sock.port)
        self._round.append(sock)
        sock.open()

    def forget(self, sock: RingSocket) -> None:
        """Look after a connection no more."""
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
        """Whether the ring has shown the connection's begin."""
        if sock.begin_seq < 0:
            self.take()
        return sock.begin_seq >= 0

    def poll(self, timeout_s: float, most_events: int) -> list[tuple[int, int]]:
        """Report the events so far, or the first until the timeout; without one it is called right before."""
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
        self._settle()
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

    def _settle(self) -> None:
        """Forget the hints whose bytes were read: the ring shows a segment before its socket has them."""
        for sock, tried_ns in [*self._hints.items()]:
            intake = self.by_fd[sock.fd]
            if not tried_ns or (sock.read_bytes < sock.due_bytes and intake is not None):
                continue
            del self._hints[sock]
            if intake is not None and intake.tail and intake.slot.tls is None:
                self.eager[sock.port] = False  # its end is marked, or closes the connection

    def take(self) -> None:
        """Take the segments that came, and see which connections are to be read."""
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
        shown |= frames["kept"] == self.marked
        if shown.any():
            self._show(self.log.read_tail(len(frames))[shown])

    def _show(self, rows: Rows) -> None:
        """Note what is to be read of connections with segments that are to be looked at."""
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
        """Read some sockets that were not read for long; learn how busy the ring is."""
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
    """A network whose sockets come from ports of ours, and whose poll is the ring's."""

    def __init__(self, network: Network, ports: SourcePorts, poller: RingPoller, sealed: bool) -> None:
        self.network, self.ports, self._poller = network, ports, poller
        self.now_ns, self.wall_ns, self.cpu_ns = network.now_ns, network.wall_ns, network.cpu_ns
        self.sleep = network.sleep
        self.kind = SealedSocket if sealed else RingSocket
        poller.ports = ports

    def socket(self, family: int) -> Socket:
        """A socket from one of our ports; any other where there is none left."""
        bound = self.ports.take()
        if bound is None:
            return self.network.socket(family)
        sock = self.kind(*bound, self._poller)
        self._poller.add(sock)
        return sock

    def poller(self) -> Poller:
        """The ring's poll."""
        return self._poller

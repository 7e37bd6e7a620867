"""Ring transport: the epoll transport with each segment's timestamp, however late it is read.

On a machine whose cores are all busy, several tokens of a stream wait in its socket before this process runs
again, and one read has one timestamp. A packet ring has one for each segment.

A socket of a plain connection reports data only when much of it waits (SO_RCVLOWAT): its window stays open,
and a token costs nothing. Segments in the ring show when there is something to do: a response's head came, or
what may be its end. What they fail to show is found seconds later, when every socket is read.
"""

from __future__ import annotations

import contextlib
import math
import resource
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.features.ring.packet_ring import Frames, PacketRing, SourcePorts
from loadgen.features.ring.segments import (
    SEGMENT,
    TAIL,
    Pieces,
    Rows,
    SegmentLog,
    are_in_order,
    count_held_back,
    find_pieces,
    have_timestamps,
    measure_payload,
    order_segments,
    read_wall_ns,
)
from loadgen.transport.capture import (
    A_READ,
    NO_STAMP,
    Capture,
    Counters,
    Health,
    Outbox,
    SegmentTimes,
    pack_int64s,
)
from loadgen.transport.epoll_transport import EpollTransport
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.network import Network, Poller, Received, Socket, SystemNetwork, read_clock_ahead_ms
from loadgen.transport.sending.job import Job
from loadgen.transport.tcp_connection import READ_BYTES, SO_TIMESTAMPNS, TIMESPEC, ReadBuffer, Slot, State

_WAITING_BYTES = 64 << 20  # unread in all sockets together, about
_LEAST_READ, _MOST_READ = 4096, 1 << 18  # bytes that wait in one before it is read
# Above N segments per second they are taken some at a time, with a rest between. That delays noticing the end
# of a response, and nothing else.
_RESTS_S = ((16000, 0.001), (4000, 0.0005))
# Sockets read at once rest as in the epoll transport, since a server may wait for acknowledgements.
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
        # Bytes of the connection that were read, and bytes known to have come, which are to be read.
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
        """Set `clock_ms` once: how far TCP's timestamps are ahead of CLOCK_MONOTONIC; None if it fails."""
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
    form of a timespec. Each is read as it comes; a read raises BlockingIOError while one is incomplete.
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
        if not (length := self._measure_record()):
            data, ancillary, flags, address = self.sock.recvmsg(size, max(ancillary_size, ANCILLARY_BYTES))
            self.read_bytes += len(data)
            if not data:
                rest, self._buffer = bytes(self._buffer), bytearray()
                return rest, ancillary, flags, address
            if ancillary:
                seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
                self._stamp_ns = seconds * SECOND_NS + nanoseconds
            self._buffer += data
            if not (length := self._measure_record()):
                raise BlockingIOError
        record = bytes(self._buffer[:length])
        del self._buffer[:length]
        self.opened_bytes += length
        if self._measure_record():
            self.poller.hint(self)
        place = TIMESPEC.pack(-self.opened_bytes, self._stamp_ns)
        return record, [(socket.SOL_SOCKET, SO_TIMESTAMPNS, place)], flags, address

    def holds_more(self) -> bool:
        """Whether a complete record was read and not returned yet."""
        return self._measure_record() > 0

    def _measure_record(self) -> int:
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
    """Return a SealedSocket's reads with the sockets' own timestamps in place of positions."""
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
        """Return the events there are, else wait for the first, `timeout_s` at most; [] if none comes."""
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
        """Take new segments; return the events there are, and a read event for each hinted connection."""
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
                self._log_frames(frames[begin : begin + TAIL], seen_ns)
        if lost := self.source.drops():
            self.dropped += lost
            for sock in self.by_port.values():
                self.hint(sock)

    def _log_frames(self, frames: Frames, seen_ns: int) -> None:
        """Add frames to the log; act on the marked ones, and on all of connections that are eager."""
        ports = frames["port"].astype(np.uint16)
        self.log.add(frames, ports, seen_ns)
        shown = self.eager[ports]
        shown |= frames["kept"] & 1 == 0  # marked
        if shown.any():
            self._show(self.log.read_tail(len(frames))[shown])

    def _show(self, rows: Rows) -> None:
        """Hint at connections by segments that may begin or end a response; note where SYNs begin."""
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


_SPARE_FILES = 128
_LEAST_DRAINED = 16  # reads of an answer that is given up: more than a socket lets wait
_CUT = (FailureKind.MALFORMED, FailureKind.MEMORY)  # of an answer of which no more is to be read
_ROUNDS = 8  # in which every socket is read, within --stall-timeout
_UNKNOWN = -1
_CLOCK = 1 << 32
_LEAST_MS = 2  # a request's delay that the grain of the two clocks cannot explain


class RingTransport(EpollTransport):
    """An epoll transport whose arrivals are TCP segments' timestamps; without a ring, a plain one."""

    def __init__(
        self,
        job: Job,
        outbox: Outbox,
        counters: Counters,
        network: Network | None = None,
        source: PacketRing | None = None,
    ) -> None:
        network = network or SystemNetwork()
        self.ring: _Ring | None = None
        self.instead = ""
        self.fallen_back = 0  # requests whose arrivals are their sockets' timestamps
        self.held_back = 0  # segments that waited for an acknowledgement of ours, which was late
        try:
            self.ring = _Ring(job, network, source)
        except OSError as error:
            self.instead = f"no packet ring ({error.strerror or error}): timestamps of sockets"
        super().__init__(job, outbox, counters, self.ring.network if self.ring else network)
        limits = job.limits
        together = limits.open_bytes // max(job.most_slots, 1) or limits.answer_bytes
        self.most_drained = max(min(together, limits.answer_bytes) // READ_BYTES, _LEAST_DRAINED)  # reads
        if self.ring is not None:
            self.ring.poller.by_fd = self.pool.by_fd
            self.pacing.forbidden = True  # the poller rests

    def run(self) -> Health:
        """Send as the epoll transport; add what the ring saw, or why sockets gave the timestamps."""
        health = super().run()
        if self.ring is None:
            return replace(health, instead=self.instead)
        return replace(
            health,
            segments=self.ring.poller.segments,
            dropped_segments=self.ring.poller.dropped,
            fallen_back=self.fallen_back,
            held_segments=max(self.held_back, 0),
        )

    def _sweep(self, now_ns: int) -> None:
        super()._sweep(now_ns)
        if self.ring is not None:
            self.counters.publish(self.out.next, self.ended, self.ring.poller.segments)

    def _end(self, slot: Slot, failure: Failure | None) -> None:
        if failure is not None and failure.kind not in _CUT:
            self._drain(slot)
        super()._end(slot, failure)

    def _drain(self, slot: Slot) -> None:
        """Read what has arrived of a response that is about to be ended."""
        intake, sock = slot.intake, slot.sock
        if not isinstance(sock, RingSocket) or intake.state is not State.BUSY:
            return
        with contextlib.suppress(OSError):  # nothing more, or broken, which is known already
            for _ in range(self.most_drained):
                try:
                    received = intake.receive(READ_BYTES, ANCILLARY_BYTES)
                except BlockingIOError:
                    if sock.holds_more():
                        continue
                    break
                if not received[0]:
                    break
                intake.got += (received[0], received[1][0][2] if received[1] else NO_STAMP, self.now_ns())

    def _deliver(self, slot: Slot, failure: Failure | None, end_ns: int) -> None:
        """Put out a response's capture, filled later from its segments; by its reads without a RingSocket."""
        sock = slot.sock
        if not isinstance(sock, RingSocket):
            self.fallen_back += self.ring is not None and len(slot.intake) > 0
            super()._deliver(slot, failure, end_ns)
            return
        capture, got = slot.capture(failure, end_ns, self.wall), slot.intake.got
        end = sock.opened_bytes if isinstance(sock, SealedSocket) else sock.read_bytes
        span = (sock.delivered_bytes, end)
        sock.delivered_bytes = end
        sock.owed += 1
        sock.read_clock(self.now_ns)
        size = sum(map(len, got[::A_READ]))
        fill = partial(self._fill, capture, got, sock, span)
        self.outbox.put(capture, size, fill)

    def _fill(self, capture: Capture, got: list[Any], sock: RingSocket, span: tuple[int, int]) -> None:
        """Give a capture its bytes with each segment's timestamp; the reads' if a segment is missing."""
        assert self.ring is not None
        sock.owed -= 1
        arrivals = self.ring.find_arrivals(sock, span) if got else None
        sealed = isinstance(sock, SealedSocket)
        if arrivals is None:
            self.fallen_back += len(got) > 0
            capture.fill(restore_timestamps(got) if sealed else got)
            return
        ends, rows, pieces = arrivals.ends, arrivals.rows, arrivals.pieces
        capture.raw, capture.segments = b"".join(got[::A_READ]), True
        record_ends = list_places(got) - span[0] if sealed else None
        # After a step of the wall clock, no one knows which segments came as soon as the client had read.
        if not (self.job.target.delay_acks or capture.earlier_offsets_ns):
            sizes = map(len, got[::A_READ])
            read_ends = np.fromiter(sizes, np.int64).cumsum() if record_ends is None else record_ends
            read_ns = np.fromiter(got[2::A_READ], np.int64)
            came_ns = read_wall_ns(rows) - self.wall.now_ns
            self.held_back += count_held_back(came_ns, ends, read_ns, read_ends, max(capture.rtt_ns, 0))
        if not capture.resends:
            capture.request_delay_ns = arrivals.measure_request_delay_ns(
                capture.sent_ns, capture.end_ns, sock.clock_ms
            )
        if pieces is not None and record_ends is None:
            ends, rows = pieces.ends, pieces.rows[pieces.readable_by]
        if record_ends is not None:  # of each record the segment that completed it
            rows = rows[ends.searchsorted(record_ends)]
            capture.read_lengths = pack_int64s(map(len, got[::A_READ]))
        else:
            lengths = np.minimum(ends, len(capture.raw))
            lengths[1:] -= lengths[:-1].copy()
            capture.read_lengths = lengths.tobytes()
        capture.seen_ns = rows["seen_ns"].tobytes()
        kernel = np.empty((len(rows), 2), np.int64)
        kernel[:, 0], kernel[:, 1] = rows["seconds"], rows["nanoseconds"]
        capture.kernel = kernel.tobytes()
        if pieces is not None:
            capture.times = make_times(sock.begin_seq, pieces, record_ends)
        elif arrivals.timed:
            capture.times = SegmentTimes(sock.begin_seq, rows["sent"].astype(np.uint32).tobytes())

    def _close(self) -> None:
        if self.ring is not None:
            for slot in self.pool.slots:
                if slot.index >= 0:
                    self._drain(slot)
            self.ring.close()
        super()._close()
        if self.ring is not None:
            self.outbox.fill()  # or not all that fell back would be counted
            self.counters.publish(self.out.next, self.ended, self.ring.poller.segments)


class _Ring:
    """A packet ring for a job and the network of its sockets; raises OSError if there can be none."""

    def __init__(self, job: Job, network: Network, source: PacketRing | None) -> None:
        family, server = job.target.address
        round_ns = job.limits.stall_timeout_ns // _ROUNDS
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES
        self.source = source or PacketRing(family, [server], job.most_slots)
        self.poller = RingPoller(network, self.source, job.most_slots, round_ns)
        if job.reads_at_once or not job.target.delay_acks:
            self.poller.least_bytes = 1
        self.ports = SourcePorts(network, job.target.address, self.source, files)
        self.network = RingNetwork(network, self.ports, self.poller, sealed=job.target.tls is not None)
        if not self.ports.reserve(job.first_slots):
            self.close()
            raise OSError(f"no {job.first_slots} source ports are free, or not close enough together")

    def find_arrivals(self, sock: RingSocket, span: tuple[int, int]) -> Arrivals | None:
        """Find which segments completed a span of a connection's bytes; None where one is missing."""
        rows = self._take_rows(sock)
        sizes = measure_payload(rows, self.source.headers)
        ordered = self._order_rows(sock, rows, sizes, span)
        if ordered is None:  # it was read before its last segments were taken
            self.poller.take()
            # numpy's own concatenation drops the bytes between the fields.
            rows = np.frombuffer(rows.tobytes() + self._take_rows(sock).tobytes(), SEGMENT)
            sizes = measure_payload(rows, self.source.headers)
            ordered = self._order_rows(sock, rows, sizes, span)
        if ordered is None:
            return None
        (ends, at), (begin, end) = ordered, span
        came = rows if len(at) == len(rows) else rows.take(at)  # by far quicker than rows[at]
        if are_in_order(ends, at, sizes):
            return Arrivals(ends, came, have_timestamps(came))
        pieces = find_pieces(rows, sizes, (sock.begin_seq + begin) % SEQUENCE, end - begin)
        return Arrivals(ends, came, pieces is not None, pieces)

    def _take_rows(self, sock: RingSocket) -> Rows:
        """Take a connection's segments since the last call; its port may be reused once it has ended."""
        if sock.rows is None:
            return self.poller.log.take(sock.port)
        rows, sock.rows = sock.rows, sock.rows[:0]
        return rows

    def _order_rows(
        self, sock: RingSocket, rows: Rows, sizes: Int64, span: tuple[int, int]
    ) -> tuple[Int64, Int64] | None:
        """Find arrivals by `order_segments`, None if one is missing; later rows are kept for the next."""
        if sock.begin_seq < 0:
            return None
        begin, end = span
        begin_seq = (sock.begin_seq + begin) % SEQUENCE
        ordered = order_segments(rows, sizes, begin_seq, end - begin)
        if ordered is not None and ordered[1][-1] + 1 < len(rows):
            rest = rows[ordered[1][-1] + 1 :]
            offsets = (rest["seq"].astype(np.uint32) - np.uint32(begin_seq)).astype(np.int32)
            rest = rest[offsets >= end - begin]
            if sock.rows is None:
                self.poller.log.put_back(sock.port, rest)
            else:
                sock.rows = rest
        return ordered

    def close(self) -> None:
        """Stop capturing, then release the ports for other programs."""
        self.poller.take()
        self.poller.closed = True
        self.source.close()
        self.poller.dropped += self.source.drops()
        self.ports.close()


class Arrivals(msgspec.Struct, frozen=True):
    """The segments that completed a response, in order, and how many bytes of it there were with each."""

    ends: Int64
    rows: Rows  # as many
    timed: bool  # they have TCP's timestamps
    pieces: Pieces | None = None  # where they did not come once each and in order, and have timestamps

    def measure_request_delay_ns(self, sent_ns: int, end_ns: int, clock_ms: int | None) -> int:
        """Measure how long after `sent_ns` the request's segment was sent that the server had got (ns).

        The response's first segment echoes our clock at that sending; `clock_ms` is that clock less
        CLOCK_MONOTONIC in ms, 0.5 ms more on the mean. Below 2 ms, the grain, it is 0; -1 where not known: no
        timestamp, another connection's time, or a first segment that was itself sent again.
        """
        if clock_ms is None or not self.timed:
            return _UNKNOWN
        rows, first, second = self.rows, 0, min(1, len(self.rows) - 1)
        if self.pieces is not None:
            rows, by = self.pieces.rows, self.pieces.brought_by
            first, second = by[0], by[min(1, len(by) - 1)]
        again = _wrap(int(rows["sent"][second]) - int(rows["sent"][first])) < 0
        if again or rows["kept"][first] & 1:  # its last byte was not kept
            return _UNKNOWN
        passed_ms = (end_ns - sent_ns) // MS_NS
        delay_ms = _wrap(int(rows["echoed"][first]) - clock_ms - sent_ns // MS_NS)
        if not -_LEAST_MS < delay_ms < passed_ms + _LEAST_MS:
            return _UNKNOWN
        return delay_ms * MS_NS - MS_NS // 2 if delay_ms >= _LEAST_MS else 0


def make_times(connection: int, pieces: Pieces, record_ends: Int64 | None) -> SegmentTimes:
    """Make the times of a response whose segments came out of order or twice.

    `record_ends` is where each TLS record ends, in bytes of the connection; None without TLS.
    """
    brought = pieces.rows[pieces.brought_by]
    least = (pieces.least + int(pieces.rows["sent"][0])) % _CLOCK
    return SegmentTimes(
        connection,
        sent=brought["sent"].astype(np.uint32).tobytes(),
        least=least.astype(np.uint32).tobytes(),
        came_ns=read_wall_ns(brought).tobytes(),
        order=pieces.brought_by.tobytes(),
        ends=pieces.ends.tobytes(),
        of_reads=b"" if record_ends is None else pieces.ends.searchsorted(record_ends).tobytes(),
    )


def _wrap(ticks: int) -> int:
    """Return a difference of two 32-bit clocks modulo 2³², as the value from −2³¹ to 2³¹ − 1."""
    return (ticks + _CLOCK // 2) % _CLOCK - _CLOCK // 2

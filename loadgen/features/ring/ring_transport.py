"""Ring transport: the epoll transport with each segment's timestamp, however late it is read.

On a machine whose cores are all busy, several tokens of a stream wait in its socket before this process runs
again, and one read has one timestamp. A packet ring has one for each segment.
"""

from __future__ import annotations

import contextlib
import resource
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS
from loadgen.features.ring.packet_ring import PacketRing
from loadgen.features.ring.ring_network import (
    ANCILLARY_BYTES,
    SEQUENCE,
    RingNetwork,
    RingPoller,
    RingSocket,
    SealedSocket,
    list_places,
    restore_timestamps,
)
from loadgen.features.ring.segments import (
    Pieces,
    Rows,
    are_in_order,
    count_held_back,
    find_pieces,
    have_timestamps,
    join_rows,
    measure_payload,
    order_segments,
    read_wall_ns,
)
from loadgen.features.ring.source_ports import SourcePorts
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
from loadgen.transport.network import Network, SystemNetwork
from loadgen.transport.sending.job import Job
from loadgen.transport.tcp_connection import READ_BYTES, Slot, State

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
        arrivals = self.ring.arrivals(sock, span) if got else None
        sealed = isinstance(sock, SealedSocket)
        if arrivals is None:
            self.fallen_back += len(got) > 0
            capture.fill(restore_timestamps(got) if sealed else got)
            return
        ends, rows, pieces = arrivals.ends, arrivals.rows, arrivals.pieces
        capture.raw, capture.segments = b"".join(got[::A_READ]), True
        record_ends = list_places(got) - span[0] if sealed else None
        # Across a step of the wall clock it is not known what came as soon as the client had read.
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

    def arrivals(self, sock: RingSocket, span: tuple[int, int]) -> Arrivals | None:
        """Find which segments completed a span of a connection's bytes; None where one is missing."""
        rows = self._take_rows(sock)
        sizes = measure_payload(rows, self.source.headers)
        ordered = self._order_rows(sock, rows, sizes, span)
        if ordered is None:  # it was read before its last segments were taken
            self.poller.take()
            rows = join_rows(rows, self._take_rows(sock))
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
        """Order segments by `order_segments`; those after the span are kept for the next response."""
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
    """Return the least difference of two 32-bit clocks that this one can be."""
    return (ticks + _CLOCK // 2) % _CLOCK - _CLOCK // 2

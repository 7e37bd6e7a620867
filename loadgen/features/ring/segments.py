"""Segments: the arrival of each byte of a stream, by the sequence numbers of its TCP segments."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.features.ring.packet_filter import Headers
from loadgen.features.ring.packet_ring import Frames

# Segments of all streams that wait to be sorted by stream: one sort, or one search, is over these.
TAIL = 1 << 15
_PORTS, _NO_PORT = 1 << 16, 0
_COPIED = np.dtype([("header", "V20"), ("ip_length", "V2"), ("", "V2"), ("tcp", "V32"), ("seen_ns", "<i8")])
_FIELDS = {  # what the copied bytes mean: of struct tpacket2_hdr, of IP, of TCP; and when we saw it
    "length": ("<u4", 0),
    "kept": ("<u4", 4),
    "seconds": ("<u4", 12),
    "nanoseconds": ("<u4", 16),
    "ip_length": (">u2", 20),
    "port": (">u2", 26),
    "seq": (">u4", 28),
    "tcp_words": ("u1", 36),
    "option": (">u4", 44),  # the first four bytes
    "sent": (">u4", 48),  # TSval: the server's clock at the segment's sending
    "echoed": (">u4", 52),  # TSecr: our clock at the sending of what the server had got
    "seen_ns": ("<i8", 56),
}
SEGMENT = np.dtype(
    {
        "names": list(_FIELDS),
        "formats": [kind for kind, _ in _FIELDS.values()],
        "offsets": [at for _, at in _FIELDS.values()],
        "itemsize": _COPIED.itemsize,
    }
)
Rows = NDArray[np.void]  # of SEGMENT
_NOTHING = np.zeros(1, np.int64)
_TIMESTAMPS, _WITH_OPTIONS = 0x0101080A, 0x80  # NOP, NOP, kind 8, length 10; from 8 words of header on
_LATE_NS, _NEAR_NS, _OF_CHANCE = 2_000_000, 100_000, 3


def measure_payload(rows: Rows, headers: Headers) -> Int64:
    """Compute the payload of each segment in bytes, int64[segments]."""
    total = rows["ip_length"].astype(np.int64)
    if np.count_nonzero(total) < len(total):  # too long for the field
        total = np.where(total == 0, rows["length"].astype(np.int64) - headers.excess, total)
    return total - (headers.size - headers.excess) - (rows["tcp_words"] >> 4) * np.int64(4)


def read_wall_ns(rows: Rows) -> Int64:
    """Return when the kernel received each segment (ns, CLOCK_REALTIME), int64[segments]."""
    came_ns: Int64 = rows["seconds"].astype(np.int64) * SECOND_NS + rows["nanoseconds"]
    return came_ns


class SegmentLog:
    """The captured segments of responses in progress, by local port; 64 bytes each."""

    def __init__(self) -> None:
        self._ports = np.empty(TAIL, np.uint16)
        self._tail = np.empty(TAIL, _COPIED)
        self._columns = tuple(self._tail[name] for name in ("header", "ip_length", "tcp", "seen_ns"))
        self._count = 0  # in the tail
        self._kept: list[bytearray | None] = [None] * _PORTS  # rows of a port's segments before the tail's

    def open(self, port: int) -> None:
        """Keep a port's segments from now on, dropping an earlier connection's."""
        self._kept[port] = bytearray()
        self._ports[: self._count][self._ports[: self._count] == port] = _NO_PORT

    def add(self, frames: Frames, ports: NDArray[np.uint16], seen_ns: int) -> None:
        """Add frames to these ports, at most TAIL, seen by this process at `seen_ns`."""
        if self._count + len(frames) > TAIL:
            self._sort()
        begin, end = self._count, self._count + len(frames)
        header, ip_length, tcp, seen = self._columns
        self._ports[begin:end] = ports
        header[begin:end] = frames["header"]
        ip_length[begin:end] = frames["ip_length"]
        tcp[begin:end] = frames["tcp"]
        seen[begin:end] = seen_ns
        self._count = end

    def _sort(self) -> None:
        """Move the tail's segments to those kept of their ports, in order; drop those of closed ports."""
        ports = self._ports[: self._count]
        order = ports.argsort(kind="stable")
        ports, data = ports[order], self._tail.take(order).tobytes()  # quicker than [order]
        begins = [0, *((ports[1:] != ports[:-1]).nonzero()[0] + 1).tolist()]
        ends = [*begins[1:], len(ports)]
        for port, begin, end in zip(ports[begins].tolist(), begins, ends, strict=True):
            kept = self._kept[port]
            if kept is not None:
                kept += data[begin * SEGMENT.itemsize : end * SEGMENT.itemsize]
        self._count = 0

    def read_tail(self, count: int) -> Rows:
        """Return the last `count` frames added."""
        return self._tail[self._count - count : self._count].view(SEGMENT)

    def take(self, port: int) -> Rows:
        """Remove and return a port's segments in the order in which they came."""
        kept, count = self._kept[port], self._count
        at = (self._ports[:count] == port).nonzero()[0]
        rows = np.frombuffer(bytes(kept or b"") + self._tail.take(at).tobytes(), SEGMENT)
        self._ports[at] = _NO_PORT
        if kept is not None:
            self._kept[port] = bytearray()
        return rows

    def put_back(self, port: int, rows: Rows) -> None:
        """Keep a port's segments of the next response, taken with those of the last one, as all it has."""
        if len(rows) and self._kept[port] is not None:
            self._kept[port] = bytearray(rows.tobytes())


def order_segments(rows: Rows, sizes: Int64, begin_seq: int, total: int) -> tuple[Int64, Int64] | None:
    """Find how many bytes of a response had arrived after each segment; None if a byte is missing.

    `begin_seq` is the sequence number of its first byte, `total` its length; `sizes` is as from
    `measure_payload`. Both results are int64[arrivals]: bytes, growing up to `total`, and indices into
    `rows`. A byte counts as arrived once all before it have, as TCP gives them to any client; of what was
    sent twice the first time counts.
    """
    first = (rows["seq"].astype(np.uint32) - np.uint32(begin_seq)).view(np.int32).astype(np.int64)
    ends = np.minimum(first + sizes, total)
    of_it = ((ends > 0) & (first < total)).nonzero()[0]
    if len(of_it) < len(rows):
        first, ends = first[of_it], ends[of_it]
    before = np.concatenate((_NOTHING, np.maximum.accumulate(ends)))  # what there was when each came
    if before[-1] < total:
        return None
    if not np.count_nonzero(first > before[:-1]):
        new = ends > before[:-1]  # others were sent again
        return ends[new], of_it[new]
    return _merge_segments(first, ends, of_it, total)


class Pieces(msgspec.Struct, frozen=True):
    """The bytes of a response by the segments that brought them first, in their order, int64[pieces] each."""

    rows: Rows  # the segments with bytes of the response, as they came
    ends: Int64  # bytes up to a piece's end
    brought_by: Int64  # index into `rows`: what brought it
    readable_by: Int64  # and with what it and all before it were there
    least: Int64  # the earliest TSval of its copies, less that of the first of `rows`


def are_in_order(ends: Int64, at: Int64, sizes: Int64) -> bool:
    """Whether a response's segments came in order, by what `order_segments` found; some again later, maybe.

    On loopback a server often sends the last one again while the acknowledgement is delayed.
    """
    return bool(ends[0] == sizes[at[0]] and ends[-1] == sizes[at].sum())


def have_timestamps(rows: Rows) -> bool:
    """Whether segments of a connection have TCP's timestamps where Linux puts them: all or none have."""
    options, words = rows["option"], rows["tcp_words"]
    return all(options[at] == _TIMESTAMPS and words[at] >= _WITH_OPTIONS for at in (0, -1))


def find_pieces(rows: Rows, sizes: Int64, begin_seq: int, total: int) -> Pieces | None:
    """Find the pieces of a response of which `order_segments` found every byte; None without timestamps."""
    first = (rows["seq"].astype(np.uint32) - np.uint32(begin_seq)).view(np.int32).astype(np.int64)
    begins, ends = first.clip(0, total), (first + sizes).clip(0, total)
    of_it = ends > begins
    rows, begins, ends = rows[of_it], begins[of_it], ends[of_it]
    if not have_timestamps(rows):
        return None
    edges = np.unique(np.concatenate((_NOTHING, begins, ends)))
    low = edges.searchsorted(begins)
    counts = edges.searchsorted(ends) - low
    # Each segment covers the stretches between its edges.
    segment = np.repeat(np.arange(len(rows)), counts)
    stretch = np.arange(len(segment)) + np.repeat(low - np.cumsum(counts) + counts, counts)
    sent = (rows["sent"].astype(np.uint32) - np.uint32(rows["sent"][0])).view(np.int32).astype(np.int64)
    brought_by = np.full(len(edges) - 1, len(rows))
    least = np.full(len(edges) - 1, sent.max())
    np.minimum.at(brought_by, stretch, segment)
    np.minimum.at(least, stretch, sent[segment])
    last = np.append((np.diff(brought_by) != 0) | (np.diff(least) != 0), True)
    readable_by = np.maximum.accumulate(brought_by)
    return Pieces(rows, edges[1:][last], brought_by[last], readable_by[last], least[last])


def count_held_back(came_ns: Int64, ends: Int64, read_ns: Int64, read_ends: Int64, rtt_ns: int) -> int:
    """Count the segments right after a late read of those before, less what chance explains; may be under 0.

    A server with Nagle's algorithm waits for the acknowledgement, which leaves with the read. Without it,
    about as many come right before that as right after: three times as many are taken off. `came_ns` and
    `ends` are int64[arrivals], when each came and how much there was then; `read_ns` and `read_ends`
    int64[reads]. All times are of one clock.
    """
    read = np.minimum(read_ends.searchsorted(ends), len(read_ends) - 1)
    acknowledged_ns = read_ns[read[:-1]]
    late = (acknowledged_ns - came_ns[:-1] > _LATE_NS) & (read[1:] > read[:-1])
    after_ns = (came_ns[1:] - acknowledged_ns - rtt_ns)[late] + _NEAR_NS
    at_once = np.count_nonzero((after_ns >= 0) & (after_ns < 2 * _NEAR_NS))
    before = np.count_nonzero((after_ns < 0) & (after_ns >= -2 * _NEAR_NS))
    return int(at_once - _OF_CHANCE * before)


def _merge_segments(first: Int64, ends: Int64, of_it: Int64, total: int) -> tuple[Int64, Int64] | None:
    """Order segments that came out of order; None if a byte is missing."""
    there = 0
    waiting: dict[int, int] = {}  # pieces that came before what precedes them, by where they begin
    arrived, by = [], []
    for begin, end, index in zip(first.tolist(), ends.tolist(), of_it.tolist(), strict=True):
        waiting[begin] = max(end, waiting.get(begin, 0))
        before = there
        while reached := [start for start in waiting if start <= there]:
            there = max(there, *(waiting.pop(start) for start in reached))
        if there > before:
            arrived.append(there)
            by.append(index)
        if there >= total:
            return np.array(arrived, np.int64), np.array(by, np.int64)
    return None

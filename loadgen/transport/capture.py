"""Capture: the bytes of one response and when each read arrived, and the pipe that the parent gets it from.

The transport takes the timestamps (`EpollTransport._read_ready`); here the kernel's become CLOCK_MONOTONIC.
The capturing process puts captures into an `Outbox`, which never blocks it, and its `Health` last.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.transport.failure import Failure

NO_STAMP = bytes(16)
_TOLERANCE_NS = 100_000  # of the offset's own measurement
_WAITED_NS = 1_000_000  # a read lag that is seldom the client's own
_IMPOSSIBLE_NS = 1 << 61  # away: more than any other
A_READ = 3  # entries of a read in what `Capture.fill` takes
KEPT_READS = 16  # of an answer that was too long: enough to see what it was
_LENGTH = struct.Struct("=Q")
_BUFFER_BYTES = 4 << 20
_PIECE_BYTES = 1 << 18


def pack_int64s(numbers: Iterable[int]) -> bytes:
    """Pack integers as int64 bytes, as a capture stores them."""
    return np.fromiter(numbers, np.int64).tobytes()


def join_reads(reads: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Join reads into a capture's `raw` (all bytes) and `read_lengths` (packed int64 each)."""
    return b"".join(reads), pack_int64s(map(len, reads))


class SegmentTimes(msgspec.Struct, array_like=True):
    """The server's clock at the sending of each piece of a response, in the order of its bytes.

    A piece is what one segment brought first. Usually they came in order, each once, and are the capture's
    reads. Else all fields are filled, and the reads are pieces too, but under TLS, where `of_reads` says
    which piece ends each read. TSval is 32 bits of the server's clock, counted in ms by Linux.
    """

    connection: int  # the same for all responses over a connection of a slot
    sent: bytes  # uint32[pieces]: TSval of the copy that came first
    least: bytes = b""  # uint32[pieces]: the earliest TSval of all its copies
    came_ns: bytes = b""  # int64[pieces]: when it came, CLOCK_REALTIME
    order: bytes = b""  # int64[pieces]: the greater, the later it came
    ends: bytes = b""  # int64[pieces]: bytes up to its end
    of_reads: bytes = b""  # int64[reads]

    def read_counts(self, name: str) -> Int64:
        """Return a field of int64."""
        return np.frombuffer(getattr(self, name), np.int64)

    def read_clock(self, name: str) -> Int64:
        """Return `sent` or `least` since the clock of the first piece's `sent`, without its wraps, int64."""
        clock = np.frombuffer(getattr(self, name), np.uint32)
        since: Int64 = (clock - np.frombuffer(self.sent, np.uint32, 1)).view(np.int32).astype(np.int64)
        return since


class Capture(msgspec.Struct, tag="capture", array_like=True):
    """The raw response to one request, with its reads' timestamps; times are CLOCK_MONOTONIC ns unless named.

    `raw` is all that was read. For each read, `read_lengths` holds an int64, how much of that it was,
    `seen_ns` an int64 user-space timestamp and `kernel` the kernel's timespec (two int64, CLOCK_REALTIME;
    zero where it gave none).
    """

    index: int  # position in the plan
    slot: int  # which connection slot carried it
    intended_ns: int  # when it was due: the plan (open loop), the slot's previous end (closed loop)
    sent_ns: int  # right before the first byte went to the kernel; 0: never sent
    end_ns: int  # when the response was over, user space
    connect_ns: int = 0  # TCP and TLS set-up paid for this request; 0: the connection was open
    resends: int = 0  # the server had closed the idle connection: sent again, `sent_ns` is the first time
    framed: bool = True  # the bytes are a whole HTTP/1.1 response; else the body alone, status apart
    status: int = 0  # HTTP status where the bytes do not hold it
    failure: Failure | None = None  # what the transport knows; decoding may find more
    raw: bytes = b""
    read_lengths: bytes = b""
    seen_ns: bytes = b""
    kernel: bytes = b""
    realtime_offset_ns: int = 0  # CLOCK_REALTIME − CLOCK_MONOTONIC as last measured
    earlier_offsets_ns: tuple[int, ...] = ()  # what it was before, where the clock was stepped meanwhile
    retry_after: str = ""  # the header of that name where the bytes do not hold it
    out_of_order: int = -1  # segments of the response that came before an earlier one; -1: not known
    retransmitted: int = -1  # segments of the request that were sent again; -1: not known
    segments: bool = False  # the "reads" are TCP segments: each has its own timestamp, whenever it was read
    rtt_ns: int = -1  # the connection's least round trip; -1: not known
    request_delay_ns: int = -1  # until the segment of the request that got through was sent; -1: not known
    times: SegmentTimes | None = None  # when the segments were sent, where they say so

    def fill(self, got: Sequence[Any]) -> None:
        """Store reads given as a flat list of bytes, kernel timespec and client's time (ns) of each."""
        self.raw, self.read_lengths = join_reads(got[::A_READ])
        self.kernel, self.seen_ns = b"".join(got[1::A_READ]), pack_int64s(got[2::A_READ])

    def read_ends(self) -> Int64:
        """Return how many bytes had come after each read, int64[reads]."""
        ends: Int64 = np.add.accumulate(np.frombuffer(self.read_lengths, np.int64))
        return ends

    def user_ns(self) -> Int64:
        """Return when the client had received each read (user space), int64[reads]."""
        return np.frombuffer(self.seen_ns, np.int64)

    def kernel_ns(self) -> Int64:
        """Return when the kernel received the last segment of each read, int64[reads]; 0 where unknown."""
        timespec = np.frombuffer(self.kernel, np.int64)
        wall_ns = timespec[::2] * 1_000_000_000 + timespec[1::2]
        found_ns = wall_ns - self.realtime_offset_ns
        if self.earlier_offsets_ns:
            # Each by the offset that puts it nearest before its read.
            offsets_ns = np.array((self.realtime_offset_ns, *self.earlier_offsets_ns))
            by_offset_ns = wall_ns - offsets_ns[:, None]
            lag_ns = self.user_ns() - by_offset_ns
            away_ns = np.where(lag_ns >= -_TOLERANCE_NS, np.abs(lag_ns), _IMPOSSIBLE_NS - lag_ns)
            found_ns = by_offset_ns[away_ns.argmin(0), np.arange(len(wall_ns))]
        if np.count_nonzero(wall_ns) < len(wall_ns):
            found_ns[wall_ns == 0] = 0
        return found_ns


def find_arrivals(capture: Capture) -> tuple[Int64, Int64, int, int]:
    """Choose each read's arrival (ns), the kernel's or the client's timestamp, and the client's read lag.

    Returns int64[reads] twice, then how many reads use the client's clock, and how many of these have an
    impossible kernel timestamp. Segments have no lag: each has its own timestamp, however late it was read.
    """
    user_ns, kernel_ns = capture.user_ns(), capture.kernel_ns()
    reads = len(user_ns)
    stamped = int(np.count_nonzero(kernel_ns))
    if not stamped:
        return user_ns, np.zeros(reads, np.int64), reads, 0
    if capture.out_of_order > 0 and not capture.segments:
        arrival_ns = _find_readable_ns(user_ns, kernel_ns)
        return arrival_ns, user_ns - arrival_ns, reads - stamped, 0
    lag_ns = user_ns - kernel_ns
    usual = stamped == reads and kernel_ns[0] >= capture.sent_ns and np.minimum.reduce(lag_ns) >= 0
    # Counted, which of all ways to ask whether there is any is the quickest.
    if usual and not np.count_nonzero(kernel_ns[1:] < kernel_ns[:-1]):
        return kernel_ns, np.zeros(reads, np.int64) if capture.segments else lag_ns, 0, 0
    arrival_ns, impossible = _check_stamps(user_ns, kernel_ns, capture.sent_ns)
    lag_ns = np.zeros(reads, np.int64) if capture.segments else user_ns - arrival_ns
    return arrival_ns, lag_ns, reads - stamped + impossible, impossible


def _find_readable_ns(user_ns: Int64, kernel_ns: Int64) -> Int64:
    """Find when each read of an answer with segments out of order could first be read, int64[reads].

    A read has the timestamp of its last segment, which may have waited for one before it that was lost or
    slower: then it was read much later than that, and right after it could be. So of reads with such a lag
    the client's own time counts.
    """
    lag_ns = user_ns - kernel_ns
    arrival_ns = np.where((lag_ns < 0) | (lag_ns > _WAITED_NS), user_ns, kernel_ns)
    in_order: Int64 = np.maximum.accumulate(arrival_ns)
    return in_order


def _check_stamps(user_ns: Int64, kernel_ns: Int64, sent_ns: int) -> tuple[Int64, int]:
    """Replace impossible kernel timestamps by the client's own; return them and how many were impossible.

    A read arrived after the request was sent, not before the read ahead of it, and before the client read it.
    Where that does not hold, the kernel's clock was set in between.
    """
    arrival_ns, impossible, earliest_ns = user_ns.copy(), 0, sent_ns
    for i, (seen_ns, stamp_ns) in enumerate(zip(user_ns.tolist(), kernel_ns.tolist(), strict=True)):
        if stamp_ns == 0:
            continue
        if earliest_ns <= stamp_ns <= seen_ns:
            arrival_ns[i] = earliest_ns = stamp_ns
        else:
            impossible += 1
            earliest_ns = max(earliest_ns, seen_ns)
    return arrival_ns, impossible


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
        """The requests sent so far, as last published."""
        return self._view[0]

    @property
    def ended(self) -> int:
        """The requests that have ended, as last published."""
        return self._view[1]

    @property
    def reads(self) -> int:
        """The reads of all requests so far, as last published."""
        return self._view[2]

    @property
    def beats(self) -> int:
        """How often the counters were published: ten times a second by a process that is not stopped."""
        return self._view[3]


Message = Capture | Health | CaptureFault
Fill = Callable[[], None]


def open_pair() -> tuple[Outbox, Inbox]:
    """Open a pipe and return its ends, Outbox for the capturing process and Inbox for the decoding one."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    ours.setblocking(False)
    return Outbox(ours), Inbox(theirs)


class Outbox:
    """The capturing process's end of the pipe; captures wait in it until the pipe takes them."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.blocked = False  # the pipe was full when last tried
        self.most_bytes = 0
        self.waiting_bytes = 0
        self._waiting: deque[tuple[Capture, Fill | None, int]] = deque()  # and its bytes
        self._partial = memoryview(b"")
        self._encoder = msgspec.msgpack.Encoder()
        self._frame = bytearray(_LENGTH.size)  # written into again and again, as the inbox's piece is

    def put(self, capture: Capture, size: int = 0, fill: Fill | None = None, at_once: bool = False) -> None:
        """Queue a capture of `size` bytes (0: of `raw`); `fill` adds them as it is sent, or now if `at_once`.

        Where a thousand streams end at once, to join all their reads takes longer than other streams pause.
        """
        if at_once and fill is not None:
            fill()
            fill = None
        size = size or len(capture.raw)
        self._waiting.append((capture, fill, size))
        self.waiting_bytes += size
        self.most_bytes = max(self.most_bytes, self.waiting_bytes)

    @property
    def waiting(self) -> bool:
        """Whether captures wait to be sent."""
        return bool(self._partial or self._waiting)

    @property
    def oldest_ns(self) -> int:
        """When the longest-waiting capture ended (ns); 0 if none waits."""
        return self._waiting[0][0].end_ns if self._waiting else 0

    def flush_some(self) -> bool:
        """Send one capture, or the rest of one; True if the pipe took all, False if not or none waits."""
        if not self._partial:
            if not self._waiting:
                return False
            capture, fill, size = self._waiting.popleft()
            self.waiting_bytes -= size
            if fill is not None:
                fill()
            self._load(capture)
        try:
            sent = self.sock.send(self._partial)
        except BlockingIOError:
            self.blocked = True
            return False
        self._partial = self._partial[sent:]
        self.blocked = bool(self._partial)
        return not self.blocked

    def fill(self) -> None:
        """Add the bytes to every waiting capture now."""
        for capture, fill, size in [*self._waiting]:
            if fill is not None:
                fill()
            self._waiting.popleft()
            self._waiting.append((capture, None, size))

    def finish(self, last: Health | CaptureFault) -> None:
        """Send everything that waits and then `last`, blocking as long as the reader takes; then close."""
        self.sock.setblocking(True)
        while self._partial or self._waiting:
            self.flush_some()
        self._load(last)
        self.sock.sendall(self._partial)
        self.sock.close()

    @property
    def stop_asked(self) -> bool:
        """Whether the decoding process has requested a stop, which is read from the pipe, or is gone."""
        try:
            self.sock.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True  # gone with a byte unread
        return True

    def _load(self, message: Message) -> None:
        self._partial.release()  # or the frame could not be resized
        self._encoder.encode_into(message, self._frame, _LENGTH.size)
        _LENGTH.pack_into(self._frame, 0, len(self._frame) - _LENGTH.size)
        self._partial = memoryview(self._frame)


class Inbox:
    """The decoding process's end of the pipe."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed = False
        self._buffer = bytearray(_PIECE_BYTES)  # read into again and again: fresh memory costs page faults
        self._filled = 0
        self._decoder = msgspec.msgpack.Decoder(Message)

    def stop(self) -> None:
        """Request that the capturing process end what is in flight; without effect if it has ended."""
        with contextlib.suppress(OSError):  # it has ended by itself: its last words are still in the pipe
            self.sock.send(b"s")

    def messages(self) -> list[Message]:
        """Read once, blocking; return the complete messages, and set `closed` at the pipe's end."""
        messages = []
        if self._filled == len(self._buffer):
            self._buffer.extend(bytes(self._filled))  # one message is longer than all of it
        with memoryview(self._buffer) as view:
            try:
                got = self.sock.recv_into(view[self._filled :])
            except ConnectionResetError:
                got = 0  # it died without having read that it should stop
            self.closed = not got
            self._filled += got
            begin = 0
            while self._filled - begin >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, begin)
                end = begin + _LENGTH.size + length
                if self._filled < end:
                    break
                messages.append(self._decoder.decode(view[begin + _LENGTH.size : end]))
                begin = end
            left = bytes(view[begin : self._filled])
            view[: len(left)] = left
            self._filled = len(left)
        return messages

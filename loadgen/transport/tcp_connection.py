"""Connection: one slot of the wire transport, its request, and the response so far.

What an event does to a connection, by its state (`ReadBuffer.state`, the only place where it is kept):

| state       | writable            | readable                 | closed or broken     | swept                |
| ----------- | ------------------- | ------------------------ | -------------------- | -------------------- |
| CLOSED      | –                   | –                        | –                    | dialed at `retry_ns` |
| CONNECTING  | IDLE (HANDSHAKING)  | –                        | refused              | refused, if too late |
| HANDSHAKING | the rest is written | next step; then IDLE     | refused              | refused, if too late |
| IDLE        | –                   | as closed: not asked for | CLOSED, dialed again | –                    |
| BUSY        | the rest is written | appended; then IDLE      | sent again, or fails | fails, if too late   |

A session's slot that is IDLE between two turns and closed is dialed again shortly before the next one is due.

A refused connection is CLOSED, and the request that waits for it fails. A connection that becomes IDLE while
a request waits to be sent again (`index` ≥ 0) is BUSY at once. `Pool` owns the rows up to HANDSHAKING,
`EpollTransport` the others.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from loadgen.base.clock import WallOffset
from loadgen.transport.capture import A_READ, Capture
from loadgen.transport.deadlines import Stream
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.memory_room import READ_COST
from loadgen.transport.network import (
    UNKNOWN_LOSSES,
    Losses,
    Network,
    Received,
    Socket,
    bind_source,
    read_losses,
)
from loadgen.transport.sending.job import Job, Limits, Target
from loadgen.wire.http1 import ContentLength, Framing, Heads

SO_TIMESTAMPNS = 35  # Linux's number on every architecture but SPARC and PA-RISC; `socket` has no name for it
READ_BYTES = 65536  # a read's timestamp is that of its last segment: take all there is
# A read that is larger may be a segment that the kernel takes for one of many, and acknowledges 40 ms later
# though it was read: of TCP's least MSS, 536 bytes, less what TLS adds.
UNPUSHED_BYTES = 480
_RECORD_BYTES = 16384
MOST_READ_BYTES = READ_BYTES + _RECORD_BYTES  # of TLS, with what was left of a record
_NOTHING = memoryview(b"")
TIMESPEC = struct.Struct("qq")
_QUICK: int = getattr(socket, "TCP_QUICKACK", 0)
_DELACK_MAX_US = 46  # TCP_DELACK_MAX_US of Linux since 6.15; `socket` has no name for it
# Two ticks of the kernel's are the least that it takes, and those are of 1, 4 or 10 ms.
_SHORT_DELAYS_US = (2_000, 5_000, 12_000)

RECV, SEND = select.EPOLLIN, select.EPOLLOUT
_EDGE = RECV | select.EPOLLET | select.EPOLLRDHUP


def quicken_acks(sock: Socket) -> None:
    """Have the kernel acknowledge a socket's received data now (TCP_QUICKACK, Linux)."""
    if _QUICK:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, _QUICK, 1)


def shorten_ack_delay(sock: Socket) -> None:
    """Shorten the kernel's delay of acknowledgements from 40 ms to two ticks (Linux 6.15)."""
    if not _QUICK:
        return
    for delay_us in _SHORT_DELAYS_US:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, _DELACK_MAX_US, delay_us)
        except OSError as error:
            if error.errno != errno.EINVAL:
                return  # an older kernel
        else:
            return


class State(Enum):
    """The state of a slot's connection; see the table above."""

    CLOSED = "closed"
    CONNECTING = "connecting"  # TCP
    HANDSHAKING = "handshaking"  # TLS
    IDLE = "idle"
    BUSY = "busy"  # a request was sent, or begun to be


DIALING = (State.CONNECTING, State.HANDSHAKING)


class Tls:
    """A TLS client over a raw socket, whose reads keep the kernel's timestamps."""

    def __init__(self, sock: Socket, context: ssl.SSLContext, host: str) -> None:
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def handshake(self, data: bytes) -> tuple[bool, bytes]:
        """Feed bytes of the peer; return whether the handshake is done, and bytes to send."""
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """Return the TLS records that carry `data`."""
        self._object.write(data)
        return self._outgoing.read()

    def recvmsg(self, size: int, ancillary_size: int) -> Received:
        """Receive decrypted bytes, none at the end, as recvmsg; BlockingIOError without a whole record."""
        data, ancillary, flags, address = self.sock.recvmsg(size, ancillary_size)
        if not data:
            return b"", ancillary, flags, address
        self._incoming.write(data)
        parts, closed = [], False
        try:
            while part := self._object.read(_RECORD_BYTES):
                parts.append(part)
            closed = True  # nothing: the closing record
        except ssl.SSLWantReadError:
            pass
        if closed and parts:  # they are handed on first
            # The server may wait for our closing record before it ends the connection, or end it never.
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RD)
        if not parts and not closed:
            raise BlockingIOError(errno.EAGAIN, "no whole TLS record yet")
        return b"".join(parts), ancillary, flags, address


class ReadBuffer:
    """The reads of the response in progress, and the state of its connection.

    Small on purpose: with a thousand streams, most of what a read costs in Python is memory that has left the
    processor's cache since this stream's last one. So this is one object of one cache line, and what is
    appended goes to one list.
    """

    __slots__ = ("got", "receive", "slot", "state", "tail")

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.receive: Callable[[int, int], Received]
        self.state = State.CLOSED
        self.clear()

    def clear(self) -> None:
        """Drop all reads."""
        self.got: list[Any] = []  # of each read its bytes, the kernel's timespec, the client's timestamp (ns)
        self.tail = b""  # what a read must end with for the response to be checked for its end

    def __len__(self) -> int:
        """How many reads there were."""
        return len(self.got) // A_READ

    def list_since(self, count: int) -> list[bytes]:
        """Return the reads after the first `count`, or the last ones if it is negative."""
        return self.got[count * A_READ :: A_READ]

    def last_arrival_ns(self, offset_ns: int, sent_ns: int) -> int:
        """Return when the last read arrived (ns): the kernel's time less `offset_ns`, if that is possible."""
        seconds, nanoseconds = TIMESPEC.unpack(self.got[-2])
        seen_ns = int(self.got[-1])
        arrival_ns = seconds * 1_000_000_000 + nanoseconds - offset_ns
        return arrival_ns if seconds and sent_ns <= arrival_ns <= seen_ns else seen_ns


@dataclass(eq=False, kw_only=True, slots=True)
class _Exchange(Stream):
    """A request in flight over a slot, and what is known of its response."""

    request: bytes = b""
    heads: Heads | None = None  # while the response's head is incomplete
    framing: Framing | None = None
    keep_alive: bool = True
    full_reads: int = 0
    counted_bytes: int = 0  # in the first `counted_reads`
    counted_reads: int = 0
    most_reads: int = 0  # more, and the bytes are to be counted again
    acks_delayed: bool = False
    lost: Losses = UNKNOWN_LOSSES  # of the answer, once it has ended


@dataclass(eq=False, slots=True)
class Slot(_Exchange):
    """A connection, the bytes still to be written to it, and the response in progress."""

    number: int
    source: str = ""  # our address; "": the kernel chooses it
    sock: Socket | None = None
    fd: int = -1
    tls: Tls | None = None
    intake: ReadBuffer = field(init=False)
    connect_begin_ns: int = 0
    connected_ns: int = 0
    connect_ns: int = 0
    retry_ns: int = 0
    served: int = 0  # requests
    freed_ns: int = 0
    losses: Losses = UNKNOWN_LOSSES  # of the connection, up to the last answer's end
    pending: memoryview = _NOTHING

    def __post_init__(self) -> None:
        self.intake = ReadBuffer(self)

    def clear(self) -> None:
        """Drop the request and its response."""
        _Exchange.__init__(self)
        self.intake.clear()

    def dial(self, target: Target, network: Network) -> None:
        """Begin to connect to a target; raises OSError if that fails at once."""
        family, address = target.address
        sock = network.socket(family)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # no kernel timestamps here: each read lacks one
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if not target.delay_acks:
            shorten_ack_delay(sock)
        self.sock, self.fd, self.intake.receive = sock, sock.fileno(), sock.recvmsg
        self.connect_begin_ns, self.served, self.tls = network.now_ns(), 0, None
        self.losses = UNKNOWN_LOSSES
        self.intake.state = State.CONNECTING
        if self.source:
            bind_source(sock, family, self.source)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, errno.errorcode.get(code, "connect"))

    def quicken_acks(self) -> None:
        """Have the kernel acknowledge received data at once, until it is set otherwise.

        A server with Nagle's algorithm waits for that with its next one. To be set again after each request:
        having sent right after it received, the kernel waits up to 40 ms for more to send.
        """
        assert self.sock is not None
        quicken_acks(self.sock)

    def delay_acks(self) -> None:
        """Have the kernel acknowledge every other message: each acknowledgement costs half a read.

        It forgets that where messages are 40 ms apart, so this is set for each response, once that streams.
        """
        assert self.sock is not None
        self.acks_delayed = True
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)

    def note_losses(self) -> None:
        """Note the kernel's loss counts for the response that has just ended."""
        before, self.losses = self.losses, read_losses(self.sock)
        self.lost = self.losses.subtract(before)

    def close(self) -> None:
        """Close the connection; the response so far is kept."""
        if self.sock is not None:
            self.sock.close()
        self.sock, self.fd, self.intake.state = None, -1, State.CLOSED
        self.pending = _NOTHING

    def list_since(self, count: int) -> list[bytes]:
        return self.intake.list_since(count)

    def seen_at(self, read: int) -> int:
        return int(self.intake.got[read * A_READ + 2])

    def begin_response(self, limits: Limits) -> Failure | bool:
        """Parse the response's head; return its failure, or whether the response ends with it."""
        self.heads = self.heads or Heads()
        head = self.heads.read(self.intake)
        if head is None:
            return False
        if isinstance(head, str):
            return Failure(FailureKind.MALFORMED, head)
        framing = head.framing
        if isinstance(framing, ContentLength) and framing.total > limits.answer_bytes:
            return limits.refuse_length(framing.total)
        self.heads, self.framing, self.keep_alive = None, framing, head.keep_alive
        self.intake.tail = framing.tail
        # Bytes that are not a chunk end the response too: decoding reports what is wrong with them.
        odd = not framing.begins_well(head.rest)
        return framing.is_done(self.intake) or (odd and framing.check_end(self.intake))

    def is_over(self, now_ns: int, quiet_ns: int) -> bool:
        """Whether a long response is complete or broken although no read showed its end.

        The parser decides where nothing came for `quiet_ns`, or what came last ends in mid-line.
        """
        framing, intake = self.framing, self.intake
        if framing is None:
            return False
        quiet = now_ns - intake.got[-1] > quiet_ns
        return (quiet or not intake.list_since(-1)[0].endswith(b"\n")) and framing.check_end(intake)

    def count_bytes(self, limit_bytes: int) -> int:
        """Count the bytes so far; sets `most_reads`, the reads that cannot together exceed the limit."""
        count = len(self.intake)
        self.counted_bytes += sum(map(len, self.intake.list_since(self.counted_reads)))
        self.counted_reads = count
        self.most_reads = count + max(limit_bytes - self.counted_bytes, 0) // MOST_READ_BYTES
        return self.counted_bytes

    def held_bytes(self) -> int:
        """Return the bytes of memory that the response takes so far; sets `most_reads` to its reads."""
        return self.count_bytes(0) + self.counted_reads * READ_COST

    def capture(self, failure: Failure | None, end_ns: int, wall: WallOffset) -> Capture:
        """Make a capture of the request in flight, without the response's bytes."""
        paid = self.served == 0 and self.connected_ns > self.intended_ns
        return self.make_capture(
            self.number,
            end_ns,
            connect_ns=self.connect_ns if paid else 0,
            failure=failure,
            realtime_offset_ns=wall.now_ns,
            earlier_offsets_ns=wall.list_replaced_ns(self.sent_ns),
            out_of_order=self.lost.out_of_order,
            retransmitted=self.lost.retransmitted,
            rtt_ns=self.lost.rtt_ns,
        )


class Pool:
    """All slots with their sockets; calls `on_open` with each slot that becomes ready for requests.

    A connection that cannot be made waits in `failed` with its error: it is for the owner of the requests to
    decide what that means, and from there a slot may be dialed again without recursion.
    """

    def __init__(self, job: Job, network: Network, on_open: Callable[[Slot], None]) -> None:
        self.target, self.share, self.network, self.on_open = job.target, job.share, network, on_open
        # Reporting each arrival once, the kernel need not check every stream again that was just read. TLS
        # reads hide how much was there, so those are reported for as long as something is.
        self.arrivals = _EDGE if job.target.tls is None else RECV
        self.poll = network.poller()
        self.slots: list[Slot] = []
        self.by_fd: list[ReadBuffer | None] = []  # None: not a slot's
        self.free: deque[Slot] = deque()
        self.failed: deque[tuple[Slot, Exception]] = deque()
        self.dialing = 0

    def open(self) -> None:
        """Add a slot and begin to connect it."""
        position = len(self.slots)
        slot = Slot(self.share.number_slot(position), self.target.choose_source(position + self.share.number))
        self.slots.append(slot)
        self.dial(slot)

    def dial(self, slot: Slot) -> None:
        """Begin to connect a closed slot; if that fails at once, the slot goes to `failed`."""
        slot.retry_ns = 0
        self.dialing += 1
        try:
            slot.dial(self.target, self.network)
        except OSError as error:
            self.refuse(slot, error)
            return
        self.watch(slot.fd, SEND, slot.intake)

    def watch(self, fd: int, events: int, intake: ReadBuffer | None = None) -> None:
        """Register a file descriptor with the epoll, and its slot's read buffer; None if it has no slot."""
        self.by_fd += [None] * (fd + 1 - len(self.by_fd))
        self.by_fd[fd] = intake
        self.poll.register(fd, events)

    def note_connected(self, slot: Slot) -> None:
        """Handle a connect that succeeded or was refused; start TLS if the target has it."""
        assert slot.sock is not None
        code = slot.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.refuse(slot, OSError(code, f"cannot connect to {self.target.authority}"))
        elif self.target.tls is None:
            self.look_again(slot)
            self._note_open(slot)
        else:
            slot.tls = Tls(slot.sock, self.target.tls, self.target.host)
            slot.intake.receive, slot.intake.state = slot.tls.recvmsg, State.HANDSHAKING
            slot.pending = memoryview(slot.tls.handshake(b"")[1])
            if error := self.write(slot):
                self.refuse(slot, error)

    def write(self, slot: Slot) -> OSError | None:
        """Write pending bytes and watch for writability if some remain; return the error, None if none."""
        assert slot.sock is not None
        try:
            slot.pending = slot.pending[slot.sock.send(slot.pending) :]
        except BlockingIOError:
            pass
        except OSError as error:
            return error
        if not (slot.pending or self.target.delay_acks):
            slot.quicken_acks()
        self.look_again(slot)
        return None

    def look_again(self, slot: Slot) -> None:
        """Have the epoll report a slot's readiness once more, though it was reported before."""
        self.poll.modify(slot.fd, self.arrivals | SEND if slot.pending else self.arrivals)

    def drop(self, slot: Slot) -> None:
        """Close a slot's connection and unregister it; an idle slot is no longer free then."""
        if slot.intake.state is State.IDLE:
            with contextlib.suppress(ValueError):
                self.free.remove(slot)
        if 0 <= slot.fd < len(self.by_fd):  # or it was never watched
            self.by_fd[slot.fd] = None
            with contextlib.suppress(OSError):
                self.poll.unregister(slot.fd)
        slot.close()

    def close(self) -> None:
        """Close every connection."""
        for slot in self.slots:
            self.drop(slot)
        self.poll.close()

    def handshake(self, slot: Slot) -> None:
        """Take the next step of a TLS handshake with the peer's bytes."""
        assert slot.sock is not None
        assert slot.tls is not None
        try:
            data = slot.sock.recv(READ_BYTES)
            if not data:
                raise ConnectionError("closed during the TLS handshake")
            done, answer = slot.tls.handshake(data)
        except BlockingIOError:
            return
        except (OSError, ssl.SSLError) as error:
            self.refuse(slot, error)
            return
        slot.pending = memoryview(bytes(slot.pending) + answer)
        if slot.pending and (error_now := self.write(slot)):
            self.refuse(slot, error_now)
        elif done:
            self._note_open(slot)

    def _note_open(self, slot: Slot) -> None:
        self.dialing -= 1
        slot.intake.state, slot.connected_ns = State.IDLE, self.network.now_ns()
        slot.connect_ns = slot.connected_ns - slot.connect_begin_ns
        self.on_open(slot)

    def refuse(self, slot: Slot, error: Exception) -> None:
        """Close a slot whose connection could not be made, and put it into `failed` with the error."""
        self.dialing -= 1
        self.drop(slot)
        self.failed.append((slot, error))

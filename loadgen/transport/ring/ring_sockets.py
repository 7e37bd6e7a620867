"""Ring sockets: TCP sockets of our own ports, whose segments a packet ring shows."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.transport.capture import A_READ
from loadgen.transport.epoll.connection import SO_TIMESTAMPNS, TIMESPEC
from loadgen.transport.network import Received, Socket
from loadgen.transport.ring.segments import Rows

ANCILLARY_BYTES = 64
_RECORD_HEAD = 5  # bytes of a TLS record's header: type, version, length
_RECORD_TYPES, _LONGEST_RECORD = range(20, 25), (1 << 14) + 2048


class RingWatch(Protocol):
    """Who looks after a ring socket."""

    eager: NDArray[np.bool_]  # by port: each segment is to be looked at
    least_bytes: int  # that wait in a socket before the kernel reports it

    def hint(self, sock: RingSocket) -> None:
        """There is more to be read."""
        ...

    def has_seen(self, sock: RingSocket) -> bool:
        """Whether the ring has shown the connection's begin."""
        ...

    def forget(self, sock: RingSocket) -> None:
        """The connection is over."""
        ...


class RingSocket:
    """A TCP socket from one of our ports; it counts what was read of it."""

    def __init__(self, sock: Socket, port: int, poller: RingWatch) -> None:
        self.sock, self.port, self.poller, self.fd = sock, port, poller, sock.fileno()
        self.begin_seq = -1  # of the server's first byte; -1: the ring has not shown it
        self.read_bytes = self.due_bytes = (
            0  # of the connection: read; known to have come, and to be looked at
        )
        self.delivered_bytes = 0  # with the responses before this one
        self.owed = 0  # responses whose segments are still to be looked for
        self.rows: Rows | None = None  # those segments, once it has ended

    def fileno(self) -> int:
        return self.fd

    def bind(self, address: Any) -> None:
        self.sock.bind(address)

    def connect_ex(self, address: Any) -> int:
        return self.sock.connect_ex(address)

    @overload
    def getsockopt(self, level: int, option: int, /) -> int: ...
    @overload
    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...
    def getsockopt(self, level: int, option: int, *length: int) -> int | bytes:
        return self.sock.getsockopt(level, option, *length)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.sock.setsockopt(level, option, value)

    def shutdown(self, how: int) -> None:
        self.sock.shutdown(how)

    def send(self, data: Any) -> int:
        if self.poller.has_seen(self):
            self.poller.eager[self.port] = (
                self.poller.least_bytes > 1
            )  # the head of its response is to be read
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

    def holds_more(self) -> bool:
        """Whether something was read that is not handed on yet, and can be."""
        return False

    def open(self) -> None:
        """Have the kernel report it from now on only when much can be read."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self.poller.least_bytes)

    def read_at_once(self) -> None:
        """Have the kernel report every byte: the ring does not show this connection."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


class SealedSocket(RingSocket):
    """A RingSocket under TLS: each read is one record, and has its place in the connection for a timestamp.

    That place is (−bytes of the connection up to the record's end, the socket's own timestamp in ns) in the
    form of a timespec. Which record ends a response cannot be seen, so each is read as it comes.
    """

    def __init__(self, sock: Socket, port: int, poller: RingWatch) -> None:
        super().__init__(sock, port, poller)
        self._buffer = bytearray()
        self._stamp_ns = 0
        self.opened_bytes = 0  # handed on

    def open(self) -> None:
        """It is reported as every socket is."""

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
        """Whether a whole record was read that is not handed on yet: one before it may have held no text."""
        return self._record() > 0

    def _record(self) -> int:
        """Bytes of the record that the buffer begins with; 0: not whole. Of what is no TLS, all there is."""
        buffer = self._buffer
        if len(buffer) < _RECORD_HEAD:
            return 0
        length = int.from_bytes(buffer[3:_RECORD_HEAD])
        if buffer[0] not in _RECORD_TYPES or length > _LONGEST_RECORD:
            return len(buffer)
        return _RECORD_HEAD + length if len(buffer) >= _RECORD_HEAD + length else 0


def list_places(got: Sequence[Any]) -> Int64:
    """Where in their connection the records end that a SealedSocket gave, int64[reads]."""
    return -np.frombuffer(b"".join(got[1::A_READ]), np.int64)[::2]


def restore_timestamps(got: Sequence[Any]) -> list[Any]:
    """Put the sockets' timestamps back where the reads have their places."""
    stamped = list(got)
    for i in range(1, len(stamped), A_READ):
        place, stamp_ns = TIMESPEC.unpack(stamped[i])
        if place < 0:
            stamped[i] = TIMESPEC.pack(*divmod(stamp_ns, SECOND_NS))
    return stamped

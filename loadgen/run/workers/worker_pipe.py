"""The pipe between a worker and the process that forked it: framed messages up, a byte to stop down."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import msgspec

from loadgen.run.firing import DecodedTally
from loadgen.run.saturation import BegunRequest
from loadgen.transport.failure import Failure
from loadgen.transport.sending.job import Health

_LENGTH = struct.Struct("=Q")
_PIECE_BYTES = 1 << 18
_STOP = b"s"


class EndedRequests(msgspec.Struct, tag="ended", array_like=True):
    """How requests ended since the last message, in their order: how many in a row, and their failure."""

    rows: list[tuple[int, Failure | None]]
    begun: list[BegunRequest] = []  # of those that saturation is judged by
    journal_error: str = ""  # why the worker's journal cannot be written


class WorkerResult(msgspec.Struct, tag="result", array_like=True):
    """What a worker has at its end, besides what is in its journal."""

    health: Health | None  # None: its capturing process died
    died: str = ""  # how
    tally: DecodedTally = DecodedTally()
    unwritten: list[tuple[bytes, bytes]] = []  # frames of its journal that are in no file
    journal_error: str = ""  # why


WorkerMessage = EndedRequests | WorkerResult


class WorkerEnd:
    """The worker's end; raises OSError where the other one is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: WorkerMessage) -> None:
        """Deliver a message, however long that takes."""
        data = self._encoder.encode(message)
        self.sock.sendall(_LENGTH.pack(len(data)) + data)

    def stop_asked(self) -> bool:
        """Whether the worker is to stop; raises ConnectionError where no one is there to ask."""
        try:
            data = self.sock.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionError("the process that forked this worker is gone")
        return True


class ParentEnd:
    """The end of the process that forked a worker: it never blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.closed = False  # the worker and its capturing process have ended
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(WorkerMessage)

    def stop(self) -> None:
        """Ask the worker to end what is under way."""
        with contextlib.suppress(OSError):  # it has ended by itself
            self.sock.send(_STOP)

    def skip(self) -> None:
        """Read once, and forget it; also in the midst of `messages`, where a signal came."""
        try:
            self.closed = not self.sock.recv(_PIECE_BYTES)
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def messages(self) -> Iterator[WorkerMessage]:
        """Read once and yield the messages that are complete."""
        try:
            data = self.sock.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.closed = not data
        self._buffer += data
        begin = 0
        while len(self._buffer) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, begin)
            end = begin + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                message = self._decoder.decode(view[begin + _LENGTH.size : end])
            yield message
            begin = end
        del self._buffer[:begin]


def worker_pipe() -> tuple[WorkerEnd, ParentEnd]:
    """The two ends, to be divided between the processes after the fork."""
    ours, theirs = socket.socketpair()
    return WorkerEnd(ours), ParentEnd(theirs)

"""Channel: framed messages from the capturing process to the decoding one, never blocking the sender."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from loadgen.transport.capture import Capture
from loadgen.transport.sending.job import CaptureFault, Health

_LENGTH = struct.Struct("=Q")
_BUFFER_BYTES = 4 << 20
_PIECE_BYTES = 1 << 18
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
        """Queue a capture of `size` bytes; `fill` is called to add them when it is sent, or now if `at_once`.

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
        """Send at most one capture; True if the pipe took it and another may be tried."""
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
        """Send everything that waits and then `last`, blocking as long as the reader takes."""
        self.sock.setblocking(True)
        while self._partial or self._waiting:
            self.flush_some()
        self._load(last)
        self.sock.sendall(self._partial)
        self.sock.close()

    @property
    def stop_asked(self) -> bool:
        """Whether the decoding process asked to stop, or is gone."""
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
        """Ask the capturing process to end what is in flight."""
        with contextlib.suppress(OSError):  # it has ended by itself: its last words are still in the pipe
            self.sock.send(b"s")

    def messages(self) -> Iterator[Message]:
        """Read once, blocking, and yield the complete messages."""
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
                yield self._decoder.decode(view[begin + _LENGTH.size : end])
                begin = end
            left = bytes(view[begin : self._filled])
            view[: len(left)] = left
            self._filled = len(left)

"""HTTP server: connections, parsed requests and kernel receive timestamps, for both embedded servers."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools
import msgspec

SO_TIMESTAMPNS = 35  # Linux; Python's socket module has no name for it
_TIMESPEC = struct.Struct("qq")
_READ_BYTES = 1 << 18
_SPIN_NS = 100_000
_LARGEST_HEAD, _LARGEST_BODY = 64 << 10, 256 << 20  # bytes; in chunks a body may be twice as many
_MOST_PENDING = 64 << 20  # bytes that a client may leave unread


class Request(msgspec.Struct):
    """One parsed HTTP request; `received_ns` is CLOCK_MONOTONIC when the kernel got its last byte."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    received_ns: int
    close: bool = False  # the client wants the connection closed after the answer


@dataclass(eq=False)
class Connection:
    """A client connection; `pending` holds bytes the kernel would not yet take."""

    sock: socket.socket
    parser: httptools.HttpRequestParser = field(init=False)
    url: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    complete: list[Request] = field(default_factory=list)
    stamp_ns: int = 0
    pending: bytearray = field(default_factory=bytearray)
    close_when_sent: bool = False
    received: int = 0  # bytes of the request under way

    def __post_init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)

    # httptools calls these.
    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        path = httptools.parse_url(self.url).path.decode()
        method = self.parser.get_method().decode()
        close = not self.parser.should_keep_alive()
        self.complete.append(Request(method, path, self.headers, bytes(self.body), self.stamp_ns, close))
        self.url, self.headers, self.body, self.received = b"", {}, bytearray(), 0

    def receive(self, offset_ns: int) -> list[Request] | None:
        """Read what has arrived; the requests it completed, or None when the client is gone or never ends."""
        try:
            data, ancillary, _, _ = self.sock.recvmsg(_READ_BYTES, 64)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self.stamp_ns = time.monotonic_ns()
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIMESPEC.unpack(value)
                self.stamp_ns = seconds * 1_000_000_000 + nanoseconds - offset_ns
        self.received += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an upgrade is offered, not required; the request itself is complete
        except httptools.HttpParserError:
            return None
        if self.received > _LARGEST_HEAD + 2 * min(len(self.body), _LARGEST_BODY):
            return None
        done, self.complete = self.complete, []
        return done

    def send(self, data: bytes) -> bool:
        """Write what the kernel accepts now and keep the rest; False if the client is gone or never reads."""
        if len(self.pending) > _MOST_PENDING:
            return False
        if self.pending:
            self.pending += data
            return self.flush()
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(data):
            self.pending += data[sent:]
        return True

    def flush(self) -> bool:
        """Write what is pending; False when the client is gone."""
        try:
            sent = self.sock.send(self.pending)
        except BlockingIOError:
            return True
        except OSError:
            return False
        del self.pending[:sent]
        return True


class Port:
    """A listening loopback socket and its connections, read through one epoll."""

    def __init__(self, host: str, port: int, nagle: bool = False) -> None:
        self.nagle = nagle  # whether a small write waits until the one before is acknowledged
        self.listener = socket.create_server((host, port), backlog=4096, reuse_port=False)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener, select.EPOLLIN)
        self.connections: dict[int, Connection] = {}
        self.watched: dict[int, Callable[[], None]] = {}
        # Kernel timestamps are CLOCK_REALTIME; everything here is CLOCK_MONOTONIC.
        self.offset_ns = time.time_ns() - time.monotonic_ns()

    @property
    def base_url(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"http://{host}:{port}"

    def serve(
        self,
        timeout_s: float,
        handle: Callable[[Connection, Request], None],
        gone: Callable[[Connection], None],
    ) -> None:
        """Wait at most `timeout_s`; pass each complete request to `handle`, each lost client to `gone`."""
        for fd, mask in self.poll.poll(timeout_s, 4096):
            if fd == self.listener.fileno():
                self._accept()
                continue
            connection = self.connections.get(fd)
            if connection is None:
                if fd in self.watched:
                    self.watched[fd]()
                continue
            if mask & select.EPOLLOUT:
                self._flush(connection, gone)
                if not mask & ~select.EPOLLOUT:
                    continue
            requests = connection.receive(self.offset_ns)
            if requests is None:
                self.drop(connection)
                gone(connection)
                continue
            for request in requests:
                handle(connection, request)

    def wait(self, deadline_ns: int) -> bool:
        """Sleep until a socket is ready (False) or until the deadline (True), within about 10 µs.

        epoll's own timeout rounds up to milliseconds; select's on the epoll does not. The kernel
        wakes a sleeper about 60 µs late, so the last stretch is a spin.
        """
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns > _SPIN_NS:
            readable, _, _ = select.select((self.poll,), (), (), (left_ns - _SPIN_NS) / 1e9)
            if readable:
                return False
        while time.monotonic_ns() < deadline_ns:
            pass
        return True

    def watch(self, fd: int, readable: Callable[[], None]) -> None:
        """Call `readable` from `serve` whenever this descriptor is; raises OSError for a plain file."""
        self.poll.register(fd, select.EPOLLIN)
        self.watched[fd] = readable

    def watch_stdin(self, ended: Callable[[], None]) -> None:
        """Call `ended` from `serve` once standard input ends; raises OSError if it is a plain file."""
        self.watch(0, lambda: None if os.read(0, 1 << 16) else ended())

    def close_when_sent(self, connection: Connection) -> None:
        """Close a connection once what is pending is written."""
        connection.close_when_sent = True
        if not connection.pending:
            self.drop(connection)

    def flush_later(self, connection: Connection) -> None:
        """Write what is pending as soon as the kernel accepts it, then close if `close_when_sent`."""
        if connection.sock.fileno() >= 0:
            self.poll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, connection: Connection, gone: Callable[[Connection], None]) -> None:
        if not connection.flush():
            self.drop(connection)
            gone(connection)
        elif not connection.pending:
            self.poll.modify(connection.sock, select.EPOLLIN)
            if connection.close_when_sent:
                self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection and forget it."""
        fd = connection.sock.fileno()
        if fd >= 0:
            self.connections.pop(fd, None)
            with contextlib.suppress(OSError):
                self.poll.unregister(fd)
            connection.sock.close()
            del connection.parser  # a reference cycle: with the GC disabled it would never be freed

    def close(self) -> None:
        """Close the listener and every connection."""
        for connection in list(self.connections.values()):
            self.drop(connection)
        self.poll.close()
        self.listener.close()

    def _accept(self) -> None:
        for _ in range(4096):
            try:
                sock, _ = self.listener.accept()
            except OSError:  # there is none, or no file is left for it
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, not self.nagle)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self.connections[sock.fileno()] = Connection(sock)
            self.poll.register(sock, select.EPOLLIN)


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def response(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A whole HTTP response with a content length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def event(payload: bytes) -> bytes:
    """One server-sent event in one HTTP chunk."""
    return chunk(b"data: " + payload + b"\n\n")

"""Network: the clock, sockets and poll that a transport runs on, and what a socket reports of losses."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, overload

from loadgen.base.clock import MS_NS, ProcessClock, SystemClock

UNKNOWN = -1  # this kernel does not report it
_TCP_INFO: int = getattr(socket, "TCP_INFO", 0)
_BYTES = 256  # struct tcp_info grows: an older kernel fills less of it
_COUNT = struct.Struct("=I")
# Linux has these here; the last two from 5.4 on.
_TOTAL_RETRANS, _MIN_RTT, _DSACK_DUPS, _RCV_OOOPACK = 100, 148, 216, 224
_TCP_TIMESTAMP = 24
_NO_RTT = (1 << 32) - 1  # of a connection without one yet
_BIND_ADDRESS_NO_PORT = 24  # IP_BIND_ADDRESS_NO_PORT of Linux: the port is chosen by connect, for each server
Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any]  # as socket.recvmsg returns it


class Socket(Protocol):
    """The methods of `socket.socket` that a transport uses."""

    def fileno(self) -> int: ...
    def bind(self, address: Any, /) -> None: ...
    def connect_ex(self, address: Any, /) -> int: ...
    def send(self, data: Any, /) -> int: ...
    def recv(self, size: int, /) -> bytes: ...
    def recvmsg(self, size: int, ancillary_size: int, /) -> Received: ...
    @overload
    def getsockopt(self, level: int, option: int, /) -> int: ...
    @overload
    def getsockopt(self, level: int, option: int, length: int, /) -> bytes: ...
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class Poller(Protocol):
    """The methods of `select.epoll` that a transport uses."""

    def fileno(self) -> int: ...
    def register(self, fd: int, events: int, /) -> None: ...
    def modify(self, fd: int, events: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout_s: float, most_events: int, /) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class Network(ProcessClock, Protocol):
    """The system's clocks, sockets and poll, as the epoll transport uses them; a test fakes them."""

    def sleep(self, seconds: float, /) -> None: ...
    def socket(self, family: int, /) -> Socket: ...
    def poller(self) -> Poller: ...


class SystemNetwork(SystemClock):
    """The kernel's network, called directly so that the hot path has no wrapper."""

    sleep = staticmethod(time.sleep)

    def socket(self, family: int) -> Socket:
        """Open a non-blocking TCP socket."""
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    def poller(self) -> Poller:
        """Open an epoll."""
        return select.epoll()


def bind_source(sock: Socket, family: int, address: str) -> None:
    """Bind a socket to a local address, its port chosen when it connects; raises OSError."""
    sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    sock.bind((address, 0) if family == socket.AF_INET else (address, 0, 0, 0))


class Losses(NamedTuple):
    """Counts of lost and reordered segments of a connection or of one response, and its least round trip."""

    # Segments that came before one that was sent earlier: that was lost, or slower.
    out_of_order: int = UNKNOWN
    retransmitted: int = UNKNOWN  # segments of ours that were sent again because they were lost
    rtt_ns: int = UNKNOWN  # the least of the connection's last minutes, of one response too

    def subtract(self, before: Losses) -> Losses:
        """Return the counts since an earlier reading of the same connection, with this one's round trip."""
        pairs = zip(self[:-1], before[:-1], strict=True)
        late, again = (UNKNOWN if now < 0 else max(now - max(then, 0), 0) for now, then in pairs)
        return Losses(late, again, self.rtt_ns)


UNKNOWN_LOSSES = Losses()


def read_losses(sock: Socket | None) -> Losses:
    """Read a socket's loss counts, less needless resends, and least round trip (ns) from TCP_INFO.

    What is not reported, and all of a closed socket, is UNKNOWN.
    """
    info = b""
    if sock is not None and _TCP_INFO:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES)
    again = _read_count(info, _TOTAL_RETRANS)
    # The receiver reports what it has twice: that was not lost, only acknowledged late. A server that reads a
    # long request slowly gets such probes on loopback too.
    needless = max(_read_count(info, _DSACK_DUPS), 0)
    resent = UNKNOWN if again < 0 else max(again - needless, 0)
    rtt_us = _read_count(info, _MIN_RTT)
    return Losses(_read_count(info, _RCV_OOOPACK), resent, rtt_us * 1000 if 0 < rtt_us < _NO_RTT else UNKNOWN)


def read_clock_ahead_ms(sock: Socket, now_ns: Callable[[], int]) -> int | None:
    """Read how far a connection's clock of TCP's timestamps is ahead of CLOCK_MONOTONIC (ms); None if closed.

    The kernel clears the clock's last bit (since Linux 6.7): half the times this is 1 ms too little.
    """
    with contextlib.suppress(OSError):
        while True:
            before_ms = now_ns() // MS_NS
            clock_ms = sock.getsockopt(socket.IPPROTO_TCP, _TCP_TIMESTAMP)
            if now_ns() // MS_NS == before_ms:
                return clock_ms - before_ms
    return None


def _read_count(info: bytes, at: int) -> int:
    if len(info) < at + _COUNT.size:
        return UNKNOWN
    (count,) = _COUNT.unpack_from(info, at)
    return int(count)

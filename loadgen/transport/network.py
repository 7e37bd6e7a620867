"""Network: the clock, the sockets and the poll that a transport runs on, so that tests give it their own."""

from __future__ import annotations

import select
import socket
import time
from typing import Any, Protocol, overload

from loadgen.base.clock import ProcessClock, SystemClock

_BIND_ADDRESS_NO_PORT = 24  # IP_BIND_ADDRESS_NO_PORT of Linux: the port is chosen by connect, for each server
Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any]  # as socket.recvmsg returns it


class Socket(Protocol):
    """A connection's end, as far as a transport uses it; `socket.socket` is one."""

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
    """Reports what happened on files; `select.epoll` is one."""

    def fileno(self) -> int: ...
    def register(self, fd: int, events: int, /) -> None: ...
    def modify(self, fd: int, events: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout_s: float, most_events: int, /) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class Network(ProcessClock, Protocol):
    """The part of the machine that the epoll transport needs."""

    def sleep(self, seconds: float, /) -> None: ...
    def socket(self, family: int, /) -> Socket: ...
    def poller(self) -> Poller: ...


class SystemNetwork(SystemClock):
    """The kernel's: its calls are handed out as they are, so that the hot path makes them directly."""

    sleep = staticmethod(time.sleep)

    def socket(self, family: int) -> Socket:
        """A TCP socket that never blocks."""
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    def poller(self) -> Poller:
        """An epoll."""
        return select.epoll()


def bind_source(sock: Socket, family: int, address: str) -> None:
    """Have a socket connect from an address, its port chosen then; raises OSError."""
    sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    sock.bind((address, 0) if family == socket.AF_INET else (address, 0, 0, 0))

"""The transports that a test is run over, one at a time, and a kernel that timestamps packets."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator

import pytest

from loadgen.transport.tcp_connection import SO_TIMESTAMPNS


@pytest.fixture(params=["wire", "ring"])
def epoll(request: pytest.FixtureRequest) -> str:
    """The two that poll; where the kernel allows no ring, the second is the ring transport without one."""
    return str(request.param)


@pytest.fixture(params=["wire", "ring", "httpx"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every one."""
    return str(request.param)


@pytest.fixture
def timestamping() -> Iterator[None]:
    """Linux timestamps packets: it begins a while after the first socket that asks, for the whole machine."""
    if sys.platform != "linux":
        yield
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        deadline = time.monotonic() + 10.0
        while True:
            sock.sendto(b"x", sock.getsockname())
            time.sleep(0.001)  # a packet without a timestamp gets one when it is read, if they are on by then
            _, messages, _, _ = sock.recvmsg(1, 64)
            seconds, ns = struct.unpack_from("qq", messages[0][2])
            if time.time() - (seconds + ns / 1e9) > 0.0009:
                break
            assert time.monotonic() < deadline
        yield

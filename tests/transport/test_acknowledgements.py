"""Acknowledgements: a server with Nagle's algorithm waits for one with its next message, so none is late."""

from __future__ import annotations

import errno
import fcntl
import socket
import statistics
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from fakes.own_network import FAR, over_link
from fakes.rings import needs_ring
from fakes.scripted_server import (
    HEAD,
    LAST,
    Answer,
    Asked,
    End,
    ScriptedServer,
    chunk,
    drive,
    events,
    job_of,
    kinds,
    stream,
)
from fakes.tapped_server import Tapped
from fakes.tls import make_contexts
from fakes.virtual_network import VirtualSocket
from loadgen.server.exchange import ServerAddress
from loadgen.transport.httpx_transport import Link
from loadgen.transport.network import Received, Socket, SystemNetwork
from loadgen.transport.sending.job import Target
from loadgen.transport.tcp_connection import Slot, shorten_ack_delay

TRANSPORTS = ["wire", pytest.param("ring", marks=needs_ring), "httpx"]
REQUESTS, TOKENS = 6, 30
DELACK_MAX_US = 46
LATE_S, PROMPT_S = 0.06, 0.02  # the kernel delays one by 40 ms


@dataclass
class Waiting(ScriptedServer):
    """After each write it waits until that was acknowledged, as Nagle's algorithm has it do."""

    waits_s: list[float] = field(default_factory=list)

    def _play(self, sock: Any, answer: Answer) -> bool:
        for piece in answer.pieces:
            assert isinstance(piece, bytes)
            sock.sendall(piece)
            begun = time.monotonic()
            while _unacknowledged(sock) and time.monotonic() - begun < LATE_S:
                time.sleep(0.0001)
            self.waits_s.append(time.monotonic() - begun)
        return answer.end is End.KEEP


def _unacknowledged(sock: Any) -> int:
    """Bytes that were written and are not acknowledged yet."""
    found: int = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    return found


def in_one_write(event: bytes) -> list[bytes]:
    return [chunk(event)]


def in_two_writes(event: bytes) -> list[bytes]:
    head, body = chunk(event).split(b"\r\n", 1)
    return [head + b"\r\n", body]


def large(size: int, event: bytes) -> list[bytes]:
    """An event of one size, whatever its token."""
    return [chunk(event.ljust(size - 2).replace(b"\n\n", b"") + b"\n\n")]


WRITES: dict[str, Callable[[bytes], list[bytes]]] = {
    "one write": in_one_write,
    "two writes": in_two_writes,
    "520 bytes": partial(large, 520),
    "1000 bytes": partial(large, 1000),
    "5000 bytes": partial(large, 5000),
}


def answer(writes: Callable[[bytes], list[bytes]], _: Asked) -> Answer:
    return Answer([HEAD, *(piece for event in events(TOKENS) for piece in writes(event)), LAST])


def assert_prompt_waits(server: Waiting) -> None:
    """Most heads, and three of four of all that came after them, did not wait for the kernel's delay."""
    each = len(server.waits_s) // REQUESTS
    later = [wait for at, wait in enumerate(server.waits_s) if at % each]
    assert statistics.median(server.waits_s[::each]) < PROMPT_S
    assert statistics.quantiles(later, n=4)[-1] < PROMPT_S  # a busy machine makes some late


# Where the server is: its address, and whether it is over TLS; "a link": in another network namespace.
PLACES = {"loopback": ("127.0.0.1", False), "IPv6": ("::1", False), "TLS": ("127.0.0.1", True)}
PLACES["a link"] = (FAR, False)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("place", "writes"),
    [
        *(("loopback", writes) for writes in WRITES),
        ("IPv6", "two writes"),
        *(("TLS", writes) for writes in ("one write", "1000 bytes")),
        pytest.param("a link", "two writes", marks=needs_ring),
    ],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_was_read_is_acknowledged_at_once(transport: str, place: str, writes: str) -> None:
    host, encrypted = PLACES[place]
    serving, trusting = make_contexts(host) if encrypted else (None, None)
    server = Waiting(partial(answer, WRITES[writes]), nagle=True, host=host, tls=serving)

    def ask() -> None:
        driven = drive(job_of(server.target(trusting), REQUESTS, 1), transport)
        assert kinds(driven) == [None] * REQUESTS
        assert_prompt_waits(server)

    if host == FAR:
        over_link(server, ask)
        return
    with server:
        ask()


@pytest.mark.parametrize("delay_acks", [False, True])
def test_the_ring_reads_rarely_only_where_no_server_waits_for_it(
    delay_acks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    recvmsg = VirtualSocket.recvmsg

    def counted(self: VirtualSocket, size: int, ancillary_size: int) -> Received:
        reads.append(size)
        return recvmsg(self, size, ancillary_size)

    monkeypatch.setattr(VirtualSocket, "recvmsg", counted)
    server = Tapped(lambda _: stream(400, 0.002))
    target = replace(server.target(), delay_acks=delay_acks)
    assert kinds(drive(job_of(target, 4, 4), "ring", server)) == [None] * 4
    assert (len(reads) < 4 * 40) is delay_acks
    assert (len(reads) > 4 * 400) is not delay_acks


class Refusing:
    """A socket of a kernel that takes no shorter delay than a least one, or does not know the option."""

    def __init__(self, least_us: int, code: int) -> None:
        self.least_us, self.code = least_us, code
        self.tried: list[int] = []

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, DELACK_MAX_US)
        self.tried.append(value)
        if value < self.least_us:
            raise OSError(self.code, "refused")


@loop_over(
    ("least_us", "code", "tried"),
    [
        (2_000, errno.EINVAL, [2_000]),
        (4_001, errno.EINVAL, [2_000, 5_000]),
        (10_001, errno.EINVAL, [2_000, 5_000, 12_000]),
        (50_000, errno.EINVAL, [2_000, 5_000, 12_000]),
        (50_000, errno.ENOPROTOOPT, [2_000]),
    ],
)
def test_the_shortest_delay_that_a_kernel_takes_is_asked_for(
    least_us: int, code: int, tried: list[int]
) -> None:
    sock = Refusing(least_us, code)
    shorten_ack_delay(cast(Socket, sock))
    assert sock.tried == tried


def has_short_delays() -> bool:
    """Whether this kernel can be asked for a shorter delay (Linux 6.15)."""
    with socket.socket() as sock:
        try:
            sock.getsockopt(socket.IPPROTO_TCP, DELACK_MAX_US)
        except OSError:
            return False
    return True


@dataclass
class Wrapped:
    """A network stream of httpcore's."""

    sock: socket.socket

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.sock

    async def read(self) -> bytes:
        raise AssertionError("nothing reads")


def dialed(transport: str, target: Target) -> socket.socket:
    """A connection as the transport makes it."""
    if transport == "httpx":
        sock = socket.create_connection(("127.0.0.1", target.port))
        Link().tap(Wrapped(sock))
        return sock
    slot = Slot(number=0)
    slot.dial(target, SystemNetwork())
    assert isinstance(slot.sock, socket.socket)
    return slot.sock


@pytest.mark.whole
@pytest.mark.skipif(not has_short_delays(), reason="a kernel before Linux 6.15")
@pytest.mark.parametrize(("transport", "delay_acks"), [("wire", False), ("wire", True), ("httpx", False)])
def test_what_a_client_cannot_read_is_soon_acknowledged(transport: str, delay_acks: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = ServerAddress(f"http://127.0.0.1:{listening.getsockname()[1]}").target("")
        client = dialed(transport, replace(there, delay_acks=delay_acks))
        far, _ = listening.accept()
        waits_s = []
        with client, far:
            for _ in range(30):  # the kernel acknowledges the first 16 at once
                far.sendall(b"data: token\n\n")
                begun = time.monotonic()
                while _unacknowledged(far) and time.monotonic() - begun < LATE_S:
                    time.sleep(0.0001)
                waits_s.append(time.monotonic() - begun)
    assert (statistics.median(waits_s[20:]) > PROMPT_S) is delay_acks

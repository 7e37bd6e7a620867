"""The kernel's ring: our segments, all of them, nothing of any other, and no payload."""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders.required import require
from fakes.rings import needs_ring
from fakes.scripted_server import (
    HEAD,
    LAST,
    Answer,
    End,
    ScriptedServer,
    chunk,
    drive,
    events,
    job_of,
    kinds,
    stream,
)
from loadgen.features.ring import packet_ring
from loadgen.features.ring.packet_ring import PacketRing
from loadgen.features.ring.ring_transport import RingTransport
from loadgen.transport.capture import Counters, open_pair

V4, V6 = socket.AF_INET, socket.AF_INET6
LOCAL = {V4: "127.0.0.1", V6: "::1"}
FEW = 512  # frames: a block's worth
SECRET = b"not for anyone else"


@dataclass
class Line:
    """A connection, with a ring that watches the client's end."""

    ring: PacketRing
    client: socket.socket
    server: socket.socket

    def say(self, texts: list[bytes]) -> None:
        """Send each in a segment of its own, and have the client read it."""
        for text in texts:
            self.server.sendall(text)
            left = len(text)
            while left:
                left -= len(self.client.recv(left))

    def taken(self) -> list[tuple[int, int]]:
        """Of each segment that the ring has: its sequence number, and how many bytes were kept."""
        found: list[tuple[int, int]] = []
        while (frames := self.ring.take()) is not None:
            found += [
                (struct.unpack_from(">I", frame["tcp"].tobytes(), 4)[0], int(frame["kept"]))
                for frame in frames
            ]
        return found


@contextmanager
def line(family: socket.AddressFamily = V4, streams: int = 1) -> Iterator[Line]:
    with socket.create_server((LOCAL[family], 0), family=family) as listener, socket.socket(family) as client:
        ring = PacketRing(family, [listener.getsockname()], streams)
        with closing(ring):
            client.bind((LOCAL[family], 0))
            port = client.getsockname()[1]
            ring.admit(LOCAL[family], [range(port, port + 1)])
            client.connect(listener.getsockname())
            server, _ = listener.accept()
            with server:
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield Line(ring, client, server)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_ring, "_FEWEST", FEW)


# One connection.


@needs_ring
@pytest.mark.parametrize("family", [V4, V6])
def test_each_segment_is_kept_up_to_its_headers(family: socket.AddressFamily) -> None:
    begin_ns = time.time_ns()
    with line(family) as on:
        on.say([b"data: a\n\n", b"0\r\n\r\n", b"x"])
        frames = require(on.ring.take())
        headers = on.ring.headers
        ordinary, marked = headers.ordinary[1], headers.marked[1]
        assert frames["kept"].tolist() == [marked, ordinary, marked, marked]
        words = frames["tcp"].copy().view(">u4").reshape(-1, 8)
        assert words[1:, 5].tolist() == [0x0101080A] * 3  # the option of TCP's timestamps
        seqs = words[:, 1].tolist()
        assert [(seq - seqs[0]) % 2**32 for seq in seqs] == [0, 1, 10, 15]
        times = frames["header"].copy().view("<u4").reshape(-1, 5)[:, 3:].astype(np.int64) @ [10**9, 1]
        assert begin_ns <= times[0] <= times[1] <= times[2] <= times[3] <= time.time_ns()
        assert on.ring.take() is None
        assert on.ring.drops() == 0


@needs_ring
@pytest.mark.usefixtures("few")
def test_a_ring_goes_round_and_loses_nothing_that_is_taken() -> None:
    with line() as on:
        assert len(on.ring.frames) == FEW
        found: list[tuple[int, int]] = []
        for size in (1, 100, 511, 400, 1, 300, 512, 77) * 3:
            on.say([b"data"] * size)
            taken = on.taken()
            assert len(taken) == size + (not found)
            found += taken
        assert [(seq - found[0][0]) % 2**32 for seq, _ in found] == [0, *range(1, 4 * (len(found) - 1), 4)]
        assert on.ring.drops() == 0


@needs_ring
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("before", [0, 100, 255, 256, 510, 511])
@pytest.mark.parametrize("later", [0, 1, 20])
def test_what_there_was_no_room_for_is_counted_once(before: int, later: int) -> None:
    with line() as on:
        on.say([b"data"] * before)
        assert len(on.taken()) == before + 1
        on.say([b"data"] * (FEW + 1000))
        assert len(on.taken()) == FEW
        on.say([b"data"] * later)
        assert len(on.taken()) == later
        assert on.ring.drops() == 1000
        on.say([b"data"] * 10)
        assert len(on.taken()) == 10
        assert on.ring.drops() == 0


@needs_ring
def test_a_port_that_is_let_go_of_is_seen_no_more() -> None:
    with line() as on:
        on.say([b"data"] * 5)
        assert len(on.taken()) == 6
        port = on.client.getsockname()[1]
        for ports in ([], [range(port - 5, port)], [range(port + 1, port + 5)]):
            on.ring.admit("127.0.0.1", ports)
            on.say([b"data"] * 5)
            assert on.taken() == []
        on.ring.admit("127.0.0.1", [range(port, port + 1)])
        on.say([b"data"] * 5)
        assert len(on.taken()) == 5


@needs_ring
def test_a_sleep_ends_with_a_segment_and_with_time() -> None:
    import select

    with line() as on, closing(select.epoll()) as poller:
        on.taken()
        begin = time.monotonic()
        on.ring.wait(poller, 0.05)
        assert time.monotonic() - begin > 0.04
        threading.Timer(0.05, on.server.sendall, (b"data",)).start()
        on.ring.wait(poller, 20.0)
        assert time.monotonic() - begin < 10
        assert len(on.taken()) == 1


# Whole runs, among strangers.


@contextmanager
def strangers(server: ScriptedServer) -> Iterator[None]:
    """Connections of others that never pause: to the same server, and to another one, both ways."""
    stop = threading.Event()
    with socket.create_server((server.host, 0), family=V6 if ":" in server.host else V4) as elsewhere:

        def echo() -> None:
            peer, _ = elsewhere.accept()
            with peer:
                while data := peer.recv(4096):
                    peer.sendall(data)

        def talk(address: Any, text: bytes) -> None:
            with socket.create_connection(address) as sock:
                sock.settimeout(5)
                while not stop.wait(0.0005):
                    sock.sendall(text)
                    sock.recv(65536)

        request = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(SECRET), SECRET)
        threads = [
            threading.Thread(target=echo),
            threading.Thread(target=talk, args=((server.host, server.port), request)),
            threading.Thread(target=talk, args=(elsewhere.getsockname()[:2], SECRET * 20)),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(10)


def run_of(server: ScriptedServer, count: int, concurrency: int) -> tuple[RingTransport, list[Any]]:
    """A run in this thread, and all that it delivered."""
    outbox, inbox = open_pair()
    # Read seldom: where each segment is read at once, this thread delays the server's in the same process.
    target = replace(server.target(), delay_acks=True)
    transport = RingTransport(job_of(target, count, concurrency), outbox, Counters())
    captures: list[Any] = []

    def read() -> None:
        while not inbox.closed:
            captures.extend(inbox.messages())

    reader = threading.Thread(target=read)
    reader.start()
    outbox.finish(transport.run())
    reader.join()
    inbox.sock.close()
    return transport, captures


@needs_ring
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_only_our_segments_are_ever_in_the_ring_and_no_payload(host: str) -> None:
    answer = Answer([HEAD, *(chunk(SECRET + event) for event in events(30)), LAST])
    try:
        server = ScriptedServer(lambda _: answer, host=host).__enter__()
    except OSError as error:
        pytest.skip(f"no {host}: {error.strerror}")
    port = server.port
    with strangers(server):
        transport, captures = run_of(server, 40, 4)
    server.__exit__()
    *_, health = captures
    assert (len(captures), health.fallen_back, health.dropped_segments) == (41, 0, 0)
    ring = require(transport.ring)
    assert isinstance(ring.source, PacketRing)
    rows, headers = ring.source.frames, ring.source.headers
    memory = np.frombuffer(ring.source.memory, np.uint8).reshape(len(rows), -1)
    used = np.flatnonzero(memory.max(axis=1))
    assert len(used) == health.segments > 40 * 34
    address = socket.inet_pton(ring.source.family, host)
    for at in used.tolist():
        frame, kept = memory[at].tobytes(), int(rows[at]["kept"])
        assert kept in (*headers.ordinary, *headers.marked)
        assert not any(frame[80 + kept :])
        packet = frame[80 : 80 + kept]
        size = len(address)
        assert packet[headers.source : headers.source + 2 * size] == address * 2
        source, destination = struct.unpack_from(">HH", packet, headers.size)
        assert source == port
        assert destination in ring.ports.ports
    assert SECRET[:8] not in memory.tobytes()


@needs_ring
def test_a_run_leaves_no_file_open() -> None:
    script = lambda asked: stream(3, end=End.CLOSE if asked.number % 2 else End.KEEP)  # noqa: E731
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with ScriptedServer(script) as server:
        driven = drive(job_of(server.target(), 300, 4), "ring")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert kinds(driven) == [None] * 300
    assert all(capture.segments for capture in driven.captures)

"""Impaired path: two network namespaces, and between them what delays, loses and reorders on purpose.

As `netem` does, in both directions, from a seed, by a process of its own, which logs what it did to which
bytes. Needs root and /dev/net/tun.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import re
import select
import struct
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.harness.process import CouldNotRun, checkout_env
from loadgen_servers.engine.stalling import StallRow

if TYPE_CHECKING:
    from benchmarks.harness.stalled_run import Truth

CLIENT, SERVER = "10.79.0.1", "10.79.0.2"
_TUN, _TUNSETIFF, _IFF_TUN_NO_PI = "/dev/net/tun", 0x400454CA, 0x1001
_CLONE_NEWNET = 0x40000000
_PACKET_BYTES = 65536
_SYN, _TCP = 2, 6
_REQUEST_ID = re.compile(rb"x-request-id: (\S+)", re.I)
_LAST = b"[DONE]"
_LEAST_NS = 1_000_000  # what waits less is not stalled: the grain of TCP's timestamps


@dataclass(frozen=True)
class Impairment:
    """What is done to packets; shares from 0 to 1.

    Unless `bare`, only segments with data are lost or late, and an answer's last is spared: no byte after it
    shows a client when it was first sent.
    """

    delay_ms: float = 0.0  # of all packets, each way
    jitter_ms: float = 0.0  # more or less than that, uniformly
    overtaking: float = 0.0  # share sent without delay
    doubled: float = 0.0  # share sent twice
    loss: float = 0.0  # share of those to the client that are lost
    resent: float = 0.0  # share of those to the server that are lost
    late: float = (
        0.0  # share of those to the client that are `late_ms` later; those that follow overtake them
    )
    late_ms: float = 0.0
    bare: bool = False
    seed: int = 1


class Segment(msgspec.Struct):
    """A TCP segment with data, once for each time that it was sent."""

    port: int  # the client's
    to_client: bool
    begin: int  # of its data in what that end sent over the connection
    payload: bytes
    came_ns: int
    fate: str = ""  # "", "lost" or "late"
    given_ns: list[int] = []  # once, twice or never
    begun_ns: list[int] = []  # the same, right before: the kernel's own timestamp lies between

    @property
    def end(self) -> int:
        """The end of its data in what that end sent over the connection."""
        return self.begin + len(self.payload)


class ImpairedPath:
    """Two namespaces and the path between them, while it is entered; raises CouldNotRun.

    `segments` is what it did to each segment with data, as it took them; filled at its end.
    """

    def __init__(self, impairment: Impairment) -> None:
        self.impairment = impairment
        self.segments: list[Segment] = []

    def __enter__(self) -> ImpairedPath:
        (client, self._client_net), (server, self._server_net) = map(_make_end, (CLIENT, SERVER))
        self._fds = (client, server, self._client_net, self._server_net)
        asked = msgspec.json.encode((client, server, self.impairment)).decode()
        self._carrier = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.impaired_path", asked],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(client, server),
            env={**os.environ, **checkout_env()},
        )
        assert self._carrier.stdout is not None
        self._carrier.stdout.readline()  # it is ready
        return self

    def __exit__(self, *_: object) -> None:
        self.segments = msgspec.msgpack.decode(self._carrier.communicate()[0], type=list[Segment])
        for fd in self._fds:
            os.close(fd)

    def enter_client(self) -> None:
        """Enter the client's namespace, with this thread."""
        _enter(self._client_net)

    def enter_server(self) -> None:
        """Enter the server's namespace, with this thread."""
        _enter(self._server_net)

    def start_client(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process at the client's end."""
        return subprocess.Popen(argv, preexec_fn=self.enter_client, **options)

    def start_server(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process at the server's end."""
        return subprocess.Popen(argv, preexec_fn=self.enter_server, **options)

    def streams(self) -> dict[tuple[int, bool], Stream]:
        """What was sent, by the client's port, and whether to the client."""
        segments: dict[tuple[int, bool], list[Segment]] = defaultdict(list)
        for segment in self.segments:
            segments[segment.port, segment.to_client].append(segment)
        return {key: Stream(of_it) for key, of_it in segments.items()}


class Carrier:
    """Carries packets between two ends, until standard input ends."""

    def __init__(self, client: int, server: int, impairment: Impairment) -> None:
        self.client, self.server, self.does = client, server, impairment
        self.segments: list[Segment] = []
        self._begins: dict[tuple[int, bool], int] = {}  # the number of a stream's first byte
        self._due: list[tuple[int, int, int, bytes, Segment | None]] = []
        self._order = 0
        self._random = random.Random(impairment.seed)

    def run(self) -> None:
        """Carry packets."""
        ends = (self.client, self.server, sys.stdin.fileno())
        while True:
            while self._due and self._due[0][0] <= time.monotonic_ns():
                _, _, to, packet, segment = heapq.heappop(self._due)
                begun_ns = time.monotonic_ns()
                os.write(to, packet)
                if segment is not None:
                    segment.begun_ns.append(begun_ns)
                    segment.given_ns.append(time.monotonic_ns())
            wait_ns = self._due[0][0] - time.monotonic_ns() if self._due else 20_000_000
            for fd in select.select(ends, (), (), max(wait_ns, 0) / 1e9)[0]:
                if fd == ends[-1]:
                    return
                with suppress(BlockingIOError):
                    while True:
                        self.meet(os.read(fd, _PACKET_BYTES), time.monotonic_ns(), fd == self.server)

    def meet(self, packet: bytes, now_ns: int, to_client: bool) -> None:
        """Decide what becomes of a packet, and log it."""
        if packet[0] >> 4 != 4 or packet[9] != _TCP:
            return
        ports, seq, flags, payload = _read_parts(packet)
        port, does, segment = ports[to_client], self.does, None
        if flags & _SYN:
            self._begins[port, to_client] = seq + 1
        fate = self._draw_fate(to_client) if does.bare or (payload and _LAST not in payload) else ""
        if payload:
            begin = (seq - self._begins[port, to_client]) % (1 << 32)
            segment = Segment(port, to_client, begin, payload, now_ns, fate)
            self.segments.append(segment)
        if fate == "lost":
            return
        for _ in range(2 if self._draw(does.doubled) else 1):
            delay_ms = 0.0 if self._draw(does.overtaking) else does.delay_ms
            if delay_ms and does.jitter_ms:
                delay_ms += self._random.uniform(-1, 1) * does.jitter_ms
            delay_ms += does.late_ms * (fate == "late")
            self._order += 1
            to = self.client if to_client else self.server
            heapq.heappush(self._due, (now_ns + round(delay_ms * 1e6), self._order, to, packet, segment))

    def _draw_fate(self, to_client: bool) -> str:
        drawn, does = self._random.random(), self.does
        if drawn < (does.loss if to_client else does.resent):
            return "lost"
        return "late" if to_client and drawn < does.loss + does.late else ""

    def _draw(self, share: float) -> bool:
        return share > 0 and self._random.random() < share


def _read_parts(packet: bytes) -> tuple[tuple[int, int], int, int, bytes]:
    """Of an IPv4 packet with TCP: its source and target port, sequence number, flags and payload."""
    tcp = (packet[0] & 15) * 4
    source, target, seq = struct.unpack_from(">HHI", packet, tcp)
    (length,) = struct.unpack_from(">H", packet, 2)
    return (source, target), seq, packet[tcp + 13], packet[tcp + (packet[tcp + 12] >> 4) * 4 : length]


@dataclass(frozen=True)
class Way:
    """What became of a byte: when the path first took it and it could be read, and what held it up."""

    taken_ns: int
    readable_ns: int
    delay_ns: int  # of its time on the way, beyond the quickest segment's
    held_by: Segment  # that first had the byte it waited for
    cause: str
    begun_ns: int  # right before it could be read


@dataclass
class Stream:
    """One direction of a connection, as the path took its segments."""

    segments: Sequence[Segment]

    @cached_property
    def fills(self) -> Sequence[tuple[int, int, tuple[int, int], Segment]]:
        """Each time that more could be read: until where, from where, between which times, by what."""
        there, waiting, found = 0, dict[int, int](), []
        arrived = sorted(
            (given_ns, begun_ns, at)
            for at, each in enumerate(self.segments)
            for given_ns, begun_ns in zip(each.given_ns, each.begun_ns, strict=True)
        )
        for given_ns, begun_ns, at in arrived:
            segment, before = self.segments[at], there
            waiting[segment.begin] = max(segment.end, waiting.get(segment.begin, 0))
            while ready := [begin for begin in waiting if begin <= there]:
                there = max(there, *(waiting.pop(begin) for begin in ready))
            if there > before:
                found.append((there, before, (begun_ns, given_ns), segment))
        return found

    @property
    def data(self) -> bytes:
        """What was sent, as far as it could be read."""
        data = bytearray(self.fills[-1][0] if self.fills else 0)
        for each in self.segments:
            data[each.begin : each.end] = each.payload[: max(len(data) - each.begin, 0)]
        return bytes(data)

    @cached_property
    def quickest_ns(self) -> int:
        """The time of the quickest segment on the path."""
        return min(each.given_ns[0] - each.came_ns for each in self.segments if each.given_ns)

    def way_of(self, end: int) -> Way:
        """Find what became of the byte before `end`, which could be read."""
        _, missing, (begun_ns, ns), filler = self.fills[
            bisect_left(self.fills, end, key=lambda fill: fill[0])
        ]
        taken_ns = next(each.came_ns for each in self.segments if each.begin < end <= each.end)
        held_by = next(each for each in self.segments if each.begin <= missing < each.end)
        delay_ns = ns - taken_ns - self.quickest_ns
        return Way(taken_ns, ns, delay_ns, held_by, self._explain(held_by, filler), begun_ns)

    def _explain(self, held_by: Segment, filler: Segment) -> str:
        if held_by is not filler:
            return "reordering" if held_by.given_ns else "retransmission"
        later = (each for each in self.segments if each.begin >= filler.end and each.given_ns)
        overtaken = any(min(each.given_ns) < min(filler.given_ns) for each in later)
        return "reordering" if overtaken else "path_delay"

    def stalls(self, delay_ns: int) -> Iterator[tuple[Way, int]]:
        """Yield each wait that was made on purpose, and from when on it held."""
        top, ready_ns, until_ns = 0, 0, 0
        for segment in self.segments:
            if not top < segment.end <= (self.fills[-1][0] if self.fills else 0):
                continue
            top, way = segment.end, self.way_of(segment.end)
            from_ns = max(way.taken_ns + delay_ns, until_ns)
            # A segment without a fate was held up by this process, or one before it.
            if way.readable_ns > ready_ns and way.held_by.fate and way.readable_ns - from_ns >= _LEAST_NS:
                yield way, from_ns
                until_ns = way.readable_ns
            ready_ns = max(ready_ns, way.readable_ns)


def read_stalls(path: ImpairedPath, truth: Truth) -> list[StallRow]:
    """List what the path did that made the bytes of an answer, or of a request, wait: a row each."""
    streams = path.streams()
    asked: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by port: when, and the request's number
    for segment in path.segments:
        if not segment.to_client and (found := _REQUEST_ID.search(segment.payload)):
            request = truth.requests.get(found[1].decode())
            if request is not None:
                asked[segment.port].append((segment.came_ns, request.number))
    return [
        StallRow(way.cause if to_client else "request_resent", from_ns, way.readable_ns, [number])
        for (port, to_client), stream in streams.items()
        for way, from_ns in stream.stalls(round(path.impairment.delay_ms * 1e6))
        for number in [number for at_ns, number in asked[port] if at_ns <= way.taken_ns][-1:]
    ]


def _open_end(address: str) -> int:
    """This thread's namespace's end of a path, as the file of its packets; raises CouldNotRun."""
    try:
        fd = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"tun0", _IFF_TUN_NO_PI))
        for words in ("link set lo up", f"addr add {address}/24 dev tun0", "link set tun0 up"):
            subprocess.run(["ip", *words.split()], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CouldNotRun(f"no path of its own: {error}") from None
    return fd


def _make_end(address: str) -> tuple[int, int]:
    """A namespace with an end of the path: the file of its packets, and that of the namespace."""
    made: list[tuple[int, int] | CouldNotRun] = []

    def make() -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
                raise CouldNotRun(f"no network namespace: {os.strerror(ctypes.get_errno())}")
            made.append((_open_end(address), os.open("/proc/thread-self/ns/net", os.O_RDONLY)))
        except CouldNotRun as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], CouldNotRun):
        raise made[0]
    return made[0]


def _enter(net: int) -> None:
    """Enter a namespace, with this thread."""
    if ctypes.CDLL(None, use_errno=True).setns(net, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


if __name__ == "__main__":
    with suppress(PermissionError):  # a busy machine would delay packets otherwise
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    carrier = Carrier(*msgspec.json.decode(sys.argv[1], type=tuple[int, int, Impairment]))
    print("ready", flush=True)
    carrier.run()
    sys.stdout.buffer.write(msgspec.msgpack.encode(carrier.segments))

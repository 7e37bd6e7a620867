"""Impaired path: two network namespaces, and between them what delays, loses and reorders on purpose.

Needs root and /dev/net/tun. It keeps what it did to which bytes, to compare an attribution with.
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
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.harness.process import CouldNotRun
from benchmarks.harness.stalled_run import Truth
from loadgen_servers.engine.truth_log import StallRow

CLIENT, SERVER = "10.79.0.1", "10.79.0.2"
_TUN, _TUNSETIFF, _IFF_TUN_NO_PI = "/dev/net/tun", 0x400454CA, 0x1001
_CLONE_NEWNET = 0x40000000
_TCP = 6
_REQUEST_ID = re.compile(rb"x-request-id: (\S+)", re.I)
_LAST = b"[DONE]"
_LEAST_NS = 1_000_000  # what waits less is not stalled: the grain of TCP's timestamps


@dataclass(frozen=True)
class Impairment:
    """What is done to segments with data, to the client or, with `resent`, to the server.

    The last segment of an answer is spared: no byte after it shows a client when it was first sent.
    """

    delay_ms: float = 5.0  # of all packets, each way
    loss: float = 0.0  # share of the segments to the client that are lost
    late: float = 0.0  # share that is `late_ms` later; those that follow overtake them
    late_ms: float = 0.0
    resent: float = 0.0  # share of the segments to the server that are lost
    seed: int = 1


@dataclass
class Segment:
    """A TCP segment with data, once for each time that it was sent."""

    port: int  # the client's
    to_client: bool
    seq: int
    payload: bytes
    came_ns: int
    fate: str  # "", "lost" or "late"
    given_ns: int = 0  # 0: never


class ImpairedPath:
    """Two namespaces and the path between them, while it is entered; raises CouldNotRun."""

    def __init__(self, impairment: Impairment) -> None:
        self.impairment = impairment
        self.segments: list[Segment] = []
        self._drawn = random.Random(impairment.seed)
        self._due: list[tuple[int, int, int, bytes, Segment | None]] = []
        self._order = 0
        self._over = threading.Event()

    def __enter__(self) -> ImpairedPath:
        (self._client, self._client_net), (self._server, self._server_net) = map(_make_end, (CLIENT, SERVER))
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for fd in (self._client, self._server, self._client_net, self._server_net):
            os.close(fd)

    def start_client(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process at the client's end."""
        return subprocess.Popen(argv, preexec_fn=partial(_enter, self._client_net), **options)

    def start_server(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process at the server's end."""
        return subprocess.Popen(argv, preexec_fn=partial(_enter, self._server_net), **options)

    def _carry(self) -> None:
        ends = (self._client, self._server)
        while not self._over.is_set():
            while self._due and self._due[0][0] <= time.monotonic_ns():
                _, _, to, packet, segment = heapq.heappop(self._due)
                if segment is not None:
                    segment.given_ns = time.monotonic_ns()
                os.write(to, packet)
            wait_ns = self._due[0][0] - time.monotonic_ns() if self._due else 20_000_000
            for fd in select.select(ends, (), (), max(wait_ns, 0) / 1e9)[0]:
                packet = os.read(fd, 65536)
                if packet[0] >> 4 == 4 and packet[9] == _TCP:
                    self._meet(packet, to_client=fd == self._server)

    def _meet(self, packet: bytes, to_client: bool) -> None:
        """Decide what becomes of a packet."""
        now_ns, asked = time.monotonic_ns(), self.impairment
        due_ns, segment = now_ns + round(asked.delay_ms * 1e6), None
        client_port, seq, payload = _parse(packet, to_client)
        if payload:
            drawn, fate = (1.0 if _LAST in payload else self._drawn.random()), ""
            if drawn < (asked.loss if to_client else asked.resent):
                fate = "lost"
            elif to_client and drawn < asked.loss + asked.late:
                fate, due_ns = "late", due_ns + round(asked.late_ms * 1e6)
            segment = Segment(client_port, to_client, seq, payload, now_ns, fate)
            self.segments.append(segment)
            if fate == "lost":
                return
        self._order += 1
        heapq.heappush(
            self._due, (due_ns, self._order, self._client if to_client else self._server, packet, segment)
        )


def _parse(packet: bytes, to_client: bool) -> tuple[int, int, bytes]:
    """Of an IPv4 packet with TCP: the client's port, the sequence number and the payload."""
    tcp = (packet[0] & 15) * 4
    source, target, seq = struct.unpack_from(">HHI", packet, tcp)
    (length,) = struct.unpack_from(">H", packet, 2)
    return (target if to_client else source), seq, packet[tcp + (packet[tcp + 12] >> 4) * 4 : length]


@dataclass
class _Stream:
    """One direction of a connection: what of it was sent, and what could be read when."""

    delay_ns: int
    top: int | None = None  # the sequence number after all that was sent
    ahead: dict[int, Segment] = field(default_factory=dict)
    until_ns: int = 0  # until when the last stall held

    def read(self, segments: Sequence[Segment]) -> Iterator[tuple[str, int, int, Segment]]:
        """Yield each stall: its cause, from and until when it held, and the first segment that it held."""
        first = [seg for seg in segments if self._is_new(seg)]
        first_ns = {(seg.seq): self._given_ns(seg, segments) for seg in first}
        ready_ns, cause = 0, ""
        for seg in sorted(first, key=lambda seg: (seg.seq - first[0].seq) % (1 << 32)):
            due_ns, given_ns = seg.came_ns + self.delay_ns, first_ns[seg.seq]
            if given_ns > ready_ns:
                ready_ns, cause = given_ns, self._find_cause(seg, given_ns, first_ns, first)
            from_ns = max(due_ns, self.until_ns)
            if cause and ready_ns - from_ns >= _LEAST_NS:
                yield cause, from_ns, ready_ns, seg
                self.until_ns = ready_ns

    def _is_new(self, segment: Segment) -> bool:
        end = segment.seq + len(segment.payload)
        if (self.top is not None and (end - self.top) % (1 << 32) >= 1 << 31) or end == self.top:
            return False
        self.top = end
        return True

    @staticmethod
    def _given_ns(segment: Segment, segments: Sequence[Segment]) -> int:
        """When all of a segment's bytes first came, by whichever of the times that they were sent."""
        ends = [
            other.given_ns
            for other in segments
            if other.given_ns
            and (segment.seq - other.seq) % (1 << 32) < 1 << 31
            and (other.seq + len(other.payload) - segment.seq - len(segment.payload)) % (1 << 32) < 1 << 31
        ]
        return min(ends, default=segment.came_ns)

    @staticmethod
    def _find_cause(
        segment: Segment, given_ns: int, first_ns: dict[int, int], first: Sequence[Segment]
    ) -> str:
        if not segment.fate:
            return ""  # this process was late: not on purpose
        if segment.fate == "lost":
            return "retransmission" if segment.to_client else "request_resent"
        later = (other for other in first if 0 < (other.seq - segment.seq) % (1 << 32) < 1 << 31)
        return "reordering" if any(first_ns[other.seq] < given_ns for other in later) else "path_delay"


def read_stalls(path: ImpairedPath, truth: Truth) -> list[StallRow]:
    """List what the path did that made the bytes of an answer, or of a request, wait: a row each."""
    streams: dict[tuple[int, bool], list[Segment]] = defaultdict(list)
    asked: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by port: when, and the request's number
    for segment in path.segments:
        streams[segment.port, segment.to_client].append(segment)
        if not segment.to_client and (found := _REQUEST_ID.search(segment.payload)):
            request = truth.requests.get(found[1].decode())
            if request is not None:
                asked[segment.port].append((segment.came_ns, request.number))
    return [
        StallRow(cause, from_ns, to_ns, [number])
        for (port, _), segments in streams.items()
        for cause, from_ns, to_ns, segment in _Stream(round(path.impairment.delay_ms * 1e6)).read(segments)
        for number in _find_request(asked[port], segment.came_ns)
    ]


def _find_request(asked: Iterable[tuple[int, int]], now_ns: int) -> list[int]:
    """The request that a connection carried then; none before its first."""
    return [number for at_ns, number in asked if at_ns <= now_ns][-1:]


def _make_end(address: str) -> tuple[int, int]:
    """A namespace with an end of the path: the file of its packets, and that of the namespace."""
    made: list[tuple[int, int] | str] = []

    def make() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            made.append(f"no network namespace: {os.strerror(ctypes.get_errno())}")
            return
        try:
            fd = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"tun0", _IFF_TUN_NO_PI))
            for words in ("link set lo up", f"addr add {address}/24 dev tun0", "link set tun0 up"):
                subprocess.run(["ip", *words.split()], check=True, capture_output=True)
            made.append((fd, os.open("/proc/thread-self/ns/net", os.O_RDONLY)))
        except (OSError, subprocess.CalledProcessError) as error:
            made.append(f"no path of its own: {error}")

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], str):
        raise CouldNotRun(made[0])
    return made[0]


def _enter(net: int) -> None:
    """Enter a namespace, in a process that is being started."""
    if ctypes.CDLL(None, use_errno=True).setns(net, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")

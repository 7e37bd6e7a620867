"""A path between two network namespaces that delays, loses, doubles and reorders packets, and logs it all.

As `netem` does with `delay D J`, `loss`, `duplicate` and `reorder`, in both directions, from a seed, by a
process of its own: a packet is lost, or sent once or twice, each time after the delay, or at once if it
overtakes. A byte's delay is from when the path first took it until the client could read it, beyond the
quickest packet's time on the path.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fakes.lossy_link import CLIENT, SERVER, end_at, read_parts
from fakes.own_network import inside

_PACKET_BYTES = 65536
_SYN = 2


@dataclass(frozen=True)
class Impairment:
    """What a path does to packets; shares from 0 to 1."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # more or less than the delay, uniformly
    loss: float = 0.0
    doubled: float = 0.0
    overtaking: float = 0.0  # sent without delay
    seed: int = 1


@dataclass
class Copy:
    """A packet with data to the client, as the path took it (ns) and gave it: once, twice or never."""

    begin: int  # of its data in what the server sent over the connection
    end: int
    taken_ns: int
    given_ns: list[int] = field(default_factory=list)


@dataclass
class PathLog:
    """What a path did to each packet with data to the client, by the client's port, as it took them."""

    copies: dict[int, list[Copy]] = field(default_factory=dict)

    def way_of(self, port: int, end: int) -> Way:
        """Find what became of the byte before `end` of a connection."""
        copies = self.copies[port]
        arrived = sorted((ns, at) for at, copy in enumerate(copies) for ns in copy.given_ns)
        there, before, readable_ns, filled_by, waiting = 0, 0, 0, -1, dict[int, int]()
        for ns, at in arrived:
            copy = copies[at]
            waiting[copy.begin] = max(copy.end, waiting.get(copy.begin, 0))
            before = there
            while ready := [begin for begin in waiting if begin <= there]:
                there = max(there, *(waiting.pop(begin) for begin in ready))
            if before < end <= there:
                readable_ns, filled_by = ns, at
                break
        first = next(copy for copy in copies if copy.begin < end <= copy.end)
        quickest_ns = min(ns - copy.taken_ns for copy in copies for ns in copy.given_ns[:1])
        return Way(first.taken_ns, readable_ns, quickest_ns, self._explain(copies, filled_by, before))

    @staticmethod
    def _explain(copies: list[Copy], filled_by: int, missing: int) -> str:
        """Name what the segment that brought a missing byte is: `again`, `overtaken` or `first`."""
        filler = copies[filled_by]
        original = next(copy for copy in copies if copy.begin <= missing < copy.end)
        if original is not filler:
            return "again" if not original.given_ns else "overtaken"
        later = (copy for copy in copies if copy.begin >= filler.end and copy.given_ns)
        return "overtaken" if any(min(copy.given_ns) < min(filler.given_ns) for copy in later) else "first"


@dataclass(frozen=True)
class Way:
    """What became of a byte: first taken by the path, readable by the client; the quickest packet's time."""

    taken_ns: int
    readable_ns: int
    quickest_ns: int
    cause: str

    @property
    def delay_ns(self) -> int:
        """How much longer than the quickest it was on its way."""
        return self.readable_ns - self.taken_ns - self.quickest_ns


@contextmanager
def carry(client: int, server: int, impairment: Impairment) -> Iterator[PathLog]:
    """Carry packets between two ends (`end_at`) by a process of its own; the log is filled at its end."""
    log = PathLog()
    with tempfile.TemporaryDirectory() as where:
        path = Path(where) / "log.json"
        asked = json.dumps([client, server, str(path), asdict(impairment)])
        with subprocess.Popen(
            [sys.executable, "-c", f"from fakes.impaired_path import main; main({asked!r})"],
            stdin=subprocess.PIPE,
            pass_fds=(client, server),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as process:
            yield log
            assert process.stdin is not None
            process.stdin.close()
            process.wait(10)
        found = json.loads(path.read_text("ascii"))
        log.copies = {int(port): [Copy(*copy) for copy in copies] for port, copies in found.items()}


def over_path(
    impairment: Impairment, serve: Callable[[threading.Event], None], ask: Callable[[], None]
) -> PathLog:
    """Run a client and a server in namespaces of their own with a path between; return the path's log.

    `serve` runs where SERVER is, and ends once the event is set; `ask` where CLIENT is. Skips where there can
    be none.
    """
    logs: list[PathLog] = []
    made, over, far = threading.Event(), threading.Event(), list[int]()

    def server_side() -> None:
        far.append(end_at(SERVER))
        made.set()
        serve(over)

    def client_side() -> None:
        near = end_at(CLIENT)
        serving = threading.Thread(target=inside, args=(server_side,))
        serving.start()
        try:
            assert made.wait(10)
            with carry(near, far[0], impairment) as log:
                logs.append(log)
                ask()
        finally:
            over.set()
            serving.join(10)
            os.close(near)
            os.close(far[0])

    inside(client_side)
    return logs[0]


def main(asked: str) -> None:
    """Carry packets until standard input ends, then write the log."""
    client, server, path, impairment = json.loads(asked)
    carrier = _Carrier(client, server, Impairment(**impairment))
    carrier.run()
    found = {
        port: [(copy.begin, copy.end, copy.taken_ns, copy.given_ns) for copy in copies]
        for port, copies in carrier.copies.items()
    }
    Path(path).write_text(json.dumps(found), "ascii")


class _Carrier:
    def __init__(self, client: int, server: int, impairment: Impairment) -> None:
        self.client, self.server, self.does = client, server, impairment
        self.copies: dict[int, list[Copy]] = {}
        self.begins: dict[int, int] = {}  # by the client's port: the number of the server's first byte
        self._due: list[tuple[int, int, int, bytes, Copy | None]] = []
        self._random = random.Random(impairment.seed)
        self._number = 0

    def run(self) -> None:
        """Carry packets until standard input ends."""
        ends = select.poll()
        for fd in (self.client, self.server, sys.stdin.fileno()):
            ends.register(fd, select.POLLIN | select.POLLHUP)
        while True:
            now_ns = time.monotonic_ns()
            while self._due and self._due[0][0] <= now_ns:
                self._give(*heapq.heappop(self._due)[2:])
            wait_ns = self._due[0][0] - time.monotonic_ns() if self._due else 20_000_000
            for fd, _ in ends.poll(max(wait_ns // 1_000_000, 0)):
                if fd == sys.stdin.fileno():
                    return
                self._take_all(fd)

    def _take_all(self, fd: int) -> None:
        while True:
            try:
                packet = os.read(fd, _PACKET_BYTES)
            except BlockingIOError:
                return
            self._take(fd, packet)

    def _take(self, fd: int, packet: bytes) -> None:
        taken_ns, draw, does = time.monotonic_ns(), self._random.random, self.does
        to = self.server if fd == self.client else self.client
        copy = self._note(packet, taken_ns) if to == self.client else None
        if draw() < does.loss:
            return
        for _ in range(2 if draw() < does.doubled else 1):
            delay_s = 0.0 if draw() < does.overtaking else does.delay_s + (2 * draw() - 1) * does.jitter_s
            self._number += 1
            heapq.heappush(self._due, (taken_ns + int(delay_s * 1e9), self._number, to, packet, copy))

    def _note(self, packet: bytes, taken_ns: int) -> Copy | None:
        if packet[0] >> 4 != 4 or packet[9] != 6:
            return None
        port, seq, flags, payload = read_parts(packet)
        if flags & _SYN:
            self.begins[port] = seq + 1
        if not payload or port not in self.begins:
            return None
        at = (seq - self.begins[port]) % (1 << 32)
        copy = Copy(at, at + len(payload), taken_ns)
        self.copies.setdefault(port, []).append(copy)
        return copy

    def _give(self, to: int, packet: bytes, copy: Copy | None) -> None:
        os.write(to, packet)
        if copy is not None:
            copy.given_ns.append(time.monotonic_ns())

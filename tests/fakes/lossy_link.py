"""A link between two network namespaces that loses and reorders what it is asked to, and knows what came."""

from __future__ import annotations

import heapq
import os
import select
import threading
import time
from collections.abc import Callable
from itertools import count

import pytest

from benchmarks.harness.impaired_path import open_end, read_parts
from benchmarks.harness.process import CouldNotRun

_SYN, _TCP = 2, 6
Fate = Callable[[int], float | None]  # of the nth segment with data to the client: its delay (s); None: lost
Came = tuple[int, int]  # right before and right after the client's kernel was given something, ns


def end_at(address: str) -> int:
    """This thread's namespace's end of a link, as the file of its packets; skips where there can be none."""
    try:
        return open_end(address)
    except CouldNotRun as error:
        pytest.skip(str(error))


class LossyLink:
    """Carries packets between a client's end and a server's until it is left; a context manager."""

    def __init__(self, client: int, server: int, fate: Fate) -> None:
        self.client, self.server, self.fate = client, server, fate
        self.lost = 0
        self._numbers = count()
        self._due: list[tuple[float, int, bytes]] = []
        self._begins: dict[int, int] = {}  # by the client's port: the number of the server's first byte
        self._came: dict[int, list[tuple[int, bytes, Came]]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> LossyLink:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        os.close(self.client)
        os.close(self.server)

    def _carry(self) -> None:
        ends = select.poll()
        ends.register(self.client, select.POLLIN)
        ends.register(self.server, select.POLLIN)
        while not self._over.is_set():
            while self._due and self._due[0][0] <= time.monotonic():
                self._give(heapq.heappop(self._due)[2])
            wait_s = max(self._due[0][0] - time.monotonic(), 0) if self._due else 0.02
            for fd, _ in ends.poll(wait_s * 1000):
                packet = os.read(fd, 65536)
                if fd == self.client:
                    os.write(self.server, packet)
                elif packet[0] >> 4 == 4 and packet[9] == _TCP:
                    self._meet(packet)

    def _meet(self, packet: bytes) -> None:
        """Do to a packet for the client what its fate is."""
        delay_s = self.fate(number := next(self._numbers)) if read_parts(packet)[3] else 0.0
        if delay_s is None:
            self.lost += 1
        elif delay_s:
            heapq.heappush(self._due, (time.monotonic() + delay_s, number, packet))
        else:
            self._give(packet)

    def _give(self, packet: bytes) -> None:
        (_, port), seq, flags, payload = read_parts(packet)
        if flags & _SYN:
            self._begins[port], self._came[port] = seq + 1, []
        before_ns = time.monotonic_ns()
        os.write(self.client, packet)
        if payload:
            at = (seq - self._begins[port]) % (1 << 32)
            self._came[port].append((at, payload, (before_ns, time.monotonic_ns())))

    def stream(self, port: int) -> tuple[bytes, list[tuple[int, Came]]]:
        """What the server sent to a port, and how much of it could be read from when on."""
        data, marks, waiting = bytearray(), [], dict[int, bytes]()
        for begin, payload, came in self._came[port]:
            waiting[begin] = max(payload, waiting.get(begin, b""), key=len)
            while ready := [at for at in waiting if at <= len(data)]:
                for at in ready:
                    data += waiting.pop(at)[len(data) - at :]
            marks.append((len(data), came))
        return bytes(data), marks

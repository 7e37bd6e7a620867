"""Runs over a virtual ring: what stands between a server's segments and the ring, and what a run must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from fakes.scripted_server import Driven, drive, job_of, records
from fakes.virtual_network import LATENCY_NS, WRITE_NS, Connection, VirtualServer
from fakes.virtual_ring import VirtualRing
from loadgen.features.ring.ring_transport import RingTransport
from loadgen.transport.capture import Counters, Outbox
from loadgen.transport.sending.job import Job, Transport

GAP_S = 0.003
GAP_NS = round(GAP_S * 1e9) + WRITE_NS
FIRST_NS = 2 * LATENCY_NS + WRITE_NS + GAP_NS  # from sending to the first token
See = Callable[..., None]


def shown(see: See, *segment: Any, **opens: Any) -> None:
    see(*segment, **opens)


@dataclass
class Tapped(VirtualServer):
    """A virtual server; `tamper` stands between its segments and the ring."""

    tamper: Callable[..., None] = shown
    lag_ns: int = 0  # after a segment is in the ring, until its socket has it
    made: list[RingTransport] = field(default_factory=list)
    seqs: dict[int, int] = field(default_factory=dict)  # by connection: of the next segment

    def transport(self, name: str) -> Callable[[Job, Outbox, Counters], Transport]:
        if name != "ring":
            return super().transport(name)

        def build(job: Job, outbox: Outbox, counters: Counters) -> Transport:
            ring = VirtualRing(self, self.room)
            self.tap = partial(self.tamper, ring.see)
            self.made.append(RingTransport(job, outbox, counters, self, ring))
            return self.made[0]

        return build

    def write(self, connection: Connection, data: bytes) -> None:
        if not self.lag_ns:
            super().write(connection, data)
            return
        seq = self.seqs.get(connection.number, connection.seq)
        self.seqs[connection.number] = seq + len(data)
        self.time.after(LATENCY_NS, partial(self.tap, connection.port, seq, data))
        self.time.after(LATENCY_NS + self.lag_ns, partial(self._arrive, connection, data))

    def _arrive(self, connection: Connection, data: bytes) -> None:
        tap, self.tap = self.tap, lambda *_, **__: None  # the ring has shown it
        connection.arrive(data)
        self.tap = tap


def driven_by(server: VirtualServer, count: int, concurrency: int, **changes: Any) -> Driven:
    """A run over the ring, which may read late; what is reported of it is true of what was delivered."""
    target = replace(server.target(), delay_acks=True)
    driven = drive(job_of(target, count, concurrency, **changes), "ring", server)
    assert [capture.index for capture in driven.captures] == list(range(len(driven.captures)))
    fallen = [c for c in driven.captures if c.raw and not c.segments]
    assert driven.health.fallen_back == len(fallen)
    assert driven.health.instead == ""
    for capture in driven.captures:
        assert capture.read_ends().tolist() == sorted({*capture.read_ends().tolist()})
        assert (len(capture.raw) or None) == (capture.read_ends()[-1] if capture.raw else None)
        assert (capture.kernel_ns() <= capture.user_ns()).all()
    return driven


def exact(driven: Driven, tokens: int = 0) -> list[bool]:
    """Of which requests every token's instant is the script's; of those sent again, after the first one."""
    found = []
    for record in records(driven):
        script = FIRST_NS + GAP_NS * np.arange(tokens or len(record.arrival_ns))
        came_ns = record.arrival_ns - record.sent_ns
        if record.resends:
            came_ns += script[0] - came_ns[0]
        found.append(came_ns.tolist() == script.tolist())
    return found

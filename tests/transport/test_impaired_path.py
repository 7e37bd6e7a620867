"""An impaired path: tokens arrive as the server wrote them and the path took, and what held them up is known.

Loss, reordering, duplicates and a delay that varies, between two network namespaces, by a process that logs
what it did to each packet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from benchmarks.harness.impaired_path import SERVER, Impairment, Way
from builders.loops import loop_over
from fakes.own_network import over_path
from fakes.rings import needs_ring
from fakes.scripted_server import (
    HEAD,
    LAST,
    Answer,
    Asked,
    Driven,
    ScriptedServer,
    chunk,
    drive,
    events,
    job_of,
    kinds,
    records,
)
from loadgen.records.record import NO_CAUSE, PATH, REORDERING, RETRANSMISSION, UNKNOWN

pytestmark = [pytest.mark.whole, needs_ring]
MS = 1_000_000
TOKENS, GAP_S, REQUESTS, STREAMS = 40, 0.02, 24, 6
WORST = Impairment(50, jitter_ms=20, overtaking=0.25, doubled=0.05, loss=0.01, resent=0.01, bare=True)
LOSSY = Impairment(50, loss=0.03, resent=0.03, bare=True)
CAUSES = {"path_delay": PATH, "reordering": REORDERING, "retransmission": RETRANSMISSION}
EVENTS = [chunk(event) for event in events(TOKENS)]


def numbered(index: int) -> bytes:
    """A request's body that says which it is."""
    return b"%d" % index


@dataclass
class Impaired:
    """A run over an impaired path, with what the server wrote when, and what became of it."""

    transport: str
    impairment: Impairment
    wrote_ns: dict[int, list[int]] = field(default_factory=dict)  # by request, of each event
    ports: dict[int, int] = field(default_factory=dict)  # the client's, by connection

    def __post_init__(self) -> None:
        self.server = ScriptedServer(self._answer, host=SERVER)
        serve = self.server._serve

        def noted(sock: object, connection: int) -> None:
            self.ports[connection] = sock.getpeername()[1]  # type: ignore[attr-defined]
            serve(sock, connection)  # type: ignore[arg-type]

        self.server._serve = noted  # type: ignore[method-assign]
        self.up = threading.Event()

    def _answer(self, asked: Asked) -> Answer:
        return Answer(self._pieces(self.wrote_ns.setdefault(int(asked.body), [])))  # type: ignore[arg-type]

    @staticmethod
    def _pieces(wrote_ns: list[int]) -> Iterator[bytes | float]:
        yield HEAD
        for event in EVENTS:
            yield GAP_S
            wrote_ns.append(time.monotonic_ns())
            yield event
        yield LAST

    def run(self) -> None:
        """Run it to its end."""
        path = over_path(self.impairment, self._serve, self._drive)
        self.streams = path.streams()
        assert kinds(self.driven) == [None] * REQUESTS

    def _serve(self, over: threading.Event) -> None:
        with self.server:
            self.up.set()
            over.wait(60)

    def _drive(self) -> None:
        assert self.up.wait(10)
        job = job_of(self.server.target(), REQUESTS, STREAMS, body=numbered)
        self.driven: Driven = drive(job, self.transport)

    def ways(self) -> dict[int, list[Way]]:
        """By request: what became of each of its tokens."""
        raws = {capture.index: capture.raw for capture in self.driven.captures}
        found, begins = {}, dict[int, int]()
        for asked in self.server.asked:
            request, begin = int(asked.body), begins.get(asked.connection, 0)
            at, ends = 0, []
            for event in EVENTS[:TOKENS]:
                at = raws[request].index(event, at) + len(event)
                ends.append(begin + at)
            stream = self.streams[self.ports[asked.connection], True]
            found[request] = [stream.way_of(end) for end in ends]
            begins[asked.connection] = begin + len(raws[request])
        return found


@loop_over("transport", ["ring", "wire"])
def test_tokens_arrive_as_they_were_written_and_the_path_took(transport: str) -> None:
    impaired = Impaired(transport, WORST)
    impaired.run()
    ways, first_ms, gaps_ms, waited_ms = impaired.ways(), [], [], []
    for record in records(impaired.driven):
        taken_ns, readable_ns = np.array([(way.taken_ns, way.readable_ns) for way in ways[record.index]]).T
        wrote_ns = np.array(impaired.wrote_ns[record.index][:TOKENS])
        first_ms.append((record.arrival_ns[0] - readable_ns[0]) / MS)
        gaps_ms += ((np.diff(record.arrival_ns) - np.diff(readable_ns)) / MS).tolist()
        # Before the server's own write, where a busy machine stops it, and in its kernel.
        waited_ms += ((taken_ns - wrote_ns) / MS).tolist()
    assert np.median(waited_ms) < 1
    assert np.median(np.abs(first_ms)) < 1
    assert np.median(np.abs(gaps_ms)) < 0.2
    if transport == "ring":  # the kernel stamps; the wire's tail is as long as a busy machine's turns
        assert np.percentile(np.abs(first_ms), 90) < 5
        assert np.percentile(np.abs(gaps_ms), 99) < 3


@loop_over("impairment", [WORST, LOSSY])
def test_what_held_a_token_up_is_known(impairment: Impairment) -> None:
    """Of the time beyond the quickest packet's, 95 % or more with the right cause, 2 % with a wrong one."""
    impaired = Impaired("ring", impairment)
    impaired.run()
    ways, total_ms, right_ms, wrong_ms = impaired.ways(), 0.0, 0.0, 0.0
    for record in records(impaired.driven):
        each = zip(ways[record.index], record.delay_us.tolist(), record.delay_cause.tolist(), strict=True)
        for way, delay_us, cause in each:
            true_ms, ms = way.delay_ns / MS, delay_us / 1000
            right = min(true_ms, ms) if cause == CAUSES[way.cause] else 0.0
            total_ms, right_ms, wrong_ms = total_ms + true_ms, right_ms + right, wrong_ms + ms - right
    assert total_ms > 5_000
    assert right_ms / total_ms >= 0.95
    assert wrong_ms / total_ms <= 0.02


def test_a_path_that_only_delays_holds_no_token_up() -> None:
    impaired = Impaired("ring", Impairment(50))
    impaired.run()
    found = records(impaired.driven)
    assert sum(record.delay_us.sum() for record in found) / 1000 < 2 * TOKENS * REQUESTS
    assert {cause for record in found for cause in record.delay_cause.tolist()} <= {NO_CAUSE, PATH}
    assert all(0.1 <= record.rtt_ns / 1e9 < 0.15 for record in found)
    assert np.median([record.request_delay_ns for record in found]) == 0


def test_without_segments_nothing_is_said_of_messages() -> None:
    impaired = Impaired("wire", LOSSY)
    impaired.run()
    found = records(impaired.driven)
    assert {len(record.delay_us) + len(record.delay_cause) for record in found} == {0}
    assert sum(record.out_of_order for record in found) > 0
    assert {record.request_delay_ns for record in found} == {UNKNOWN}

"""Bad links: windows of a few hundred bytes, and segments that are lost or overtaken under TLS.

The kernel's own, in network namespaces. Each answer is whole, and its tokens arrived when they could be read.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.impaired_path import SERVER, Impairment
from builders import made_cases
from builders.loops import loop_over
from fakes.own_network import inside, over_path
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
from fakes.tls import make_contexts
from loadgen.records.decode import Decoder
from loadgen.records.record import Record
from loadgen.verdict import verdict
from loadgen.wire.openai import Completions

pytestmark = [pytest.mark.whole, needs_ring]
TRANSPORTS = ["wire", "ring", "httpx"]
TOKENS, GAP_S = 8, 0.01
PIECES = TOKENS + 4  # of a response: its head, its tokens, the usage, [DONE] and the last chunk
BAD = Impairment(10, loss=0.05, late=0.05, late_ms=30)
LEAST_BYTES = 2304  # for which a kernel lets a receive buffer be set
MS = 1_000_000
HANDSHAKE = {"TLS 1.2": 0, "TLS 1.3": 4}  # records of the server's that look like data
VERSIONS = {"TLS 1.2": ssl.TLSVersion.TLSv1_2, "TLS 1.3": ssl.TLSVersion.TLSv1_3}
DATA = 23  # the type of a record
Came = tuple[int, int]  # right before and right after it was sent, ns


def numbered(index: int) -> bytes:
    """A request's body that says which it is."""
    return b"%d" % index


def contexts(version: ssl.TLSVersion) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's that sends no tickets, and a client's that trusts it."""
    serving, trusting = make_contexts("127.0.0.1", SERVER, version=version)
    serving.num_tickets = 0
    return serving, trusting


@dataclass
class Dripping(ScriptedServer):
    """Sends an answer byte by byte through the least buffer, and notes when each token was being sent."""

    sent: dict[int, list[Came]] = field(default_factory=dict)  # by request

    def __post_init__(self) -> None:
        self.script = self._answer

    def _serve(self, sock: socket.socket, connection: int) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least
        super()._serve(sock, connection)

    def _answer(self, asked: Asked) -> Answer:
        return Answer(self._pieces(self.sent.setdefault(int(asked.body), [])))  # type: ignore[arg-type]

    def _pieces(self, sent: list[Came]) -> Iterator[bytes | float]:
        for part in (HEAD, *map(chunk, events(TOKENS)), LAST):
            yield GAP_S
            begun_ns = time.monotonic_ns()
            yield from (part[i : i + 1] for i in range(len(part)))
            sent.append((begun_ns, time.monotonic_ns()))


@loop_over("tls", [False, True])
@loop_over("transport", TRANSPORTS)
def test_windows_of_a_few_bytes_cost_no_token_and_no_time(transport: str, tls: bool) -> None:
    serving, trusting = contexts(ssl.TLSVersion.TLSv1_3) if tls else (None, None)
    server = Dripping(lambda _: Answer([]), tls=serving)

    def run() -> None:
        least = f"{LEAST_BYTES} {LEAST_BYTES} {LEAST_BYTES}"
        Path("/proc/sys/net/ipv4/tcp_rmem").write_text(least, "ascii")  # this namespace's alone
        with socket.socket() as sock:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == LEAST_BYTES
        with server:
            driven.append(drive(job_of(server.target(trusting), 4, 2, body=numbered), transport))

    driven: list[Driven] = []
    inside(run)
    assert kinds(driven[0]) == [None] * 4
    decoder = Decoder(Completions(), streamed=True, keep_text=True)
    found = [decoder.decode(capture) for capture in driven[0].captures]
    assert [record.text for record in found] == ["a" * (TOKENS - 1) + "z"] * 4
    assert [(record.output_tokens, record.usage, len(record.arrival_ns)) for record in found] == [
        (TOKENS, True, TOKENS)
    ] * 4
    late_ns = []
    for record in found:
        begun_ns, ended_ns = np.array(server.sent[record.index][1 : 1 + TOKENS]).T
        assert (record.arrival_ns > begun_ns).all()
        late_ns += (record.arrival_ns - ended_ns).tolist()
    assert np.median(late_ns) < 20 * MS  # a window that is not opened again costs 200 ms


@dataclass
class Lossy:
    """A run over TLS whose path loses a twentieth of the segments, and lets others overtake as many."""

    transport: str
    channel: str
    ports: dict[int, int] = field(default_factory=dict)  # the client's, by connection
    requests: int = 12

    def __post_init__(self) -> None:
        serving, self.trusting = contexts(VERSIONS[self.channel])
        self.server = ScriptedServer(self._answer, host=SERVER, tls=serving)
        serve = self.server._serve

        def noted(sock: socket.socket, connection: int) -> None:
            self.ports[connection] = sock.getpeername()[1]
            serve(sock, connection)

        self.server._serve = noted  # type: ignore[method-assign]
        self.up = threading.Event()

    @staticmethod
    def _answer(_: Asked) -> Answer:
        pieces: list[bytes | float] = [HEAD]
        for event in events(TOKENS):
            pieces += [GAP_S, chunk(event)]
        return Answer([*pieces, LAST])

    def run(self) -> None:
        """Run it to its end."""
        path = over_path(BAD, self._serve, self._drive)
        self.streams = path.streams()
        self.lost = sum(segment.fate == "lost" for segment in path.segments)

    def _serve(self, over: threading.Event) -> None:
        with self.server:
            self.up.set()
            over.wait(20)

    def _drive(self) -> None:
        assert self.up.wait(10)
        target = self.server.target(self.trusting)
        self.driven = drive(job_of(target, self.requests, 3, body=numbered), self.transport)

    def readable(self) -> dict[int, list[tuple[int, int]]]:
        """By request: between which times each of its records could be read in full, ns."""
        found = {}
        for connection, port in self.ports.items():
            stream = self.streams[port, True]
            data = stream.data
            ends = [0]
            while ends[-1] + 5 <= len(data):
                ends.append(ends[-1] + 5 + int.from_bytes(data[ends[-1] + 3 : ends[-1] + 5]))
            records = [end for begin, end in pairwise(ends) if data[begin] == DATA]
            asked = [int(asked.body) for asked in self.server.asked if asked.connection == connection]
            for place, request in enumerate(asked):
                first = HANDSHAKE[self.channel] + place * PIECES
                ours = records[first : first + PIECES]
                ways = map(stream.way_of, ours)
                found[request] = [(way.begun_ns, way.readable_ns) for way in ways]
        return found


def away_ns(record: Record, readable: list[tuple[int, int]]) -> tuple[Any, Any]:
    """How long after its tokens could be read, by the first and the last such instant, they are dated."""
    begun_ns, ended_ns = np.array(readable[1 : 1 + TOKENS]).T
    return record.arrival_ns - begun_ns, record.arrival_ns - ended_ns


@loop_over("channel", VERSIONS)
@loop_over("transport", TRANSPORTS)
def test_losses_under_tls_are_doubted_and_date_no_token_wrong(transport: str, channel: str) -> None:
    lossy = Lossy(transport, channel)
    lossy.run()
    assert kinds(lossy.driven) == [None] * lossy.requests
    found, readable = records(lossy.driven), lossy.readable()
    assert lossy.lost > 3
    assert [record.output_tokens for record in found] == [TOKENS] * lossy.requests
    of_a_bad_link = [record.out_of_order + record.retransmitted > 0 for record in found]
    assert any(of_a_bad_link)
    client = made_cases.client(transport=transport)
    doubts = {doubt.rule.code for doubt in verdict.judge(made_cases.run(found, client=client)).findings}
    assert "network-lossy" in doubts
    after_first, after_last = zip(*(away_ns(each, readable[each.index]) for each in found), strict=True)
    assert np.min(after_first) > -MS  # none before it could be read, but for the wall clock's offset
    if transport == "ring":  # a segment's timestamp is the kernel's, however busy the machine is
        assert np.max(after_last) < MS
    # Of each token once: who reads late is not always late.
    assert np.min(after_last, axis=0).max() < (3 * MS if transport == "httpx" else MS)

"""Bad links: small windows, and paths that lose, reorder, double and delay; also under TLS.

The kernel's own, in network namespaces. Each answer is whole, its tokens arrived when they could be read, and
what held them up is known.
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

from benchmarks.harness.impaired_path import SERVER, Impairment, Way
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
from loadgen.records.record import NO_CAUSE, PATH, REORDERING, RETRANSMISSION, UNKNOWN, Record
from loadgen.verdict import verdict
from loadgen.wire.openai import Completions

pytestmark = [pytest.mark.whole, needs_ring]
TRANSPORTS = ["wire", "ring", "httpx"]
TOKENS, GAP_S = 8, 0.01
MANY, LONG_GAP_S = 40, 0.02  # of a stream over an impaired path
PIECES = TOKENS + 4  # of a response: its head, its tokens, the usage, [DONE] and the last chunk
BAD = Impairment(10, loss=0.05, late=0.05, late_ms=30)
WORST = Impairment(50, jitter_ms=20, overtaking=0.25, doubled=0.05, loss=0.01, resent=0.01, bare=True)
LOSSY = Impairment(50, loss=0.03, resent=0.03, bare=True)
CAUSES = {"path_delay": PATH, "reordering": REORDERING, "retransmission": RETRANSMISSION}
EVENTS = [chunk(event) for event in events(MANY)]
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
class PathRun:
    """A run over an impaired path: what the server wrote when, and what became of it on the way."""

    transport: str
    impairment: Impairment
    requests: int = 24
    streams_at_once: int = 6
    tls: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None)  # the server's and the client's
    wrote_ns: dict[int, list[int]] = field(default_factory=dict)  # by request, of each event
    ports: dict[int, int] = field(default_factory=dict)  # the client's, by connection

    def __post_init__(self) -> None:
        self.server = ScriptedServer(self._answer, host=SERVER, tls=self.tls[0])
        serve = self.server._serve

        def noted(sock: socket.socket, connection: int) -> None:
            self.ports[connection] = sock.getpeername()[1]
            serve(sock, connection)

        self.server._serve = noted  # type: ignore[method-assign]
        self.up = threading.Event()
        path = over_path(self.impairment, self._serve, self._drive)
        self.streams = path.streams()
        self.lost = sum(segment.fate == "lost" for segment in path.segments)
        assert kinds(self.driven) == [None] * self.requests

    def _answer(self, asked: Asked) -> Answer:
        return Answer(self._pieces(self.wrote_ns.setdefault(int(asked.body), [])))  # type: ignore[arg-type]

    @staticmethod
    def _pieces(wrote_ns: list[int]) -> Iterator[bytes | float]:
        yield HEAD
        for event in EVENTS:
            yield LONG_GAP_S
            wrote_ns.append(time.monotonic_ns())
            yield event
        yield LAST

    def _serve(self, over: threading.Event) -> None:
        with self.server:
            self.up.set()
            over.wait(60)

    def _drive(self) -> None:
        assert self.up.wait(10)
        job = job_of(self.server.target(self.tls[1]), self.requests, self.streams_at_once, body=numbered)
        self.driven: Driven = drive(job, self.transport)

    def ways(self) -> dict[int, list[Way]]:
        """By request: what became of each of its tokens."""
        raws = {capture.index: capture.raw for capture in self.driven.captures}
        found, begins = {}, dict[int, int]()
        for asked in self.server.asked:
            request, begin = int(asked.body), begins.get(asked.connection, 0)
            at, ends = 0, []
            for event in EVENTS[:MANY]:
                at = raws[request].index(event, at) + len(event)
                ends.append(begin + at)
            stream = self.streams[self.ports[asked.connection], True]
            found[request] = [stream.way_of(end) for end in ends]
            begins[asked.connection] = begin + len(raws[request])
        return found


class EncryptedPathRun(PathRun):
    """A run over TLS whose path loses a twentieth of the segments, and lets others overtake as many."""

    def __init__(self, transport: str, channel: str) -> None:
        self.channel = channel
        super().__init__(transport, BAD, 12, 3, contexts(VERSIONS[channel]))

    @staticmethod
    def _pieces(_: list[int]) -> Iterator[bytes | float]:
        yield HEAD
        for event in events(TOKENS):
            yield GAP_S
            yield chunk(event)
        yield LAST

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
    lossy = EncryptedPathRun(transport, channel)
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


@loop_over("transport", ["ring", "wire"])
def test_tokens_arrive_as_they_were_written_and_the_path_took(transport: str) -> None:
    impaired = PathRun(transport, WORST)
    ways, first_ms, gaps_ms, waited_ms = impaired.ways(), [], [], []
    for record in records(impaired.driven):
        taken_ns, readable_ns = np.array([(way.taken_ns, way.readable_ns) for way in ways[record.index]]).T
        wrote_ns = np.array(impaired.wrote_ns[record.index][:MANY])
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
    impaired = PathRun("ring", impairment)
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
    impaired = PathRun("ring", Impairment(50))
    found = records(impaired.driven)
    assert sum(record.delay_us.sum() for record in found) / 1000 < 2 * MANY * impaired.requests
    assert {cause for record in found for cause in record.delay_cause.tolist()} <= {NO_CAUSE, PATH}
    assert all(0.1 <= record.rtt_ns / 1e9 < 0.15 for record in found)
    assert np.median([record.request_delay_ns for record in found]) == 0


def test_without_segments_nothing_is_said_of_messages() -> None:
    impaired = PathRun("wire", LOSSY)
    found = records(impaired.driven)
    assert {len(record.delay_us) + len(record.delay_cause) for record in found} == {0}
    assert sum(record.out_of_order for record in found) > 0
    assert {record.request_delay_ns for record in found} == {UNKNOWN}

"""Real sockets, TLS and plain, and a client that sleeps: what the ring gives, and what epoll alone does."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import trustme

from builders.loops import loop_over
from fakes.rings import needs_ring
from fakes.scripted_server import (
    HEAD,
    LAST,
    Answer,
    Asked,
    Driven,
    Driver,
    End,
    ScriptedServer,
    chunk,
    drive,
    events,
    job_of,
    kinds,
    records,
    stream,
    token,
)
from fakes.supervised import until
from loadgen.features.ring import ring_transport
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Limits, Target

pytestmark = [pytest.mark.whole, needs_ring]
MS = 1_000_000
GAP_S, TOKENS = 0.004, 40
STALLED_S = 0.05
CHANNELS = ["plain", "TLS 1.2", "TLS 1.3"]
Serve = Callable[[Callable[[Asked], Answer], str], tuple[ScriptedServer, Callable[[], Target]]]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def serve(authority: trustme.CA) -> Serve:
    """A server over a channel, and where a job finds it."""

    def made(script: Callable[[Asked], Answer], channel: str) -> tuple[ScriptedServer, Callable[[], Target]]:
        if channel == "plain":
            server = ScriptedServer(script)
            return server, server.target
        serving, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        version = ssl.TLSVersion.TLSv1_2 if channel == "TLS 1.2" else ssl.TLSVersion.TLSv1_3
        serving.minimum_version = serving.maximum_version = version
        authority.issue_cert("localhost").configure_cert(serving)
        authority.configure_trust(trusting)
        server = ScriptedServer(script, tls=serving)
        return server, lambda: server.target(trusting, "localhost")

    return made


def sleepy(first: int) -> Callable[[int], bytes]:
    """Bodies that take long to make, from one on: they are made while streams go on."""

    def body(index: int) -> bytes:
        if index >= first:
            time.sleep(STALLED_S)
        return b'{"stream":true,"prompt":"hello"}'

    return body


def gaps_ns(driven: Driven) -> np.ndarray:
    """The least gap between two tokens of each request."""
    return np.array([np.diff(record.arrival_ns).min() for record in records(driven)])


@pytest.mark.parametrize("channel", CHANNELS)
def test_tokens_are_apart_as_they_were_sent_though_the_client_sleeps(serve: Serve, channel: str) -> None:
    found = {}
    for transport in ("wire", "ring"):
        server, target = serve(lambda _: stream(TOKENS, GAP_S), channel)
        with server:
            found[transport] = drive(job_of(target(), 6, 2, body=sleepy(2)), transport)
        assert kinds(found[transport]) == [None] * 6
        assert [record.output_tokens for record in records(found[transport])] == [TOKENS] * 6
    assert (gaps_ns(found["wire"])[:2] == 0).all()
    assert (gaps_ns(found["ring"]) > GAP_S * 1e9 / 2).all()
    assert all(capture.segments for capture in found["ring"].captures)
    assert found["ring"].health.fallen_back == 0
    for capture in found["ring"].captures:
        assert (capture.kernel_ns() <= capture.user_ns()).all()
        assert (np.diff(capture.kernel_ns()) >= 0).all()
        assert capture.sent_ns <= capture.kernel_ns()[0]
        assert capture.read_ends()[-1] == len(capture.raw)


@loop_over("channel", CHANNELS)
@loop_over("end", [End.CLOSE, End.RESET])
def test_a_cut_answer_keeps_every_instant(serve: Serve, channel: str, end: End) -> None:
    cut: list[bytes | float] = [HEAD, *(part for _ in range(9) for part in (GAP_S, chunk(token())))]
    server, target = serve(
        lambda asked: stream(5, GAP_S) if asked.number else Answer([*cut, 0.1], end), channel
    )
    with server:
        driven = drive(job_of(target(), 3, 1, body=sleepy(1)), "ring")
    assert kinds(driven) == [FailureKind.TRUNCATED, None, None]
    assert [len(record.arrival_ns) for record in records(driven)] == [9, 5, 5]
    assert (gaps_ns(driven) > GAP_S * 1e9 / 2).all()
    assert driven.health.fallen_back == 0


class NotedPieces(list[bytes | float]):
    """The pieces of an answer, and when each had been written."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.pieces)
        self.written_ns: list[int] = []

    def __iter__(self) -> Iterator[bytes | float]:
        for piece in super().__iter__():
            yield piece
            if isinstance(piece, bytes):
                self.written_ns.append(time.monotonic_ns())

    def count_written(self, before_ns: int) -> int:
        """The events that had come by then: the first piece is the head."""
        # A busy kernel may deliver later than the write returns.
        return sum(ns < before_ns - 5 * MS for ns in self.written_ns) - 1


def note_writes(noted: list[NotedPieces]) -> Callable[[Asked], Answer]:
    """A script of long streams that adds the pieces of each to `noted`."""

    def script(_: Asked) -> Answer:
        noted.append(NotedPieces(stream(1000, GAP_S)))
        return Answer(noted[-1])

    return script


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_timeout_keeps_all_that_had_come(serve: Serve, channel: str) -> None:
    noted: list[NotedPieces] = []
    server, target = serve(note_writes(noted), channel)
    with server:
        driven = drive(job_of(target(), 2, 2, limits=Limits(request_timeout_ns=400 * MS)), "ring")
    assert kinds(driven) == [FailureKind.TIMEOUT] * 2
    assert all(capture.segments for capture in driven.captures)
    first_end_ns = min(capture.end_ns for capture in driven.captures)
    kept = sorted(len(record.arrival_ns) for record in records(driven))
    came = sorted(each.count_written(first_end_ns) for each in noted)
    assert [mine >= its > 0 for mine, its in zip(kept, came, strict=True)] == [True] * 2, (kept, came)
    assert (gaps_ns(driven) > GAP_S * 1e9 / 2).all()


@loop_over("unread", [2, 3])
@loop_over("channel", CHANNELS)
def test_a_stop_keeps_all_that_had_come(serve: Serve, channel: str, unread: int) -> None:
    drivers: list[Driver] = []
    stopped_ns: list[int] = []
    noted: list[NotedPieces] = []

    def stopping(index: int) -> bytes:
        if index == unread:
            until(lambda: len(noted) == 2 and min(len(each.written_ns) for each in noted) > 20, "both write")
            stopped_ns.append(time.monotonic_ns())
            drivers[0].inbox.stop()
        return b"{}"

    server, target = serve(note_writes(noted), channel)
    with server:
        drivers.append(Driver(job_of(target(), 4, 2, body=stopping), "ring"))
        driven = drivers[0].run()
    assert kinds(driven) == [FailureKind.CANCELLED] * 2
    assert all(capture.segments for capture in driven.captures)
    kept = sorted(len(record.arrival_ns) for record in records(driven))
    came = sorted(each.count_written(stopped_ns[0]) for each in noted)
    assert [mine >= its for mine, its in zip(kept, came, strict=True)] == [True] * 2, (kept, came)
    assert (gaps_ns(driven) > GAP_S * 1e9 / 2).all()


@pytest.mark.parametrize("channel", CHANNELS[1:])
def test_records_that_came_in_one_segment_share_its_instant(serve: Serve, channel: str) -> None:
    texts = [chunk(event) for event in events(3)]
    server, target = serve(lambda _: Answer([HEAD, 0.02, b"".join(texts), 0.02, LAST]), channel)
    with server:
        driven = drive(job_of(target(), 8, 2), "ring")
    assert kinds(driven) == [None] * 8
    for capture, record in zip(driven.captures, records(driven), strict=True):
        assert capture.segments
        assert len({*record.arrival_ns.tolist()}) == 1
        assert len(capture.read_ends()) == 3


@pytest.mark.parametrize("channel", CHANNELS[1:])
def test_a_record_over_many_segments_arrives_with_its_last_one(serve: Serve, channel: str) -> None:
    big = chunk(b": " + b"x" * 100_000 + b"\n\n")
    texts = [chunk(event) for event in events(3)]
    server, target = serve(lambda _: Answer([HEAD, big, *texts, LAST]), channel)
    with server:
        driven = drive(job_of(target(), 8, 2), "ring")
    assert kinds(driven) == [None] * 8
    assert driven.health.fallen_back == 0
    for capture in driven.captures:
        assert capture.raw == HEAD + big + b"".join(texts) + LAST
        assert (np.diff(capture.kernel_ns()) >= 0).all()


@pytest.mark.parametrize("channel", CHANNELS)
def test_what_falls_back_has_the_sockets_timestamps(
    serve: Serve, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_transport, "order_segments", lambda *_: None)
    server, target = serve(lambda _: stream(10, GAP_S), channel)
    with server:
        driven = drive(job_of(target(), 6, 2), "ring")
    assert kinds(driven) == [None] * 6
    assert driven.health.fallen_back == 6
    for capture in driven.captures:
        assert not capture.segments
        kernel_ns = capture.kernel_ns()
        assert (kernel_ns <= capture.user_ns()).all()
        assert (np.diff(kernel_ns) >= 0).all()
        assert capture.sent_ns < kernel_ns[0] <= kernel_ns[-1] <= capture.end_ns

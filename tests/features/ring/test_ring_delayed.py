"""Real sockets, TLS and plain, and a client that sleeps: what the ring gives, and what epoll alone does."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

import numpy as np
import pytest

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
    stream,
)
from fakes.tls import make_contexts
from loadgen.features.ring import ring_transport
from loadgen.transport.sending.job import Target

pytestmark = [pytest.mark.whole, needs_ring]
GAP_S, TOKENS = 0.004, 40
STALLED_S = 0.05
CHANNELS = {"plain": None, "TLS 1.2": ssl.TLSVersion.TLSv1_2, "TLS 1.3": ssl.TLSVersion.TLSv1_3}
OVER_TLS = [*CHANNELS][1:]


def serve(script: Callable[[Asked], Answer], channel: str) -> tuple[ScriptedServer, Callable[[], Target]]:
    """A server over a channel, and where a job finds it."""
    if channel == "plain":
        server = ScriptedServer(script)
        return server, server.target
    serving, trusting = make_contexts("localhost", version=CHANNELS[channel])
    server = ScriptedServer(script, tls=serving)
    return server, lambda: server.target(trusting, "localhost")


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
def test_tokens_are_apart_as_they_were_sent_though_the_client_sleeps(channel: str) -> None:
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


@pytest.mark.parametrize("channel", OVER_TLS)
def test_records_that_came_in_one_segment_share_its_instant(channel: str) -> None:
    texts = [chunk(event) for event in events(3)]
    server, target = serve(lambda _: Answer([HEAD, 0.02, b"".join(texts), 0.02, LAST]), channel)
    with server:
        driven = drive(job_of(target(), 8, 2), "ring")
    assert kinds(driven) == [None] * 8
    for capture, record in zip(driven.captures, records(driven), strict=True):
        assert capture.segments
        assert len({*record.arrival_ns.tolist()}) == 1
        assert len(capture.read_ends()) == 3


@pytest.mark.parametrize("channel", OVER_TLS)
def test_a_record_over_many_segments_arrives_with_its_last_one(channel: str) -> None:
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
def test_what_falls_back_has_the_sockets_timestamps(channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
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

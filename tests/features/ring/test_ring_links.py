"""The ring on real sockets, TLS and plain, other links and machines, and with a client that sleeps."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.own_network import FAR, inside, ip, over_link
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
from loadgen.features.ring.ring_choice import explain_refusal
from loadgen.transport import capture_process
from loadgen.transport.sending.job import Target

GAP_S, TOKENS = 0.004, 40
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
            time.sleep(0.05)
        return b'{"stream":true,"prompt":"hello"}'

    return body


def gaps_ns(driven: Driven) -> np.ndarray:
    """The least gap between two tokens of each request."""
    return np.array([np.diff(record.arrival_ns).min() for record in records(driven)])


@pytest.mark.whole
@needs_ring
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


@pytest.mark.whole
@needs_ring
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


@pytest.mark.whole
@needs_ring
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


@pytest.mark.whole
@needs_ring
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


@needs_ring
@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_capturing_process_has_no_privilege_left() -> None:
    with ScriptedServer(lambda _: stream(10, 0.01)) as server:
        run = capture_process.start_capture(job_of(server.target(), 20, 2), "ring")
        seen: set[str] = set()
        segments = 0
        for capture in run.captures():
            if run.pid and run.counters.sent and run.health is None:
                with suppress(OSError):
                    seen.update(Path(f"/proc/{run.pid}/status").read_text().splitlines())
            segments += capture is not None and capture.segments
    capture_process.reap_ended()
    assert run.died == ""
    assert segments == 20
    assert {line for line in seen if line.startswith(("CapEff", "CapPrm"))} == {
        f"{name}:\t{0:016x}" for name in ("CapEff", "CapPrm")
    }


# Where there is no ring.


def refusing(error: OSError) -> type[socket.socket]:
    class Refusing(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **named: Any) -> None:
            if family == socket.AF_PACKET:
                raise error
            super().__init__(family, *rest, **named)

    return Refusing


@pytest.mark.skipif(not hasattr(socket, "AF_PACKET"), reason="packet sockets are Linux's")
@pytest.mark.parametrize(
    ("error", "why", "grant"),
    [
        (PermissionError(1, "Operation not permitted"), "Operation not permitted", "CAP_NET_RAW"),
        (OSError(97, "Address family not supported"), "Address family not supported", "available"),
    ],
)
def test_without_a_ring_a_run_is_whole_and_says_why(
    error: OSError, why: str, grant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", refusing(error))
    with ScriptedServer(lambda _: stream(5, 0.001)) as server:
        driven = drive(job_of(server.target(), 6, 2), "ring")
    assert kinds(driven) == [None] * 6
    assert not any(capture.segments for capture in driven.captures)
    assert why in driven.health.instead
    assert "sockets" in driven.health.instead
    assert (driven.health.segments, driven.health.fallen_back) == (0, 0)
    assert grant in explain_refusal.__wrapped__()


# Other links.


@pytest.mark.whole
@needs_ring
def test_links_that_come_and_go_do_not_disturb_a_run() -> None:
    def body() -> None:
        with ScriptedServer(lambda _: stream(10, 0.005)) as server:
            found: list[Driven] = []
            ip("link add name other type bridge")
            running = threading.Thread(
                target=lambda: found.append(drive(job_of(server.target(), 60, 6), "ring"))
            )
            running.start()
            while running.is_alive():
                ip("link set other up")
                ip("link del other")
                ip("link add name other type bridge")
            running.join()
        assert kinds(found[0]) == [None] * 60
        assert all(capture.segments for capture in found[0].captures)

    inside(body)


@pytest.mark.whole
@needs_ring
@pytest.mark.parametrize("vlan", [False, True], ids=["veth", "VLAN"])
def test_arrivals_over_another_link_are_segments_too(vlan: bool) -> None:
    server = ScriptedServer(lambda _: stream(10, 0.002), host=FAR)

    def ask() -> None:
        driven = drive(job_of(server.target(), 12, 3), "ring")
        assert kinds(driven) == [None] * 12
        assert all(capture.segments for capture in driven.captures)
        assert driven.health.segments >= 12 * 14

    over_link(server, ask, vlan)

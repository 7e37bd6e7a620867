"""The ring on other machines: without a privilege, without a ring, and over links that are not loopback."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fakes.own_network import FAR, inside, ip, over_link
from fakes.rings import needs_ring
from fakes.scripted_server import Driven, ScriptedServer, drive, job_of, kinds, stream
from loadgen.features.ring.ring_choice import explain_refusal
from loadgen.transport import capture_process


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


def fallen(monkeypatch: pytest.MonkeyPatch, error: OSError) -> Driven:
    monkeypatch.setattr(socket, "socket", refusing(error))
    with ScriptedServer(lambda _: stream(5, 0.001)) as server:
        return drive(job_of(server.target(), 6, 2), "ring")


@pytest.mark.skipif(not hasattr(socket, "AF_PACKET"), reason="packet sockets are Linux's")
@pytest.mark.parametrize(
    ("error", "why", "grant"),
    [
        (PermissionError(1, "Operation not permitted"), "Operation not permitted", "CAP_NET_RAW"),
        (
            OSError(97, "Address family not supported by protocol"),
            "Address family not supported",
            "available",
        ),
    ],
)
def test_without_a_ring_a_run_is_whole_and_says_why(
    error: OSError, why: str, grant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = fallen(monkeypatch, error)
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

"""Which transport a run gets: what was asked for, what is allowed, and what the load calls for."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from fakes.scripted_server import target_of
from loadgen.base.errors import UsageError
from loadgen.features.ring import ring_choice
from loadgen.run import transport_choice
from loadgen.run.transport_choice import check_transport, choose_sources, choose_transport
from loadgen.settings.run_settings import SendOptions
from loadgen.settings.setting import list_rows
from loadgen.transport import source_addresses
from loadgen.transport.capture_process import TRANSPORTS
from loadgen.transport.sending.job import Target, TransportChoice

HERE, AWAY = target_of("127.0.0.1", 8000), target_of("192.0.2.1", 8000)
FORBIDDEN = "packet sockets need CAP_NET_RAW"
SHARED = "client and server share this machine"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_choice, "explain_refusal", lambda: "")
    monkeypatch.setattr(transport_choice, "DEFAULT_TRANSPORT", "wire")


@loop_over(
    ("asked", "target", "streams", "chosen"),
    [
        (None, HERE, 1, TransportChoice("ring", SHARED)),
        ("auto", HERE, 1, TransportChoice("ring", SHARED)),
        ("auto", AWAY, 64, TransportChoice("ring", "64 streams")),
        ("auto", AWAY, 63, TransportChoice("wire", "few streams, and a server on another machine")),
        ("ring", AWAY, 1, TransportChoice("ring")),
        ("wire", HERE, 1024, TransportChoice("wire")),
        ("httpx", HERE, 1024, TransportChoice("httpx")),
    ],
)
def test_a_ring_is_taken_where_tokens_may_be_read_late(
    asked: str | None, target: Target, streams: int, chosen: TransportChoice
) -> None:
    assert choose_transport(asked, target, streams) == chosen
    assert check_transport(asked) == ""


@loop_over("asked", [None, "auto", "ring"])
def test_without_privilege_wire_is_used_and_the_reason_given(
    asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_choice, "explain_refusal", lambda: FORBIDDEN)
    assert choose_transport(asked, HERE, 64) == TransportChoice("wire", f"not ring: {FORBIDDEN}")
    told = f"--transport ring: {FORBIDDEN}: wire is used instead"
    assert check_transport(asked) == (told if asked == "ring" else "")
    assert TRANSPORTS["ring"].explain_missing_right() == FORBIDDEN


@loop_over("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy_in_between_refuses_a_ring_by_name(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "http://proxy:3128")
    name = variable.lower()
    why = f"{name} applies to 192.0.2.1, and a ring sees the server's own packets"
    with pytest.raises(UsageError, match=name):
        choose_transport("ring", AWAY, 64)
    assert choose_transport(None, AWAY, 64) == TransportChoice("wire", f"not ring: {why}")
    assert choose_transport("ring", HERE, 64) == TransportChoice(
        "ring"
    )  # no proxy stands before this machine
    monkeypatch.setenv("NO_PROXY", "192.0.2.1")
    assert choose_transport("ring", AWAY, 64) == TransportChoice("ring")


@loop_over("asked", ["wire", "ring"])
def test_without_epoll_only_httpx_runs(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_choice, "DEFAULT_TRANSPORT", "httpx")
    assert choose_transport(None, HERE, 64).name == "httpx"
    with pytest.raises(UsageError, match=f"--transport {asked} needs Linux"):
        choose_transport(asked, HERE, 64)


def test_the_flag_names_the_transports_of_the_table() -> None:
    row = next(row for row in list_rows(SendOptions) if row.name == "transport")
    assert {word for kind in row.kinds for word in get_args(kind)} == {"auto", *TRANSPORTS}


def test_a_server_at_an_address_of_this_machine_shares_it() -> None:
    shares = [ring_choice.is_on_this_machine(target) for target in (HERE, AWAY)]
    assert shares == [True, False]
    unroutable = replace(AWAY, address=(HERE.address[0], ("255.255.255.255", 80)))
    assert not ring_choice.is_on_this_machine(unroutable)


RING, WIRE = TransportChoice("ring", SHARED), TransportChoice("wire")
SPREAD = (
    "40000 connections come from 2 addresses, 127.0.0.1 to 127.0.0.2: one has 28232 ports for each server"
)
GIVEN = "not ring: a ring has the ports of one address, and --source-address was given"
PAIR = ("127.0.0.1", "127.0.0.2")


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_addresses, "read_local_ports", lambda: (32768, 60999))
    monkeypatch.setattr(source_addresses, "list_used_ports", lambda *_: ())


@pytest.mark.usefixtures("ports")
@loop_over(
    ("choice", "connections", "processes", "given", "chosen", "sources"),
    [
        (WIRE, 1000, 1, (), WIRE, ()),
        (WIRE, 40_000, 1, (), TransportChoice("wire", SPREAD), PAIR),
        (WIRE, 1, 1, PAIR, WIRE, PAIR),
        (RING, 1000, 1, (), RING, ()),
        (RING, 40_000, 4, (), RING, ()),  # each ring has ports of its own
        (RING, 40_000, 1, (), TransportChoice("wire", f"not ring: {SPREAD}"), PAIR),
        (RING, 1, 1, PAIR, TransportChoice("wire", GIVEN), PAIR),
    ],
)
def test_connections_get_addresses_and_a_transport_that_can_use_them(
    choice: TransportChoice,
    connections: int,
    processes: int,
    given: tuple[str, ...],
    chosen: TransportChoice,
    sources: tuple[str, ...],
) -> None:
    assert choose_sources(choice, HERE, connections, given, processes) == (
        chosen,
        replace(HERE, sources=sources),
    )


@pytest.mark.usefixtures("ports")
def test_too_few_ports_refuse_a_closed_loop_and_warn_of_an_open_one() -> None:
    warnings: list[str] = []
    with pytest.raises(UsageError, match=r"40000 connections to 127\.0\.0\.1 port 8000 need"):
        choose_sources(WIRE, HERE, 40_000, PAIR[:1])
    target = choose_sources(WIRE, HERE, 40_000, PAIR[:1], doubtful=warnings.append)[1]
    assert (target.sources, len(warnings)) == (PAIR[:1], 1)
    assert warnings[0].startswith("about 40000 connections to 127.0.0.1 port 8000 need")


def test_a_proxy_in_between_has_no_use_for_our_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    httpx = TransportChoice("httpx")
    assert choose_sources(httpx, AWAY, 40_000) == (httpx, AWAY)
    with pytest.raises(UsageError, match=r"--source-address: http_proxy applies to 192\.0\.2\.1"):
        choose_sources(httpx, AWAY, 1, PAIR)

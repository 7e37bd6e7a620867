"""Where connections come from: how many addresses they need, which are ours, what is refused."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from fakes.scripted_server import (
    HEAD,
    LAST,
    Answer,
    Asked,
    ScriptedServer,
    chunk,
    drive,
    events,
    job_of,
    kinds,
)
from loadgen.base.errors import UsageError
from loadgen.settings.shard_settings import Share
from loadgen.transport import source_addresses
from loadgen.transport.source_addresses import Address, list_used_ports, plan_sources, read_outgoing_ports

HERE = (int(socket.AF_INET), ("127.0.0.1", 8000))
AWAY = (int(socket.AF_INET), ("192.0.2.1", 8000))
USUAL = frozenset(range(32768, 61000))
NARROW = frozenset(range(40000, 41064))  # 1,000 for us: 64 are left to others


def free(family: int, source: str, server: Address) -> Iterable[int]:
    return ()


@pytest.fixture(autouse=True)
def routed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_addresses, "find_local_address", lambda *_: ("10.0.0.1", 0))


@loop_over(
    ("server", "connections", "addresses"),
    [
        (HERE, 1, ()),
        (HERE, 28_168, ()),
        (HERE, 28_169, ("127.0.0.1", "127.0.0.2")),
        (HERE, 56_336, ("127.0.0.1", "127.0.0.2")),
        (HERE, 56_337, ("127.0.0.1", "127.0.0.2", "127.0.0.3")),
        (AWAY, 28_168, ()),
    ],
)
def test_connections_come_from_as_many_addresses_as_they_need(
    server: tuple[int, Address], connections: int, addresses: tuple[str, ...]
) -> None:
    assert plan_sources(server, connections, (), USUAL, free)[0] == addresses


def test_ports_in_use_are_not_counted_upon() -> None:
    def half(family: int, source: str, server: Address) -> Iterable[int]:
        return [*range(40000, 40500), *range(40000, 40500), 80]

    assert plan_sources(HERE, 600, (), NARROW, half)[0] == ("127.0.0.1", "127.0.0.2")
    reserved = NARROW - set(range(40100, 40600))
    assert plan_sources(HERE, 600, (), reserved, free)[0] == ("127.0.0.1", "127.0.0.2")


@pytest.mark.parametrize(
    ("connections", "given", "words"),
    [
        (1001, (), "192.0.2.1 port 8000 need as many source ports, and 10.0.0.1 has 1000 free"),
        (1001, (), "40000 to 41063): pass 2 addresses of this machine with --source-address A,B,…, or widen"),
        (2001, ("10.0.0.1", "10.0.0.2"), "and 2 addresses have 2000 free"),
        (65_000, (), "pass 65 addresses of this machine with --source-address A,B,…, or lower"),
    ],
)
def test_too_few_ports_are_refused_with_what_to_do(
    connections: int, given: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        plan_sources(AWAY, connections, given, NARROW, free)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("family", "address", "words"),
    [
        (socket.AF_INET, "192.0.2.77", "is not one of this machine's"),
        (socket.AF_INET, "::1", "the server has an IPv4 address"),
        (socket.AF_INET6, "127.0.0.1", "the server has an IPv6 address"),
        (socket.AF_INET, "lo", "the server has an IPv4 address"),
    ],
)
def test_an_address_that_cannot_be_ours_is_refused(family: int, address: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        source_addresses.check_addresses([address], family)
    source_addresses.check_addresses(["127.0.0.1", "127.9.8.7"], socket.AF_INET)


def test_the_kernels_tables_give_the_ports_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "net" / "tcp"
    table.parent.mkdir()
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    rows = [
        "0100007F:9C40 0100007F:1F90 01 0",  # connected to the server
        "0100007F:9C41 0100007F:1F90 06 0",  # TIME_WAIT, of which loopback has no need to wait
        "0100000A:9C46 0200000A:1F90 06 0",  # the same to another machine
        "0100007F:9C42 0100007F:1F91 01 0",  # another server's
        "0200007F:9C43 0100007F:1F90 01 0",  # from another address
        "00000000:9C44 00000000:0000 0A 0",  # listens at every address
        "0300007F:9C45 00000000:0000 0A 0",  # listens at another
    ]
    table.write_text(
        "  sl  local_address\n" + "".join(f"   {i}: {row} 0 0 0 0 {i}\n" for i, row in enumerate(rows)),
        "ascii",
    )
    assert {*list_used_ports(socket.AF_INET, "127.0.0.1", ("127.0.0.1", 8080))} == {0x9C40, 0x9C44}
    assert {*list_used_ports(socket.AF_INET, "10.0.0.1", ("10.0.0.2", 8080))} == {0x9C46, 0x9C44}
    table.unlink()
    assert [*list_used_ports(socket.AF_INET, "127.0.0.1", ("127.0.0.1", 8080))] == []
    assert [*list_used_ports(socket.AF_INET6, "::1", ("::1", 8080))] == []


@pytest.mark.parametrize(
    ("text", "count"), [("\n", 28_232), ("32768,40000-40009\n", 28_221), ("80-90\n", 28_232), ("?", 28_232)]
)
def test_reserved_ports_are_not_the_kernels_to_give(
    text: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reserved").write_text(text, "ascii")
    monkeypatch.setattr(source_addresses, "_RESERVED", tmp_path / "reserved")
    monkeypatch.setattr(source_addresses, "read_local_ports", lambda: (32768, 60999))
    assert len(read_outgoing_ports()) == count


@pytest.mark.whole
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_connections_come_from_their_sources_in_turn(transport: str) -> None:
    peers: dict[int, str] = {}

    def script(asked: Asked) -> Answer:
        peers[asked.connection] = server.sockets[asked.connection - 1].getpeername()[0]
        return Answer([HEAD, 0.05, *map(chunk, events(2)), LAST])

    with ScriptedServer(script) as server:
        target = replace(server.target(), sources=("127.0.0.1", "127.0.0.2"))
        driven = drive(job_of(target, 4, 4, share=Share(1, 3)), transport)
    assert kinds(driven) == [None] * 4
    assert sorted(peers.values()) == ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]


@pytest.mark.parametrize(
    ("text", "found"),
    [("32768\t60999\n", (32768, 60999)), ("1024 65535", (1024, 65535)), ("", None), ("a b", None)],
)
def test_the_machines_range_is_read_or_the_usual_one(
    text: str, found: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_addresses, "_RANGE", tmp_path / "range")
    assert source_addresses.read_local_ports() == (32768, 60999)
    (tmp_path / "range").write_text(text)
    assert source_addresses.read_local_ports() == (found or (32768, 60999))

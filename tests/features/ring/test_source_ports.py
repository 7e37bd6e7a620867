"""Source ports on a machine that is made up: which are taken, when the filter admits them, when they go."""

from __future__ import annotations

import errno
import os
import random
import socket as sockets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.required import require
from loadgen.features.ring import packet_ring
from loadgen.features.ring.packet_filter import MOST_RANGES
from loadgen.features.ring.packet_ring import SourcePorts
from loadgen.transport.network import SystemNetwork

LOW, HIGH = 40000, 40999
LOCAL = "10.0.0.1"


@dataclass
class Machine(SystemNetwork):
    """Ports, and what was done to them in which order; it is the network and the source of segments."""

    occupied: set[tuple[str, int]] = field(default_factory=set)
    most_files: int = 1 << 20
    files: int = 0
    done: list[tuple[str, Any]] = field(default_factory=list)
    admitted: list[range] = field(default_factory=list)
    local: Any = (LOCAL, 0)
    most_ranges: int = MOST_RANGES  # that the kernel takes

    def socket(self, family: int) -> Any:
        if self.files >= self.most_files:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.files += 1
        return Port(self)

    def admit(self, local: str, ports: Sequence[range]) -> None:
        if len(ports) > self.most_ranges:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self.done.append(("admit", {port for some in ports for port in some}))
        self.admitted = [*ports]

    def ports(self, count: int = 0, most_files: int = 1 << 20, family: int = sockets.AF_INET) -> SourcePorts:
        """Its source ports, so many of them reserved."""
        found = SourcePorts(self, (family, ("127.0.0.1", 1)), self, most_files)  # type: ignore[arg-type]
        assert not count or found.reserve(count)
        return found


@dataclass
class Port:
    machine: Machine
    address: Any = None

    def bind(self, address: Any) -> None:
        if address[:2] in self.machine.occupied:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.machine.occupied.add(address[:2])
        self.address = address

    def shutdown(self, how: int) -> None:
        self.machine.done.append(("shutdown", self.address[1]))
        if self.address[1] % 2:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    def close(self) -> None:
        self.machine.files -= 1
        if self.address is not None:
            self.machine.done.append(("close", self.address[1]))
            self.machine.occupied.remove(self.address[:2])


@pytest.fixture(autouse=True)
def _thousand_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_ring, "read_local_ports", lambda: (LOW, HIGH))


def take(ports: SourcePorts) -> tuple[Any, int]:
    """A socket and its port; there is one."""
    return require(ports.take())


def flat(ranges: Sequence[range]) -> set[int]:
    return {port for some in ranges for port in some}


def test_ports_of_others_are_left_out_and_not_admitted() -> None:
    others = set(range(LOW, HIGH + 1, 10))
    machine = Machine({(LOCAL, port) for port in others})
    ports = machine.ports(900)
    assert flat(machine.admitted) == {*range(LOW, HIGH + 1)} - others
    assert machine.files == 900
    assert not ports.reserve(1)
    assert machine.files == 900


def test_loopback_too_scattered_has_an_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_ring, "read_local_ports", lambda: (LOW, LOW + 3999))
    machine = Machine({("127.0.0.1", LOW + i) for i in range(0, 4000, 2)}, local=("127.0.0.1", 0))
    ports = machine.ports()
    assert ports.reserve(MOST_RANGES + 50)
    assert ports.local[0] != "127.0.0.1"
    assert str(ports.local[0]).startswith("127.")
    assert len(machine.admitted) <= 2
    assert {address for address, _ in machine.occupied} == {"127.0.0.1", ports.local[0]}


def test_a_filter_that_the_kernel_refuses_costs_the_new_ports_alone() -> None:
    machine = Machine({(LOCAL, LOW + i) for i in range(0, 1000, 2)}, most_ranges=100)
    ports = machine.ports()
    assert not ports.reserve(101)
    assert (machine.files, ports.ports) == (0, set())
    assert ports.reserve(100)
    assert [ports.take() is not None for _ in range(101)] == [True] * 100 + [False]
    assert machine.files == len(ports.ports) == 100


# What ends.


def ended(ports: SourcePorts, count: int) -> list[int]:
    """Ports of connections that were made, and ended."""
    gone = []
    for _ in range(count):
        sock, port = take(ports)
        ports.end_connection(sock, port)
        gone.append(port)
    return gone


def test_ports_are_added_once_all_are_used_and_used_again() -> None:
    machine = Machine()
    ports = machine.ports(1)
    seen = ended(ports, 3000)
    assert len({*seen}) <= 1000
    assert machine.files < 1000
    admissions = [port for what, port in machine.done if what == "admit"]
    assert len(admissions) < 100


@given(st.sets(st.integers(LOW, LOW + 60), min_size=1), st.randoms(), st.integers(1, 12))
def test_the_ranges_that_are_left_are_as_many_as_was_reckoned(
    gone: set[int], order: random.Random, most: int
) -> None:
    machine = Machine()
    ports = machine.ports(1000)
    under_way = {port: sock for sock, port in (take(ports) for _ in range(1000))}
    shuffled = sorted(gone)
    order.shuffle(shuffled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packet_ring, "_FEW_RANGES", most)
        for port in shuffled:
            ports.end_connection(under_way[port], port)
        ports._release()
    assert len(machine.admitted) <= max(most, 2)
    left = len(list(packet_ring._split_into_ranges(sorted({*under_way} - gone))))
    if left <= most:
        assert flat(machine.admitted) == {*under_way} - gone


# The machine's own ports.


def test_no_one_else_gets_a_port_that_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    source = Machine(local=("127.0.0.1", 0))
    ports = SourcePorts(SystemNetwork(), (sockets.AF_INET, ("127.0.0.1", 1)), source, 100)  # type: ignore[arg-type]
    assert ports.reserve(3)
    for port in ports.ports:
        for host in ("127.0.0.1", "0.0.0.0"):
            with sockets.socket() as sock:
                sock.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="in use"):
                    sock.bind((host, port))
    ports.close()

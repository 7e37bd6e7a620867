"""Source ports: ports that no other program uses while a packet filter admits them.

Each is bound before the filter admits it and until after the filter no longer does: what a connection leaves
behind when it ends is held. They follow one another as far as they are free, so the filter has few ranges.
"""

from __future__ import annotations

import contextlib
import math
import random
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from loadgen.base.errors import UsageError
from loadgen.transport.network import Network, Socket
from loadgen.transport.ring.packet_filter import MOST_RANGES
from loadgen.transport.ring.packet_ring import Address, SegmentSource, find_local_address

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_RANGE = (32768, 60999)
_LEAST_MORE, _MOST_MORE = 64, 4096  # ports that are added once all are used
_FEW_RANGES = 128  # Linux before 6.9 has room for some 150 in a filter (net.core.optmem_max)
_LEAST_HELD = 256  # sockets: with fewer it is not worth a new filter to close them


class SourcePorts:
    """Sockets bound to ports that the source admits; `most_files` is how many may be open at once."""

    def __init__(
        self, network: Network, server: tuple[int, Address], source: SegmentSource, most_files: int
    ) -> None:
        self.network, self.source = network, source
        self.family, (_, self._servers_port, *_) = server
        self.most_files = most_files
        self.local: Address = source.local
        self.ports: set[int] = set()
        self._unused: deque[tuple[Socket, int]] = deque()
        self._held: dict[int, Socket] = {}  # of connections that ended, by port
        self._enough = _LEAST_HELD  # held: then they are let go
        self._closed = False

    def reserve(self, count: int) -> bool:
        """Make `count` more ports ours; False where not enough are free, or allowed."""
        if len(self.ports) + count > self.most_files:
            return False
        sockets = self._bind_ports(count)
        if sockets is None and not self.ports and str(self.local[0]).startswith("127."):
            # All of 127.0.0.0/8 is this machine: an address that no one else uses has all its ports.
            own = (random.randint(1, 254) for _ in range(3))  # nosec B311
            self.local = (".".join(map(str, (127, *own))), *self.local[1:])
            sockets = self._bind_ports(count)
        if sockets is None:
            return False
        if not self._admit(self.ports.union(port for _, port in sockets)):
            _close_sockets(sockets)
            return False
        self._unused += sockets
        self._enough = max(self._enough, len(self.ports) // 4)
        return True

    def take(self) -> tuple[Socket, int] | None:
        """A socket that is bound to one of our ports, and the port; None where there is none to be had."""
        if not self._unused:
            more = min(max(len(self.ports) // 4, _LEAST_MORE), _MOST_MORE)
            if not self.reserve(more):
                self._release()
                if not self.reserve(more):
                    return None
        return self._unused.popleft()

    def end_connection(self, sock: Socket, port: int) -> None:
        """End a connection; its port is held until the filter no longer admits it."""
        if self._closed:
            sock.close()
            return
        with contextlib.suppress(OSError):  # not connected any more
            sock.shutdown(socket.SHUT_RDWR)
        self._held[port] = sock
        if len(self._held) >= self._enough:
            self._release()

    def _release(self) -> None:
        """Let go of the ports that are held, the filter first; as many as leave it few ranges."""
        spare = _FEW_RANGES - sum(1 for _ in _split_into_ranges(sorted(self.ports)))
        gone: list[int] = []
        for run in sorted(
            _split_into_ranges(sorted(self._held)), key=lambda run: (self._divides(run), -len(run))
        ):
            if spare < self._divides(run) and self._divides(run) > 0:
                break
            spare -= self._divides(run)
            gone += run
        if self._admit(self.ports.difference(gone)):
            for port in gone:
                self._held.pop(port).close()
        self._enough = len(self._held) + max(_LEAST_HELD, len(self.ports) // 4)

    def _divides(self, run: range) -> int:
        """How many ranges there are more without a run of ports: -1 to 1."""
        return (run.start - 1 in self.ports) + (run.stop in self.ports) - 1

    def close(self) -> None:
        """Close what is unused or held, once no packet is taken any more; the others close at their end."""
        self._closed = True
        _close_sockets([*self._unused, *((sock, port) for port, sock in self._held.items())])

    def _admit(self, ports: set[int]) -> bool:
        """Make these ports ours; False where the kernel has no room for the filter."""
        try:
            self.source.admit(str(self.local[0]), [*_split_into_ranges(sorted(ports))])
        except OSError:
            return False
        self.ports = ports
        return True

    def _bind_ports(self, count: int) -> list[tuple[Socket, int]] | None:
        """Free ports, each bound, from a random one on; None where there are too few, or too scattered."""
        low, high = read_local_ports()
        size = high - low + 1
        first, sockets = random.randrange(size), []  # nosec B311
        with contextlib.suppress(OSError):  # as many files are open as may be
            for i in range(size):
                port = low + (first + i) % size
                # A connection from the server's own port is one to itself where no server listens.
                sock = None if port in self.ports or port == self._servers_port else self._bind_port(port)
                if sock is not None:
                    sockets.append((sock, port))
                if len(sockets) == count:
                    break
        scattered = sum(1 for _ in _split_into_ranges(sorted({*self.ports, *(port for _, port in sockets)})))
        if len(sockets) == count and scattered <= MOST_RANGES:
            return sockets
        _close_sockets(sockets)
        return None

    def _bind_port(self, port: int) -> Socket | None:
        """A socket at a port, if it is free: no one else can have it then, as no reuse is allowed."""
        sock = self.network.socket(self.family)
        try:
            sock.bind((self.local[0], port, *self.local[2:]))
        except OSError:
            sock.close()
            return None
        return sock


def _close_sockets(found: Iterable[tuple[Socket, int]]) -> None:
    for sock, _ in found:
        sock.close()


def _split_into_ranges(ports: list[int]) -> Iterator[range]:
    """Yield each run of consecutive ports as a range; `ports` ascend."""
    begin = 0
    for i, port in enumerate(ports, 1):
        if i == len(ports) or ports[i] != port + 1:
            yield range(ports[begin], port + 1)
            begin = i


def read_local_ports() -> tuple[int, int]:
    """The first and last port that this machine gives to connections."""
    try:
        low, high = map(int, _RANGE.read_text("ascii").split())
    except (OSError, ValueError):
        return _USUAL_RANGE
    return low, high


_RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_LISTENS, _TIME_WAIT = "0A", "06"
_WIDEST = 65535 - 1024 + 1
_MOST_LOOPBACK = 254
_SPARE = 64  # ports of an address: others connect as well


class PortRange(msgspec.Struct, frozen=True):
    """The ports that this machine gives to connections."""

    low: int
    high: int
    reserved: frozenset[int] = frozenset()

    @classmethod
    def read(cls) -> PortRange:
        """This machine's."""
        low, high = read_local_ports()
        return cls(low, high, frozenset(port for port in _read_reserved_ports() if low <= port <= high))

    @property
    def count(self) -> int:
        return self.high - self.low + 1 - len(self.reserved)


class SourcePlan(msgspec.Struct, frozen=True):
    """Which addresses of ours the connections to one server come from; none: the kernel chooses."""

    addresses: tuple[str, ...] = ()
    why: str = ""  # in words; "" where there are none, or they were given


def check_addresses(addresses: Sequence[str], family: int) -> None:
    """Raises UsageError for an address that is not one of this machine's, or not of the server's family."""
    kind = "an IPv4 address" if family == socket.AF_INET else "an IPv6 address"
    for address in addresses:
        try:
            socket.inet_pton(family, address)
        except (OSError, ValueError):
            raise UsageError(
                f"--source-address {address}: the server has {kind}: give one of those"
            ) from None
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            try:
                sock.bind((address, 0))
            except OSError as error:
                raise UsageError(
                    f"--source-address {address} is not one of this machine's: {error.strerror}; "
                    "`ip address` lists them"
                ) from None


def choose_sources(
    server: tuple[int, Address],
    connections: int,
    given: Sequence[str] = (),
    ports: PortRange | None = None,
    occupied: Callable[[int, str, Address], Iterable[int]] | None = None,
) -> SourcePlan:
    """From which addresses the connections to a server come, each with ports for its part.

    Raises UsageError where they have too few ports, with what to do.
    """
    ports, occupied = ports or PortRange.read(), occupied or list_used_ports
    family, address = server
    if not given and connections <= ports.count // 2:
        return SourcePlan()  # not looked at closely: looking takes time where there are many connections
    loopback = family == socket.AF_INET and str(address[0]).startswith("127.")
    names = given or (_list_loopback() if loopback else [str(find_local_address(family, address)[0])])
    free, used = 0, []
    for name in names:
        taken = len({port for port in occupied(family, name, address) if _has_port(ports, port)})
        free += max(ports.count - taken - _SPARE, 0)
        used.append(name)
        if not given and free >= connections:
            break
    if free < connections:
        raise UsageError(_explain_shortage(connections, free, used, ports, address))
    if given or len(used) == 1:
        return SourcePlan(tuple(given))
    return SourcePlan(
        tuple(used),
        f"{connections} connections come from {len(used)} addresses, {used[0]} to {used[-1]}: "
        f"one has {ports.count} ports for each server",
    )


def list_used_ports(family: int, source: str, server: Address) -> Iterable[int]:
    """The local ports of an address that cannot connect to a server now: connected, closing, or listened on.

    As /proc/net/tcp has them; none where it cannot be read. On loopback a connection that is only in
    TIME_WAIT is replaced after a second (net.ipv4.tcp_tw_reuse).
    """
    replaced = _TIME_WAIT if source.startswith("127.") else ""
    packed = _pack_address(family, source)
    anywhere = "0" * len(packed)
    peer = f"{_pack_address(family, str(server[0]))}:{int(server[1]):04X}"
    try:
        with _TABLES[socket.AddressFamily(family)].open("r", encoding="ascii") as lines:
            next(lines, "")
            for line in lines:
                _, local, remote, state, *_ = line.split(maxsplit=4)
                host, _, port = local.partition(":")
                if state == replaced:
                    continue
                if (host == packed and remote == peer) or (state == _LISTENS and host in (packed, anywhere)):
                    yield int(port, 16)
    except (OSError, KeyError):
        return


def _pack_address(family: int, address: str) -> str:
    """An address as /proc/net/tcp writes it: words of 32 bits, each in this machine's order of bytes."""
    data = socket.inet_pton(family, address.partition("%")[0])
    return "".join(
        f"{int.from_bytes(struct.pack('4B', *data[at : at + 4]), sys.byteorder):08X}"
        for at in range(0, len(data), 4)
    )


def _list_loopback() -> list[str]:
    return [f"127.0.0.{last}" for last in range(1, _MOST_LOOPBACK + 1)]


def _has_port(ports: PortRange, port: int) -> bool:
    return ports.low <= port <= ports.high and port not in ports.reserved


def _explain_shortage(
    connections: int, free: int, addresses: Sequence[str], ports: PortRange, server: Address
) -> str:
    """Why connections cannot be made, and what to do."""
    named = addresses[0] if len(addresses) == 1 else f"{len(addresses)} addresses"
    need = math.ceil(connections / max(ports.count - _SPARE, 1))
    wider = ""
    if connections <= len(addresses) * (_WIDEST - _SPARE):
        wider = ", or widen the range: sysctl -w net.ipv4.ip_local_port_range='1024 65535'"
    busy = len(addresses) * (ports.count - _SPARE) - free
    waits = (
        f", {busy} are in use (those of closed connections for a minute)" if busy > ports.count // 50 else ""
    )
    return (
        f"{connections} connections to {server[0]} port {server[1]} need as many source ports, and {named} "
        f"{'has' if len(addresses) == 1 else 'have'} {free} free (net.ipv4.ip_local_port_range is "
        f"{ports.low} to {ports.high}{waits}): pass {need} addresses of this machine with "
        f"--source-address A,B,…{wider}, or lower --max-concurrency"
    )


def _read_reserved_ports() -> Iterable[int]:
    """The ports that are kept out of that range, written as 8080,9000-9010."""
    try:
        parts = _RESERVED.read_text("ascii").strip().split(",")
        for part in filter(None, parts):
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)
    except (OSError, ValueError):
        return

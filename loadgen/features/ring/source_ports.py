"""Source ports: ports that no other program uses while a packet filter admits them.

Each is bound before the filter admits it and until after the filter no longer does: what a connection leaves
behind when it ends is held. They follow one another as far as they are free, so the filter has few ranges.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections import deque
from collections.abc import Iterable, Iterator

from loadgen.features.ring.packet_filter import MOST_RANGES
from loadgen.features.ring.packet_ring import PacketRing
from loadgen.transport.network import Network, Socket
from loadgen.transport.source_addresses import Address, read_local_ports

_LEAST_MORE, _MOST_MORE = 64, 4096  # ports that are added once all are used
_FEW_RANGES = 128  # Linux before 6.9 has room for some 150 in a filter (net.core.optmem_max)
_LEAST_HELD = 256  # sockets: with fewer it is not worth a new filter to close them


class SourcePorts:
    """Local ports reserved for our connections, each bound to a socket; at most `most_files` open."""

    def __init__(
        self, network: Network, server: tuple[int, Address], source: PacketRing, most_files: int
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
        """Reserve `count` more ports; False if not enough are free, or allowed.

        The first time on loopback, `local` becomes another 127.* address if its own has too few.
        """
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
        """Take a bound socket and its port, reserving more ports if all are used; None if that fails."""
        if not self._unused:
            more = min(max(len(self.ports) // 4, _LEAST_MORE), _MOST_MORE)
            if not self.reserve(more):
                self._release()
                if not self.reserve(more):
                    return None
        return self._unused.popleft()

    def end_connection(self, sock: Socket, port: int) -> None:
        """Close a connection, holding its port until the filter no longer admits it."""
        if self._closed:
            sock.close()
            return
        with contextlib.suppress(OSError):  # not connected any more
            sock.shutdown(socket.SHUT_RDWR)
        self._held[port] = sock
        if len(self._held) >= self._enough:
            self._release()

    def _release(self) -> None:
        """Release held ports, after removing them from the filter, keeping the filter's ranges few."""
        spare = _FEW_RANGES - sum(1 for _ in _split_into_ranges(sorted(self.ports)))
        gone: list[int] = []
        for run in sorted(
            _split_into_ranges(sorted(self._held)), key=lambda run: (self._count_splits(run), -len(run))
        ):
            if spare < self._count_splits(run) and self._count_splits(run) > 0:
                break
            spare -= self._count_splits(run)
            gone += run
        if self._admit(self.ports.difference(gone)):
            for port in gone:
                self._held.pop(port).close()
        self._enough = len(self._held) + max(_LEAST_HELD, len(self.ports) // 4)

    def _count_splits(self, run: range) -> int:
        """Return by how many ranges the filter grows without a run of ports: -1 to 1."""
        return (run.start - 1 in self.ports) + (run.stop in self.ports) - 1

    def close(self) -> None:
        """Release unused and held ports after capturing has ended; others go with their connections."""
        self._closed = True
        _close_sockets([*self._unused, *((sock, port) for port, sock in self._held.items())])

    def _admit(self, ports: set[int]) -> bool:
        """Have the filter admit these ports; False if the kernel has no space for it."""
        try:
            self.source.admit(str(self.local[0]), [*_split_into_ranges(sorted(ports))])
        except OSError:
            return False
        self.ports = ports
        return True

    def _bind_ports(self, count: int) -> list[tuple[Socket, int]] | None:
        """Bind `count` free ports from a random one on; None if there are too few, or too scattered."""
        low, high = read_local_ports()
        size = high - low + 1
        first, sockets = random.randrange(size), []  # nosec B311
        with contextlib.suppress(OSError):  # as many files are open as may be
            for i in range(size):
                port = low + (first + i) % size
                # A connection from the server's own port is one to itself where no server listens.
                if port in self.ports or port == self._servers_port:
                    continue
                sock = self.network.socket(self.family)
                try:  # without reuse: no other program can take the port then
                    sock.bind((self.local[0], port, *self.local[2:]))
                except OSError:
                    sock.close()
                else:
                    sockets.append((sock, port))
                if len(sockets) == count:
                    break
        scattered = sum(1 for _ in _split_into_ranges(sorted({*self.ports, *(port for _, port in sockets)})))
        if len(sockets) == count and scattered <= MOST_RANGES:
            return sockets
        _close_sockets(sockets)
        return None


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

"""Packet ring: a packet socket's memory, in which the kernel notes time and sequence number of every segment.

TPACKET_V2, not V3: a V3 block is handed over when it is full or a timer of whole milliseconds (of jiffies
before Linux 6.18) runs out, so the end of a response would be seen late, and blocks that the timer closed
nearly empty use up the ring while this process waits for a core. Here each segment is seen at once, and
frames lie a fixed distance apart, so numpy reads any number of them without a walk.

Its source ports are bound before the packet filter admits them, and until after it no longer does: what a
connection leaves behind when it ends is held, and no other program uses them. They follow one another as far
as they are free, so that the filter has few ranges.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import select
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.features.ring.packet_filter import HEADERS, MOST_RANGES, Headers, build_program
from loadgen.transport.network import Network, Poller, Socket
from loadgen.transport.source_addresses import Address, find_local_address, read_local_ports
from loadgen.transport.tcp_connection import SO_TIMESTAMPNS

_SOL_PACKET, _PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION, _PACKET_IGNORE_OUTGOING = 263, 5, 6, 10, 23
_SO_ATTACH_FILTER = 26
_TPACKET_V2 = 1
_USER, _LOSING = 1, 4  # bits of a frame's status: ours to read; segments were dropped before
_DATA = 80  # where the packet begins in a frame: after tpacket2_hdr, sockaddr_ll and what aligns them
_BLOCK_BYTES = 1 << 16
_A_STREAM = 256  # frames: as many tokens fit in while this process does not run
_FEWEST, _MOST = 1 << 13, 1 << 18  # frames
_FIRST_LOOK = 64  # frames; then as many again, for as long as all are there
_STATISTICS = struct.Struct("II")
_SOCKADDR = struct.Struct("=HHiHBB8s")


Frames = NDArray[np.void]  # with the fields of `frame_type`


def make_frame_type(headers: Headers, frame_bytes: int) -> np.dtype[np.void]:
    """Make the type of a frame: struct tpacket2_hdr, and parts of the headers of IP and TCP (V: bytes).

    `header` holds tp_len, tp_snaplen, tp_mac, tp_net, tp_sec and tp_nsec; `tcp` the first 32 bytes, of which
    `kept` says how many are this segment's.
    """
    ip, tcp = _DATA, _DATA + headers.size
    fields = {
        "status": ("<u4", 0),
        "header": ("V20", 4),
        "kept": ("<u4", 8),
        "ip_length": ("V2", ip + headers.length),
        "tcp": ("V32", tcp),
        "port": (">u2", tcp + 2),  # ours
    }
    formats, offsets = zip(*fields.values(), strict=True)
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": frame_bytes})


class PacketRing:
    """A packet socket with a memory ring that captures the segments of some connections to servers.

    Raises OSError where the kernel refuses the socket (no CAP_NET_RAW, seccomp) or the memory.
    """

    def __init__(self, family: int, servers: Sequence[Address], streams: int) -> None:
        self.family, self.servers = family, [(str(host), int(port)) for host, port, *_ in servers]
        if any(host.startswith("::ffff:") for host, _ in self.servers):
            raise OSError(f"{self.servers[0][0]} is an IPv4 address in IPv6's form")
        self.local = find_local_address(family, servers[0])
        self.headers = HEADERS[socket.AddressFamily(family)]
        self.bound = False
        frame_bytes = 256  # the least power of two with room for TCP's timestamps
        frames = 1 << min(max(streams * _A_STREAM, _FEWEST), _MOST).bit_length() - 1
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)  # of no protocol: it gets nothing
        try:
            self._map(frame_bytes, frames)
        except OSError:
            self.sock.close()
            raise
        self.frames = np.frombuffer(self.memory, make_frame_type(self.headers, frame_bytes))
        self.status = self.frames["status"]
        self._words, self._stride = memoryview(self.memory).cast("I"), frame_bytes // 4
        self.next = self.taken = 0  # frame to read; how many before it are read, and still ours
        self.lost = 0
        self._many = frames // 4  # taken at once: a ring that is full has more on one side of its end
        self._sleep: select.poll | None = None

    def _map(self, frame_bytes: int, frames: int) -> None:
        """Set the socket's options and map its ring into `memory`; raises OSError."""
        sock, size = self.sock, frame_bytes * frames
        sock.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
        sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        # Otherwise the timestamp says when the kernel came to the packet, which may have waited for a core.
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        ring = struct.pack("4I", _BLOCK_BYTES, size // _BLOCK_BYTES, frame_bytes, frames)
        sock.setsockopt(_SOL_PACKET, _PACKET_RX_RING, ring)
        self.memory = mmap.mmap(sock.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def admit(self, local: str, ports: Sequence[range]) -> None:
        """Capture only the segments to these ports of a local address from now on; raises OSError."""
        code = build_program(self.family, self.servers, local, ports)
        held = ctypes.create_string_buffer(code, len(code))
        attached = struct.pack("HL", len(code) // 8, ctypes.addressof(held))
        self.sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
        if not self.bound:
            # Any interface: it may come and go. And of one interface the packets would come after TCP had
            # handled them, with later timestamps.
            protocol = socket.htons(self.headers.protocol)
            # A system call binds: Python's `bind` cannot name "any interface" (0).
            address = _SOCKADDR.pack(socket.AF_PACKET, protocol, 0, 0, 0, 0, b"")
            if ctypes.CDLL(None, use_errno=True).bind(self.sock.fileno(), address, len(address)):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            self.bound = True

    def take(self) -> Frames | None:
        """Return new segments, up to the ring's end, valid until the next call; None if there are none."""
        if self.taken:  # the kernel's again
            self.status[self.next - self.taken : self.next] = 0
            if self.taken > self._many:  # it may have been full, and no frame since then says so
                self.lost += self._read_drops()
            self.next, self.taken = self.next % len(self.frames), 0
        begin = self.next
        if not self._words[begin * self._stride] & _USER:
            return None
        look = _FIRST_LOOK
        while True:
            ready = self.status[begin : begin + look] & _USER
            count = int(ready.argmin())
            if not ready[count]:
                break
            count = len(ready)
            if count < look:  # at the ring's end
                break
            look *= 4
        self.next, self.taken = begin + count, count
        if self._words[(self.next - 1) * self._stride] & _LOSING:
            self.lost += self._read_drops()
        return self.frames[begin : begin + count]

    def wait(self, poller: Poller, timeout_s: float) -> None:
        """Sleep until a segment comes, an event of the poller, or the timeout.

        The ring is watched only while this sleeps: to report each segment would cost whichever process sends
        it.
        """
        if self._sleep is None:
            self._sleep = select.poll()
            self._sleep.register(self.sock.fileno(), select.POLLIN)
            self._sleep.register(poller.fileno(), select.POLLIN)
        self._sleep.poll(timeout_s * 1000)

    def drops(self) -> int:
        """Return how many segments were noted as lost for lack of space since the last call."""
        lost, self.lost = self.lost, 0
        return lost

    def _read_drops(self) -> int:
        """Read and reset the kernel's count of drops, which until then marks every frame."""
        kept = self.sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
        return int(_STATISTICS.unpack(kept)[1])

    def close(self) -> None:
        """Close the socket; the memory is freed with the last array that refers to it."""
        self.lost += self._read_drops()
        self.sock.close()


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

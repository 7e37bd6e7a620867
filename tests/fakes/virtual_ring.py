"""A packet ring without a kernel: a virtual network's segments, as the real filter lets them pass."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fakes.packet_filters import ACK, SYN, packet, passed
from loadgen.features.ring.packet_filter import HEADERS, build_program
from loadgen.features.ring.packet_ring import Frames, PacketRing, make_frame_type
from loadgen.transport.network import Poller
from loadgen.transport.source_addresses import Address

if TYPE_CHECKING:
    from fakes.virtual_network import VirtualServer

FRAME_BYTES, _DATA = 256, 80
_LONGEST = 60000  # bytes of payload: as after GRO
_HEADER = struct.Struct("<IIIHHII")  # struct tpacket2_hdr
NEAR_THE_END = (1 << 32) - 100  # sequence numbers of most connections wrap


def frame(data: bytes, kept: int, wall_ns: int) -> bytes:
    """A frame of the ring with a packet, of which so many bytes are kept."""
    header = _HEADER.pack(1, len(data), kept, _DATA, _DATA, *divmod(wall_ns, 1_000_000_000))
    return (header.ljust(_DATA, b"\0") + data[:kept]).ljust(FRAME_BYTES, b"\0")


def frames(whole: Sequence[bytes]) -> Frames:
    """Frames as they are taken from the ring."""
    return np.frombuffer(b"".join(whole), make_frame_type(HEADERS[socket.AF_INET], FRAME_BYTES))


class VirtualRing(PacketRing):
    """A source of segments; `room` is how many it has room for."""

    headers = HEADERS[socket.AF_INET]
    local: Address = ("127.0.0.1", 0)

    def __init__(self, server: VirtualServer, room: int = 1 << 20) -> None:
        self.server, self.room = server, room
        self.program = b""
        self.waiting: list[bytes] = []
        self.lost = 0
        self.closed = False
        server.tap = self.see

    def admit(self, local: str, ports: Sequence[range]) -> None:
        """Take segments to these ports of a local address, and no others."""
        self.program = build_program(socket.AF_INET, [self.server.address], local, ports)

    def see(
        self,
        port: int,
        seq: int,
        payload: bytes,
        opens: bool = False,
        timestamps: tuple[int, int] | None = None,
    ) -> None:
        """A piece of a connection, or its begin, comes to a port of the client's."""
        for begin in range(0, max(len(payload), 1), _LONGEST):
            part, flags = payload[begin : begin + _LONGEST], SYN | ACK if opens else ACK
            to = ("127.0.0.1", port)
            self._see(packet(self.server.address, to, part, seq + begin, flags, timestamps=timestamps))

    def _see(self, data: bytes) -> None:
        kept = passed(self.program, data) if self.program else 0
        if not kept or self.closed:
            return
        if len(self.waiting) >= self.room:
            self.lost += 1
            return
        self.waiting.append(frame(data, kept, self.server.time.wall_ns()))

    def take(self) -> Frames | None:
        """The segments that came since."""
        if not self.waiting:
            return None
        taken = frames(self.waiting)
        self.waiting.clear()
        return taken

    def wait(self, poller: Poller, timeout_s: float) -> None:
        """Let time pass until a segment comes, or something happened on a socket."""
        time, events = self.server.time, self.server.poller()
        until_ns = time.ns + round(timeout_s * 1e9)
        while not self.waiting and not events.pending() and time.step(until_ns):
            pass

    def drops(self) -> int:
        """How many segments were lost since this was last asked."""
        lost, self.lost = self.lost, 0
        return lost

    def close(self) -> None:
        """Take none any more."""
        self.closed = True

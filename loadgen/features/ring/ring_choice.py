"""Ring choice: when a run takes the packet ring, which the machine must permit and a proxy prevents."""

from __future__ import annotations

import socket
from functools import cache
from threading import Thread

from loadgen.base.errors import UsageError
from loadgen.base.text import format_count
from loadgen.base.urls import find_proxy
from loadgen.transport.sending.job import Target, TransportChoice, TransportKind
from loadgen.transport.source_addresses import find_local_address, read_outgoing_ports

_MANY = 64  # streams, from which on reading every token costs more than a ring does
_PORTS_SHARE = 0.9  # of an address's ports that a ring may well get
_HELD_FILES = 512


class RingKind(TransportKind, frozen=True):
    """The transport whose arrivals are the segments of a packet ring."""

    def explain_missing_right(self) -> str:
        return explain_refusal()

    def choose(self, target: Target, streams: int, asked: bool) -> TransportChoice:
        """Choose the ring if it can be had and is `asked`, the server is here, or there are 64 streams.

        Else choose the wire transport, with the reason. Raises UsageError if it is asked and a proxy is in
        between.
        """
        proxy = find_proxy(target.scheme, target.host)
        if proxy:
            proxy = f"{proxy} applies to {target.host}, and a ring sees the server's own packets"
            if asked:
                raise UsageError(
                    f"--transport ring: {proxy}: add the host to NO_PROXY, or use --transport httpx"
                )
        if why_not := self.explain_missing_right() or proxy:
            return TransportChoice("wire", f"not ring: {why_not}")
        if asked:
            return TransportChoice(self.name)
        if is_on_this_machine(target):
            return TransportChoice(self.name, "client and server share this machine")
        if streams >= _MANY:
            return TransportChoice(self.name, format_count(streams, "stream"))
        return TransportChoice("wire", "few streams, and a server on another machine")

    def has_own_ports(self, target: Target, connections: int) -> bool:
        """Whether the server is on loopback and `connections` fit in 90 % of the ports of an address."""
        loopback = str(target.address[1][0]).startswith("127.")
        return loopback and connections <= _PORTS_SHARE * len(read_outgoing_ports())

    def count_held_files(self, slots: int) -> int:
        """Count the files that a ring needs for ports of ended connections, which it holds a while."""
        return slots // 2 + _HELD_FILES


@cache
def explain_refusal() -> str:
    """Return why no packet socket can be opened, and what to grant; "" if one can. The result is cached."""
    if not hasattr(socket, "AF_PACKET"):
        return "packet sockets are Linux's"
    try:
        tried = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    except PermissionError:
        return "packet sockets need CAP_NET_RAW (run as root, or docker run --cap-add NET_RAW)"
    except OSError as error:
        return f"packet sockets are not available here ({error.strerror})"
    # The kernel takes 10 ms and more to close one, as it waits for every CPU.
    Thread(target=tried.close, name="close", daemon=True).start()
    return ""


def is_on_this_machine(target: Target) -> bool:
    """Whether the server is on this machine: a socket to it has the server's own address."""
    family, address = target.address
    try:
        return find_local_address(family, address)[0] == address[0]
    except OSError:
        return False


RING = RingKind(
    "ring",
    privileged=True,
    one_address="a ring has the ports of one address, and --source-address was given",
)

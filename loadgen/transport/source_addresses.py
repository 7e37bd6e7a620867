"""Source addresses: which addresses of this machine connections come from, where one has too few ports."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from pathlib import Path

from loadgen.base.errors import UsageError

Address = tuple[str | int, ...]  # sockaddr
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_RANGE = (32768, 60999)
_RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_ANYWHERE = ("0.0.0.0", "::")  # nosec B104 # addresses at which a program listens on all
_WIDEST = 65535 - 1024 + 1
_MOST_LOOPBACK = 254
_SPARE = 64  # ports of an address: others connect as well


def read_local_ports() -> tuple[int, int]:
    """Read the first and last port that this machine gives to outgoing connections, else Linux's usual."""
    try:
        low, high = map(int, _RANGE.read_text("ascii").split())
    except (OSError, ValueError):
        return _USUAL_RANGE
    return low, high


def read_outgoing_ports() -> frozenset[int]:
    """Read the ports that this machine gives to outgoing connections, without those that it reserves."""
    (low, high), reserved = read_local_ports(), set[int]()
    with suppress(OSError, ValueError):  # as 8080,9000-9010
        for part in filter(None, _RESERVED.read_text("ascii").strip().split(",")):
            first, _, last = part.partition("-")
            reserved.update(range(int(first), int(last or first) + 1))
    return frozenset(range(low, high + 1)) - reserved


def check_addresses(addresses: Sequence[str], family: int) -> None:
    """Raise UsageError for an address that is not this machine's, or not of the server's family."""
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


def plan_sources(
    server: tuple[int, Address],
    connections: int,
    given: Sequence[str] = (),
    ports: Set[int] = frozenset(),
    occupied: Callable[[int, str, Address], Iterable[int]] | None = None,
) -> tuple[tuple[str, ...], str]:
    """Choose the local addresses for connections to a server, and say why; none if half the ports suffice.

    Without any the kernel chooses. To a server at 127.* as many of 127.0.0.1 to .254 as are needed, else the
    given ones or the one of the route. Raises UsageError where they have too few free ports, with what to do.
    """
    ports, occupied = ports or read_outgoing_ports(), occupied or list_used_ports
    family, address = server
    if not given and connections <= len(ports) // 2:
        return (), ""  # not looked at closely: looking takes time where there are many connections
    loopback = family == socket.AF_INET and str(address[0]).startswith("127.")
    own = map("127.0.0.{}".format, range(1, _MOST_LOOPBACK + 1))
    names = given or (own if loopback else [str(find_local_address(family, address)[0])])
    free, used = 0, []
    for name in names:
        taken = len({port for port in occupied(family, name, address) if port in ports})
        free += max(len(ports) - taken - _SPARE, 0)
        used.append(name)
        if not given and free >= connections:
            break
    if free < connections:
        raise UsageError(_explain_shortage(connections, free, used, ports, address))
    if given or len(used) == 1:
        return tuple(given), ""
    return (
        tuple(used),
        f"{connections} connections come from {len(used)} addresses, {used[0]} to {used[-1]}: "
        f"one has {len(ports)} ports for each server",
    )


def list_used_ports(family: int, source: str, server: Address) -> Iterable[int]:
    """Yield the local ports of address `source` that cannot connect to a server now: in use or closing.

    Nothing where the kernel does not show its connections. From 127.* those in TIME_WAIT are left out, since
    Linux by default reuses them after a second (the setting tcp_tw_reuse is not read); from ::1 they are not.
    """
    import psutil  # only runs of many connections look

    replaced = psutil.CONN_TIME_WAIT if source.startswith("127.") else ""
    own, peer = source.partition("%")[0], (str(server[0]).partition("%")[0], server[1])
    with suppress(OSError, psutil.Error):
        for each in psutil.net_connections("tcp4" if family == socket.AF_INET else "tcp6"):
            ip, port = each.laddr or ("", 0)
            is_listening = each.status == psutil.CONN_LISTEN and ip in (own, *_ANYWHERE)
            is_connected = each.raddr == peer and ip == own and each.status != replaced
            if is_listening or is_connected:
                yield port


def _explain_shortage(
    connections: int, free: int, addresses: Sequence[str], ports: Set[int], server: Address
) -> str:
    """Explain that there are too few ports for the connections, and what to do."""
    named = addresses[0] if len(addresses) == 1 else f"{len(addresses)} addresses"
    need = math.ceil(connections / max(len(ports) - _SPARE, 1))
    wider = ""
    if connections <= len(addresses) * (_WIDEST - _SPARE):
        wider = ", or widen the range: sysctl -w net.ipv4.ip_local_port_range='1024 65535'"
    busy = len(addresses) * (len(ports) - _SPARE) - free
    waits = (
        f", {busy} are in use (those of closed connections for a minute)" if busy > len(ports) // 50 else ""
    )
    return (
        f"{connections} connections to {server[0]} port {server[1]} need as many source ports, and {named} "
        f"{'has' if len(addresses) == 1 else 'have'} {free} free (net.ipv4.ip_local_port_range is "
        f"{min(ports)} to {max(ports)}{waits}): pass {need} addresses of this machine with "
        f"--source-address A,B,…{wider}, or lower --max-concurrency"
    )


def find_local_address(family: int, server: Address) -> Address:
    """Return the local address of a connection to a server; raises OSError if there is no route."""
    with socket.socket(family, socket.SOCK_DGRAM) as unsent:  # connected, it is given a route
        unsent.connect(server)
        address: Address = unsent.getsockname()
        return address

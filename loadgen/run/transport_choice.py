"""Transport choice: how requests are sent and arrivals timed where `--transport` leaves it open, and why."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.text import format_count
from loadgen.base.urls import is_loopback
from loadgen.transport.capture_process import DEFAULT_TRANSPORT, TRANSPORTS
from loadgen.transport.ring import source_ports
from loadgen.transport.ring.packet_ring import explain_refusal, find_local_address
from loadgen.transport.sending.job import Target

if TYPE_CHECKING:
    from loadgen.plan.plan import Plan
    from loadgen.run.command.options import Options

_AUTO = "auto"
_MANY = 64  # streams, from which on reading every token costs more than a ring does
_RING_SHARE = 0.9  # of an address's ports that a ring may well get
_PROXIES = ("all_proxy", "http_proxy", "https_proxy")


class TransportChoice(msgspec.Struct, frozen=True):
    """A transport of `TRANSPORTS`, and why it is this one; "" where it was asked for."""

    name: str
    why: str = ""


def check_transport(asked: str | None) -> str:
    """Explain what is used instead of the transport asked for, and what to grant; "" where it can be had.

    Raises UsageError where the platform has none.
    """
    if asked in ("wire", "ring") and DEFAULT_TRANSPORT != "wire":
        raise UsageError(f"--transport {asked} needs Linux: use --transport httpx here")
    why = explain_refusal() if asked == "ring" else ""
    return why and f"--transport ring: {why}: wire is used instead"


def likely_transport(asked: str | None) -> str:
    """The transport that was asked for, or else the platform's usual one."""
    return DEFAULT_TRANSPORT if asked in (None, _AUTO) else asked


def list_runnable() -> tuple[tuple[str, ...], str]:
    """The transports that run on this machine, and why the ring does not; "" where it does."""
    why_not = explain_refusal()
    return tuple(name for name in TRANSPORTS if not (why_not and name == "ring")), why_not


def choose_transport(asked: str | None, target: Target, streams: int) -> TransportChoice:
    """The transport for about N streams; raises UsageError for a ring where a proxy is in between."""
    check_transport(asked)
    if asked not in (None, _AUTO, "ring"):
        return TransportChoice(asked)
    if DEFAULT_TRANSPORT != "wire":
        return TransportChoice(DEFAULT_TRANSPORT, "no other transport than httpx runs here")
    proxy = _proxy(target)
    if asked == "ring" and proxy:
        raise UsageError(f"--transport ring: {proxy}: add the host to NO_PROXY, or use --transport httpx")
    if why_not := explain_refusal() or proxy:
        return TransportChoice("wire", f"not ring: {why_not}")
    if asked == "ring":
        return TransportChoice("ring")
    if _is_on_this_machine(target):
        return TransportChoice("ring", "client and server share this machine")
    if streams >= _MANY:
        return TransportChoice("ring", f"{format_count(streams, 'stream')}")
    return TransportChoice("wire", "few streams, and a server on another machine")


def add_path(root: Target, made: Plan) -> Target:
    """Where the requests of a plan go on a server."""
    return replace(root, path=root.path.rstrip("/") + made.path)


def choose_for_plan(
    options: Options, targets: tuple[Target, ...], plan: Plan, warn: Callable[[str], None]
) -> tuple[TransportChoice, tuple[Target, ...]]:
    """The transport for a plan, and its targets with the addresses that their connections come from.

    Raises UsageError where there are too few of these, or as `choose` does.
    """
    choice = choose_transport(options.transport, targets[0], plan.streams)
    connections = math.ceil(plan.streams / len(targets))
    processes = max(options.workers // len(targets), 1)
    doubtful = warn if plan.profile.open_loop else None
    given = options.source_address
    found = [choose_sources(choice, target, connections, given, processes, doubtful) for target in targets]
    other = next((each for each, _ in found if each != choice), choice)
    return other, tuple(target for _, target in found)


def choose_sources(
    choice: TransportChoice,
    target: Target,
    connections: int,
    given: Sequence[str] = (),
    processes: int = 1,
    doubtful: Callable[[str], None] | None = None,
) -> tuple[TransportChoice, Target]:
    """The target with the addresses that its connections come from, and a transport that can use them.

    `connections` is how many there are at once, over all `processes`; with `doubtful`, of an open loop, that
    is an estimate: too few ports for it are a warning. Raises UsageError where they are too few, or an
    address that was given is not ours.
    """
    family, address = target.address
    if choice.name == "httpx" and (proxy := _proxy_variable(target)):
        if given:
            raise UsageError(f"--source-address: {proxy} applies to {target.host}: add it to NO_PROXY")
        return choice, target
    source_ports.check_addresses(given, family)
    # On loopback each ring has ports of its own: where 127.0.0.1 has none left, another address's.
    alone = choice.name == "ring" and not given and str(address[0]).startswith("127.")
    if alone and math.ceil(connections / processes) <= _RING_SHARE * source_ports.PortRange.read().count:
        return choice, target
    try:
        plan = source_ports.choose_sources(target.address, connections, given)
    except UsageError as error:
        if doubtful is None:
            raise
        doubtful(f"about {error}")
        return choice, replace(target, sources=tuple(given))
    if not plan.addresses:
        return choice, target
    why = plan.why or "a ring has the ports of one address, and --source-address was given"
    if choice.name == "ring":
        choice = TransportChoice("wire", f"not ring: {why}")
    elif plan.why:
        choice = replace(choice, why="; ".join(filter(None, (choice.why, plan.why))))
    return choice, replace(target, sources=plan.addresses)


def _is_on_this_machine(target: Target) -> bool:
    """Whether the server is on this machine: a socket to it has the server's own address."""
    family, address = target.address
    try:
        return find_local_address(family, address)[0] == address[0]
    except OSError:
        return False


def _proxy(target: Target) -> str:
    """Which proxy of the environment applies to the target, in words; "" where none does."""
    variable = _proxy_variable(target)
    return variable and f"{variable} applies to {target.host}, and a ring sees the server's own packets"


def _proxy_variable(target: Target) -> str:
    """The environment's variable whose proxy applies to the target; "" where none does."""
    named = any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)
    if not named or is_loopback(target.host):
        return ""
    from urllib.request import getproxies, proxy_bypass  # takes 30 ms, and is rarely asked

    proxies = getproxies()
    for scheme in (target.scheme, "all"):
        if scheme in proxies and not proxy_bypass(target.host):
            return f"{scheme}_proxy"
    return ""

"""Transport choice: how requests are sent and arrivals timed where `--transport` leaves it open, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.urls import find_proxy
from loadgen.plan.plan import Plan
from loadgen.run.command.options import Options
from loadgen.transport import source_addresses
from loadgen.transport.capture_process import DEFAULT_TRANSPORT, TRANSPORTS
from loadgen.transport.sending.job import Target, TransportChoice

_AUTO = "auto"


def check_transport(asked: str | None) -> str:
    """Explain that wire replaces an unavailable transport, and what to grant; "" if it is available or auto.

    Raises UsageError for one that needs Linux elsewhere.
    """
    if asked in (None, _AUTO):
        return ""
    kind = TRANSPORTS[asked]
    if kind.needs_epoll and not TRANSPORTS[DEFAULT_TRANSPORT].needs_epoll:
        raise UsageError(f"--transport {asked} needs Linux: use --transport {DEFAULT_TRANSPORT} here")
    why = kind.explain_missing_right()
    return why and f"--transport {asked}: {why}: wire is used instead"


def choose_transport(asked: str | None, target: Target, streams: int) -> TransportChoice:
    """Choose the requested transport, or else the first that suits about `streams` streams, and why.

    It is the platform's default if none does. Raises UsageError as `check_transport`, and for a ring behind a
    proxy.
    """
    check_transport(asked)
    if asked in (None, _AUTO) and not TRANSPORTS[DEFAULT_TRANSPORT].needs_epoll:
        return TransportChoice(DEFAULT_TRANSPORT, f"no other transport than {DEFAULT_TRANSPORT} runs here")
    kinds = (kind for name, kind in TRANSPORTS.items() if asked in (None, _AUTO, name))
    choices = (kind.choose(target, streams, asked == kind.name) for kind in kinds)
    return next(filter(None, choices), TransportChoice(DEFAULT_TRANSPORT))


def add_path(root: Target, made: Plan) -> Target:
    """Return the target with the path of a plan's requests."""
    return replace(root, path=root.path.rstrip("/") + made.path)


def choose_for_plan(
    options: Options, targets: tuple[Target, ...], plan: Plan, warn: Callable[[str], None]
) -> tuple[TransportChoice, tuple[Target, ...]]:
    """Choose the transport for a plan; return it and the targets, with the local addresses to connect from.

    Too few addresses raise UsageError, or in an open loop are warned of. Raises also as `choose_transport`.
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
    """Choose the target's local addresses; return the transport, wire if it cannot use them, and the target.

    The target is unchanged if httpx uses a proxy, or one address has ports enough. `connections` is how many
    there are at once, over all `processes`; `doubtful`, of an open loop where that is an estimate, is called
    with a warning of too few ports. Without it these raise UsageError, as an address that is not ours does.
    """
    kind = TRANSPORTS[choice.name]
    if kind.uses_httpx and (proxy := find_proxy(target.scheme, target.host)):
        if given:
            raise UsageError(f"--source-address: {proxy} applies to {target.host}: add it to NO_PROXY")
        return choice, target
    source_addresses.check_addresses(given, target.address[0])
    if not given and kind.has_own_ports(target, math.ceil(connections / processes)):
        return choice, target
    try:
        addresses, why = source_addresses.plan_sources(target.address, connections, given)
    except UsageError as error:
        if doubtful is None:
            raise
        doubtful(f"about {error}")
        return choice, replace(target, sources=tuple(given))
    if not addresses:
        return choice, target
    if kind.one_address:
        choice = TransportChoice("wire", f"not {kind.name}: {why or kind.one_address}")
    elif why:
        choice = replace(choice, why="; ".join(filter(None, (choice.why, why))))
    return choice, replace(target, sources=addresses)

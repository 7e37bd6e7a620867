"""Which server: the one that a command means where it names no address; the rule is each client's own.

A command that speaks of a server measures the one on vLLM's port, or on that of the client whose name of an
API it or its profile has. The embedded engine, which simulates, answers only where it is meant: by --preset,
or where nothing speaks of a server.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from loadgen.base.errors import UsageError
from loadgen.settings import backends
from loadgen.settings.table import TABLE

DEFAULT_URL = "http://127.0.0.1:8000"  # where `vllm serve` listens, and what `vllm bench serve` measures
# Flags by their names in the parser, and keywords of `bench()`: each only makes sense of a server that runs.
SPEAKING_OF_A_SERVER = frozenset(
    {row.dest for row in TABLE if row.names_server}
    | {row.name for row in TABLE if row.names_server and row.keyword_type}
    | {"no_effect"}
)
_NOTHING_THERE = (
    " (no address was given, and this is {}): start a server there, or pass --base-url URL or --launch "
    "ENGINE; for a simulation, pass --preset NAME (`loadgen engine --list-presets` has the names)"
)


def workers(asked: int | None, targets: int) -> int:
    """How many processes send to `targets` servers, where `asked` were asked for; None: not given, 0: any.

    Raises UsageError where these cannot be shared out evenly.
    """
    if asked is None:
        return targets
    if asked % targets:
        near = max(asked // targets, 1) * targets
        raise UsageError(
            f"--workers {asked}: {targets} --base-url need as many workers each: pass {near} or "
            f"{near + targets}, or leave it out"
        )
    return asked


def default_url(given: Collection[str], launched: bool, port: int | None = None) -> str | None:
    """The address that flags without one mean; None where a server is started for them, or simulated.

    `port` is the default of the client whose name of an API was given; None: vLLM's.
    """
    if launched or "preset" in given or SPEAKING_OF_A_SERVER.isdisjoint(given):
        return None
    vllms = backends.find_default_port(None)
    return DEFAULT_URL if port in (None, vllms) else at_port(DEFAULT_URL, port)


def at_port(url: str, port: int) -> str:
    """An address that ends with a port, at another one."""
    return f"{url.rpartition(':')[0]}:{port}"


def nothing_there(url: str) -> str:
    """What to do where no server answers at a default address, after the address."""
    return _NOTHING_THERE.format(backends.name_port_owner(urlsplit(url).port))

"""Shard flags: which part of a plan a command sends, from when, and which plan that must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from loadgen.base.errors import UsageError
from loadgen.base.parsing import parse_with
from loadgen.base.text import quote_value
from loadgen.fleet import cluster_flags
from loadgen.settings.setting import SHARDS, Makes, OptionRows, setting

if TYPE_CHECKING:
    from loadgen.features.shards.start_at import PlannedStart
    from loadgen.transport.sending.share import Share

_DIGITS, _HEX = 32, frozenset("0123456789abcdef")  # of a plan's digest


def shard(text: str) -> Share:
    """The shard of `--shard`; raises ValueError."""
    from loadgen.features.shards import ranks  # few runs need it

    return ranks.read(text)


def start_at(text: str) -> PlannedStart:
    """The instant of `--start-at`; raises ValueError."""
    from loadgen.features.shards import start_at  # it imports what shows waiting

    return start_at.read(text)


def digest(text: str) -> str:
    """A plan's digest; raises ValueError."""
    if len(text) != _DIGITS or not set(text) <= _HEX:
        raise ValueError(f"{quote_value(text)} is no plan's digest: it has {_DIGITS} digits, 0 to f")
    return text


_part = partial(setting, Makes.CLIENT, group=SHARDS, keyword="str")


# fmt: off
class ShardOptions(OptionRows, frozen=True):
    """Settings of one of several commands that send a plan together."""

    # None: all of the plan.
    shard: Share | None = _part(None, "send part I of N of the plan, counted from 0; auto: as Slurm, MPI or "
        "a Kubernetes Indexed Job numbers this process (needs --seed; `loadgen merge` joins the runs)",
        read=parse_with(shard), metavar="I/N|auto|auto/N",
        series="`loadgen bench` sends one plan from several commands",
        cluster="the cluster's shards are numbered by this command")
    # None: as soon as it can.
    start_at: PlannedStart | None = _part(None, "begin at this instant: seconds since 1970, ISO 8601 with a "
        "zone, or +SECONDS from now", read=parse_with(start_at), metavar="WHEN",
        series="`loadgen bench` begins one run at an instant",
        cluster="the shards begin together, once all are ready")
    # The digest of the only plan that may be sent.
    expect_plan: str | None = _part(None, "send no other plan than the one of this digest",
        read=parse_with(digest), metavar="DIGEST", series="each run has a plan of its own")
# fmt: on


_READ: dict[str, Callable[[str], Any]] = {
    "shard": shard, "start_at": start_at, "expect_plan": digest, "cluster": cluster_flags.parse_address,
}  # fmt: skip


def parsed(values: Mapping[str, Any]) -> dict[str, Any]:
    """These options of a call, as they were written, read; raises UsageError that names the keyword."""
    found = {}
    for name, read in _READ.items():
        if name in values:
            try:
                found[name] = read(values[name])
            except ValueError as error:
                raise UsageError(f"{name}: {error}") from None
    return found

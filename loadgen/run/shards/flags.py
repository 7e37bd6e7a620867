"""Shard flags: which part of a plan a command sends, from when, and which plan that must be."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loadgen.base.bounds import parsed_by, shown
from loadgen.base.errors import UsageError
from loadgen.fleet import cluster_flags

if TYPE_CHECKING:
    from loadgen.run.shards.start_at import PlannedStart
    from loadgen.transport.share import Share

_DIGITS, _HEX = 32, frozenset("0123456789abcdef")  # of a plan's digest


# fmt: off
def add_shard_flags(group: argparse._ActionsContainer) -> None:
    """The flags of one of several commands that send a plan together."""
    add = group.add_argument
    add("--shard", type=parsed_by(shard), metavar="I/N|auto|auto/N",
        help="send part I of N of the plan, counted from 0; auto: as Slurm, MPI or a Kubernetes Indexed Job "
        "numbers this process (needs --seed; `loadgen merge` joins the runs)")
    add("--start-at", type=parsed_by(start_at), metavar="WHEN",
        help="begin at this instant: seconds since 1970, ISO 8601 with a zone, or +SECONDS from now")
    add("--expect-plan", type=parsed_by(digest), metavar="DIGEST",
        help="send no other plan than the one of this digest")
# fmt: on


def shard(text: str) -> Share:
    """The shard of `--shard`; raises ValueError."""
    from loadgen.run.shards import ranks  # few runs need it

    return ranks.read(text)


def start_at(text: str) -> PlannedStart:
    """The instant of `--start-at`; raises ValueError."""
    from loadgen.run.shards import start_at  # it imports what shows waiting

    return start_at.read(text)


def digest(text: str) -> str:
    """A plan's digest; raises ValueError."""
    if len(text) != _DIGITS or not set(text) <= _HEX:
        raise ValueError(f"{shown(text)} is no plan's digest: it has {_DIGITS} digits, 0 to f")
    return text


_READ: dict[str, Callable[[str], Any]] = {
    "shard": shard, "start_at": start_at, "expect_plan": digest, "cluster": cluster_flags.address,
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

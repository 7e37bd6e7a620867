"""Cluster flags: on which Ray cluster a plan is sent, and by how many shards."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from loadgen.errors import UsageError
from loadgen.workload.bounds import parsed_by, whole

if TYPE_CHECKING:
    from loadgen.session.options import Options

MOST_SHARDS = 4096


# fmt: off
def add_cluster_flags(group: argparse._ActionsContainer) -> None:
    """The flags of a plan that shards on a Ray cluster send together."""
    add = group.add_argument
    add("--cluster", type=parsed_by(address), metavar="auto|ADDRESS",
        help="send the load from a Ray cluster: HOST:6379, ray://HOST:10001, auto (RAY_ADDRESS, or the "
        "one on this machine), or local: started for the run")
    add("--shards", type=whole(1, MOST_SHARDS), metavar="N",
        help="with --cluster: processes that share the load, spread over its nodes")
# fmt: on


def address(text: str) -> str:
    """The address of a cluster; raises ValueError."""
    from loadgen.session.cluster import connection  # few runs need it

    return connection.checked(text)


def check(options: Options) -> None:
    """Raises UsageError where options do not go together with a cluster."""
    if options.cluster is None:
        if options.shards is not None:
            raise UsageError(
                "--shards is of a Ray cluster: pass --cluster auto too (without one: docs/shards.md)"
            )
        return
    if options.shards is None:
        raise UsageError("--cluster needs --shards N: how many processes are to share the load")
    refused: dict[str, tuple[Any, str]] = {
        "--shard": (options.shard is not None, "the cluster's shards are numbered by this command"),
        "--start-at": (options.start_at is not None, "the shards begin together, once all are ready"),
        "--workers auto": (options.workers == 0, "give --shards, or a number"),
        "--live-totals": (options.live_totals is not None, "the display has the totals of all shards"),
        "--source-address": (bool(options.source_address), "each node has its own addresses"),
    }
    for flag, (given, why) in refused.items():
        if given:
            raise UsageError(f"{flag} does not go with --cluster: {why}")

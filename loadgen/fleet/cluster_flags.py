"""Cluster flags: on which Ray cluster a plan is sent, and by how many shards."""

from __future__ import annotations

import argparse

from loadgen.base.bounds import parsed_by, whole

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
    from loadgen.fleet import connection  # few runs need it

    return connection.checked(text)

"""Cluster flags: on which Ray cluster a plan is sent, and by how many shards."""

from __future__ import annotations

from functools import partial

from loadgen.base.bounds import integer_between
from loadgen.base.parsing import parse_with
from loadgen.settings.setting import CLUSTER, Makes, OptionRows, setting

MOST_SHARDS = 4096


def parse_address(text: str) -> str:
    """The address of a cluster; raises ValueError."""
    from loadgen.fleet import connection  # few runs need it

    return connection.check_address(text)


# fmt: off
_cluster = partial(setting, Makes.CLIENT, None, group=CLUSTER,
    campaign="cannot be used in a campaign")


class ClusterOptions(OptionRows, frozen=True):
    """Settings of a plan that shards on a Ray cluster send together."""

    # The address of the cluster; None: this machine sends.
    cluster: str | None = _cluster("send the load from a Ray cluster: HOST:6379, ray://HOST:10001, auto "
        "(RAY_ADDRESS, or the one on this machine), or local: started for the run",
        read=parse_with(parse_address), metavar="auto|ADDRESS")
    shards: int | None = _cluster("with --cluster: processes that share the load, spread over its nodes",
        read=integer_between(1, MOST_SHARDS), metavar="N")
# fmt: on

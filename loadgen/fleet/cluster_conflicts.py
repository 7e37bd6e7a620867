"""Cluster conflicts: options that do not go together with a cluster."""

from __future__ import annotations

from typing import Any

from loadgen.base.errors import UsageError
from loadgen.run.options import Options


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
        "--stop-when-saturated": (
            options.stop_when_saturated,
            "the shards report no request's TTFT while they run",
        ),
        "--source-address": (bool(options.source_address), "each node has its own addresses"),
    }
    for flag, (given, why) in refused.items():
        if given:
            raise UsageError(f"{flag} does not go with --cluster: {why}")

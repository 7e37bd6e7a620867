"""Cluster conflicts: options that do not go together with a cluster."""

from __future__ import annotations

from loadgen.base.errors import UsageError
from loadgen.run.options import TABLE, Options, is_given
from loadgen.settings.run_settings import AUTO


def check_conflicts(options: Options) -> None:
    """Raises UsageError where options do not go together with a cluster."""
    if options.cluster is None:
        if options.shards is not None:
            raise UsageError(
                "--shards is of a Ray cluster: pass --cluster auto too (without one: docs/shards.md)"
            )
        return
    if options.shards is None:
        raise UsageError("--cluster needs --shards N: how many processes are to share the load")
    refused = {row.option: row.cluster for row in TABLE if row.cluster and is_given(options, row)}
    if options.workers == AUTO:
        refused["--workers auto"] = "give --shards, or a number"
    for flag, why in refused.items():
        raise UsageError(f"{flag} does not go with --cluster: {why}")

"""Worker count: how many processes send a plan, and on which CPUs."""

from __future__ import annotations

import logging
import math
import sys

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.plan.plan import Plan
from loadgen.run.measure import TransportOptions
from loadgen.run.workers import pinning
from loadgen.run.workers.workers import Workers

_LOG = logging.getLogger("loadgen")


def spread(options: TransportOptions, plan: Plan, asked: int) -> TransportOptions:
    """The options for `asked` workers, or for as many as the plan has slots and requests for, if fewer.

    Each of several targets has as many as the others, and all are pinned away from a server on this machine.
    Raises UsageError where the platform has no workers, or the load not one for each target.
    """
    targets = max(len(options.targets), 1)
    asked = math.ceil((asked or automatic(options, plan)) / targets) * targets
    if asked > 1 and sys.platform != "linux":
        raise UsageError("--workers needs Linux: leave it out here")
    count = min(asked, most_workers(options, plan)) // targets * targets
    if not count:
        raise UsageError(
            f"{targets} --base-url need {targets} requests at once or more: raise --max-concurrency and "
            "--num-prompts"
        )
    if count < asked:
        limit = "--max-concurrency" if plan.divisible is None else plan.divisible[0]
        _LOG.warning("--workers %d: the load has room for %d (%s, requests)", asked, count, limit)
    if count == 1:
        return options
    cpus = pinning.spare_cpus(options.server_pids(), count)
    return replace(options, workers=count, begin=Workers, cpus=cpus, cpu_words=pinning.words(cpus))


def automatic(options: TransportOptions, plan: Plan) -> int:
    """How many workers `--workers auto` stands for before the warm-up."""
    return 1  # that of the warm-up, which shows what automatic_workers decides by


def most_workers(options: TransportOptions, plan: Plan) -> int:
    """How many workers a plan has slots and requests for."""
    share, limit = options.part.share, plan.divisible
    requests = len(share.list_indices(len(plan), plan.sessions))
    return max(1, requests if limit is None else min(share.count_slots(limit[1]), requests))

"""Self-test checks: whether the client could time as many messages per second as came in a run."""

from __future__ import annotations

import math
from functools import partial

from loadgen.base.rule import Evidence, Origin, Source, note, suspect
from loadgen.facts.calibration import HEADROOM, HELD_PERCENT
from loadgen.verdict.evidence import Checkable, RunEvidence, limit_doubts, make_missing


def _find_load(run: RunEvidence, above: float, most: float) -> Evidence | None:
    """Find evidence that the messages per second are `above` to `most` times the self-test's capacity.

    Beyond the capacity there is none if the self-test found no limit.
    """
    measured, rate_per_s, workers = run.calibration, run.metrics.messages_per_s, run.facts.client.workers
    room = measured.headroom(rate_per_s, workers) if measured else math.inf
    if measured is None or not 1 / most <= room < 1 / above or (room < 1 and not measured.capacity_bounded):
        return None
    error = f"P99 gap error under {HELD_PERCENT:g} %"
    held = f"the self-test kept the {error} up to {measured.capacity_of(workers):.0f}"
    if workers != measured.workers:
        held += f" ({workers} times what one worker held)"
    none = f"no load of the self-test had a {error}"
    return f"{rate_per_s:.0f} messages/s; {held if measured.capacity_tokens_per_s else none}"


beyond_capacity = suspect(
    "beyond-capacity",
    "more messages per second than the self-test could measure with a P99 gap error under 5 %",
    "use --transport wire, more --workers where there are cores for them, or several machines (--shard)",
    Source.SELFTEST,
    Origin.CLIENT,
)(partial(_find_load, above=1.0, most=math.inf))
headroom = note(
    "headroom",
    f"over 1/{HEADROOM} of the messages per second that the self-test could measure",
    "see `loadgen selftest` for the error at this load",
    Source.SELFTEST,
)(partial(_find_load, above=1 / HEADROOM, most=1.0))


DOUBTS = limit_doubts(
    ("calibration",), {"after client-busy": (beyond_capacity,), "after late-bodies": (headroom,)}
)
CHECKABLE = {
    "after server gauges": (Checkable("self-test", make_missing(Source.SELFTEST), "loadgen selftest"),)
}

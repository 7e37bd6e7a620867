"""Attributions that nobody measured: parts in milliseconds, a wait each, over a made run."""

from __future__ import annotations

from typing import Any

import numpy as np

from builders import made_runs
from builders.made_runs import MS
from loadgen.features.attribution.attribution import PARTS, ROWS, Attribution, PartRows, attribute_run
from loadgen.report.run_directory import Result

EVERY = ("kernel", "rtt", "segments", "server", "preemptions", "streams")


def rows(waits: list[dict[str, float]], typical_ms: float, message: int = 0) -> PartRows:
    """Waits of request 0, 1, …, by part in ms; those of messages `message`."""
    parts = np.zeros((len(PARTS), len(waits)), np.int64)
    for place, wait in enumerate(waits):
        for key, value in wait.items():
            parts[ROWS[key], place] = round(value * MS)
    whole_ns = parts.sum(axis=0)
    excess_ns = (whole_ns - round(typical_ms * MS)).clip(0)
    request = np.arange(len(waits), dtype=np.int64)
    return PartRows(request, np.full(len(waits), message, np.int64), whole_ns, excess_ns, parts)


def attribution(
    ttft: list[dict[str, float]], gaps: list[dict[str, float]], evidence: tuple[str, ...] = EVERY
) -> Attribution:
    """Of these first tokens, of which 40 ms is typical, and gaps beyond P99, of which 20 ms is."""
    return Attribution(rows(ttft, 40.0), rows(gaps, 20.0, message=6), 30e6, 20e6, evidence)


TYPICAL = {"sent_late": 0.1, "round_trip": 0.2, "http": 1.7, "queue": 2.0, "prefill": 36.0}
QUEUED = {"sent_late": 0.1, "round_trip": 0.2, "http": 1.8, "queue": 440.0, "prefill": 60.0, "unknown": 10.0}
STALLED = {"decode_step": 20.0, "others_prefill": 40.0, "unknown": 4.0}
# A server that queues, whose decoding waits for others' prompts.
BUSY = attribution([TYPICAL] * 99 + [QUEUED], [STALLED] * 30 + [{"decode_step": 20.0, "path_delay": 15.0}])
SMOOTH = attribution([TYPICAL] * 100, [{"decode_step": 20.0, "unknown": 2.0}] * 30)
NETWORK = attribution(
    [TYPICAL] * 100, [{"decode_step": 20.0, "retransmission": 200.0, "path_delay": 5.0}] * 30
)
NOTHING_KNOWN = attribution([{"unknown": 40.0}] * 99 + [{"unknown": 500.0}], [{"unknown": 64.0}] * 30, ())


def run(found: Attribution, **changes: Any) -> Result:
    """A made run whose waits were divided like that."""
    of = made_runs.run(requests=100, **changes)
    of.parts[attribute_run] = found
    return of

"""Session shape: how many requests sessions have, how long they pause between them, how deep they branch."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.figures.workloads.load_columns import LoadColumns
from loadgen.plan.planned_requests import LengthFacts


class SessionShape(msgspec.Struct, frozen=True):
    """The sessions of a workload."""

    sessions: int
    requests: LengthFacts  # of each session: requests, not tokens
    delays_s: tuple[float, ...]  # P10, P50, P90 of the pauses before requests; () where they are unknown
    delay_sum_s: float
    by_depth: tuple[int, ...]  # requests of the main lines, of their sub-agents, of theirs; () if unknown


def count_requests(sessions: Int64) -> Int64:
    """Return the number of requests of each session, int64[sessions], by the number of the session."""
    counts: Int64 = np.unique(sessions, return_counts=True)[1]
    return counts


def find_delays_ns(load: LoadColumns) -> Int64:
    """Return the known pauses before requests (ns), in their order; [] where there are none."""
    return np.zeros(0, np.int64) if load.delays_ns is None else load.delays_ns[load.delays_ns >= 0]


def measure_sessions(load: LoadColumns) -> SessionShape | None:
    """Measure the sessions of a workload; None where it has none."""
    if load.sessions is None or not len(load):
        return None
    requests = LengthFacts.measure(counts := count_requests(load.sessions))
    assert requests is not None
    delays_s = find_delays_ns(load) / SECOND_NS
    ranks = np.percentile(delays_s, (10, 50, 90), method="inverted_cdf") if len(delays_s) else np.zeros(0)
    return SessionShape(
        len(counts),
        requests,
        tuple(ranks.tolist()),
        float(delays_s.sum()),
        () if load.depths is None else tuple(np.bincount(load.depths).tolist()),
    )

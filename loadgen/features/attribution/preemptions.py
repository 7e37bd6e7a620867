"""Preemptions: which of the streams that were silent alone had been preempted, by samples of the counter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.server.server_counters import ServerSample

_EARLY_NS = SECOND_NS // 4  # by which sampling may have begun before the first request was sent


def list_counted(samples: Sequence[ServerSample]) -> list[tuple[float, int]]:
    """List the samples that count preemptions: seconds since sampling began, and the count since then."""
    return [(each.at_s, each.preemptions) for each in samples if each.preemptions is not None]


def mark_preempted(samples: Sequence[ServerSample], began_ns: int, begin_ns: Int64, step_ns: Int64) -> Bool:
    """Mark the silences of single streams, by when each began (ns), that were preemptions, bool[silences].

    An engine preempts when it makes the next step. Where the counter rose over that time by at least as many
    as streams fell silent alone in it, all of these were preempted; else it is not known which.
    """
    counted = list_counted(samples)
    if not counted or not len(begin_ns):
        return np.zeros(len(begin_ns), np.bool_)
    at_ns = began_ns + np.array([round(at_s * SECOND_NS) for at_s, _ in counted], np.int64)
    total = np.array([0, *(count for _, count in counted)], np.int64)
    # The samples between which the counter rose: from one before the time, if sampling began early.
    first = at_ns.searchsorted(begin_ns - step_ns)
    last = at_ns.searchsorted(begin_ns + 2 * step_ns + _EARLY_NS).clip(max=len(at_ns) - 1)
    within = first <= last
    rose = total[np.where(within, last + 1, 0)] - total[np.where(within, first, 0)]
    edges_ns = np.concatenate([[np.iinfo(np.int64).min], at_ns])
    ordered = np.sort(begin_ns)
    until = ordered.searchsorted(edges_ns[last + 1], side="right")
    silent = until - ordered.searchsorted(edges_ns[first.clip(max=len(at_ns))] - _EARLY_NS)
    marked: Bool = within & (rose > 0) & (rose >= silent)
    return marked

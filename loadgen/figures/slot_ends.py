"""Slot ends: when a slot of a closed loop had nothing left to begin, which is not always when it last ended.

A slot whose request failed may wait to connect again, and what it would have begun is begun by others. Where
the plan ran out meanwhile, it had something to begin until then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.transport.failure import CUT_OFF, Failure


def had_failed(failures: Sequence[Failure | None], rows: Int64) -> Bool:
    """Which of these rows failed while the run went on, bool[rows]."""
    ended = (failures[row] for row in rows.tolist())
    return np.fromiter((f is not None and f.kind not in CUT_OFF for f in ended), np.bool_, len(rows))


def last_rows(slot: Int64, end_ns: Int64) -> Int64:
    """The row in which each slot ended last, by ascending slot: int64[slots]."""
    order = np.lexsort((end_ns, slot))
    last: Int64 = order[np.diff(slot[order], append=-1) != 0]
    return last


def without_waits(slot: Int64, end_ns: Int64, failed: Bool, begun: tuple[Int64, Int64], queues: int) -> Int64:
    """The ends of slots, int64[slots]; one that failed is not at its end before its queue was empty.

    `begun` are the slot and the time of all that was begun. Slot s takes from the queue s mod `queues`.
    """
    slots, times_ns = begun
    taken, own = slots % queues, slot[failed] % queues
    ends_ns = end_ns.copy()
    for queue in np.unique(own).tolist():
        emptied_ns = int(times_ns[taken == queue].max(initial=0))
        at = np.flatnonzero(failed)[own == queue]
        ends_ns[at] = ends_ns[at].clip(min=emptied_ns)
    return ends_ns

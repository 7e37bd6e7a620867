"""Preemptions: which of the streams that were silent alone had been preempted, by samples of the counter."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.records.record import Records
from loadgen.server.server_counters import ServerSample, ServerWindow

# By which a sample may be of earlier than its time: a scrape takes as long. Where it is not stored when
# sampling began, it may have been as long before the first request was sent.
_SCRAPE_NS, _EARLY_NS = 25 * MS_NS, SECOND_NS // 4
_NEAR_NS = 10 * SECOND_NS  # of the first request; a time further off is of another clock


class CountedPreemptions(msgspec.Struct, frozen=True):
    """The server's count of preemptions over the run, ascending: how many there were by each moment."""

    at_ns: Int64
    total: Int64
    early_ns: int  # by which a moment may be too late

    def __len__(self) -> int:
        return len(self.at_ns)


def read_counts(window: ServerWindow | None, records: Records) -> CountedPreemptions:
    """Read the samples that count preemptions, and the count after the run; empty without a sample."""
    samples: Sequence[ServerSample] = () if window is None else window.samples
    counted = [(each.at_s, each.preemptions) for each in samples if each.preemptions is not None]
    none = np.zeros(0, np.int64)
    if window is None or not counted or not records.sent.any():
        return CountedPreemptions(none, none, 0)
    first_ns, last_ns = int(records.sent_ns[records.sent].min()), int(records.end_ns.max())
    began_ns = window.sampled_from_ns
    known = began_ns is not None and abs(first_ns - began_ns) <= _NEAR_NS
    from_ns = began_ns if known and began_ns is not None else first_ns
    at_ns = [from_ns + round(at_s * SECOND_NS) for at_s, _ in counted]
    total = [count for _, count in counted]
    if window.preemptions is not None and window.preemptions >= total[-1]:
        at_ns.append(max(at_ns[-1], last_ns) + SECOND_NS)
        total.append(window.preemptions)
    return CountedPreemptions(
        np.array(at_ns, np.int64), np.array(total, np.int64), _SCRAPE_NS if known else _EARLY_NS
    )


def mark_preempted(counted: CountedPreemptions, begin_ns: Int64, step_ns: Int64) -> Bool:
    """Mark the silences of single streams, by when each began (ns), that were preemptions, bool[silences].

    An engine preempts when it makes the next step. Where the counter rose over that time by at least as many
    as streams fell silent alone in it, all of these were preempted; else it is not known which.
    """
    if not len(counted) or not len(begin_ns):
        return np.zeros(len(begin_ns), np.bool_)
    at_ns, early_ns = counted.at_ns, counted.early_ns
    total = np.concatenate([[0], counted.total])
    # The samples between which the counter rose: from one before the time, if sampling began early.
    first = at_ns.searchsorted(begin_ns - step_ns)
    last = at_ns.searchsorted(begin_ns + 2 * step_ns + early_ns).clip(max=len(at_ns) - 1)
    within = first <= last
    rose = total[np.where(within, last + 1, 0)] - total[np.where(within, first, 0)]
    edges_ns = np.concatenate([[np.iinfo(np.int64).min], at_ns])
    ordered = np.sort(begin_ns)
    until = ordered.searchsorted(edges_ns[last + 1], side="right")
    silent = until - ordered.searchsorted(edges_ns[first.clip(max=len(at_ns))] - early_ns)
    marked: Bool = within & (rose > 0) & (rose >= silent)
    return marked

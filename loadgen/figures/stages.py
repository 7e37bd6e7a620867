"""Stages: the figures of each part of a load that changes over time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64, total
from loadgen.base.clock import SECOND_NS
from loadgen.figures.distribution import Distribution
from loadgen.figures.per_request import PerRequest
from loadgen.figures.record import Records
from loadgen.plan.load.stage_windows import StageWindow

_P99 = (99.0,)


class StageFigures(msgspec.Struct, frozen=True):
    """One stage; latencies in milliseconds, over the successes that were due in it, NaN if there are none."""

    name: str
    begin_s: float  # after the start
    end_s: float
    requests: int  # that were due in it; of a closed loop, sent in it
    failed: int  # of these
    rate_per_s: float  # requests sent in it / its time
    mean_in_flight: float  # ∫ requests in flight dt / its time, those of earlier stages included
    most_in_flight: int
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_ttft_intended_ms: float  # from when each request was due
    mean_e2el_ms: float
    p99_e2el_ms: float


def sending_ended_ns(records: Records, next_due_ns: int | None) -> int:
    """When a run that ended early stopped sending, at the latest: the next request would have followed then.

    An open loop's next one follows when it is due, `next_due_ns`, or not after all were cut off; a closed
    loop's (None) as the first one ends.
    """
    sent_ns, end_ns = records.sent_ns[records.sent], records.end_ns[records.sent]
    last_ns = int(sent_ns.max(initial=0))
    later_ns = end_ns[end_ns > last_ns]
    if not len(later_ns):
        return last_ns + 1
    followed_ns = later_ns.min() if next_due_ns is None else min(next_due_ns, later_ns.max())
    return max(int(followed_ns), last_ns + 1)


def reached(windows: Sequence[StageWindow], until_ns: int) -> list[StageWindow]:
    """The windows that begin before a time, the last of them cut there."""
    return [
        replace(window, end_ns=min(window.end_ns, until_ns))
        for window in windows
        if window.begin_ns < until_ns
    ]


def figures(
    windows: Sequence[StageWindow], records: Records, each: PerRequest, due_ns: Int64, begin_ns: int
) -> list[StageFigures]:
    """The figures of each window; `due_ns`, int64[requests], says which a request belongs to."""
    sent = records.sent
    starts_ns = np.sort(records.sent_ns[sent]) - begin_ns
    ends_ns = np.sort(records.end_ns[sent]) - begin_ns
    return [_figures(window, records, each, due_ns - begin_ns, (starts_ns, ends_ns)) for window in windows]


def _figures(
    window: StageWindow, records: Records, each: PerRequest, due_ns: Int64, flown_ns: tuple[Int64, Int64]
) -> StageFigures:
    begin_ns, end_ns = window.begin_ns, window.end_ns
    ours = (due_ns >= begin_ns) & (due_ns < end_ns)
    starts_ns, ends_ns = flown_ns
    sent = int(np.searchsorted(starts_ns, end_ns) - np.searchsorted(starts_ns, begin_ns))
    span_ns = max(end_ns - begin_ns, 1)
    under_way_ns = total(ends_ns.clip(begin_ns, end_ns)) - total(starts_ns.clip(begin_ns, end_ns))
    begun = ours & each.has_ttft
    ttft, e2el = (
        Distribution.of(each.ttft_ns[begun], _P99),
        Distribution.of(each.e2el_ns[ours & each.ok], _P99),
    )
    intended = Distribution.of((each.first_ns - records.intended_ns)[begun], _P99)
    return StageFigures(
        name=window.name,
        begin_s=begin_ns / SECOND_NS,
        end_s=end_ns / SECOND_NS,
        requests=int(ours.sum()),
        failed=int((ours & each.failed).sum()),
        rate_per_s=sent * SECOND_NS / span_ns,
        mean_in_flight=under_way_ns / span_ns,
        most_in_flight=_most(starts_ns, ends_ns, window),
        mean_ttft_ms=ttft.mean_ms,
        p99_ttft_ms=ttft.p99_ms,
        mean_ttft_intended_ms=intended.mean_ms,
        mean_e2el_ms=e2el.mean_ms,
        p99_e2el_ms=e2el.p99_ms,
    )


def _most(starts_ns: Int64, ends_ns: Int64, window: StageWindow) -> int:
    """The most requests in flight at once in a window: at its begin, or as one of them starts."""
    first, last = np.searchsorted(starts_ns, [window.begin_ns, window.end_ns])
    moments = np.concatenate([[window.begin_ns], starts_ns[first:last]])
    in_flight = np.searchsorted(starts_ns, moments, "right") - np.searchsorted(ends_ns, moments, "right")
    return int(in_flight.max())

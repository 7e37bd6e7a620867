"""Gap parts: the gaps between a stream's messages that are beyond P99, divided into parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import MS_NS, SECOND_NS, US_NS
from loadgen.features.attribution.parts import CAUSES, NEAR_NS, Division
from loadgen.features.attribution.stalls import EngineStalls, find_stalls, trace_timeline
from loadgen.figures.distribution import Piece, rank_pieces
from loadgen.figures.metrics import list_gaps
from loadgen.records.record import NO_CAUSE, MessageBlock, Records
from loadgen.server.server_counters import ServerSample, ServerWindow

TAIL = 99.0  # the percentile beyond which a gap or a TTFT is of the tail
_ORDINARY = 1.5  # typical steps: where as little of a gap is no stall, all its excess is the stall's
_MISSED = 0.75  # typical steps: a stream that was preempted has no token of at least one step
_BURST = 16  # messages that come closer than this part of the mean gap come together
_ENDS = 1  # reads of a response without a kernel timestamp, as that of its end
_UNSTAMPED = 0.01  # of its reads


class TailGaps(msgspec.Struct, frozen=True):
    """The gaps beyond P99 of those that ITL counts, a row each."""

    request: Int64  # row of the records
    message: Int64  # place in the request of the later message
    whole_ns: Int64
    arrival_ns: Int64  # of the later message
    delay_ns: Int64  # of the later message on the way, 0 where nothing is known
    before_ns: Int64  # delay of the earlier message
    cause: Int64  # of the delay
    coalesced: Int64  # 1: the same read brought the message after the later one; 0: it did not
    threshold_ns: float = math.nan  # P99 of all gaps, as of the report's ITL; NaN without any
    typical_ns: float = math.nan  # their median
    mean_ns: float = math.nan

    @property
    def sent_ns(self) -> Int64:
        """When the server sent the later message."""
        return self.arrival_ns - self.delay_ns

    @property
    def begin_ns(self) -> Int64:
        """When the server sent the earlier message."""
        return self.arrival_ns - self.whole_ns - self.before_ns


def find_tail_gaps(records: Records, counts: Bool) -> TailGaps:
    """Find the gaps beyond P99 of the requests that count, bool[requests]."""

    def list_pieces() -> Iterator[Piece]:
        for block in records.blocks():
            yield list_gaps(block, counts[block.first : block.last])[0], None

    count, total, low, high = 0, 0.0, math.inf, -math.inf
    for gap_ns, _ in list_pieces():
        if len(gap_ns):
            count, total = count + len(gap_ns), total + float(gap_ns.sum(dtype=np.float64))
            low, high = min(low, int(gap_ns.min())), max(high, int(gap_ns.max()))
    found = [np.zeros((8, 0), np.int64)]
    if not count:
        return TailGaps(*found[0])
    typical_ns, threshold_ns = rank_pieces(list_pieces, count, (low, high), (50, TAIL))
    found += [
        _select_beyond(block, counts[block.first : block.last], threshold_ns) for block in records.blocks()
    ]
    gaps = TailGaps(*np.concatenate(found, axis=1))
    return replace(gaps, threshold_ns=threshold_ns, typical_ns=typical_ns, mean_ns=total / count)


def _select_beyond(block: MessageBlock, counts: Bool, threshold_ns: float) -> Int64:
    """Select a block's gaps beyond the threshold: the columns of TailGaps, int64[8, gaps]."""
    messages = np.diff(block.start)
    gap_ns = np.diff(block.arrival_ns, prepend=0)
    firsts = block.start[:-1][messages > 0]
    beyond = (gap_ns > threshold_ns) & np.repeat(counts, messages)
    beyond[firsts] = False
    at = np.flatnonzero(beyond)
    row = block.start.searchsorted(at, side="right") - 1
    delay_ns = before_ns = cause = np.zeros(len(at), np.int64)
    if len(block.delay_us):
        delay_ns, before_ns = (block.delay_us[each].astype(np.int64) * US_NS for each in (at, at - 1))
        cause = block.delay_cause[at].astype(np.int64)
    arrival_ns = block.arrival_ns[at]
    columns = (block.first + row, at - block.start[row], gap_ns[at], arrival_ns)
    coalesced = (at + 1 < block.start[row + 1]) & (np.append(gap_ns, 0)[at + 1] == 0)
    return np.stack([*columns, delay_ns, before_ns, cause, coalesced])


def divide_gaps(records: Records, gaps: TailGaps, counted: CountedPreemptions, by_read: bool) -> Int64:
    """Divide the gaps into parts that sum to them: int64[len(PARTS), gaps] (ns).

    In this order: what the network added between the two messages, a typical step, what the client read late
    if arrivals are those of whole reads (`by_read`), what this stream was silent alone if it was preempted,
    and what all were silent together.
    """
    division = Division(gaps.whole_ns)
    if not len(gaps.request):
        return division.parts
    take = division.take
    # Where bursts of messages are of one step, the typical gap is none between steps.
    usual_ns = gaps.typical_ns if gaps.typical_ns * _BURST >= gaps.mean_ns else gaps.mean_ns
    timeline = trace_timeline(records, max(round(usual_ns), 1))
    added_ns = (gaps.delay_ns - gaps.before_ns).clip(0)
    for cause, key in {**CAUSES, NO_CAUSE: "unknown"}.items():
        take(key, np.where(gaps.cause == cause, added_ns, 0))
    step_ns = timeline.step_at(gaps.begin_ns)
    take("decode_step", step_ns)
    # Messages that one read brought have the arrival of the last, and the wait of all is the first one's.
    spanned = (gaps.coalesced > 0) & by_read
    take("read_lag", share_lag(records, gaps.request, np.where(spanned, division.left_ns, 0)))
    stalls, unstamped = find_stalls(timeline, records), mark_unstamped(records)[gaps.request]
    stalled_ns, kinds_ns = divide_stalled(gaps, stalls, step_ns, division.left_ns)
    alone, preempted = division.left_ns - stalled_ns > _MISSED * step_ns, np.zeros(len(step_ns), np.bool_)
    preempted[alone] = mark_preempted(counted, gaps.begin_ns[alone], step_ns[alone])
    take(
        "preemption", np.where(preempted, division.left_ns, 0)
    )  # it would have waited through the stalls too
    take("others_prefill", kinds_ns["others_prefill"])
    # A far network may pause for all connections at once: only delays of its segments show that it did not.
    rtt_ns = records.rtt_ns[records.rtt_ns >= 0]
    pauses = len(rtt_ns) > 0 and float(np.median(rtt_ns)) > NEAR_NS and not len(records.delay_us)
    take("slow_step", np.where(unstamped | pauses, 0, kinds_ns["slow_step"]))
    take("read_lag", np.where(unstamped, share_lag(records, gaps.request, division.left_ns), 0))
    take("unknown", division.left_ns)
    return division.parts


def divide_stalled(
    gaps: TailGaps, stalls: EngineStalls, step_ns: Int64, left_ns: Int64
) -> tuple[Int64, dict[str, Int64]]:
    """Return how long of each gap's rest all streams were silent, and that by cause; int64[gaps] (ns).

    A stall lies in a gap whole or not at all, since a gap's ends are messages. Where a gap is hardly longer
    than its stalls and a step, all its excess is theirs; else theirs is what they have beyond a step each.
    What is of neither kind is of unknown cause.
    """
    first = stalls.begin_ns.searchsorted(gaps.begin_ns)
    last = np.maximum(stalls.end_ns.searchsorted(gaps.sent_ns, side="right"), first)

    def sum_per_gap(values: Int64) -> Int64:
        total = np.concatenate([[0], np.cumsum(values)])
        within: Int64 = total[last] - total[first]
        return within

    silent_ns, excess_ns = sum_per_gap(stalls.end_ns - stalls.begin_ns), sum_per_gap(stalls.excess_ns)
    ordinary = gaps.sent_ns - gaps.begin_ns - silent_ns <= _ORDINARY * step_ns
    stalled_ns = np.where(ordinary, left_ns, np.minimum(left_ns, excess_ns))
    stalled_ns[silent_ns == 0] = 0
    kinds_ns = {}
    for key, of_kind_ns in (("others_prefill", stalls.prefill_ns), ("slow_step", stalls.slow_ns)):
        share = sum_per_gap(of_kind_ns) / np.maximum(excess_ns, 1)
        kinds_ns[key] = np.minimum(np.rint(stalled_ns * share).astype(np.int64), stalled_ns)
    kinds_ns["slow_step"] = np.minimum(kinds_ns["slow_step"], stalled_ns - kinds_ns["others_prefill"])
    return stalled_ns, kinds_ns


def share_lag(records: Records, request: Int64, left_ns: Int64) -> Int64:
    """Share the lag of each request's reads between its gaps in turn, ascending by request, int64[gaps] (ns).

    None gets more than the longest lag, nor all of a request together more than the sum of its lags.
    """
    most_ns = np.minimum(left_ns, records.lag_max_ns[request].clip(0))
    before_ns = np.cumsum(most_ns) - most_ns
    begins = np.append(True, request[1:] != request[:-1])
    before_ns -= np.maximum.accumulate(np.where(begins, before_ns, 0))
    shared_ns: Int64 = (records.lag_sum_ns[request] - before_ns).clip(0, most_ns)
    return shared_ns


def mark_unstamped(records: Records) -> Bool:
    """Mark the requests whose reads lack kernel timestamps, but for one at their end, bool[requests]."""
    marked: Bool = records.unstamped_reads > np.maximum(_UNSTAMPED * records.reads, _ENDS)
    return marked


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

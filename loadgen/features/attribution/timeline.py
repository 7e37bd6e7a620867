"""Timeline: the messages of all streams by when the server sent them: typical steps, and silences of all."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import US_NS
from loadgen.records.record import BLOCK, MessageBlock, Records

SILENT = 1.25  # typical steps
_STEPS = 128  # of a bin, whose median is the typical step: up to half of it may be slow
_MOST_BINS = 1 << 18
_LEAST_GAPS = 16  # of a bin that has a typical step of its own
_BURST = 16  # a message that follows another within this part of a typical step came with it
_GAP_BITS = 40  # of a gap as it is sorted: 18 minutes
_SEVERAL, _AT_ONCE = 1.75, 8  # steps' messages of a stream, within this part of a typical step
_NONE = np.zeros(0, np.int64)


class Timeline(msgspec.Struct, frozen=True):
    """The course of a run by the server's time of sending: arrival − the delay that is known (ns).

    A bin is `width_ns` of time from `from_ns` on. A silence is a time without a message of any stream, longer
    than 1.25 typical steps; they are ascending and disjoint.
    """

    from_ns: int
    width_ns: int
    steps_ns: Int64  # the typical step of each bin: median gap of all streams, int64[bins]
    begin_ns: Int64  # of each silence: the last message before it
    end_ns: Int64  # the first message after it
    caught_up: Bool  # of each silence: streams had several messages at its end, so the engine did not pause
    first_ns: Int64  # of each request its first message, int64[requests]; 0 without any
    begun_ns: Int64  # the first messages of all streams, ascending
    ended_ns: Int64  # the last messages of all streams, ascending

    def step_at(self, at_ns: Int64) -> Int64:
        """Return the typical step (ns) at each moment."""
        bins = ((at_ns - self.from_ns) // self.width_ns).clip(0, len(self.steps_ns) - 1)
        steps_ns: Int64 = self.steps_ns[bins]
        return steps_ns

    def count_open(self, at_ns: Int64) -> Int64:
        """Count the streams that had begun by each moment and were to go on after it."""
        begun = self.begun_ns.searchsorted(at_ns, side="right")
        return (begun - self.ended_ns.searchsorted(at_ns, side="right")).astype(np.int64)


def compute_sent_ns(block: MessageBlock) -> Int64:
    """Compute when the server sent each message (ns): its arrival − what is known of its delay."""
    if not len(block.delay_us):
        return block.arrival_ns
    return block.arrival_ns - block.delay_us.astype(np.int64) * US_NS


def trace_timeline(records: Records, usual_ns: int) -> Timeline:
    """Trace the messages of all requests, failed ones too; at least one request has some.

    `usual_ns` is the run's step in round figures: a bin is 128 of these, and has it where its gaps are few.
    """
    spans, reach, first_ns, last_ns = records.spans(), [], *np.zeros((2, len(records)), np.int64)
    for block in records.blocks(spans):
        sent_ns, some = compute_sent_ns(block), np.diff(block.start) > 0
        first_ns[block.first : block.last][some] = sent_ns[block.start[:-1][some]]
        last_ns[block.first : block.last][some] = sent_ns[block.start[1:][some] - 1]
        reach.append((int(sent_ns.min()), int(sent_ns.max())) if len(sent_ns) else None)
    known = [each for each in reach if each is not None]
    low, high = min(at for at, _ in known), max(at for _, at in known)
    width_ns = max(_STEPS * usual_ns, (high - low) // _MOST_BINS + 1)
    steps_ns = np.full((high - low) // width_ns + 1, -1, np.int64)
    silences, latest_ns = [(_NONE, _NONE, np.zeros(0))], low
    for first, last in pairwise(_cut_slabs(records, low, width_ns, len(steps_ns))):
        from_ns, until_ns = low + first * width_ns, low + last * width_ns
        touched = [
            span
            for span, at in zip(spans, reach, strict=True)
            if at is not None and at[0] < until_ns and at[1] >= from_ns
        ]
        parts = [_select_between(block, from_ns, until_ns) for block in records.blocks(touched)]
        sent_ns, gap_ns = (np.concatenate(column) for column in zip((_NONE, _NONE), *parts, strict=True))
        bins = (sent_ns - from_ns) // width_ns
        some = gap_ns >= usual_ns // _BURST
        more_ns = sent_ns[
            (gap_ns >= 0) & (gap_ns < usual_ns // _AT_ONCE)
        ]  # of a stream that had one just before
        steps_ns[first:last] = steps = _find_medians(bins[some], gap_ns[some], last - first)
        sent_ns.sort()
        apart_ns = np.diff(sent_ns, prepend=latest_ns)
        at = np.flatnonzero(apart_ns > SILENT * min(usual_ns, int(steps[steps >= 0].min(initial=usual_ns))))
        over_ns = sent_ns[at] + usual_ns // _AT_ONCE
        at_once = sent_ns.searchsorted(over_ns, side="right") - at
        more_ns = np.sort(more_ns)
        more = more_ns.searchsorted(over_ns, side="right") - more_ns.searchsorted(sent_ns[at])
        silences.append((sent_ns[at] - apart_ns[at], sent_ns[at], at_once / (at_once - more).clip(1)))
        latest_ns = int(sent_ns.max(initial=latest_ns))
    begin_ns, end_ns, at_once = (np.concatenate(column) for column in zip(*silences, strict=True))
    steps_ns, some = _smooth(steps_ns, usual_ns), np.diff(records.start) > 0
    silent = end_ns - begin_ns > SILENT * steps_ns[(begin_ns - low) // width_ns]
    timeline = Timeline(
        from_ns=low,
        width_ns=width_ns,
        steps_ns=steps_ns,
        begin_ns=begin_ns[silent],
        end_ns=end_ns[silent],
        caught_up=silent[silent],
        first_ns=first_ns,
        begun_ns=np.sort(first_ns[some]),
        ended_ns=np.sort(last_ns[some]),
    )
    caught_up = at_once[silent] > _SEVERAL * _count_of_step(timeline, len(records.arrival_ns))
    return replace(timeline, caught_up=caught_up)


def _count_of_step(timeline: Timeline, messages: int) -> float:
    """Count the messages that a step makes of a stream, at least 1."""
    open_ns = max(int((timeline.ended_ns - timeline.begun_ns).sum()), 1)
    made = messages - len(timeline.begun_ns)
    return max(made * float(np.median(timeline.steps_ns)) / open_ns, 1.0)


def _cut_slabs(records: Records, low: int, width_ns: int, bins: int) -> list[int]:
    """Choose the bins at which to cut a run, about a block of messages between two of them."""
    if records.in_one_block:
        return [0, bins]
    counts = np.zeros(bins, np.int64)
    for block in records.blocks():
        counts += np.bincount((compute_sent_ns(block) - low) // width_ns, minlength=bins)
    full = np.diff((np.cumsum(counts) - 1) // BLOCK, prepend=0) > 0
    return sorted({0, *np.flatnonzero(full).tolist(), bins})


def _select_between(block: MessageBlock, from_ns: int, until_ns: int) -> tuple[Int64, Int64]:
    """Select when messages were sent between two moments, and the gap before each; -1: it was the first."""
    sent_ns = compute_sent_ns(block)
    gap_ns = np.diff(sent_ns, prepend=0)
    gap_ns[block.start[:-1][np.diff(block.start) > 0]] = -1
    inside = (sent_ns >= from_ns) & (sent_ns < until_ns)
    return sent_ns[inside], gap_ns[inside]


def _find_medians(bins: Int64, gap_ns: Int64, count: int) -> Int64:
    """Find the median gap of each bin, int64[count]; -1 for a bin with fewer than 16 gaps."""
    keys = (bins << _GAP_BITS) | gap_ns.clip(0, (1 << _GAP_BITS) - 1)
    keys.sort()
    gaps = np.bincount(bins, minlength=count)
    middle = np.cumsum(gaps) - gaps + gaps // 2
    medians = np.full(count, -1, np.int64)
    some = gaps >= _LEAST_GAPS
    medians[some] = keys[middle[some]] & ((1 << _GAP_BITS) - 1)
    return medians


def _smooth(steps_ns: Int64, usual_ns: int) -> Int64:
    """Give each bin the median of its own step and its neighbours': a bin may be spoiled by one long stall.

    A bin without a step (-1) has that of the nearest one before it, else after it; without any, the usual.
    """
    known = np.flatnonzero(steps_ns >= 0)
    if not len(known):
        return np.full_like(steps_ns, usual_ns)
    own = steps_ns[known]
    if len(own) > 2:
        at = np.arange(len(own)).clip(1, len(own) - 2)
        own = np.sort([own[at - 1], own[at], own[at + 1]], axis=0)[1]
    nearest = (known.searchsorted(np.arange(len(steps_ns)), side="right") - 1).clip(0)
    smooth_ns: Int64 = own[nearest]
    return smooth_ns

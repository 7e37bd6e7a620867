"""Stalls: typical steps, and silences of all streams at once; how much of these was for another's prompt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.clock import US_NS
from loadgen.records.record import BLOCK, MessageBlock, Records

SILENT = 1.25  # typical steps
_STEPS = 128  # of a bin, whose median is the typical step: up to half of it may be slow
_MOST_BINS = 1 << 18
_LEAST_GAPS = 16  # of a bin that has a typical step of its own
_SAME_STEP = 16  # a message that follows another within this part of a typical step came with it
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
        """Return the typical step (ns) at each moment; outside the run that of its first or last bin."""
        bins = ((at_ns - self.from_ns) // self.width_ns).clip(0, len(self.steps_ns) - 1)
        steps_ns: Int64 = self.steps_ns[bins]
        return steps_ns

    def count_open(self, at_ns: Int64) -> Int64:
        """Count the streams whose first message was sent by each moment, and whose last one after it."""
        begun = self.begun_ns.searchsorted(at_ns, side="right")
        return (begun - self.ended_ns.searchsorted(at_ns, side="right")).astype(np.int64)


def compute_sent_ns(block: MessageBlock) -> Int64:
    """Compute when the server sent each message (ns): its arrival − what is known of its delay."""
    if not len(block.delay_us):
        return block.arrival_ns
    return block.arrival_ns - block.delay_us.astype(np.int64) * US_NS


def trace_timeline(records: Records, usual_ns: int) -> Timeline:
    """Make the timeline of all requests, failed ones too; raises ValueError if none has a message.

    `usual_ns` is the run's rough step: a bin is 128 of these or longer, and has it where its gaps are few.
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
        some = gap_ns >= usual_ns // _SAME_STEP
        # Messages of a stream that had one just before.
        more_ns = sent_ns[(gap_ns >= 0) & (gap_ns < usual_ns // _AT_ONCE)]
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
    open_ns = max(int((timeline.ended_ns - timeline.begun_ns).sum()), 1)
    made = len(records.arrival_ns) - len(timeline.begun_ns)
    # A step gives a stream at least one message.
    caught_up = at_once[silent] > _SEVERAL * max(made * float(np.median(timeline.steps_ns)) / open_ns, 1.0)
    return replace(timeline, caught_up=caught_up)


def _cut_slabs(records: Records, low: int, width_ns: int, bins: int) -> list[int]:
    """Choose the bins at which to cut a run, 0 and `bins` among them, about BLOCK messages apart."""
    if records.in_one_block:
        return [0, bins]
    counts = np.zeros(bins, np.int64)
    for block in records.blocks():
        counts += np.bincount((compute_sent_ns(block) - low) // width_ns, minlength=bins)
    full = np.diff((np.cumsum(counts) - 1) // BLOCK, prepend=0) > 0
    return sorted({0, *np.flatnonzero(full).tolist(), bins})


def _select_between(block: MessageBlock, from_ns: int, until_ns: int) -> tuple[Int64, Int64]:
    """Select the messages sent in [from, until): when, and the gap before each (ns), −1 for a first one."""
    sent_ns = compute_sent_ns(block)
    gap_ns = np.diff(sent_ns, prepend=0)
    gap_ns[block.start[:-1][np.diff(block.start) > 0]] = -1
    inside = (sent_ns >= from_ns) & (sent_ns < until_ns)
    return sent_ns[inside], gap_ns[inside]


def _find_medians(bins: Int64, gap_ns: Int64, count: int) -> Int64:
    """Find the (upper) median gap of each bin, int64[count]; -1 for a bin with fewer than 16 gaps."""
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


# Streams that must be silent together before a stall is the engine's. If each were to have a long gap once in
# twenty steps on its own, three others would have one together with a given stream once in 8,000.
LEAST_STREAMS = 4
_BURST = 0.5  # typical steps: what comes as long after the first message of a burst is of that burst
_ROW = 0.9  # typical steps: a burst is over sooner, and an ordinary step takes longer
_CHANCE = 0.05  # coincidences that are as likely to be chance are not believed
_RARE = 0.1  # of the prompts as long: where fewer came with a stall, prompts are not its cause
_AS_LONG = 0.5  # of a stall: slow steps of less could not be taken for it
_LEAST_LIKE, _WITHIN, _DEVIATIONS = 3, 1.25, 7  # prompts, and what their stalls for a token are limited by
_OF_EXCESS = 0.75  # of a stall: as much longer than without it a prompt took that made it
_SMALL, _MOST = 2 * (SILENT - 1), 0.5  # typical steps of stalls, and of the prompts as long
_MOST_TERMS = 400  # of a tail: as many coincidences need no more


class EngineStalls(msgspec.Struct, frozen=True):
    """The silences of all streams that are longer than a typical step, ascending and disjoint."""

    begin_ns: Int64
    end_ns: Int64
    excess_ns: Int64  # beyond the typical step
    prefill_ns: Int64  # of the excess, for another request's prompt
    slow_ns: Int64  # of the excess, for no one's, with enough streams to show it; the rest is unknown


class _Prompts(msgspec.Struct, frozen=True):
    """Prompts whose first tokens came with one step while others went on, a row a step, shortest first."""

    longest: Int64  # tokens of the longest of them: others may have gathered while all stood still
    tokens: Int64  # of them together
    first: Int64  # the first stall that they may explain, by its place
    last: Int64  # and the last, which ends with their first tokens; less than `first`: none
    excess_ns: Int64  # of these stalls together
    first_ns: Int64  # when the first token was sent
    wait_ns: Int64  # for it, since its prompt may have been computed
    each_tokens: Int64  # of each single prompt
    each_sent_ns: Int64  # or began, where the server reports it
    sized: bool  # whether all tokens are known

    @property
    def stalled(self) -> Bool:
        """Marks those that may explain a stall."""
        return self.first <= self.last


def find_stalls(timeline: Timeline, records: Records) -> EngineStalls:
    """Find the stalls of a run, and divide each one's excess.

    A step has another's prefill in it if a request that was sent before the step began has its first token
    with the step's end, or with the end of the last of the slow steps that follow at once: a long prompt is
    computed in several. Where the server reports a request's prefill, it began then, not when it was sent.
    """
    begin_ns, end_ns = timeline.begin_ns, timeline.end_ns
    step_ns = timeline.step_at(begin_ns)
    excess_ns = (end_ns - begin_ns - step_ns).clip(0)
    begins_row = np.append(True, begin_ns[1:] - end_ns[:-1] > _ROW * step_ns[1:])[: len(begin_ns)]
    prompts = _find_prompts(timeline, records, begins_row, excess_ns)
    owner = np.full(len(begin_ns), -1, np.int64)  # the longest prompt that may explain each stall
    rows = np.flatnonzero(prompts.stalled)
    np.maximum.at(owner, prompts.last[rows], rows)
    for row in rows[prompts.first[rows] < prompts.last[rows]].tolist():
        part = owner[prompts.first[row] : prompts.last[row] + 1]
        np.maximum(part, row, out=part)
    of_prompt = owner >= 0
    rows_ns = np.bincount(np.cumsum(begins_row), np.where(of_prompt, 0, excess_ns)).astype(np.int64)
    limit_ns = np.minimum(_limit_ns(prompts), prompts.excess_ns)
    least_ns = _SMALL * step_ns[prompts.last.clip(0)] if len(step_ns) else limit_ns
    owning = np.isin(np.arange(len(limit_ns)), owner)
    slow_ns, small = rows_ns[rows_ns > 0], limit_ns < least_ns
    sure, passed = _judge_prompts(prompts, owning, limit_ns, slow_ns, small, timeline)
    prefill_ns = np.zeros_like(excess_ns)
    # The last stalls of a prompt are the surest: before them another step may have been slow.
    total_ns, at, its = np.append(0, np.cumsum(excess_ns)), np.flatnonzero(of_prompt), owner[of_prompt]
    after_ns = total_ns[prompts.last[its] + 1] - total_ns[at + 1]
    given_ns = np.where(passed, 0, np.rint(limit_ns).astype(np.int64))[its] - after_ns
    prefill_ns[at] = np.minimum(given_ns.clip(0), excess_ns[at])
    slow = (timeline.count_open(begin_ns) >= LEAST_STREAMS) & ~timeline.caught_up
    slow_ns = np.where(slow, excess_ns - prefill_ns, 0)
    prefill_ns[at[~sure[its]]] = prefill_ns[timeline.caught_up] = 0
    return EngineStalls(begin_ns, end_ns, excess_ns, prefill_ns, slow_ns)


def find_prefill_ns(records: Records) -> Int64:
    """Return each request's prefill as reported, else the server's TTFT, int64[requests] (ns); -1: none."""
    return np.where(records.server_prefill_ns < 0, records.server_ttft_ns, records.server_prefill_ns)


def _find_prompts(timeline: Timeline, records: Records, begins_row: Bool, excess_ns: Int64) -> _Prompts:
    """Find the prompts whose first token came while another stream was open, and their stalls.

    `begins_row` marks stalls that do not follow the one before at once, `excess_ns` is of each stall.
    """
    begin_ns, end_ns = timeline.begin_ns, timeline.end_ns
    rows = np.flatnonzero(np.diff(records.start) > 0)
    rows = rows[timeline.count_open(timeline.first_ns[rows]) > 1]  # itself, and one that may wait for it
    rows = rows[np.argsort(timeline.first_ns[rows], kind="stable")]
    first_ns, prefill_ns = timeline.first_ns[rows], find_prefill_ns(records)[rows]
    reported = prefill_ns >= 0
    began_ns = np.where(reported, first_ns - prefill_ns, records.sent_ns[rows])
    step_ns = timeline.step_at(begin_ns)
    first = np.maximum.accumulate(begin_ns + step_ns).searchsorted(began_ns)
    last = end_ns.searchsorted(first_ns, side="right") - 1
    if len(begin_ns):
        at = last.clip(0)
        # It comes with the end, or a step later if the prompt's last chunk was too short to slow that step.
        after_ns, waited = first_ns - end_ns[at], began_ns <= begin_ns[at]
        with_end = (last >= 0) & (after_ns <= (_BURST + SILENT * waited) * step_ns[at])
        row_begin = np.maximum.accumulate(np.where(begins_row, np.arange(len(begin_ns)), 0))
        first = np.where(reported, first, np.maximum(first, row_begin[at]))
        last = np.where(with_end | reported, last, -1)
    inputs = np.where(records.input_tokens < 0, records.planned_input, records.input_tokens)[rows]
    tokens = (inputs - records.cached_tokens[rows].clip(0)).clip(1)  # 1 where they are not known
    each = longest = tokens
    wait_ns = first_ns - began_ns
    if len(rows):
        last_ns = np.where(first <= last, np.append(excess_ns, 0)[last], 0)
        last = np.where(_mark_usual(tokens, wait_ns, last_ns, timeline.step_at(first_ns)), -1, last)
        bursts_ns = _BURST * timeline.step_at(first_ns)
        groups = np.flatnonzero(np.append(True, np.diff(first_ns) > bursts_ns[1:]))
        in_it = np.where(first <= last, tokens, 0)
        first, within = _begin_groups(first, in_it, groups, len(begin_ns))
        longest = np.maximum.reduceat(tokens, groups)
        last, tokens = np.maximum.reduceat(last, groups), np.add.reduceat(tokens, groups)
        tokens = np.where(within > 0, within, tokens)
        first_ns, wait_ns = first_ns[groups], np.maximum.reduceat(wait_ns, groups)
        first = _separate_prompts(first, last, tokens)
    total_ns = np.concatenate([[0], np.cumsum(excess_ns)])
    within_ns = total_ns[last + 1] - total_ns[first.clip(max=len(begin_ns))]
    order = np.argsort(longest, kind="stable")
    return _Prompts(
        longest[order],
        tokens[order],
        first[order],
        last[order],
        np.where(first <= last, within_ns, 0).astype(np.int64)[order],
        first_ns[order],
        wait_ns[order],
        each_tokens=each,
        each_sent_ns=began_ns,
        sized=bool((inputs >= 0).all()),
    )


def _mark_usual(tokens: Int64, wait_ns: Int64, excess_ns: Int64, step_ns: Int64) -> Bool:
    """Mark the prompts that waited no longer than usual, and so did not cause the stall that they came with.

    Without it one would have waited less than each prompt like it that came without a stall, as most did. Of
    a small stall nothing can be said: those may have had one as small, that was no silence.
    """
    marked, stalled = np.zeros(len(tokens), np.bool_), excess_ns > _SMALL * step_ns
    sizes = (2 * np.log2(tokens)).astype(np.int64)
    for size in np.unique(sizes[stalled]).tolist():
        like = np.abs(sizes - size) <= 2
        without = like & (excess_ns == 0)
        if 2 * np.count_nonzero(without) > np.count_nonzero(like):
            least_ns = int(wait_ns[without].min())
            marked |= stalled & (sizes == size) & (wait_ns < least_ns + _OF_EXCESS * excess_ns)
    return marked


def _begin_groups(first: Int64, tokens: Int64, groups: Int64, none: int) -> tuple[Int64, Int64]:
    """Return each group's first stall, by which prompts with half of its tokens had come, and its tokens.

    Those that came during a stall are computed together after it, and did not cause it. `groups` has the row
    at which each begins; `tokens` is 0 for a prompt without a stall, and a group of such has `none`, 0.
    """
    group = np.zeros(len(first), np.int64)
    group[groups[1:]] = 1
    order = np.lexsort((first, np.cumsum(group)))
    reached = np.cumsum(tokens[order])
    sums: Int64 = np.add.reduceat(tokens, groups)
    middle = reached.searchsorted(np.cumsum(sums) - sums + (sums + 1) // 2).clip(max=len(first) - 1)
    return np.where(sums > 0, first[order][middle], none), sums


def _separate_prompts(first: Int64, last: Int64, tokens: Int64) -> Int64:
    """Let prompts that share slow steps follow one another: none begins before one as long is over.

    One is as long from half of the tokens on: shorter ones are computed along with it. Rows are in the order
    of their last stalls.
    """
    # `longer` has those before, each with fewer tokens than the last.
    first, longer = first.copy(), list[tuple[int, int]]()
    for row in np.flatnonzero(first <= last).tolist():
        size, end = int(tokens[row]), int(last[row])
        while longer and 2 * longer[-1][0] < size:
            longer.pop()
        if longer and first[row] <= longer[-1][1] < end:
            first[row] = longer[-1][1] + 1
        longer.append((size, end))
    return first


def _judge_prompts(
    prompts: _Prompts, owning: Bool, stall_ns: Float64, slow_ns: Int64, small: Bool, timeline: Timeline
) -> tuple[Bool, Bool]:
    """Mark prompts whose stalls are surely no chance, and those whose stalls others cause.

    Of n prompts like them k came with as long a stall (`stall_ns`; `owning`: none longer came with it); those
    without may be longer. A stall of no one comes with a prompt by chance, if one is due within it: one that
    was sent before, and has usually waited by its end. During a share `a` of the time none is due. While m
    stalls as long come without such a prompt (`slow_ns`: their excess, and that of much shorter prompts), a
    negative binomial variable counts those with one. If its probability to be k or more is not small, the
    smaller the fewer of the n they are, and other steps are as slow, and nearly all of the n came without,
    prompts are no cause; but where lengths are unknown it may be the one long prompt. As slow as half of a
    small stall are steps that are no silences: it must be most of the n that came with one.
    """
    stalled, stall_ns = prompts.stalled, stall_ns * prompts.longest / prompts.tokens  # of the longest alone
    least_ns, (busy_ns, step_ns) = _AS_LONG * stall_ns, _measure_busy(timeline)
    (seen, passed), apart = np.zeros((2, len(stalled)), np.int64), np.ones(len(stalled))
    as_slow = _count_at_least(slow_ns, least_ns)
    for of_size, like, first in _list_sizes(prompts):
        least = least_ns[of_size]
        seen[of_size] = _count_at_least(stall_ns[like & owning], least)
        as_slow[of_size] += _count_at_least(stall_ns[:first][owning[:first]], least)
        passed[of_size] = np.count_nonzero(~stalled[first:] | like[first:]) - _count_at_least(
            stall_ns[like], least
        )
        usual_ns = float(np.median((prompts.wait_ns - prompts.excess_ns).clip(0)[like]))
        within_ns = np.minimum(usual_ns, prompts.excess_ns[of_size]) + 2 * step_ns
        longer = prompts.each_tokens >= prompts.longest[first]
        for at_ns in (prompts.first_ns[first:], prompts.each_sent_ns[longer]):
            covered_ns = _measure_cover(at_ns, within_ns)
            apart[of_size] = np.minimum(apart[of_size], 1 - covered_ns / busy_ns)
    share = seen / np.maximum(seen + passed, 1)
    chance = np.ones(len(stalled))
    apart = apart.clip((step_ns / busy_ns) ** 2)[stalled]
    chance[stalled] = _sum_tail(seen[stalled], as_slow[stalled], apart)
    believed = chance <= _CHANCE * share
    sure = believed & (~small | (share >= _MOST))
    return sure, stalled & ~believed & (share < _RARE) & (as_slow > 0) & prompts.sized


def _count_at_least(values: Float64 | Int64, least: Float64) -> Int64:
    """Count the values of each number in `least` or more, int64[least]."""
    counts: Int64 = len(values) - np.sort(values).searchsorted(least)
    return counts


def _measure_cover(at_ns: Int64, within_ns: Float64) -> Float64:
    """Measure how long one of the moments lies at most `within_ns` ahead, for each of these, float64 (ns)."""
    between_ns = np.sort(np.diff(np.sort(at_ns)))
    fewer = between_ns.searchsorted(within_ns)
    shorter_ns = np.append(0, np.cumsum(between_ns))[fewer]
    cover_ns: Float64 = shorter_ns + (len(at_ns) - fewer) * within_ns
    return cover_ns


def _limit_ns(prompts: _Prompts) -> Float64:
    """Return the most that each prompt explains (ns), by the stalls per token of those of like length.

    Beyond a quarter more than the median and seven times the median deviation from it, a stall is not for the
    prompts that were computed in it. Fewer than three give no limit: inf.
    """
    limits_ns, each_ns = np.full(len(prompts.tokens), np.inf), prompts.excess_ns / prompts.tokens
    for of_size, like, _ in _list_sizes(prompts):
        if np.count_nonzero(like) >= _LEAST_LIKE:
            median_ns = float(np.median(each_ns[like]))
            spread_ns = float(np.median(np.abs(each_ns[like] - median_ns)))
            limits_ns[of_size] = _WITHIN * (median_ns + _DEVIATIONS * spread_ns)
    return limits_ns * prompts.tokens


def _list_sizes(prompts: _Prompts) -> Iterator[tuple[Bool, Bool, int]]:
    """Yield masks of the stalled prompts of a size and of half to twice it, and the first row of half of it.

    A size is from a power of √2 tokens to the next; one without a stalled prompt is left out.
    """
    sizes, stalled = (2 * np.log2(prompts.longest)).astype(np.int64), prompts.stalled
    for size in np.unique(sizes[stalled]).tolist():
        yield (
            stalled & (sizes == size),
            stalled & (np.abs(sizes - size) <= 2),
            int(sizes.searchsorted(size - 2)),
        )


def _sum_tail(least: Int64, without: Int64, apart: Float64) -> Float64:
    """Compute P(X ≥ least): X stalls have a prompt before one more than `without` have none.

    One has none with the probability `apart`. `least` counts as 400 at most.
    """
    term, below = apart ** (without + 1.0), np.zeros(len(apart))
    for k in range(min(int(least.max(initial=0)), _MOST_TERMS)):
        below += np.where(k < least, term, 0.0)
        term = term * (1 - apart) * (k + 1 + without) / (k + 1)
    return 1.0 - below


def _measure_busy(timeline: Timeline) -> tuple[int, float]:
    """Measure for how long at least one stream was open, and the typical step; both at least 1 ns."""
    at_ns = np.sort(np.concatenate([timeline.begun_ns, timeline.ended_ns]))
    busy_ns = int(np.diff(at_ns)[timeline.count_open(at_ns)[:-1] > 0].sum())
    return max(busy_ns, 1), max(float(np.median(timeline.steps_ns)), 1.0)

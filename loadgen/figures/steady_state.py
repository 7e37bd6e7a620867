"""Steady state: the window in which the load asked for was held, and the figures inside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from loadgen.base.arrays import Bool, Float64, Int64, sum_exactly
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.text import format_count
from loadgen.figures.distribution import Distribution
from loadgen.figures.metrics import Metrics, mark_good, measure_latencies
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.plan.profile import Profile
from loadgen.records.record import Records
from loadgen.transport.failure import CUT_OFF, Failure

_MARGIN = re.compile(r"(\d{1,9})|(\d{1,9}(?:\.\d{1,9})?)s", re.ASCII)


class Margin(msgspec.Struct, frozen=True):
    """The part to leave out at one side of the window: a number of requests, or a time."""

    requests: int = 0
    time_ns: int = 0


class Trim(msgspec.Struct, frozen=True):
    """The margins to leave out at both sides of the steady window: --warmup and --cooldown."""

    warmup: Margin = Margin()
    cooldown: Margin = Margin()

    @classmethod
    def parse(cls, warmup: str, cooldown: str) -> Trim:
        """Parse `--warmup` and `--cooldown`: requests as `20`, seconds as `5s`; raises UsageError."""
        return cls(_parse_margin("--warmup", warmup), _parse_margin("--cooldown", cooldown))


class Unsteady(msgspec.Struct, frozen=True):
    """The reason why a run has no steady window."""

    why: str


class Steady(msgspec.Struct, frozen=True):
    """The steady window (begin, end] and its figures; latencies are of requests sent and ended inside."""

    begin_s: float  # after the run's first request was sent
    end_s: float
    duration_s: float  # end - begin
    share: float  # of the run's duration, 0 to 1
    mean_concurrency: float  # ∫ requests under way dt / duration, failures included
    completed: int  # successes that ended inside
    requests: float  # successes, each by the share of its time, sent to end, that lies inside
    output_tokens: int  # of successes, by each message's own arrival; not streamed: by that share
    request_throughput_per_s: float  # requests / duration
    output_throughput_per_s: float  # output tokens / duration
    whole: int  # successes that were sent and ended inside
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2el: Distribution


def _parse_margin(flag: str, text: str) -> Margin:
    if not text:
        return Margin()
    match = _MARGIN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{flag} {text}: give requests as 20, or seconds as 5s")
    count, seconds = match.groups()
    return Margin(requests=int(count)) if count else Margin(time_ns=int(float(seconds) * SECOND_NS))


def find_steady_state(
    records: Records,
    asked_concurrency: int | None,
    trim: Trim,
    ask: MetricOptions,
    begins: Bool | None = None,
    queues: int = 1,
) -> Steady | Unsteady:
    """Find a run's steady window and its figures, or why it has none.

    `asked_concurrency` None: the loop was open. `begins`, bool[requests], marks the first turns of sessions;
    None: each request counts. Slot s of a closed loop takes its requests from queue s mod `queues`.
    """
    held = find_held_ns(records, asked_concurrency, begins, queues)
    if isinstance(held, Unsteady):
        return held
    # N requests of warm-up are the first N that end inside, N of cool-down the last N sent inside: the one is
    # the other with time reversed.
    (begin_ns, end_ns), sent = held, records.select(records.sent)
    sent_ns, ended_ns = np.sort(sent.sent_ns), np.sort(sent.end_ns)
    ended_ns = ended_ns[(ended_ns > begin_ns) & (ended_ns <= end_ns)]
    sent_ns = sent_ns[(sent_ns >= begin_ns) & (sent_ns < end_ns)]
    begin_ns, end_ns = begin_ns + trim.warmup.time_ns, end_ns - trim.cooldown.time_ns
    if count := trim.warmup.requests:
        begin_ns = int(ended_ns[count - 1]) if count <= len(ended_ns) else held[1]
    if count := trim.cooldown.requests:
        end_ns = int(sent_ns[-count]) if count <= len(sent_ns) else held[0]
    if begin_ns >= end_ns:
        return Unsteady("--warmup and --cooldown leave nothing of it")
    return _measure_window(records, begin_ns, end_ns, ask)


def find_held_ns(
    records: Records, asked_concurrency: int | None, begins: Bool | None = None, queues: int = 1
) -> tuple[int, int] | Unsteady:
    """Find from when to when (ns) the requested load was held, untrimmed, or why it never was.

    Closed loop: from when the last slot sent its first request, to when the first slot ended its last: from
    there on a request is not replaced. A slot's turn-around is not its end, nor is its wait to connect again.
    Open loop (None): from the first request sent to the last, of sessions to the last one that began.
    """
    sent = records.select(records.sent)
    if not len(sent):
        return Unsteady("no request was sent")
    if asked_concurrency is None:
        begun = sent if begins is None else records.select(records.sent & begins)
        begin_ns, end_ns = int(sent.sent_ns.min()), int(begun.sent_ns.max(initial=0))
        lost = "every request was sent at the same moment"
        if begin_ns < end_ns < int(sent.end_ns.min()):
            return Unsteady("every request was sent before the first one ended")
    else:
        firsts_ns, lasts_ns = _find_slot_times(records, begins, queues)
        if len(firsts_ns) < asked_concurrency:
            return Unsteady(f"concurrency {asked_concurrency} was requested and {len(firsts_ns)} was reached")
        begin_ns, end_ns = int(firsts_ns.max()), int(lasts_ns.min())
        lost = f"a slot ran out of requests before all {asked_concurrency} were busy"
    return (begin_ns, end_ns) if begin_ns < end_ns else Unsteady(lost)


def describe_steady_state(part: Steady | Unsteady) -> list[str]:
    """Describe the steady window, or why there is none, in one or two lines."""
    if isinstance(part, Unsteady):
        return [f"steady state: none: {part.why}"]
    latencies_of = {"TTFT": part.ttft, "TPOT": part.tpot, "E2EL": part.e2el}
    means = [f"{name} {latency.mean_ms:.2f}" for name, latency in latencies_of.items() if latency.n]
    span = f"{part.begin_s:.1f} to {part.end_s:.1f} s ({100 * part.share:.0f} %)"
    rates = f"{part.output_throughput_per_s:.1f} tok/s, {part.request_throughput_per_s:.2f} req/s"
    return [
        f"steady state: {span}, concurrency {part.mean_concurrency:.2f}, {rates}",
        f"  {format_count(part.whole, 'request')} entirely inside it"
        + (f": mean {', '.join(means)} ms" if means else ""),
    ]


def encode_steady_state(part: Steady | Unsteady) -> dict[str, Any]:
    """Encode the steady figures by name as strict JSON, null without samples; or `why` alone."""
    figures = asdict(part)
    for name, value in figures.items():
        if isinstance(value, Distribution):
            percentiles_ms = {f"{rank:g}": each for rank, each in value.percentiles_ms.items()}
            figures[name] = {**asdict(value), "percentiles_ms": percentiles_ms} if value.n else None
    return figures


def describe_run_out(records: Records, profile: Profile, queues: int = 1) -> str:
    """State that a closed loop sent its last prompt before --duration was over; "" if it did not."""
    sent = records.select(records.sent)
    timed_loop = profile.duration is not None and profile.held_concurrency is not None
    if not timed_loop or len(records) < profile.most_prompts or not len(sent):
        return ""
    idle_ns = int(
        _find_slot_times(records, None, queues)[1].min() - sent.sent_ns.min()
    )  # when a slot had nothing left to send
    if idle_ns >= profile.duration_ns:
        return ""
    return (
        f"all {profile.most_prompts} prompts were sent and the load fell {idle_ns / SECOND_NS:.1f} s into "
        f"the {profile.duration:g} s of --duration: raise --num-prompts"
    )


def _find_slot_times(records: Records, begins: Bool | None, queues: int) -> tuple[Int64, Int64]:
    """Find when each slot that sent began, and had nothing left to send, int64[slots that sent] (ns) each.

    A session's requests are of the slot that it began in, whatever others its branches went over. A slot
    whose last request failed ends when its queue was empty.
    """
    slot_of, sent = records.slot, records.select(records.sent)
    if begins is not None and begins.any():
        slot_of = records.slot[begins][(np.cumsum(begins) - 1).clip(0)]
    sent_slot = slot_of[records.sent]
    order = np.argsort(sent_slot, kind="stable")
    first = np.flatnonzero(np.diff(sent_slot[order], prepend=-1))  # slots count from 0
    firsts_ns: Int64 = np.minimum.reduceat(sent.sent_ns[order], first)
    lasts_ns: Int64 = np.maximum.reduceat(sent.end_ns[order], first)
    if not any(records.failures):
        return firsts_ns, lasts_ns
    slots = sent_slot[order][first]
    by_end = np.lexsort((records.end_ns, slot_of))  # those too that found no connection
    rows: Int64 = by_end[np.diff(slot_of[by_end], append=-1) != 0]  # the last end of each slot
    rows = rows[np.isin(slot_of[rows], slots)]
    failed = mark_failed(records.failures, rows)
    begun = sent if begins is None else records.select(records.sent & begins)
    return firsts_ns, find_slot_ends(slots, lasts_ns, failed, (begun.slot, begun.sent_ns), queues)


def _measure_window(records: Records, begin_ns: int, end_ns: int, ask: MetricOptions) -> Steady:
    """Compute the figures of a run's window (begin, end]."""
    sent, each = records.select(records.sent), PerRequest.from_records(records, ask)
    each = replace(each, ok=each.ok & records.sent)
    first_ns, window_ns = int(sent.sent_ns.min()), end_ns - begin_ns
    under_way_ns = sent.end_ns.clip(begin_ns, end_ns) - sent.sent_ns.clip(begin_ns, end_ns)
    # (begin, end]: what arrives at the begin was made before it.
    ended = each.ok & (records.end_ns > begin_ns) & (records.end_ns <= end_ns)
    completed = int(ended.sum())
    shares, outputs = _measure_done(records, each, (begin_ns, end_ns), ask)
    requests, tokens = float(shares.sum()), round(outputs)
    whole = each.ok & (records.sent_ns >= begin_ns) & (records.end_ns <= end_ns)
    inside = measure_latencies(records, replace(each, ok=whole), ask)
    return Steady(
        begin_s=(begin_ns - first_ns) / SECOND_NS,
        end_s=(end_ns - first_ns) / SECOND_NS,
        duration_s=window_ns / SECOND_NS,
        share=window_ns / (max(int(sent.end_ns.max()), end_ns) - first_ns),
        mean_concurrency=sum_exactly(under_way_ns) / window_ns,
        completed=completed,
        requests=requests,
        output_tokens=tokens,
        request_throughput_per_s=requests * SECOND_NS / window_ns,
        output_throughput_per_s=tokens * SECOND_NS / window_ns,
        whole=int(whole.sum()),
        **{name: inside[name] for name in ("ttft", "tpot", "itl", "e2el")},
    )


def _measure_done(
    records: Records, each: PerRequest, window: tuple[int, int], ask: MetricOptions
) -> tuple[Float64, float]:
    """Compute the share of each success's time in the window, float64[requests], and the tokens in it.

    To count requests that end inside is wrong at the edges, which are no random moments: right after the last
    slot began none can have ended, and the end is the first of many ends. Over two waves it was 42 % too low.
    Tokens count by each message's own arrival; where they were not streamed, by that share.
    """
    begin_ns, end_ns = window
    sent_ns, ended_ns = records.sent_ns, np.maximum(records.end_ns, records.sent_ns)
    inside_ns = np.minimum(ended_ns, end_ns) - np.maximum(sent_ns, begin_ns)
    at_once = (ended_ns == sent_ns) & (ended_ns > begin_ns) & (ended_ns <= end_ns)
    shares: Float64 = inside_ns.clip(0) / np.maximum(ended_ns - sent_ns, 1) + at_once
    shares = np.where(each.ok & records.sent, shares, 0.0)
    if not ask.streamed:
        return shares, float(shares @ each.output_tokens)
    arrived = 0
    for block in records.blocks():
        inside = np.repeat(each.ok[block.first : block.last], np.diff(block.start))
        inside &= (block.arrival_ns > begin_ns) & (block.arrival_ns <= end_ns)
        arrived += int(block.tokens.sum(where=inside))
    return shares, float(arrived)


def mark_failed(failures: Sequence[Failure | None], rows: Int64) -> Bool:
    """Mark which of these rows failed or were cancelled as planned, not those cut off, bool[rows]."""
    ended = (failures[row] for row in rows.tolist())
    return np.fromiter((f is not None and f.kind not in CUT_OFF for f in ended), np.bool_, len(rows))


def find_slot_ends(
    slot: Int64, end_ns: Int64, failed: Bool, begun: tuple[Int64, Int64], queues: int
) -> Int64:
    """Return the ends (ns) of slots, int64[slots]; one that `failed` not before its queue was empty.

    It may wait to connect again while others begin what it would have begun. `begun` are the slot and the
    time of all that was begun. Slot s takes from queue s mod `queues`.
    """
    slots, times_ns = begun
    taken, own = slots % queues, slot[failed] % queues
    ends_ns = end_ns.copy()
    for queue in np.unique(own).tolist():
        emptied_ns = int(times_ns[taken == queue].max(initial=0))
        at = np.flatnonzero(failed)[own == queue]
        ends_ns[at] = ends_ns[at].clip(min=emptied_ns)
    return ends_ns


def replace_rates(ended: Metrics, records: Records, until_ns: int, ask: MetricOptions) -> Metrics:
    """Return `ended`, figures of requests over by `until_ns`, with the rates of all work done by then.

    A request in flight at that moment counts by the share of its time that lies before, its tokens by each
    one's arrival: without them throughput is low by half a request for each slot.
    """
    each = PerRequest.from_records(records, ask)
    begin_ns = int(records.sent_ns[records.sent].min()) - 1  # (begin, end]: nothing is left out at the begin
    shares, outputs = _measure_done(records, each, (begin_ns, until_ns), ask)
    inputs = float(shares @ each.input_tokens.clip(0))
    met, duration_s = mark_good(each, ask), ended.duration_s
    sent_ns, end_ns = records.sent_ns[records.sent], records.end_ns[records.sent]
    flown_ns = sum_exactly(end_ns.clip(max=until_ns) - sent_ns.clip(max=until_ns))
    return replace(
        ended,
        request_throughput_per_s=float(shares.sum()) / duration_s,
        input_throughput_per_s=inputs / duration_s,
        output_throughput_per_s=outputs / duration_s,
        total_throughput_per_s=(inputs + outputs) / duration_s,
        output_throughput_per_gpu_per_s=outputs / duration_s / ask.gpus if ask.gpus else None,
        goodput_per_s=None if met is None else float(shares @ met) / duration_s,
        mean_concurrency=flown_ns / SECOND_NS / duration_s,
    )

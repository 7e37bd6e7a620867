"""Metrics: a run's figures from its Records alone, and under the keys of vLLM's and SGLang's results.

docs/metrics.md compares each with vLLM's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from loadgen.base.arrays import Bool, Float64, Int64, sum_exactly
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.figures import figure_table
from loadgen.figures.distribution import Distribution, Piece, RateDistribution
from loadgen.figures.figure_table import (
    COUNTS,
    DEFAULT_METRICS,
    LATENCIES,
    OF_PROMPTS,
    PEAKS,
    SELECTABLE,
    Figure,
)
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.records.record import BLOCK, UNKNOWN, MessageBlock, Records
from loadgen.records.text_tokens import mark_uncounted

Figures = Mapping[str, Any]  # by vLLM's keys
# Tokens per second of all requests together while prompts are computed, and while answers are.
PREFILL, DECODING = "prefill_throughput", "decode_throughput"
DEFINITIONS_VERSION = 4  # raised whenever a formula below changes; stored with every result
_MOST_REASONS = 16  # real servers have a handful; what a server writes is bounded


class FailureTally(msgspec.Struct, frozen=True):
    """The number of requests that failed in one way, and the error text of the first."""

    count: int
    detail: str


class Metrics(msgspec.Struct, frozen=True):
    """Every figure of a run; latencies and tokens over successful requests only."""

    streamed: bool  # False: TTFT, TPOT, ITL and the token peak do not exist
    requests: int  # all of them, failed ones too
    completed: int  # requests that succeeded
    failed: int  # the others, but for those cancelled as planned and those cut off
    duration_s: float  # first request sent → last response's end, over every request that was sent
    total_input_tokens: int  # prompt tokens: usage, else the planned length
    planned_inputs: int  # successes whose prompt tokens are the planned length
    unknown_inputs: int  # successes whose prompt tokens are unknown: they count 0
    total_output_tokens: int  # completion tokens: usage, else the text's by a tokenizer, else the messages
    counted_by_usage: int  # successes whose completion tokens are the server's own count
    counted_by_tokenizer: int  # successes without it whose text was encoded again
    counted_by_messages: int  # the other successes
    uncounted: int  # of these, successes whose messages are not known to carry a token each
    exact_tokens: int  # successes whose tokens per message are known, not spread evenly
    request_throughput_per_s: float  # completed / duration
    input_throughput_per_s: float  # input tokens / duration
    output_throughput_per_s: float  # output tokens / duration
    total_throughput_per_s: float  # (input + output tokens) / duration
    peak_output_throughput_per_s: float | None  # best second, or the run if shorter; None: not streamed
    peak_concurrency: int  # most requests between sent and end at once, failures included
    mean_concurrency: float  # Σ(end - sent) / duration (Little), failures included
    good: int | None  # successes that met every objective; None: none was asked for
    goodput_per_s: float | None  # good / duration
    slo_attainment: float | None  # good / all requests that were neither cancelled nor cut off, 0 to 1
    ttft: Distribution  # first token message - sent
    tpot: Distribution  # (E2EL - TTFT) / (output tokens - 1), per request with more than one token
    itl: Distribution  # gaps between successive token messages of one request, pooled
    token_time: Distribution  # the same gaps, shared by the message's tokens, one value per token
    e2el: Distribution  # last token message - sent; not streamed: end - sent
    queue_time: Distribution  # sent - intended: lateness (open loop), turn-around (closed loop)
    ttft_intended: Distribution  # first token message - intended
    e2el_intended: Distribution  # last token message - intended
    failures: dict[str, FailureTally]  # by kind, most frequent first; those cut off too
    health: ClientHealth
    ttfvt: Distribution  # first message with text of the answer itself, not reasoning - sent
    e2el_per_token: Distribution  # E2EL / output tokens, per request
    prefill_speed: RateDistribution  # input tokens / TTFT, per request; cached tokens and queues are in it
    prefill_behind: int  # of these, requests sent while another had no token yet: they may have queued
    prefill_queued: float | None  # share of their TTFT in the server's queue, as it reports
    tps_user: RateDistribution  # (output tokens - the first message's) / (E2EL - TTFT), per request
    output_throughput_per_gpu_per_s: float | None  # output throughput / GPUs; None: their number is unknown
    total_cached_tokens: int  # prompt tokens of successes that the server reports as found in its cache
    cached_counts: int  # successes for which it reports that
    cached_share: float | None  # those tokens / all prompt tokens of these successes, 0 to 1
    finish_reasons: dict[
        str, int
    ]  # of successes, most frequent first; `none`: without one, `other`: rare ones
    cancelled: int = 0  # requests that the client gave up as planned (--cancel-rate)
    cut_off: int = 0  # requests under way when a signal or a rule ended the run, or their process ended
    arrivals_are_tokens: bool = True  # False (doubt arrivals-not-tokens): TTFT, TPOT and ITL do not exist

    @property
    def times_tokens(self) -> bool:
        """Whether token times were measured, so that TTFT, TPOT and ITL exist."""
        return self.streamed and self.arrivals_are_tokens

    @property
    def messages_per_s(self) -> float:
        """Messages with tokens per second of the run's duration, over all requests."""
        return _per_s(self.health.messages, self.duration_s)

    @property
    def selectable(self) -> dict[str, Distribution]:
        """The latencies, by key, that `--percentile-metrics` can name and this run has."""
        return self._of_selectable(figure_table.LATENCIES)

    @property
    def selectable_rates(self) -> dict[str, RateDistribution]:
        """The speeds that `--percentile-metrics` can name and this run has, by key."""
        return self._of_selectable(figure_table.SPEEDS)

    def _of_selectable(self, table: Sequence[Figure]) -> dict[str, Any]:
        return {
            figure.key: getattr(self, figure.field)
            for figure in table
            if figure.is_selectable and (self.times_tokens or not figure.needs_tokens)
        }


def compute_metrics(records: Records, ask: MetricOptions) -> Metrics:
    """Compute every figure of a run from its records; needs 200 MiB besides them, at any length."""
    each = PerRequest.from_records(records, ask)
    ok = each.ok
    sent = records.select(records.sent)
    sent_ns, end_ns = sent.sent_ns, np.maximum(sent.end_ns, sent.sent_ns)
    duration_ns = int(end_ns.max() - sent_ns.min()) if len(sent_ns) else 0
    duration_s, window_ns = duration_ns / SECOND_NS, min(SECOND_NS, duration_ns)
    peak_per_s = _per_s(peak_of(records, ok, window_ns), window_ns / SECOND_NS) if ask.streamed else None
    met, completed, failed = mark_good(each, ask), int(ok.sum()), int(each.failed.sum())
    cancelled = int(each.cancelled.sum())
    met_count = None if met is None else int(met.sum())
    by_usage = int(records.usage[ok].sum())
    by_text = int((ok & (records.usage == 0) & (records.text_tokens >= 0)).sum())
    distributions: dict[str, Any] = measure_latencies(records, each, ask)
    for figure in figure_table.SPEEDS:
        speeds = _select_samples(figure, each, slice(None))
        distributions[figure.field] = RateDistribution.from_speeds(speeds, ask.metric_percentiles)
    cached, looked_up, reporting = count_cached_tokens(records, ok)
    inputs, outputs = int(each.input_tokens[ok].clip(0).sum()), int(each.output_tokens[ok].sum())
    answers = zip(records.finish_reasons, records.failures, strict=True)
    counts = Counter(reason or "none" for reason, failure in answers if failure is None)
    reasons = dict(counts.most_common(_MOST_REASONS))
    if rare := counts.total() - sum(reasons.values()):
        reasons["other"] = reasons.get("other", 0) + rare
    failures = records.failed
    firsts = {failure.kind.value: failure.detail for failure in reversed(failures)}
    kinds = Counter(failure.kind.value for failure in failures)
    return Metrics(
        streamed=ask.streamed,
        requests=len(records),
        completed=completed,
        failed=failed,
        duration_s=duration_s,
        total_input_tokens=inputs,
        planned_inputs=int((ok & (records.input_tokens < 0) & (each.input_tokens >= 0)).sum()),
        unknown_inputs=int((ok & (each.input_tokens < 0)).sum()),
        total_output_tokens=outputs,
        counted_by_usage=by_usage,
        counted_by_tokenizer=by_text,
        counted_by_messages=completed - by_usage - by_text,
        uncounted=int(mark_uncounted(records).sum()),
        exact_tokens=int(records.exact_tokens[ok].sum()),
        request_throughput_per_s=_per_s(completed, duration_s),
        input_throughput_per_s=_per_s(inputs, duration_s),
        output_throughput_per_s=_per_s(outputs, duration_s),
        total_throughput_per_s=_per_s(inputs + outputs, duration_s),
        peak_output_throughput_per_s=peak_per_s,
        peak_concurrency=peak_concurrency(sent_ns, end_ns),
        mean_concurrency=_per_s(sum_exactly(end_ns - sent_ns) / SECOND_NS, duration_s),
        good=met_count,
        goodput_per_s=None if met_count is None else _per_s(met_count, duration_s),
        slo_attainment=None if met_count is None else met_count / max(completed + failed, 1),
        **distributions,
        failures={kind: FailureTally(n, firsts[kind]) for kind, n in kinds.most_common()},
        health=ClientHealth.from_records(records, each.first_ns),
        **_measure_prefill(records, each),
        output_throughput_per_gpu_per_s=_per_s(outputs, duration_s) / ask.gpus if ask.gpus else None,
        total_cached_tokens=cached,
        cached_counts=reporting,
        cached_share=cached / looked_up if looked_up else None,
        finish_reasons=reasons,
        cancelled=cancelled,
        cut_off=len(records) - completed - failed - cancelled,
        arrivals_are_tokens=ask.arrivals_are_tokens,
    )


def _per_s(count: float, duration_s: float) -> float:
    """Divide a count by seconds; 0 without a duration."""
    return count / duration_s if duration_s else 0.0


def mark_good(each: PerRequest, ask: MetricOptions) -> Bool | None:
    """Mark the requests that met --goodput, bool[requests]; None if it is not set or was not measured."""
    if not ask.goodput_limits or (ask.goodput_limits.keys() - {"e2el"} and not ask.times_tokens):
        return None
    speeds = np.where(each.has_user_speed, each.user_tok_s(), np.inf)  # one message: none is slow
    values = {
        "ttft": np.where(each.has_ttft, each.ttft_ns, np.nan) / MS_NS,
        "tpot": np.where(each.has_ttft, each.tpot_ns(), np.nan) / MS_NS,  # one token: 0, as vLLM has it
        "e2el": np.where(each.ok, each.e2el_ns, np.nan) / MS_NS,
        "tps_user": np.where(each.has_ttft, speeds, np.nan),
    }
    within = [
        values[name] >= limit if SELECTABLE[name].higher_is_better else values[name] <= limit
        for name, limit in ask.goodput_limits.items()
    ]
    met: Bool = np.all(within, axis=0) & each.ok  # NaN is within no limit
    return met


def measure_latencies(records: Records, each: PerRequest, ask: MetricOptions) -> dict[str, Distribution]:
    """Compute the latency fields of Metrics over the requests that `each` marks as successful."""

    ranks = ask.metric_percentiles
    none = Distribution.from_requests(np.zeros(0, np.int64), ranks)
    itl, token_time = _measure_gaps(records, each.ok, ranks) if ask.times_tokens else (none, none)
    of_gaps, order = {"gaps": itl, "tokens": token_time}, np.argsort(records.sent_ns, kind="stable")
    return {
        figure.field: Distribution.from_requests(_select_samples(figure, each, order), ranks)
        if figure.of == "requests"
        else of_gaps[figure.of]
        for figure in figure_table.LATENCIES
    }


def _select_samples(figure: Figure, each: PerRequest, order: Int64 | slice) -> Int64 | Float64:
    """Select a figure's samples: the values of those requests that have one, in an order of the requests."""
    values, has = figure.samples(each)
    return values[order][has[order]]


def list_gaps(block: MessageBlock | Records, ok: Bool) -> tuple[Int64, Int64]:
    """List the gaps (ns) between messages of each success, and the tokens of each gap's later message."""
    counts = np.diff(block.start)
    keep = np.repeat(ok, counts)  # position i stands for the gap from message i to i + 1
    keep[block.start[1:][counts > 0] - 1] = False  # not from one request to the next
    keep = keep[:-1]
    return np.diff(block.arrival_ns)[keep], block.tokens[1:][keep]


def _measure_prefill(records: Records, each: PerRequest) -> dict[str, Any]:
    """Return the fields `prefill_behind` and `prefill_queued` of Metrics; the latter None if not reported."""
    some, sent = each.has_prefill, records.sent
    until_ns = np.where(each.first_ns == UNKNOWN, records.end_ns, each.first_ns)
    ahead, sent_ns = np.zeros(len(records), np.int64), records.sent_ns[sent]
    begun = np.sort(sent_ns).searchsorted(sent_ns, side="right") - 1  # all but itself
    over = np.sort(until_ns[sent]).searchsorted(sent_ns, side="right")
    ahead[sent] = (begun - over).clip(0)  # the others that had no token yet when it was sent
    reported = some & (records.server_queue_ns >= 0)
    queue_ns, ttft_ns = sum_exactly(records.server_queue_ns[reported]), sum_exactly(each.ttft_ns[reported])
    return {
        "prefill_behind": int((some & (ahead > 0)).sum()),
        "prefill_queued": queue_ns / ttft_ns if reported.any() else None,
    }


def count_cached_tokens(records: Records, among: Bool) -> tuple[int, int, int]:
    """Count cached prompt tokens, all prompt tokens and requests of successes in `among` that report both."""
    reported = among & records.ok & (records.cached_tokens >= 0) & (records.input_tokens >= 0)
    hits, looked_up = int(records.cached_tokens[reported].sum()), int(records.input_tokens[reported].sum())
    return hits, looked_up, int(reported.sum())


def _measure_gaps(
    records: Records, ok: Bool, percentiles: Sequence[float]
) -> tuple[Distribution, Distribution]:
    """Return ITL (a value a gap) and token time (gap ÷ tokens, a value a token); one object if equal."""
    if records.in_one_block:
        gap_ns, tokens = list_gaps(records, ok)
        if (tokens == 1).all():
            itl = Distribution.from_ns(gap_ns, percentiles)
            return itl, itl
        # This comes before ITL, which reorders the gaps in place.
        token_time = Distribution.from_weighted(gap_ns / np.maximum(tokens, 1), tokens, percentiles)
        return Distribution.from_ns(gap_ns, percentiles), token_time

    def list_gaps_by_block() -> Iterator[tuple[Int64, Int64]]:
        return (list_gaps(block, ok[block.first : block.last]) for block in records.blocks())

    def per_token() -> Iterator[Piece]:
        return ((gap_ns / np.maximum(tokens, 1), tokens) for gap_ns, tokens in list_gaps_by_block())

    itl = Distribution.from_pieces(
        lambda: ((gap_ns, None) for gap_ns, _ in list_gaps_by_block()), percentiles
    )
    single = all((tokens == 1).all() for _, tokens in list_gaps_by_block())
    return itl, itl if single else Distribution.from_pieces(per_token, percentiles)


class ClientHealth(msgspec.Struct, frozen=True):
    """The client's own delays and counts over all requests, which show whether it distorted the figures."""

    messages: int  # token messages of every request
    shared_reads: int  # of these, how many were coalesced with an earlier one, whose timestamp they share
    reads: int  # reads from the sockets
    unstamped_reads: int  # reads timed by the client's own clock, without a kernel timestamp
    lag_mean_ms: float  # read lag, kernel timestamp → bytes in the client, per timestamped read; 0: none
    lag_max_ms: float  # the worst of these
    shared_lag_ms: float  # mean lag of the reads that messages shared, by message; 0 without any
    answers: int  # requests that brought a token
    with_first: int  # messages coalesced with the first of their answer, whose timestamp is that much late
    p99_gap_excess: float  # share of P99 gap that is too much if messages of a read came evenly, 0 to 1
    connects: int  # requests that had to open their connection first
    resends: int  # requests sent again because the server had closed the idle connection

    @property
    def shared_share(self) -> float:
        """The share of token messages that were coalesced with an earlier one in a read, 0 to 1."""
        return self.shared_reads / self.messages if self.messages else 0.0

    @classmethod
    def from_records(cls, records: Records, first_ns: Int64) -> ClientHealth:
        """Compute the client's delays from records; `first_ns` is PerRequest's, int64[requests]."""
        stamped = int((records.reads - records.unstamped_reads).sum())
        shared = int(records.shared_reads.sum())
        answers = int(np.count_nonzero(first_ns != UNKNOWN))
        like_first = 0
        for block in records.blocks():
            begins = first_ns[block.first : block.last].repeat(np.diff(block.start))
            like_first += int(np.count_nonzero(block.arrival_ns == begins))
        return cls(
            messages=len(records.arrival_ns),
            shared_reads=shared,
            reads=int(records.reads.sum()),
            unstamped_reads=int(records.unstamped_reads.sum()),
            lag_mean_ms=sum_exactly(records.lag_sum_ns) / stamped / MS_NS if stamped else 0.0,
            lag_max_ms=int(records.lag_max_ns.max(initial=0)) / MS_NS,
            shared_lag_ms=sum_exactly(records.shared_lag_ns.clip(0)) / max(shared, 1) / MS_NS,
            answers=answers,
            with_first=like_first - answers,
            p99_gap_excess=_measure_gap_excess(records) if shared else 0.0,
            connects=int((records.connect_ns > 0).sum()),
            resends=int(records.resends.sum()),
        )


def _measure_gap_excess(records: Records) -> float:
    """Compute the share, 0 to 1, by which P99 of the gaps falls if messages of one read came evenly.

    Evenly means over the wait before the read. What came with an answer's first message is left out.
    """
    if records.in_one_block:
        gap_ns, apart_ns = _spread_gaps(next(iter(records.blocks())))
        if not len(gap_ns):
            return 0.0
        measured_ns, true_ns = (
            float(np.percentile(each_ns, 99, overwrite_input=True)) for each_ns in (gap_ns, apart_ns)
        )
    else:
        measured_ns, true_ns = (_measure_p99_wait(records, which) for which in range(2))
    return 1 - true_ns / measured_ns if measured_ns else 0.0


def _measure_p99_wait(records: Records, which: int) -> float:
    """Compute P99 (ms) of column `which` of `_spread_gaps`; 0 without gaps."""
    waits = Distribution.from_pieces(
        lambda: ((_spread_gaps(block)[which], None) for block in records.blocks()), (99,)
    )
    return waits.percentiles_ms[99] if waits.n else 0.0


def _spread_gaps(block: MessageBlock) -> tuple[Int64, Float64]:
    """List the gaps (ns) after answers' first reads, as read and with each read's messages spread evenly."""
    counts = np.diff(block.start)
    begins = np.zeros(len(block.arrival_ns), np.bool_)
    begins[block.start[:-1][counts > 0]] = True
    wait_ns = np.diff(block.arrival_ns, prepend=0)
    reads = np.flatnonzero(begins | (wait_ns != 0))  # the first message of each
    later, messages = ~begins[reads], np.diff(reads, append=len(begins))
    wait_ns, messages = wait_ns[reads[later]], messages[later]
    apart_ns = np.repeat(wait_ns / messages, messages)
    gap_ns = np.zeros(len(apart_ns), np.int64)
    gap_ns[: len(wait_ns)] = wait_ns  # and nothing between messages of one read
    return gap_ns, apart_ns


def measure_part(row: type[msgspec.Struct], each: PerRequest, part: Bool) -> dict[str, Any]:
    """Compute the statistics that are fields of the struct `row` over the requests in `part`, a Bool mask.

    Fields are named as the keys of a result: mean_ttft_ms, median_tpot_ms, p99_e2el_ms. NaN without samples.
    """
    found: dict[str, Any] = {}
    for figure in LATENCIES:
        words = [
            word for word in ("mean", "median", "p99") if figure.statistic(word) in row.__struct_fields__
        ]
        if words:
            values_ns, has = figure.samples(each)
            latency = Distribution.from_ns(values_ns[part & has], (99.0,))
            found |= {figure.statistic(word): getattr(latency, f"{word}_ms") for word in words}
    return found


class BlockFacts(msgspec.Struct, frozen=True):
    """The settings of the load that the printed result block shows."""

    request_rate_per_s: float = math.inf
    max_concurrency: int | None = None
    selected: tuple[str, ...] = DEFAULT_METRICS  # --percentile-metrics


def list_figures(metrics: Metrics, facts: BlockFacts) -> dict[str, Any]:
    """Collect all that the result block prints, under vLLM's result keys."""
    return {
        **describe_traffic(facts),
        **list_throughputs(metrics),
        **list_peaks(metrics),
        **list_latencies(metrics, facts),
    }


def drop_unknown(figures: Mapping[str, Any], metrics: Metrics) -> dict[str, Any]:
    """Drop the figures that rest on prompt tokens if some prompts' tokens are unknown (they count 0)."""
    return {key: figures[key] for key in figures if not metrics.unknown_inputs or key not in OF_PROMPTS}


def list_known_throughputs(metrics: Metrics) -> dict[str, Any]:
    """Collect counts and rates of the whole run; None for those that rest on unknown prompt tokens.

    A file has null for them: vLLM's own readers take the keys that they name as columns, which must be there.
    """
    every = list_throughputs(metrics)
    return {**dict.fromkeys(every), **drop_unknown(every, metrics)}


def describe_traffic(facts: BlockFacts) -> dict[str, Any]:
    """Return the requested load under vLLM's keys; an unlimited rate is the text "inf"."""
    rate = facts.request_rate_per_s
    word = "inf" if math.isinf(rate) else float(rate)
    return {"request_rate": word, "max_concurrency": facts.max_concurrency}


def list_throughputs(metrics: Metrics) -> dict[str, Any]:
    """Collect the counts and rates of the whole run under vLLM's keys."""
    return {figure.key: getattr(metrics, figure.field) for figure in COUNTS}


def list_peaks(metrics: Metrics) -> dict[str, Any]:
    """Collect the peak tokens per second and peak concurrency under vLLM's keys; rtfx (audio) is 0."""
    return {**{figure.key: getattr(metrics, figure.field) for figure in PEAKS}, "rtfx": 0.0}


def list_latencies(metrics: Metrics, facts: BlockFacts) -> dict[str, float | None]:
    """Collect mean, median, std and percentiles (ms) of each selected metric under vLLM's keys.

    vLLM's conditions: queue time only under --max-concurrency, E2EL with it only at a finite rate too. A run
    in which no token was timed always shows E2EL. A distribution of nothing is None (vLLM's 0.00 would be a
    latency that no request had), and its section is left out.
    """
    shown = {*facts.selected} if metrics.times_tokens else {*facts.selected, "e2el"}
    values: dict[str, float | None] = {}
    for key, distribution in (metrics.selectable | metrics.selectable_rates).items():
        figure = SELECTABLE[key]
        hidden = figure.needs_limit and facts.max_concurrency is None
        hidden |= figure.needs_rate and math.isinf(facts.request_rate_per_s)
        if key in shown and not hidden:
            values |= figure.statistics(asdict(distribution))
    return values


def list_sglang_figures(metrics: Metrics) -> dict[str, Any]:
    """Collect the figures that SGLang prints and vLLM does not, under SGLang's keys.

    `concurrency` is the end-to-end latencies of the successes, summed, over the duration (Little).
    """
    e2el, itl, duration_s = metrics.e2el, metrics.itl, metrics.duration_s
    return {
        "total_input_text_tokens": metrics.total_input_tokens,
        "input_throughput": metrics.input_throughput_per_s if duration_s else None,
        "concurrency": e2el.n * e2el.mean_ms / 1e3 / duration_s if duration_s and e2el.n else None,
        "max_itl_ms": itl.max_ms if metrics.times_tokens and itl.n else None,
    }


_BLOCK = 64  # arrivals whose windows are counted together, or not at all
_AT_ONCE = 256  # blocks
_BINS = 1 << 16  # of time, in which the arrivals of a long run are counted


def peak_tokens(arrival_ns: Int64, tokens: Int64, window_ns: int) -> int:
    """Count the most tokens that arrive in any half-open window (t - window_ns, t].

    Exact: any window can be moved until it ends at an arrival without losing one, so only those are counted.
    Half-open, because tokens exactly one window apart belong to two windows. No window that ends in a block
    of arrivals holds more than came after the first one's begin and up to the block's end: the blocks that
    may hold most are searched first, and those that cannot hold more never.
    """
    if not len(arrival_ns):
        return 0
    if (tokens == 1).all():  # as nearly always; to sort alone takes a fifth of finding the order
        ordered_ns, before = np.sort(arrival_ns), np.arange(len(arrival_ns) + 1)
    else:
        order = np.argsort(arrival_ns)
        ordered_ns, before = arrival_ns[order], np.append(0, np.cumsum(tokens[order]))

    def begins(ends: Int64) -> Int64:
        """Count the arrivals before each window that ends at one of these indices."""
        return ordered_ns.searchsorted(ordered_ns[ends] - window_ns, side="right")

    count = len(ordered_ns)
    blocks = np.arange(0, count, _BLOCK)
    most = before[np.minimum(blocks + _BLOCK, count)] - before[begins(blocks)]
    order = np.argsort(-most)
    best = 0
    for at in range(0, len(order), _AT_ONCE):
        promising = order[at : at + _AT_ONCE]
        promising = promising[most[promising] > best]
        if not len(promising):
            break
        ends = np.minimum(np.add.outer(blocks[promising], np.arange(_BLOCK)).ravel(), count - 1)
        best = max(best, int((before[ends + 1] - before[begins(ends)]).max()))
    return best


def peak_of(records: Records, ok: Bool, window_ns: int) -> int:
    """Count the most tokens in any window over the messages of the requests in `ok`, bool[requests].

    Columns that do not fit into memory are cut by time: a window lies whole in a slab and the window before
    it.
    """
    if records.in_one_block:
        arrival_ns, tokens = records.arrival_ns, records.tokens
        if not ok.all():
            of_success = np.repeat(ok, np.diff(records.start))
            arrival_ns, tokens = arrival_ns[of_success], tokens[of_success]
        return peak_tokens(arrival_ns, tokens, window_ns)
    spans = records.spans()
    arrivals = (block.arrival_ns for block in records.blocks(spans))
    # A response without arrivals gets an interval that contains nothing.
    reach = [(int(at_ns.min()), int(at_ns.max())) if len(at_ns) else (0, -1) for at_ns in arrivals]
    best = 0
    for begin_ns, end_ns in pairwise(_cut_slabs(records, reach)):
        from_ns = begin_ns - window_ns
        touched = [
            span for span, (low, high) in zip(spans, reach, strict=True) if low < end_ns and high > from_ns
        ]
        parts = [_select_between(block, ok, (from_ns, end_ns)) for block in records.blocks(touched)]
        if parts:
            arrival_ns, tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
            best = max(best, peak_tokens(arrival_ns, tokens, window_ns))
    return best


def _cut_slabs(records: Records, reach: Sequence[tuple[int, int]]) -> list[int]:
    """List the ascending moments (ns) to cut a run at, its ends too, about a block of messages apart."""
    low, high = min(first for first, _ in reach), max(last for _, last in reach) + 1
    width = max(1, -(-(high - low) // _BINS))
    counts = np.zeros(_BINS, np.int64)
    for block in records.blocks():
        counts += np.bincount((block.arrival_ns - low) // width, minlength=_BINS)
    full = np.diff((np.cumsum(counts) - 1) // BLOCK, prepend=0) > 0
    return [low, *(low + width * np.flatnonzero(full)).tolist(), high]


def _select_between(block: MessageBlock, ok: Bool, window_ns: tuple[int, int]) -> tuple[Int64, Int64]:
    """Select arrivals and their tokens of some requests, strictly between the two moments."""
    inside = np.repeat(ok[block.first : block.last], np.diff(block.start))
    inside &= (block.arrival_ns > window_ns[0]) & (block.arrival_ns < window_ns[1])
    return block.arrival_ns[inside], block.tokens[inside]


def peak_concurrency(sent_ns: Int64, end_ns: Int64) -> int:
    """Count the most requests in flight at once; one that ends as another starts is over by then."""
    if not len(sent_ns):
        return 0
    starts, ends = np.sort(sent_ns), np.sort(end_ns)
    over = np.searchsorted(ends, starts, side="right")
    return int((np.arange(1, len(starts) + 1) - over).max())

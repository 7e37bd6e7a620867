"""Metrics: a run's figures from its Records alone; docs/metrics.md compares each with vLLM's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Bool, Float64, Int64, total
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.figures import prompt_figures
from loadgen.figures.client_health import ClientHealth
from loadgen.figures.distribution import Distribution, RateDistribution
from loadgen.figures.goodput import meets
from loadgen.figures.peaks import peak_concurrency, peak_of
from loadgen.figures.percentiles import Piece
from loadgen.figures.record import UNKNOWN, MessageBlock, Records
from loadgen.figures.text_tokens import uncounted

DEFINITIONS_VERSION = 3  # raised whenever a formula below changes; stored with every result
SELECTABLE = (
    "ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue", "token_time", "ttfvt",
    "e2el_per_token",
)  # fmt: skip
SELECTABLE_RATES = ("prefill_speed", "user_tps")
_MOST_REASONS = 16  # real servers have a handful; what a server writes is bounded
_NONE = np.zeros(0, np.int64)


class MetricOptions(msgspec.Struct, frozen=True):
    """Which figures a run is to have, and what its records do not hold.

    Raises UsageError where an objective cannot be judged.
    """

    metric_percentiles: tuple[float, ...] = (99.0,)
    goodput_slo_ms: Mapping[str, float] = msgspec.field(default_factory=dict)  # ttft, tpot, e2el → ms
    streamed: bool = True  # False: only whole answers came, so E2EL is all there is
    gpus: int = 0  # that the server runs on; 0: not known
    arrivals_are_tokens: bool = True  # False: what arrived shows when no token came, so E2EL is all there is

    def __post_init__(self) -> None:
        if (blind := self.token_goals) and not self.streamed:
            raise UsageError(
                f"--goodput {blind[0]} needs a stream to judge it: leave out --disable-stream, or use e2el"
            )

    @property
    def times_tokens(self) -> bool:
        """Whether the run has TTFT, TPOT, ITL and what is made of them."""
        return self.streamed and self.arrivals_are_tokens

    @property
    def token_goals(self) -> list[str]:
        """The latencies of --goodput that need the time of a token."""
        return sorted({"ttft", "tpot"} & self.goodput_slo_ms.keys())


class FailureTally(msgspec.Struct, frozen=True):
    """How often requests failed in one way, and the first one's error text."""

    count: int
    detail: str


class PerRequest(msgspec.Struct, frozen=True):
    """What one request contributes, as columns int64[requests], -1 where there is nothing."""

    ok: Bool
    failed: Bool  # neither succeeded, nor cancelled as planned, nor cut off by this side
    cancelled: Bool  # as planned
    first_ns: Int64  # arrival of the first message that carried a token
    ttft_ns: Int64  # first_ns - sent_ns, where arrivals are tokens
    last_ns: Int64  # successes: arrival of the last token message; not streamed: the answer's end
    e2el_ns: Int64  # last_ns - sent_ns
    input_tokens: Int64  # usage, else the planned length
    output_tokens: Int64  # usage, else the text's by a tokenizer, else the messages; failures: 0
    ttfvt_ns: Int64  # arrival of the first message with text that is not reasoning - sent_ns

    @classmethod
    def of(cls, records: Records, ask: MetricOptions) -> PerRequest:
        """The columns of these records."""
        ok, sent_ns = records.ok, records.sent_ns
        first_ns = np.full(len(records), UNKNOWN, np.int64)
        last_ns = np.where(ok, records.end_ns, UNKNOWN)
        if ask.streamed:
            for block in records.blocks():
                rows = slice(block.first, block.last)
                some = np.diff(block.start) > 0
                first_ns[rows][some] = block.arrival_ns[block.start[:-1][some]]
                some &= ok[rows]
                last_ns[rows][some] = block.arrival_ns[block.start[1:][some] - 1]
        return cls(
            ok=ok,
            failed=~(ok | records.cancelled | records.cut_off),
            cancelled=records.cancelled,
            first_ns=first_ns,
            ttft_ns=np.where((first_ns == UNKNOWN) | (not ask.times_tokens), UNKNOWN, first_ns - sent_ns),
            last_ns=last_ns,
            e2el_ns=np.where(ok, last_ns - sent_ns, UNKNOWN),
            input_tokens=np.where(records.input_tokens < 0, records.planned_input, records.input_tokens),
            output_tokens=_output_tokens(records, ok),
            ttfvt_ns=np.where(
                (records.visible_ns == UNKNOWN) | (not ask.times_tokens),
                UNKNOWN,
                records.visible_ns - sent_ns,
            ),
        )

    @property
    def has_ttft(self) -> Bool:
        """Which requests count towards TTFT, bool[requests]."""
        begun: Bool = self.ttft_ns != UNKNOWN
        return self.ok & begun

    @property
    def has_ttfvt(self) -> Bool:
        """Which requests count towards TTFVT, bool[requests]: an answer may end within its reasoning."""
        visible: Bool = self.ttfvt_ns != UNKNOWN
        return self.ok & visible

    @property
    def has_tpot(self) -> Bool:
        """Which requests count towards TPOT, bool[requests]: one token has no time after the first."""
        return self.has_ttft & (self.output_tokens > 1)

    def tpot_ns(self) -> Float64:
        """(E2EL - TTFT) / (output tokens - 1), float64[requests]; 0 for a request without one."""
        after_first = np.where(self.has_tpot, self.e2el_ns - self.ttft_ns, 0)
        return after_first / np.maximum(self.output_tokens - 1, 1)

    def e2el_per_token_ns(self) -> Float64:
        """E2EL / output tokens, float64[successes with a token]: vLLM's paper calls it normalized latency."""
        some = self.ok & (self.output_tokens > 0)
        return self.e2el_ns[some] / self.output_tokens[some]

    def user_tps(self) -> Float64:
        """1 / TPOT in tokens per second, float64[successes that have a TPOT above 0]."""
        tpot_ns = self.tpot_ns()[self.has_tpot]
        return SECOND_NS / tpot_ns[tpot_ns > 0]


class Metrics(msgspec.Struct, frozen=True):
    """Every figure of a run; latencies and tokens over successful requests only."""

    streamed: bool  # False: TTFT, TPOT, ITL and the token peak do not exist
    requests: int  # all of them, whatever became of them
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
    user_tps: RateDistribution  # 1 / TPOT, per request
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
        """Whether the run has TTFT, TPOT, ITL and what is made of them."""
        return self.streamed and self.arrivals_are_tokens

    @property
    def messages_per_s(self) -> float:
        """Token messages per second of the duration, of every request."""
        return _per_s(self.health.messages, self.duration_s)

    @property
    def selectable(self) -> dict[str, Distribution]:
        """The distributions that `--percentile-metrics` can name, where the run has them.

        The queue metrics are vLLM's names for what ours measure from the intended time.
        """
        whole = {
            "e2el": self.e2el,
            "client_queue_time": self.queue_time,
            "e2el_including_client_queue": self.e2el_intended,
        }
        per_token = {"e2el_per_token": self.e2el_per_token}
        if not self.times_tokens:
            return whole | per_token
        stream = {"ttft": self.ttft, "tpot": self.tpot, "itl": self.itl}
        return {**stream, **whole, "token_time": self.token_time, "ttfvt": self.ttfvt, **per_token}

    @property
    def selectable_rates(self) -> dict[str, RateDistribution]:
        """The speeds that `--percentile-metrics` can name, where the run has them."""
        rates = {"prefill_speed": self.prefill_speed, "user_tps": self.user_tps}
        return rates if self.times_tokens else {}


def parse_percentiles(text: str) -> tuple[float, ...]:
    """The percentiles of `--metric-percentiles 50,90,99.9`; raises UsageError."""
    percentiles: dict[float, None] = {}
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            raise UsageError(f"--metric-percentiles {text}: {part.strip()!r} is not a number") from None
        if not 0 <= value <= 100:
            raise UsageError(f"--metric-percentiles {text}: {part.strip()} is not between 0 and 100")
        percentiles[value] = None
    return tuple(percentiles)


def parse_percentile_metrics(text: str) -> tuple[str, ...]:
    """The metrics of `--percentile-metrics ttft,tpot,itl`; raises UsageError."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [name for name in names if name not in (*SELECTABLE, *SELECTABLE_RATES)]:
        which = f"unknown metric {unknown[0]!r}: choose from {', '.join((*SELECTABLE, *SELECTABLE_RATES))}"
        raise UsageError(f"--percentile-metrics {text}: {which}")
    return names


def compute(records: Records, ask: MetricOptions) -> Metrics:
    """The figures of these records; it takes 200 MiB on top of them, at any length."""
    each = PerRequest.of(records, ask)
    ok = each.ok
    sent = records.where(records.sent)
    sent_ns, end_ns = sent.sent_ns, np.maximum(sent.end_ns, sent.sent_ns)
    duration_ns = int(end_ns.max() - sent_ns.min()) if len(sent_ns) else 0
    duration_s, window_ns = duration_ns / SECOND_NS, min(SECOND_NS, duration_ns)
    peak_per_s = _per_s(peak_of(records, ok, window_ns), window_ns / SECOND_NS) if ask.streamed else None
    met, completed, failed = good(each, ask), int(ok.sum()), int(each.failed.sum())
    cancelled = int(each.cancelled.sum())
    met_count = None if met is None else int(met.sum())
    by_usage = int(records.usage[ok].sum())
    by_text = int((ok & (records.usage == 0) & (records.text_tokens >= 0)).sum())
    inputs, outputs = int(each.input_tokens[ok].clip(0).sum()), int(each.output_tokens[ok].sum())
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
        uncounted=int(uncounted(records).sum()),
        exact_tokens=int(records.exact_tokens[ok].sum()),
        request_throughput_per_s=_per_s(completed, duration_s),
        input_throughput_per_s=_per_s(inputs, duration_s),
        output_throughput_per_s=_per_s(outputs, duration_s),
        total_throughput_per_s=_per_s(inputs + outputs, duration_s),
        peak_output_throughput_per_s=peak_per_s,
        peak_concurrency=peak_concurrency(sent_ns, end_ns),
        mean_concurrency=_per_s(total(end_ns - sent_ns) / SECOND_NS, duration_s),
        good=met_count,
        goodput_per_s=None if met_count is None else _per_s(met_count, duration_s),
        slo_attainment=None if met_count is None else met_count / max(completed + failed, 1),
        **latencies(records, each, ask),
        failures=_failures(records),
        health=ClientHealth.of(records, each.first_ns),
        **prompt_figures.prefill(
            records, each.has_ttft, each.first_ns, each.input_tokens, ask.metric_percentiles
        ),
        user_tps=RateDistribution.of(each.user_tps(), ask.metric_percentiles),
        output_throughput_per_gpu_per_s=_per_s(outputs, duration_s) / ask.gpus if ask.gpus else None,
        **prompt_figures.cached(records, ok),
        finish_reasons=_finish_reasons(records),
        cancelled=cancelled,
        cut_off=len(records) - completed - failed - cancelled,
        arrivals_are_tokens=ask.arrivals_are_tokens,
    )


def _per_s(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s else 0.0


def _output_tokens(records: Records, ok: Bool) -> Int64:
    counted = np.where(ok, records.output_tokens, 0)
    if (unknown := counted < 0).any():
        counted[unknown] = records.message_tokens()[unknown]
    return counted


def good(each: PerRequest, ask: MetricOptions) -> Bool | None:
    """Which requests met --goodput, bool[requests]; None: it names no objective, or what was not measured."""
    if not ask.goodput_slo_ms or (ask.token_goals and not ask.times_tokens):
        return None
    values_ms = {
        "ttft": np.where(each.has_ttft, each.ttft_ns, np.nan) / MS_NS,
        "tpot": np.where(each.has_ttft, each.tpot_ns(), np.nan) / MS_NS,  # one token: 0, as vLLM has it
        "e2el": np.where(each.ok, each.e2el_ns, np.nan) / MS_NS,
    }
    met: Bool = meets(ask.goodput_slo_ms, values_ms) & each.ok
    return met


def latencies(records: Records, each: PerRequest, ask: MetricOptions) -> dict[str, Distribution]:
    """The distributions among the fields of Metrics, of the requests that `each` has as successful."""

    def over(values_ns: NDArray[Any]) -> Distribution:
        return Distribution.bounded(values_ns, ask.metric_percentiles)

    ok, begun, intended_ns = each.ok, each.has_ttft, records.intended_ns
    none = over(_NONE)
    itl, token_time = _of_gaps(records, ok, ask.metric_percentiles) if ask.times_tokens else (none, none)
    return {
        "ttft": over(each.ttft_ns[begun]),
        "tpot": over(each.tpot_ns()[each.has_tpot]),
        "itl": itl,
        "token_time": token_time,
        "e2el": over(each.e2el_ns[ok]),
        "queue_time": over((records.sent_ns - intended_ns)[ok]),
        "ttft_intended": over((each.first_ns - intended_ns)[begun]),
        "e2el_intended": over((each.last_ns - intended_ns)[ok]),
        "ttfvt": over(each.ttfvt_ns[each.has_ttfvt]),
        "e2el_per_token": over(each.e2el_per_token_ns()),
    }


def gaps(block: MessageBlock | Records, ok: Bool) -> tuple[Int64, Int64]:
    """Gaps between token messages of one successful request, and the tokens of each gap's later one."""
    counts = np.diff(block.start)
    keep = np.repeat(ok, counts)  # position i stands for the gap from message i to i + 1
    keep[block.start[1:][counts > 0] - 1] = False  # not from one request to the next
    keep = keep[:-1]
    return np.diff(block.arrival_ns)[keep], block.tokens[1:][keep]


def _of_gaps(records: Records, ok: Bool, percentiles: Sequence[float]) -> tuple[Distribution, Distribution]:
    """ITL, and the same gaps per token: with one token a message they are the same."""
    if records.in_one_block:
        gap_ns, tokens = gaps(records, ok)
        if (tokens == 1).all():
            itl = Distribution.of(gap_ns, percentiles)
            return itl, itl
        # Before ITL, which reorders the gaps in place.
        token_time = Distribution.weighted(gap_ns / np.maximum(tokens, 1), tokens, percentiles)
        return Distribution.of(gap_ns, percentiles), token_time

    def each() -> Iterator[tuple[Int64, Int64]]:
        return (gaps(block, ok[block.first : block.last]) for block in records.blocks())

    def per_token() -> Iterator[Piece]:
        return ((gap_ns / np.maximum(tokens, 1), tokens) for gap_ns, tokens in each())

    itl = Distribution.of_pieces(lambda: ((gap_ns, None) for gap_ns, _ in each()), percentiles)
    single = all((tokens == 1).all() for _, tokens in each())
    return itl, itl if single else Distribution.of_pieces(per_token, percentiles)


def _finish_reasons(records: Records) -> dict[str, int]:
    answers = zip(records.finish_reasons, records.failures, strict=True)
    counts = Counter(reason or "none" for reason, failure in answers if failure is None)
    reasons = dict(counts.most_common(_MOST_REASONS))
    if rare := counts.total() - sum(reasons.values()):
        reasons["other"] = reasons.get("other", 0) + rare
    return reasons


def _failures(records: Records) -> dict[str, FailureTally]:
    failures = records.failed
    firsts = {failure.kind.value: failure.detail for failure in reversed(failures)}
    counts = Counter(failure.kind.value for failure in failures)
    return {kind: FailureTally(n, firsts[kind]) for kind, n in counts.most_common()}

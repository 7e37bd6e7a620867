"""Reconcile: the client's figures next to the server's, and why they may differ; docs/reconciliation.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import MS_NS
from loadgen.base.tables import Table, format_number, make_table
from loadgen.figures.distribution import Distribution
from loadgen.figures.metrics import Metrics
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.records.record import Records
from loadgen.server.sample_file import LEAST_SAMPLES
from loadgen.server.server_counters import ServerWindow

_DECIMALS = {"": 0, "ms": 2, "%": 1}
_COUNTS = {
    "prompt": ("input_tokens", ("server_prompt_tokens", "server_cached_tokens")),
    "cached": ("cached_tokens", ("server_cached_tokens",)),
    "output": ("output_tokens", ("server_output_tokens",)),
}
_BRACKETED = ((50.0, "P50"), (90.0, "P90"), (99.0, "P99"))
# Both means are over the same requests; these are the times between the two points of measurement.
_SLACK_MS, _SLACK_SHARE = 25.0, 0.25
_EARLY_MS, _EARLY_SHARE = 1.0, 0.02
_PROMPT_EARLY_MS, _PROMPT_EARLY_SHARE = 1.0, 0.02  # of a prompt's time: both clocks tick in microseconds
_TOKEN_SLACK_MS, _TOKEN_SLACK_SHARE = 1.0, 0.1


class ReconciledFigure(msgspec.Struct, frozen=True):
    """A figure as the client and as the server's counters have it; None where one lacks it.

    For a percentile the server only knows the bucket: `bracket` is its bounds, None for no upper one.
    """

    figure: str
    unit: str  # "", "ms" or "%"
    client: float | None
    server: float | None
    difference: float | None  # client - server; of a bracket, how far outside
    bracket: tuple[float, float | None] | None = None


class Mismatch(msgspec.Struct, frozen=True):
    """A figure in which client and server differ by more than rounding, and the likely cause."""

    figure: str
    unit: str  # requests, tokens or ms
    client: float
    server: float
    cause: str


def reconcile_figures(window: ServerWindow, metrics: Metrics, records: Records) -> list[ReconciledFigure]:
    """Pair each figure that the server's counters or answers give with the client's."""
    every = [
        *_pair_counters(window, metrics, records),
        *_pair_latencies(window, metrics, records),
        *reconcile_answers(metrics, records),
    ]
    every += [
        _pair("preemptions", "", None, window.preemptions),
        _pair("draft tokens accepted", "%", None, _percent(window.accepted_tokens, window.draft_tokens)),
        _pair("running requests, peak", "", metrics.peak_concurrency, _find_peak(window, "running")),
        _pair("waiting requests, peak", "", None, _find_peak(window, "waiting")),
        _pair("KV cache in use, peak", "%", None, _percent(_find_peak(window, "kv_cache_usage"), 1)),
    ]
    return [row for row in every if row.server is not None or row.bracket is not None]


def make_reconciled_table(rows: Sequence[ReconciledFigure]) -> Table:
    """Make the table of the pairs, without brackets that only confirm."""
    body = []
    for index, row in enumerate(rows):
        if row.bracket is not None and not row.difference and (row.client is not None or not row.bracket[0]):
            continue  # a percentile lies in the bucket where it should
        digits, at = _DECIMALS[row.unit], f"loadgen.reconciliation.{index}"
        server = format_number(f"{at}.server", row.server, digits)
        if row.bracket is not None:
            low, high = row.bracket
            server = f"over {low:g}" if high is None else f"{low:g} to {high:g}"
        client = format_number(f"{at}.client", row.client, digits)
        difference = format_number(f"{at}.difference", row.difference, digits, signed=True)
        body.append((f"{row.figure}{f' ({row.unit})' if row.unit else ''}", client, server, difference))
    return make_table(("Figure", "client", "server", "difference"), body)


def count_foreign_requests(window: ServerWindow, metrics: Metrics) -> int:
    """Count the requests that the server finished beyond those of this run: at least these are others'."""
    return max(0, (window.finished or 0) - metrics.requests)


def count_finished_after_cancel(window: ServerWindow, metrics: Metrics) -> int:
    """Count the cancelled requests that the server generated to their end, at least, by its counters.

    vLLM counts no abort of a closed connection, so what it finished decides; SGLang counts an aborted request
    as finished too, so those that it counts as aborted are none of these.
    """
    finished = (window.finished or 0) - metrics.completed - metrics.failed - metrics.cut_off
    return max(0, min(metrics.cancelled - window.requests.get("abort", 0), finished))


def find_mismatches(window: ServerWindow, metrics: Metrics) -> list[Mismatch]:
    """List the figures in which client and server differ, the most telling first; [] without counters."""
    if not window.is_known:
        return []
    # If only the server knows how long prompts were, there is nothing to compare its count with.
    prompt_tokens = None if metrics.unknown_inputs else window.prompt_tokens
    counts = [
        ("requests finished", "requests", metrics.completed, window.finished),
        ("generated tokens", "tokens", metrics.total_output_tokens, window.generation_tokens),
        ("prompt tokens", "tokens", metrics.total_input_tokens, prompt_tokens),
    ]
    if metrics.cancelled:  # the server counts tokens of requests that the client gave up
        counts = counts[:1]
    counted = [
        Mismatch(figure, unit, client, server, _explain_count(window, metrics, server > client))
        for figure, unit, client, server in counts
        if server is not None and client != server
    ]
    return [*counted, *_find_latency_mismatches(window, metrics)]


def _explain_count(window: ServerWindow, metrics: Metrics, more: bool) -> str:
    """Explain the likeliest cause why a count differs; `more`: the server's is the greater."""
    if more and count_foreign_requests(window, metrics):
        if window.running_before or window.waiting_before:
            return "requests from before the run, of the warm-up or another client, finished in it"
        return "another client used the server during the run"
    if count_finished_after_cancel(window, metrics):
        return "the server went on with requests that the client had cancelled"
    if lost := metrics.failed + metrics.cut_off:
        which = "failed" if metrics.failed == lost else "failed or cut-off"
        return f"the server's tokens for the {lost} {which} requests were not received"
    if metrics.counted_by_usage < metrics.completed:
        return "without usage the client counts chunks or encodes the text again, and counts planned prompts"
    if window.running_before or window.running_after or not window.settled:
        return "the server was not idle before or after the run, and its counters lag"
    if more:
        return "another client used the server during the run"
    return "/metrics is from one of several replicas at this address"


def _find_latency_mismatches(window: ServerWindow, metrics: Metrics) -> Iterator[Mismatch]:
    """Yield the means of TTFT, E2E and ITL that differ by more than the points of measurement explain."""
    for figure, ours, theirs in (("TTFT", metrics.ttft, window.ttft), ("E2E", metrics.e2el, window.e2e)):
        if theirs is None or not ours.n:
            continue
        client, server = ours.mean_ms, theirs.mean_ms
        if client > server + max(_SLACK_MS, _SLACK_SHARE * server):
            cause = "time outside the engine: network, HTTP, or a busy API process in front of it"
            yield Mismatch(f"{figure} mean (ms)", "ms", client, server, cause)
        elif client < server - max(_EARLY_MS, _EARLY_SHARE * server):
            cause = "the server's mean includes other requests: another client's, failed or cancelled ones"
            yield Mismatch(f"{figure} mean (ms)", "ms", client, server, cause)
    if window.itl is None or not metrics.token_time.n:
        return
    _, ours = _choose_gaps(window, metrics)
    client, server = ours.mean_ms, window.itl.mean_ms
    if abs(client - server) > max(_TOKEN_SLACK_MS, _TOKEN_SLACK_SHARE * server):
        drafts = "the server times steps of several tokens, and a chunk is not a step"
        cause = drafts if window.draft_tokens else "chunks are delayed on their way, or it includes others"
        yield Mismatch("ITL mean (ms)", "ms", client, server, cause)


def _pair_counters(window: ServerWindow, metrics: Metrics, records: Records) -> Iterator[ReconciledFigure]:
    """Pair counts of requests and tokens, and cache hits; what the server lacks is None."""
    yield _pair("requests finished", "", metrics.completed, window.finished)
    if metrics.cancelled:
        yield _pair("cancelled, aborted", "", metrics.cancelled, window.requests.get("abort"))
    yield _pair("generated tokens", "", metrics.total_output_tokens, window.generation_tokens)
    if metrics.failed or metrics.cut_off or metrics.cancelled:
        received = metrics.total_output_tokens + int(records.sum_message_tokens()[~records.ok].sum())
        of = "cut off" if metrics.cancelled else "of failures"
        yield _pair(f"  with those {of}", "", received, window.generation_tokens)
    yield _pair("prompt tokens", "", metrics.total_input_tokens, window.prompt_tokens)
    reported = (records.cached_tokens >= 0) & (records.input_tokens > 0)
    cached = _percent(*(int(of[reported].sum()) for of in (records.cached_tokens, records.input_tokens)))
    yield _pair("prefix cache hits", "%", cached, _percent(window.prefix_hits, window.prefix_queries))


def _choose_gaps(window: ServerWindow, metrics: Metrics) -> tuple[str, Distribution]:
    """Choose what the server's ITL is held to, and its name: token time, with drafts the gaps of steps."""
    drafts = bool(window.draft_tokens)
    return ("ITL per step", metrics.itl) if drafts else ("ITL per token", metrics.token_time)


def _pair_latencies(window: ServerWindow, metrics: Metrics, records: Records) -> Iterator[ReconciledFigure]:
    """Pair each mean and percentile of the server's histograms with the client's, None where it has none."""
    each = PerRequest.from_records(records, MetricOptions(streamed=metrics.times_tokens))
    none = np.zeros(0, np.int64)
    for figure, ours, theirs, values_ns in (
        ("TTFT", metrics.ttft, window.ttft, each.ttft_ns[each.has_ttft]),
        (*_choose_gaps(window, metrics), window.itl, none),
        ("E2E", metrics.e2el, window.e2e, each.e2el_ns[each.ok]),
        ("queue", None, window.queue, none),
        ("prefill", None, window.prefill, none),
        ("decode", None, window.decode, none),
    ):
        if theirs is not None:
            yield _pair(f"{figure}, mean", "ms", ours.mean_ms if ours else None, theirs.mean_ms)
            # A bucket holds the value of a rank: so the client's is that of `values_ns`, where it has them,
            # which an interpolated percentile of a few requests may lie far below.
            measured = {**ours.percentiles_ms, 50.0: ours.median_ms} if ours and ours.n else {}
            ordered = np.sort(values_ns)
            for percentile, name in _BRACKETED:
                client = measured.get(percentile)
                if client is not None and len(ordered):
                    client = float(ordered[math.ceil(percentile * len(ordered) / 100) - 1]) / MS_NS
                if percentile in measured or ours is None:
                    low, high = bracket = theirs.brackets_ms[f"{percentile:g}"]
                    most = math.inf if high is None else high
                    outside = None if client is None else client - min(max(client, low), most)
                    yield ReconciledFigure(f"{figure}, {name}", "ms", client, None, outside, bracket)


def reconcile_answers(metrics: Metrics, records: Records) -> list[ReconciledFigure]:
    """Pair the timings that answers report of themselves with the client's; needs no scrape."""
    queued = records.ok & (records.server_queue_ns >= 0)  # vLLM's `metrics` has the queue, and TTFT
    each = PerRequest.from_records(records, MetricOptions(streamed=metrics.times_tokens))
    both = each.has_ttft & queued & (records.server_ttft_ns >= 0)
    server_ns = (records.server_queue_ns + records.server_ttft_ns)[both]
    began = each.has_ttft & (records.server_first_token_ns >= 0)
    rows = [
        _pair("queue by response, mean", "ms", None, _mean_ms(records.server_queue_ns[queued])),
        _pair("TTFT by response, mean", "ms", _mean_ms(each.ttft_ns[both]), _mean_ms(server_ns)),
        _pair(
            "first token by server, mean",
            "ms",
            _mean_ms(each.ttft_ns[began]),
            _mean_ms(records.server_first_token_ns[began]),
        ),
    ]
    if (timings := measure_answer_timings(records, metrics.times_tokens)) is not None:
        rows += [
            _pair(f"{pair.name} tokens by response", "", pair.client, pair.server) for pair in timings.counts
        ]
        rows.append(_pair("TTFT, prompt by response", "ms", timings.ttft_ms, timings.prefill_ms))
        rows.append(_pair("first to last, by response", "ms", timings.decode_ms, timings.server_decode_ms))
    return [row for row in rows if row.server is not None]


def _find_peak(window: ServerWindow, gauge: str) -> float | None:
    """Return a gauge's greatest sample; None if it was sampled too rarely to meet its peak."""
    sampled = sum(getattr(each, gauge) is not None for each in window.samples)
    return window.peak(gauge) if sampled >= LEAST_SAMPLES else None


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * (part / whole)


def _pair(figure: str, unit: str, client: float | None, server: float | None) -> ReconciledFigure:
    client, server = (None if of is None or math.isnan(of) else of for of in (client, server))
    difference = None if client is None or server is None else client - server
    return ReconciledFigure(figure, unit, client, server, difference)


class CountPair(msgspec.Struct, frozen=True):
    """A token count by usage and by the answers' timings, summed over the requests that have both."""

    name: str
    client: int
    server: int
    requests: int
    differing: int


class AnswerTimings(msgspec.Struct, frozen=True):
    """Means of the timings that successful answers report of themselves, in ms; NaN of nothing."""

    requests: int
    counts: tuple[CountPair, ...]
    ttft_ms: float
    prefill_ms: float
    early: int  # requests whose first token came sooner than the server had computed their prompt
    decode_ms: float  # first → last token, of requests with several
    server_decode_ms: float
    decoded: int  # requests

    @property
    def waited_ms(self) -> float:
        """The part of mean TTFT outside the computation of the prompt: queue, HTTP and network."""
        return self.ttft_ms - self.prefill_ms


def measure_answer_timings(records: Records, streamed: bool = True) -> AnswerTimings | None:
    """Average the times that successful answers report in `timings`, as llama.cpp; None without any."""
    timed = records.ok & (records.server_prefill_ns >= 0) & (records.server_output_tokens >= 0)
    if not timed.any():
        return None
    each = PerRequest.from_records(records, MetricOptions(streamed=streamed))
    begun = timed & each.has_ttft
    prefill_ns, ttft_ns = records.server_prefill_ns, each.ttft_ns
    slack_ns = np.maximum(_PROMPT_EARLY_MS * MS_NS, _PROMPT_EARLY_SHARE * prefill_ns)
    several = begun & (records.server_decode_ns >= 0) & (each.output_tokens > 1)
    return AnswerTimings(
        requests=int(timed.sum()),
        counts=tuple(_pair_counts(records, timed)),
        ttft_ms=_mean_ms(ttft_ns[begun]),
        prefill_ms=_mean_ms(prefill_ns[begun]),
        early=int((begun & (ttft_ns < prefill_ns - slack_ns)).sum()),
        decode_ms=_mean_ms((each.last_ns - each.first_ns)[several]),
        server_decode_ms=_mean_ms(records.server_decode_ns[several]),
        decoded=int(several.sum()),
    )


def _pair_counts(records: Records, timed: Bool) -> Iterator[CountPair]:
    """Yield each token count by usage next to the one by timings, over requests that report both."""
    for name, (ours, parts) in _COUNTS.items():
        client, theirs = getattr(records, ours), [getattr(records, part) for part in parts]
        known = timed & (records.usage > 0) & (client >= 0)
        for column in theirs:
            known &= column >= 0
        server: Int64 = np.sum(theirs, axis=0)
        if known.any():
            apart = int((client != server)[known].sum())
            yield CountPair(name, int(client[known].sum()), int(server[known].sum()), int(known.sum()), apart)


def _mean_ms(values_ns: Int64) -> float:
    return float(values_ns.mean()) / MS_NS if len(values_ns) else math.nan

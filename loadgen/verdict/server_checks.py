"""Server checks: the server was not idle, alone or warm, did less work than asked, or counts differently."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from loadgen.base.rule import Evidence, Origin, Rule, Source, invalid, join_evidence, note, suspect
from loadgen.base.text import format_count
from loadgen.features.attribution import attribution
from loadgen.server.server_counters import ServerSample
from loadgen.verdict import reconcile
from loadgen.verdict.evidence import LEAST_GAUGES, LEAST_WAVES, RunEvidence, Trend, percent
from loadgen.verdict.reconcile import AnswerTimings, Mismatch, count_finished_after_cancel, find_mismatches
from loadgen.verdict.reconcile import count_foreign_requests as foreign_count

FIRST_TTFT, FIRST_TPOT = (2.0, 5.0), (1.5, 0.5)  # a ratio and milliseconds, both exceeded
FEW_WAVES = 3.0  # with k later waves the ratios are 1 + this / k times theirs: a wave is one observation
TREND_CHANCE, TREND_CHANGE = 0.003, 0.1  # of two tests a run: a healthy one fails either once in 170
FOREIGN, PREEMPTED = 0.01, 0.01  # of the requests
TOKENS_OFF, TOKENS_FAR_OFF = 0.005, 0.1
QUEUED, QUEUE_OF_TTFT = 0.05, 0.5  # of the mean TTFT
UNABORTED = 0.05  # of the cancelled requests: an answer may end as its connection is closed
WAITED, PINNED = 0.5, 0.9  # of the samples, of those in which requests waited
_BACKWARDS = "the server's counters went backwards during the run"
_SETTLE = "check for thermal throttling, other work or a filling KV cache; warm up longer"


@invalid(
    "counters-reset",
    "a counter of the server went backwards: the server restarted during the run, or several servers answer "
    "at one address, which start times do not show",
    "find in the server's log why it restarted, then run again; behind a balancer, name each server with "
    "--metrics-url",
    Source.COUNTERS,
    origin=Origin.LOAD,
)
def counters_reset(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server's counters went backwards."""
    reset = run.window is not None and run.window.reset
    return f"{_BACKWARDS}: it was restarted, or several servers answer at one address" if reset else None


@suspect(
    "first-wave",
    "the first wave's median exceeds the 90th percentile of the requests between it and the drain: TTFT, "
    f"per prompt token awaited at the same time, {FIRST_TTFT[0]:.0f} times and by {FIRST_TTFT[1]:.0f} ms, or "
    f"TPOT {FIRST_TPOT[0]:.1f} times and by {FIRST_TPOT[1]} ms; the ratios are 1 + {FEW_WAVES:.0f} / k times "
    "these with k later waves, since a wave is one observation; a burst into a warm server stays below 1.1",
    "warm up: --num-warmups wave; after a warm-up of a wave or more, a longer one: --num-warmups N",
)
def first_wave(run: RunEvidence) -> Evidence | None:
    """Find evidence that the first requests were slower than a burst explains."""
    waves = (("TTFT", run.first_ttft(), FIRST_TTFT), ("TPOT", run.first_tpot(), FIRST_TPOT))
    slower = join_evidence(
        f"median {name} was {wave.first_ms:.4g} ms in the first wave of {wave.size}, {wave.later_ms:.4g} ms "
        f"later: {wave.ratio:.1f} × the later P90, after allowing for the burst"
        for name, wave, (ratio, least_ms) in waves
        if wave is not None
        and wave.first_ms - wave.later_ms > least_ms
        and wave.ratio > ratio * (1 + FEW_WAVES / wave.waves)
    )
    if slower is None or not run.facts.warmups:
        return slower
    return f"{slower}; {format_count(run.facts.warmups, 'warm-up request')} came before"


tpot_trend: Rule[RunEvidence] = suspect(
    "tpot-trend",
    "the medians of TPOT over successive waves of requests, or of sessions by their mean, without ramp and "
    "drain, have a trend: at least "
    f"{LEAST_WAVES} waves, Mann-Kendall p < {TREND_CHANCE}, and over {percent(TREND_CHANGE)} in all by the "
    "Theil-Sen slope, since a drift can be significant and too small to matter",
    _SETTLE,
)(lambda run: _describe_drift("TPOT", run.tpot_trend()))


throughput_trend: Rule[RunEvidence] = suspect(
    "throughput-trend",
    "closed loop: output tokens per second, over the time each wave of responses took, have such a trend; "
    "not of sessions, since the contexts of the first ones grow together",
    _SETTLE,
)(lambda run: _describe_drift("output throughput", run.throughput_trend()))


def _describe_drift(name: str, trend: Trend | None) -> Evidence | None:
    """Describe a trend of the figure `name`; None if there is none, or it may be chance, or is small."""
    if trend is None or trend.probability >= TREND_CHANCE or abs(trend.change) <= TREND_CHANGE:
        return None
    word = "rose" if trend.change > 0 else "fell"
    return (
        f"{name} {word} by {percent(abs(trend.change))} over {trend.n} waves "
        f"(Mann-Kendall p = {trend.probability:.2g}, Theil-Sen slope)"
    )


@suspect(
    "foreign-requests",
    f"requests were on the server before the run, or it finished more than {percent(FOREIGN)} beyond those "
    "of this run, or, alone, in two samples held more than this run had in flight and those it had cancelled",
    "give the run a server without other clients",
    Source.COUNTERS,
)
def foreign_requests(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server served other clients' requests too."""
    window, parts = run.window, []
    if window is None:
        return None
    before = (window.running_before or 0) + (window.waiting_before or 0)
    if before >= 1:
        parts.append(f"{before:.0f} requests were on the server before the run")
    foreign, ours = foreign_count(window, run.metrics), run.metrics.requests
    if foreign > FOREIGN * ours:
        parts.append(f"the server finished {ours + foreign} requests, {ours} of them from this run")
    # A server that does not abort cancelled requests still has them, next to those that took their places.
    going_on = max(run.metrics.cancelled - window.requests.get("abort", 0), 0)
    peak = run.metrics.peak_concurrency + going_on
    # A sample of several servers has several instants: what ended on one may run on the next.
    alone = not run.facts.targets and len(run.facts.role_windows) < 2
    loads = [(sample.running or 0) + (sample.waiting or 0) for sample in run.samples if alone]
    crowded = [load for load in loads if load > peak]
    if len(crowded) > 1:
        parts.append(
            f"{len(crowded)} samples show up to {max(crowded):.0f} requests on the server, "
            f"at most {peak} from this run"
        )
    return join_evidence(parts)


@suspect(
    "preemptions",
    f"more preemptions than {percent(PREEMPTED)} of the requests: each of these is computed twice, which "
    "P99 shows",
    "give the server more KV cache, or lower --max-concurrency or the lengths",
    Source.COUNTERS,
)
def preemptions(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server evicted requests and computed them again."""
    count = run.window.preemptions if run.window else None
    if not count or count <= PREEMPTED * run.metrics.requests:
        return None
    evicted = f"{format_count(count, 'preemption')} in {format_count(run.metrics.requests, 'request')}"
    share = attribution.describe_share(run, "preemption")
    return join_evidence([f"{evicted}: the KV cache was full", share])


@suspect(
    "server-limit",
    f"closed loop: in most of at least {LEAST_GAUGES} samples requests waited, in more than "
    f"{percent(PINNED)} of those the server ran exactly its peak number of requests, and that peak is below "
    "--max-concurrency; where prefill is the bottleneck, the number varies",
    "raise the server's limit (--max-running; vLLM: --max-num-seqs, SGLang: --max-running-requests) or its "
    "KV cache, or lower --max-concurrency",
    Source.GAUGES,
)
def server_limit(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server ran as many requests as it may while others waited."""
    waited, most = _select_waiting(run)
    if not run.closed_loop or not waited or most >= run.target or few_slots.find(run) is not None:
        return None
    pinned = sum(sample.running == most for sample in waited)
    if pinned <= PINNED * len(waited):
        return None
    return (
        f"the server ran at most {most:.0f} of {run.target} requests at once; in {len(waited)} of "
        f"{len(run.samples)} samples others waited: TTFT includes their time in the queue"
    )


@note(
    "queued",
    f"in most of at least {LEAST_GAUGES} samples requests waited, or the mean queue time, by the server's "
    f"histogram or its responses, is more than {percent(QUEUE_OF_TTFT)} of the mean TTFT (the wait for the "
    "step under way is at most a third); and the server's own limit is not the reason: prefill is the "
    "bottleneck, or the KV cache is full",
    "read TTFT as queue time plus prefill; lower --max-concurrency to measure prefill alone",
    Source.GAUGES,
)
def requests_queued(run: RunEvidence) -> Evidence | None:
    """Find evidence that requests waited, and not for the server's own limit of requests at once."""
    waited, most = _select_waiting(run)
    queued_ms, ttft_ms = _measure_queue_ms(run), run.metrics.ttft.mean_ms
    long = queued_ms > QUEUE_OF_TTFT * ttft_ms
    if not (waited or long) or any(limit.find(run) is not None for limit in (few_slots, server_limit)):
        return None
    found = []
    if waited:
        where = f"in {len(waited)} of {len(run.samples)} samples"
        found.append(f"requests waited {where}, at most {most:.0f} ran at once")
    if full := max((sample.kv_cache_usage or 0.0 for sample in waited), default=0.0):
        found.append(f"KV cache up to {percent(full)} full")
    if queued_ms > 0:
        found.append(f"mean queue time {queued_ms:.4g} ms{f' of {ttft_ms:.4g} ms TTFT' if long else ''}")
    return join_evidence([*found, attribution.describe_share(run, "queue")])


def _measure_queue_ms(run: RunEvidence) -> float:
    """Return the mean time in the server's queue, by its histogram or its answers; 0 where neither has it."""
    queue = run.window.queue if run.window else None
    queued_ns = run.records.server_queue_ns[run.records.ok & (run.records.server_queue_ns >= 0)]
    by_answer_ms = float(queued_ns.mean()) / 1e6 if len(queued_ns) else 0.0
    return max(by_answer_ms, queue.mean_ms if queue is not None else 0.0)


@suspect(
    "prefill-while-queued",
    "prefill_speed was requested, and the mean time in the server's queue (by its histogram, or its "
    f"responses) is more than {percent(QUEUED)} of the mean TTFT, or requests waited in most of at least "
    f"{LEAST_GAUGES} samples: input tokens / TTFT is then a speed of the queue, not of prefill",
    "lower --max-concurrency or --request-rate until nothing waits: at 1 it is the speed of prefill",
)
def prefill_while_queued(run: RunEvidence) -> Evidence | None:
    """Find evidence that the shown prefill speed includes time in the server's queue."""
    ttft_ms = run.metrics.ttft.mean_ms
    if "prefill_speed" not in run.facts.block().selected or not run.metrics.prefill_speed.n:
        return None
    queued_ms = _measure_queue_ms(run)
    waited, _ = _select_waiting(run)
    if queued_ms <= QUEUED * ttft_ms and not waited:
        return None
    parts = []
    if queued_ms > 0:
        parts.append(f"{queued_ms:.4g} of {ttft_ms:.4g} ms mean TTFT in the queue")
    if waited:
        parts.append(f"requests waited in {len(waited)} of {len(run.samples)} samples")
    return f"{join_evidence(parts)}: prefill_speed is not the speed of prefill"


def _select_waiting(run: RunEvidence) -> tuple[list[ServerSample], float]:
    """Return the gauge samples with waiting requests if they are most samples, and the most that ran."""
    samples = run.samples
    waited = [sample for sample in samples if (sample.waiting or 0) >= 1]
    if len(samples) < LEAST_GAUGES or len(waited) <= WAITED * len(samples):
        return [], 0.0
    return waited, max((sample.running or 0.0) for sample in samples)


def _find_token_gap(run: RunEvidence, above: float, most: float) -> Evidence | None:
    """Find evidence that client and server counts of tokens differ by a share of `above` to `most`.

    None where failures, cancelled or foreign requests explain it.
    """
    window, metrics = run.window, run.metrics
    if window is None or not window.settled or metrics.failed > run.context_ends:
        return None
    if metrics.cancelled or metrics.cut_off:
        return None
    foreign = foreign_count(window, metrics) > 0
    for mismatch in find_mismatches(window, metrics):
        gap = abs(mismatch.server - mismatch.client) / max(mismatch.client, 1)
        explained = foreign and mismatch.server > mismatch.client
        if mismatch.unit == "tokens" and above < gap <= most and not explained:
            return _describe_mismatch(mismatch)
    return None


tokens_far_off = invalid(
    "tokens-far-off",
    "no request failed or was cancelled, and client and server differ by more than "
    f"{percent(TOKENS_FAR_OFF)} in output or prompt tokens, which other clients' requests do not explain",
    "point --base-url at a single replica, or name all by --metrics-url; enable usage in its responses",
    Source.COUNTERS,
)(partial(_find_token_gap, above=TOKENS_FAR_OFF, most=math.inf))
tokens_differ = suspect(
    "tokens-differ",
    f"as tokens-far-off, by more than {percent(TOKENS_OFF)}; both counts are equal on a healthy server",
    "enable usage in the server's responses; check that no other server answers at this address",
    Source.COUNTERS,
)(partial(_find_token_gap, above=TOKENS_OFF, most=TOKENS_FAR_OFF))


@suspect(
    "no-abort",
    f"the server finished more than one, and more than {percent(UNABORTED)}, of the requests that the client "
    "had cancelled by closing their connections: its work for them is in no figure, and slows the others",
    "have the server, or the gateway in front of it, abort a request whose connection is closed",
    Source.COUNTERS,
)
def no_abort(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server goes on generating answers whose connection was closed."""
    count = 0 if run.window is None else count_finished_after_cancel(run.window, run.metrics)
    if count <= max(1, UNABORTED * run.metrics.cancelled):
        return None
    return f"the server finished {count} of the {run.metrics.cancelled} requests that were cancelled"


@note(
    "latencies-differ",
    "a mean latency of the server's histograms differs from the client's by more than the two points of "
    "measurement explain",
    "use the client's: it is what a user waits for",
    Source.COUNTERS,
)
def latencies_differ(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server's histograms show other latencies than the client measured."""
    every = find_mismatches(run.window, run.metrics) if run.window else []
    return join_evidence(_describe_mismatch(mismatch) for mismatch in every if mismatch.unit == "ms")


def _describe_mismatch(mismatch: Mismatch) -> Evidence:
    figures = f"client {mismatch.client:.7g}, server {mismatch.server:.7g}"
    return f"{mismatch.figure}: {figures}: {mismatch.cause}"


@note(
    "several-models",
    "counters of more than one model changed on this port",
    "make sure that no other model has work; server-reported figures are of all of them",
    Source.COUNTERS,
)
def several_models(run: RunEvidence) -> Evidence | None:
    """Find evidence that another model was in use behind the same port."""
    models = run.window.models if run.window else ()
    return f"{len(models)} models worked on this port: {', '.join(models)}" if len(models) > 1 else None


@note(
    "unsettled",
    "requests were running or counters changing at the last scrape of /metrics",
    "compare with server-reported figures only after a run that settled",
    Source.COUNTERS,
)
def counters_unsettled(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server's counters still moved when they were last scraped."""
    window = run.window
    moving = window is not None and not window.settled
    return "the server's counters still changed after the run: they may miss its end" if moving else None


COUNTS_OFF, EARLY = 0.005, 0.01  # of the requests
DELAYED_SHARE, DELAYED_MS = 0.02, 1.0  # of the time from the first to the last token, both exceeded


@suspect(
    "few-slots",
    "closed loop: the server reports fewer slots than requests are kept under way (--max-concurrency): the "
    "others wait in its queue for a slot",
    "start it with more slots (--max-running; llama-server: --parallel N, and N times the --ctx-size), or "
    "lower --max-concurrency",
)
def few_slots(run: RunEvidence) -> Evidence | None:
    """Find evidence that the server has fewer slots than the requested concurrency."""
    slots = run.facts.server.slots
    if not slots or not run.closed_loop or run.target <= slots:
        return None
    what = f"the server has {slots} slots for {run.target} requests at once: TTFT includes their queue"
    timings = reconcile.measure_answer_timings(run.records, run.metrics.streamed)
    if timings is None or not timings.ttft_ms > timings.prefill_ms:
        return what
    return f"{what} ({timings.waited_ms:.4g} of {timings.ttft_ms:.4g} ms in the mean)"


@suspect(
    "timings-differ",
    "what responses report of their own request (llama.cpp's `timings`) is not what the client has: another "
    f"count of tokens than `usage` in more than {percent(COUNTS_OFF)} of them, a first token sooner than its "
    f"prompt was computed in more than {percent(EARLY)}, or a mean time from the first to the last token "
    f"that is longer by over {percent(DELAYED_SHARE)} and {DELAYED_MS:g} ms; on one machine these agree to "
    "0.2 %",
    "measure on the server's own machine: what lies between delays chunks, or answers for another server",
)
def timings_differ(run: RunEvidence) -> Evidence | None:
    """Find evidence that answers' own timings contradict the client's figures of the same requests."""
    timings = reconcile.measure_answer_timings(run.records, run.metrics.streamed)
    return None if timings is None else join_evidence(_list_differences(timings))


def _list_differences(timings: AnswerTimings) -> Iterator[Evidence]:
    """Yield a sentence for each way in which the answers' timings contradict the client's figures."""
    for pair in timings.counts:
        if pair.differing > COUNTS_OFF * pair.requests:
            yield (
                f"{pair.name} tokens differ in {pair.differing} of {pair.requests} responses: "
                f"{pair.client} by usage, {pair.server} by timings"
            )
    if timings.early > EARLY * timings.requests:
        yield (
            f"{timings.early} of {timings.requests} first tokens came before the server had computed their "
            f"prompts (mean TTFT {timings.ttft_ms:.4g} ms, prompts {timings.prefill_ms:.4g} ms)"
        )
    longer_ms = timings.decode_ms - timings.server_decode_ms
    if longer_ms > max(DELAYED_MS, DELAYED_SHARE * timings.server_decode_ms):
        yield (
            f"from the first to the last token {timings.decode_ms:.4g} ms in the mean, "
            f"{timings.server_decode_ms:.4g} ms by the server: chunks are delayed on their way"
        )


fallback_kernel: Rule[RunEvidence] = suspect(
    "fallback-kernel",
    "the engine reports or logs that it runs a slower kernel than the checkpoint's format is made for: "
    "the GPU or the build has no other, or it is not tuned",
    "choose a build or a format with a kernel for this GPU; the report's `engine log:` lines have the reason",
)(lambda run: join_evidence(() if run.facts.as_run is None else run.facts.as_run.fallbacks))

"""Short lines: what a short report has of a section, in a line: what a person compares at once."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.base.text import list_first
from loadgen.features.sessions import session_lines
from loadgen.features.shapes import shape_figures
from loadgen.figures.distribution import Distribution
from loadgen.figures.steady_state import Steady
from loadgen.report.run_directory import Result
from loadgen.roofline import bound
from loadgen.verdict import reconcile, run_roofline
from loadgen.verdict.run_facts import Client

_GIB = 1 << 30
_DIFFERS = 0.01  # of TTFT: below it the two are the same figure


def load(result: Result, options: object) -> Iterator[str]:
    """How many requests were under way, how late they were sent, and TTFT from when they were due."""
    metrics, facts = result.metrics, result.facts
    if of_sessions := session_lines.describe_in_flight(result):
        yield of_sessions
        yield from from_due(result)
        return
    line = f"concurrency: {metrics.mean_concurrency:.2f} on average"
    if facts.held_concurrency is not None or facts.profile.stepped:
        limit = facts.max_concurrency
        of = f" of {'at most ' * facts.profile.stepped}{limit}"
        sent = f"; turnaround {metrics.queue_time.mean_ms:.2f} ms mean" if metrics.queue_time.n else ""
        yield line + of + sent
        return
    late = shape_figures.describe_lateness(result.records)
    yield line + f"; send delay {late} (due → sent)" * bool(late)
    yield from from_due(result)


def from_due(result: Result) -> Iterator[str]:
    """TTFT from when requests were due next to TTFT from when they were sent, where the two differ."""
    due, sent = result.metrics.ttft_intended, result.metrics.ttft
    if result.facts.profile.open_loop and sent.n and due.mean_ms > (1 + _DIFFERS) * sent.mean_ms:
        yield f"TTFT from when due: {_spread(due)} (from sent: {_spread(sent)})"


def _spread(latency: Distribution) -> str:
    ranked = (f", {value:.2f} P{rank:g}" for rank, value in latency.percentiles_ms.items())
    return f"{latency.mean_ms:.2f} ms mean{''.join(ranked)}"


def client(result: Result, options: object) -> Iterator[str]:
    """What timed the tokens, and how true it is where that was measured."""
    health, facts = result.metrics.health, result.facts
    if facts.client.segments:
        clock = "a kernel timestamp per TCP segment"
    elif health.unstamped_reads < health.reads:
        clock = f"kernel timestamps, read {health.lag_mean_ms:.2f} ms later"
    else:
        clock = "user-space timestamps"
    error, measured = "", facts.calibration
    if measured is not None:
        error = f"; P99 error {max(measured.gap.p99_us, measured.ttft.p99_us) / 1000:.2f} ms"
    yield f"client: {facts.client.transport}, {workers(facts.client)}{clock}{error}"


def workers(client: Client) -> str:
    """How many workers there were, and the CPUs that they were pinned to; "" of one."""
    if client.workers == 1:
        return ""
    return f"{client.workers} workers{f' on CPUs {client.cpus}' if client.cpus else ''}, "


def steady(result: Result, options: object) -> Iterator[str]:
    """The throughput while the load was held, where it was."""
    part = result.steady
    if isinstance(part, Steady) and part.whole:
        span = f"{part.begin_s:.1f} to {part.end_s:.1f} s, {100 * part.share:.0f} % of the run"
        yield f"steady state: {part.output_throughput_per_s:.1f} tok/s ({span})"


def server_reported(result: Result, options: object) -> Iterator[str]:
    """Whether the server's counters agree with the client's figures, and its TTFT and ITL."""
    window, metrics = result.facts.window, result.whole
    if not result.facts.whole_load:
        return
    yield from _by_answer(result)
    if window is None or window.error or window.reset:
        return
    differing = [mismatch.figure for mismatch in reconcile.mismatches(window, metrics)]
    agree = (
        f"differ from the client's ({list_first(differing, 1)})" if differing else "agree with the client's"
    )
    pairs = (("TTFT", window.ttft, metrics.ttft), ("ITL", window.itl, metrics.token_time))
    means = [
        f"mean {name} {theirs.mean_ms:.2f} ms (client {ours.mean_ms - theirs.mean_ms:+.2f})"
        for name, theirs, ours in pairs
        if theirs is not None and ours.n
    ]
    yield "; ".join([f"server's counters {agree}", *means[:1]])


def _by_answer(result: Result) -> Iterator[str]:
    """What answers report of themselves: how much of TTFT was their prompt, and how long they took then."""
    timings = reconcile.measure_answer_timings(result.records, result.metrics.times_tokens)
    if timings is None or not timings.decoded:
        return
    apart = timings.decode_ms - timings.server_decode_ms
    yield (
        f"server's timings: prompt {timings.prefill_ms:.2f} of {timings.ttft_ms:.2f} ms mean TTFT, "
        f"first to last token {timings.server_decode_ms:.2f} ms (client {apart:+.2f})"
    )


def roofline(result: Result, options: object) -> Iterator[str]:
    """How much of what the machine could decode at best was reached, where that is known."""
    ceiling = result.facts.ceiling if result.facts.whole_load else None
    step = ceiling and bound.compare_decode(ceiling, *run_roofline.figures(result.facts, result.metrics))
    if ceiling and step:
        best, reached = step.batch * 1e3 / step.least_ms, step.batch * 1e3 / step.tpot_ms
        share = f"{100 * step.share:.0f} % of the best decoding of {ceiling.machine.name}"
        yield f"roofline: {share} ({reached:,.0f} of {best:,.0f} tok/s)"


def sensors(result: Result, options: object) -> Iterator[str]:
    """GPU memory, energy and heat, where they were read."""
    sensed = result.facts.sensed
    if sensed is None or not result.facts.whole_load:
        return
    parts = []
    if (memory := sensed.server or sensed.device) is not None:
        parts.append(f"{memory.peak_bytes / _GIB:.2f} GiB at peak")
    if sensed.energy is not None:
        parts.append(f"{sensed.energy.mean_w:,.0f} W mean")
    if (each := sensed.joules_per_token(result.whole.total_output_tokens)) is not None:
        parts.append(f"{each:,.3f} J per output token")
    if sensed.held_back:
        parts.append(f"throttled: {', '.join(sensed.held_back)}")
    if parts:
        yield f"GPU: {', '.join(parts)}"


def unavailable(result: Result, options: object) -> Iterator[str]:
    """What is not known on this machine, in one line, each with the way to it."""
    facts, sensed = result.facts, result.facts.sensed
    absent = {
        "server's counters": facts.window is not None and bool(facts.window.error),
        "client error (`loadgen selftest`)": facts.calibration is None,
        "roofline (--hardware)": facts.ceiling is None and bool(facts.no_ceiling),
        "GPU sensors": sensed is not None and not (sensed.gpus or sensed.energy),
    }
    if names := [name for name, missing in absent.items() if missing]:
        yield f"not known: {', '.join(names)}"

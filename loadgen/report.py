"""Report: a run as a person reads it, from its facts and records alone."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterator

from msgspec.structs import replace

from loadgen import as_run, attainable, block, fingerprint, reconcile, sensing, steady, verdict
from loadgen.block import Layout
from loadgen.calibration import Calibration
from loadgen.facts import Facts
from loadgen.metrics import ClientHealth, Metrics, compute
from loadgen.plain_text import plain
from loadgen.profile import Profile
from loadgen.result import Result

_WIDTH = 80


def render(result: Result, explain: bool = False, layout: str | None = None) -> str:
    """The whole report: what was asked of whom, the block, the verdict, and what there is to say of it.

    `layout` is a key of block.LAYOUTS; raises UsageError where there is no such one.
    """
    facts = result.facts
    metrics = result.metrics
    lines = [
        *_heading(facts),
        _block(result, block.layout(layout)),
        *map(_wrapped, verdict.explain(result.verdict) if explain else verdict.lines(result.verdict)),
        *map(_wrapped, _remarks(facts, metrics)),
        *steady.lines(result.steady),
        *_reconciled(result),
        *map(_wrapped, attainable.lines(facts, metrics)),
        *map(_wrapped, _sensed(result)),
        *map(_wrapped, fingerprint.lines(facts.fingerprint) if facts.fingerprint is not None else ()),
    ]
    return plain("\n".join(lines))


def _block(result: Result, layout: Layout) -> str:
    """The block; a layout that has its own percentiles shows these, and every latency of its own."""
    metrics, facts = result.metrics, result.facts.block()
    if layout.percentiles:
        metrics = compute(result.records, replace(result.facts.ask(), metric_percentiles=layout.percentiles))
        facts = replace(facts, selected=tuple(section.key for section in layout.sections))
    told = {"backend": result.facts.profile.backend, **block.beside(metrics)}
    return block.render({**told, **block.figures(metrics, facts)}, layout)


def _wrapped(line: str) -> str:
    return "\n".join(
        textwrap.wrap(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    )


def _heading(facts: Facts) -> Iterator[str]:
    server, profile = facts.server, facts.profile
    if server.simulated:
        yield _wrapped(
            f"SIMULATED: the embedded engine answered, with the timing of {server.simulated}; no model ran"
        )
    if facts.cut_short:
        yield _wrapped(f"PARTIAL: {facts.cut_short}; the figures are of what had ended by then")
    if profile.name:
        yield _wrapped(f"{profile.name}: {profile.description}".rstrip(": "))
    engine = f"{server.engine} {server.version}".strip()
    yield _wrapped(f"server: {engine}, model {server.model}, {server.url}")
    yield from map(_wrapped, _launched(facts))
    chosen = "given" if facts.seed_chosen else "drawn"
    yield _wrapped(f"prompts: {_prompts(facts)}; seed {facts.seed} ({chosen}), plan {facts.plan_digest[:12]}")
    yield _wrapped(f"requests: {_requests(facts)}")


def _launched(facts: Facts) -> Iterator[str]:
    """How the server came to be, and what it says that it runs."""
    if facts.launched is not None:
        known = facts.launched
        yield f"started by {known.how}, ready after {known.ready_s:.1f} s: {shlex.join(known.command)}"
    if facts.as_run is not None:
        yield from as_run.render(facts.as_run, facts.checkpoint)
    if facts.cache_reset:
        yield f"prefix cache: {facts.cache_reset}"
    if facts.traced:
        yield f"TRACED: the engine profiled itself into {facts.traced}: it was slower than it is"


def _prompts(facts: Facts) -> str:
    if facts.prompt_format == "ids":
        return f"ids, exactly as many random token ids as planned, from {facts.ids_source}"
    return f"{facts.prompt_format}, text whose length depends on the server's tokenizer"


def _requests(facts: Facts) -> str:
    profile = facts.profile
    said = [*(f"{name} {value}" for name, value in profile.sampling.items())]
    if profile.ignore_eos and not any("ignore_eos" in note for note in facts.notes):
        said.append("ignore_eos")
    said.append("streamed" if profile.stream else "not streamed: end-to-end latency is all there is")
    if facts.warmups:
        warmed = f"{facts.warmups} before as a warm-up, with prompts never used again"
        said.append(warmed + (f" ({facts.warmup_failures} failed)" if facts.warmup_failures else ""))
    else:
        said.append("no warm-up")
    return ", ".join(said)


def _remarks(facts: Facts, metrics: Metrics) -> Iterator[str]:
    """What the block does not say."""
    for kind, tally in metrics.failures.items():
        yield f"failed: {tally.count} × {kind}" + (f", the first: {tally.detail}" if tally.detail else "")
    missing = facts.requests - metrics.requests
    if missing:
        yield f"not sent: {missing} of {facts.requests} requests"
    if not metrics.streamed:
        yield "TTFT, TPOT and ITL need a stream: leave out --no-stream to measure them"
    elif metrics.completed and not metrics.itl.n:
        yield "TPOT and ITL need answers of more than one message: there were none"
    yield from _token_remarks(metrics)
    yield _load_remark(facts.profile, metrics)
    yield _health_remark(metrics.health, facts)
    yield _calibration_remark(metrics, facts.calibration)
    for note in facts.notes:
        yield f"note: {note}"


def _token_remarks(metrics: Metrics) -> Iterator[str]:
    uncounted = metrics.completed - metrics.counted_by_usage
    if uncounted:
        yield f"tokens: no usage for {uncounted} requests: their messages were counted instead"
    elif metrics.completed:
        yield "tokens: counted by the server's own usage"
    spread = metrics.completed - metrics.exact_tokens - uncounted
    if spread > 0 and metrics.streamed:
        yield (
            f"messages: in {spread} requests some carry several tokens; ITL is per message, "
            "TPOT per token (--continuous-usage counts them one by one)"
        )
    if metrics.planned_inputs:
        yield f"input tokens: as planned, not as counted, for {metrics.planned_inputs} requests"


def _load_remark(profile: Profile, metrics: Metrics) -> str:
    held = f"concurrency: {metrics.mean_concurrency:.2f} held on average"
    if not metrics.queue_time.n:
        return held
    if profile.max_concurrency is not None and not math.isfinite(profile.request_rate):
        turn = f"{metrics.queue_time.mean_ms:.2f} ms from a slot's last token to its next request"
        return f"{held} of {profile.max_concurrency}; {turn}"
    return f"{held}; requests left {metrics.queue_time.mean_ms:.2f} ms after they were due (mean)"


def _health_remark(health: ClientHealth, facts: Facts) -> str:
    if health.unstamped_reads < health.reads:
        said = (
            f"kernel stamps; reads in hand {health.lag_mean_ms:.2f} ms later (worst {health.lag_max_ms:.2f})"
        )
        if health.unstamped_reads:
            said += f"; {health.unstamped_reads} of {health.reads} reads had none and carry the client's own"
    else:
        said = "user-space stamps (no kernel stamps here): the client's own delay is in every figure"
    shared = f"{100 * health.shared_share:.2g} % of token messages shared a read"
    return f"client: {facts.client.transport}, {said}; {shared}; {facts.client.cpu_s:.2f} s of CPU"


def _calibration_remark(metrics: Metrics, known: Calibration | None) -> str:
    if known is None:
        return "client error: not known on this machine; `loadgen selftest` measures it"
    said = (
        f"client error P99 {known.gap.p99_us / 1000:.2f} ms of a gap, {known.ttft.p99_us / 1000:.2f} ms of "
        f"TTFT (self-test of {known.measured:%Y-%m-%d} at {known.streams} streams)"
    )
    if not metrics.messages_per_s:
        return said
    least = "" if known.capacity_bounded else "at least "
    return f"{said}; headroom {least}{known.headroom(metrics.messages_per_s):.3g}×"


def _sensed(result: Result) -> list[str]:
    known = result.facts.sensed
    return [] if known is None else sensing.render(known, result.metrics.total_output_tokens)


def _reconciled(result: Result) -> Iterator[str]:
    window = result.facts.window
    if window is None:
        return
    if window.trouble:
        yield _wrapped(f"server's own figures: none: {window.trouble}")
        return
    yield f"the server's own figures ({window.names}), of the same run:"
    yield from reconcile.render(result.reconciled)

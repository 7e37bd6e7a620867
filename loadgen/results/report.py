"""Report: a run as a person reads it, from its facts and records alone."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from loadgen.endpoint import answer_check, engine_config
from loadgen.metrics import steady_state, vllm_keys
from loadgen.metrics.metrics import compute
from loadgen.protocol.layout import wrapped
from loadgen.protocol.printable import plain
from loadgen.results import result_block
from loadgen.results.result_block import Layout
from loadgen.results.run_directory import Result
from loadgen.telemetry import sensor_summary
from loadgen.validity import reconcile, run_roofline, verdict
from loadgen.validity.run_facts import Facts
from loadgen.validity.sections import Broken, guarded


class ReportOptions(msgspec.Struct, frozen=True):
    """How the report is to be."""

    explain: bool
    layout: Layout


class Section(msgspec.Struct, frozen=True):
    """One part of the report, made without the others: its name, and its lines of a run."""

    name: str
    lines: Callable[[Result, ReportOptions], Iterable[str]]
    wrapped: bool = True  # False: they are laid out already


def render(result: Result, explain: bool = False, layout: str | None = None) -> str:
    """The whole report: the server and the workload, the block, the verdict, and remarks.

    A section that cannot be made is a line that names it, in its place; what UTF-8 cannot hold is escaped.
    `layout` is a key of block.LAYOUTS; raises UsageError where there is no such one.
    """
    options = ReportOptions(explain, result_block.layout(layout))
    return plain("\n".join(line for section in SECTIONS for line in _made(section, result, options)))


def _made(section: Section, result: Result, options: ReportOptions) -> list[str]:
    """The lines of a section, or one line with the reason that it has no lines."""
    broken: list[Broken] = []
    none: list[str] = []

    def make() -> list[str]:
        lines = section.lines(result, options)
        return [part for line in lines for part in (wrapped(line) if section.wrapped else [line])]

    lines = guarded(section.name, make, none, broken)
    failures = (f"section {failure.name} failed: {failure.why}; please report it" for failure in broken)
    return lines + [part for line in failures for part in wrapped(line)]


def _block(result: Result, options: ReportOptions) -> Iterator[str]:
    """The block; a layout that has its own percentiles shows these, and every latency of its own."""
    metrics, facts, layout = result.metrics, result.facts.block(), options.layout
    if layout.percentiles:
        metrics = compute(result.records, replace(result.facts.ask(), metric_percentiles=layout.percentiles))
        facts = replace(facts, selected=tuple(section.key for section in layout.sections))
    sglang = {"backend": result.facts.profile.backend, **vllm_keys.of_sglang(metrics)}
    yield result_block.render({**sglang, **vllm_keys.figures(metrics, facts)}, layout)


def _heading(result: Result, options: ReportOptions) -> Iterator[str]:
    facts = result.facts
    if facts.partial:
        yield f"PARTIAL: {facts.partial}; the figures cover the requests that had ended by then"
    if facts.server.simulated:
        timing = f"with the timing of {facts.server.simulated}"
        yield f"SIMULATED: the embedded engine answered, {timing}; no model ran"


def _server(result: Result, options: ReportOptions) -> Iterator[str]:
    server, profile = result.facts.server, result.facts.profile
    if profile.name:
        yield f"{profile.name}: {profile.description}".rstrip(": ")
    engine = f"{server.engine} {server.version}".strip()
    yield f"server: {engine}, model {server.model}, {server.url}"


def _workload(result: Result, options: ReportOptions) -> Iterator[str]:
    facts = result.facts
    chosen = "given" if facts.seed_chosen else "drawn"
    yield f"prompts: {_prompts(facts)}; seed {facts.seed} ({chosen}), plan {facts.plan_digest[:12]}"
    yield f"requests: {_requests(facts)}"
    yield from map(str, facts.adapted)


def _launched(result: Result, options: ReportOptions) -> Iterator[str]:
    """How the server was started, and what it reports that it runs."""
    facts = result.facts
    if facts.launched is not None:
        server = facts.launched
        yield f"started by {server.how}, ready after {server.ready_s:.1f} s: {shlex.join(server.command)}"
    if facts.as_run is not None:
        yield from engine_config.render(facts.as_run, facts.checkpoint)
    if facts.cache_reset:
        yield f"prefix cache: {facts.cache_reset}"
    if facts.traced:
        yield f"TRACED: the engine's profiler wrote to {facts.traced}: it was slower than without"


def _prompts(facts: Facts) -> str:
    if facts.prompt_replaced:
        return "from --extra-body, the same in every request"
    if facts.prompt_format == "ids":
        return f"ids, random token ids of exactly the planned length, from {facts.ids_source}"
    return f"{facts.prompt_format}, text whose length depends on the server's tokenizer"


def _requests(facts: Facts) -> str:
    profile = facts.profile
    unsent = {field.name for field in facts.adapted}
    parts = [f"{name} {value}" for name, value in profile.sampling.items() if name not in unsent]
    if profile.ignore_eos and not facts.ignore_eos_refused:
        parts.append("ignore_eos")
    parts.append("streamed" if profile.stream else "not streamed: only end-to-end latency is measured")
    if facts.warmups:
        warmed = f"{facts.warmups} warm-up requests before, with prompts of their own"
        parts.append(warmed + (f" ({facts.warmup_failures} failed)" if facts.warmup_failures else ""))
    else:
        parts.append("no warm-up")
    return ", ".join(parts)


def _failures(result: Result, options: ReportOptions) -> Iterator[str]:
    """What became of the requests that the block does not count: failed, lost, or never sent."""
    facts, metrics = result.facts, result.metrics
    for kind, tally in metrics.failures.items():
        yield f"failed: {tally.count} × {kind}" + (f", the first: {tally.detail}" if tally.detail else "")
    missing = facts.requests - metrics.requests
    lost = min(facts.unfinished, max(missing, 0))
    if lost:
        yield f"lost: {lost} of {facts.requests} requests were under way when the client was killed"
    if missing - lost > 0:
        what = "not sent, or not in the journal yet" if facts.recovered else "not sent"
        yield f"{what}: {missing - lost} of {facts.requests} requests"
    resent = int((result.records.resends > 0).sum())
    if resent:
        yield f"sent again: {resent} requests, after the server closed their idle connection"


def _tokens(result: Result, options: ReportOptions) -> Iterator[str]:
    metrics = result.metrics
    if not metrics.streamed:
        yield "TTFT, TPOT and ITL need a stream: leave out --disable-stream to measure them"
    elif metrics.completed and not metrics.itl.n:
        yield "TPOT and ITL need responses of more than one message: there were none"
    uncounted = metrics.completed - metrics.counted_by_usage
    if uncounted:
        yield f"tokens: {uncounted} responses have no usage: their messages were counted instead"
    elif metrics.completed:
        yield "tokens: as reported by the server in usage"
    spread = metrics.completed - metrics.exact_tokens - uncounted
    if spread > 0 and metrics.streamed:
        yield (
            f"messages: in {spread} requests some carry several tokens; ITL is per message, "
            "TPOT per token (--continuous-usage counts them one by one)"
        )
    if metrics.planned_inputs:
        yield f"input tokens: as planned for {metrics.planned_inputs} requests, not as reported by the server"


def _load(result: Result, options: ReportOptions) -> Iterator[str]:
    metrics, profile = result.metrics, result.facts.profile
    line = f"concurrency: {metrics.mean_concurrency:.2f} on average"
    if not metrics.queue_time.n:
        yield line
    elif profile.max_concurrency is not None and not math.isfinite(profile.request_rate):
        turnaround = f"turnaround {metrics.queue_time.mean_ms:.2f} ms (response end → next send)"
        yield f"{line} of {profile.max_concurrency}; {turnaround}"
    else:
        yield f"{line}; send delay {metrics.queue_time.mean_ms:.2f} ms mean (due → sent)"


def _client(result: Result, options: ReportOptions) -> Iterator[str]:
    health, client = result.metrics.health, result.facts.client
    if client.segments:
        clock = "a kernel timestamp for each TCP segment"
        if client.fallen_back:
            clock += (
                f"; {client.fallen_back} requests timed by reads ({client.dropped_segments} segments lost)"
            )
    elif health.unstamped_reads < health.reads:
        lag = f"read lag {health.lag_mean_ms:.2f} ms mean, {health.lag_max_ms:.2f} ms max"
        clock = f"kernel timestamps; {lag}"
        if health.unstamped_reads:
            clock += f"; {health.unstamped_reads} of {health.reads} reads have the client's own timestamp"
    else:
        clock = "user-space timestamps (the kernel gives none): the client's delay is in every figure"
    why = f" ({client.why})" if client.why else ""
    coalesced = f"{100 * health.shared_share:.2g} % of token messages coalesced"
    yield f"client: {client.transport}{why}, {clock}; {coalesced}; {client.cpu_s:.2f} s of CPU"


def _calibration(result: Result, options: ReportOptions) -> Iterator[str]:
    selftest, rate_per_s = result.facts.calibration, result.metrics.messages_per_s
    if selftest is None:
        yield "client error: not measured on this machine: run `loadgen selftest`"
        return
    errors = f"ITL {selftest.gap.p99_us / 1000:.2f} ms, TTFT {selftest.ttft.p99_us / 1000:.2f} ms"
    when = f"{selftest.measured:%Y-%m-%d} at {selftest.streams} streams"
    line = f"client error P99: {errors} (self-test of {when})"
    if rate_per_s:
        least = "" if selftest.capacity_bounded else "at least "
        line += f"; headroom {least}{selftest.headroom(rate_per_s):.3g}×"
    yield line


def _notes(result: Result, options: ReportOptions) -> Iterator[str]:
    for missing in result.facts.unknown:
        yield f"not known: {missing}"
    for note in result.facts.notes:
        yield f"note: {note}"


def _reconciled(result: Result, options: ReportOptions) -> Iterator[str]:
    window = result.facts.window
    if window is None:
        return
    if window.error:
        yield from wrapped(f"server-reported figures: none: {window.error}")
        return
    yield f"server-reported figures ({window.names}) of the same run:"
    yield from reconcile.render(result.reconciled)


def _sensed(result: Result, options: ReportOptions) -> Iterator[str]:
    if result.facts.sensed is not None:
        yield from sensor_summary.render(result.facts.sensed, result.metrics.total_output_tokens)


def _fingerprint(result: Result, options: ReportOptions) -> Iterator[str]:
    if result.facts.fingerprint is not None:
        yield from answer_check.lines(result.facts.fingerprint)


SECTIONS = (
    Section("heading", _heading),
    Section("server", _server),
    Section("launched", _launched),
    Section("workload", _workload),
    Section("block", _block, wrapped=False),
    Section(
        "verdict",
        lambda result, options: (verdict.explain if options.explain else verdict.lines)(result.verdict),
    ),
    Section("failures", _failures),
    Section("tokens", _tokens),
    Section("load", _load),
    Section("client", _client),
    Section("calibration", _calibration),
    Section("notes", _notes),
    Section("steady-state", lambda result, _: steady_state.lines(result.steady)),
    Section("reconciliation", _reconciled, wrapped=False),
    Section("roofline", lambda result, _: run_roofline.lines(result.facts, result.metrics)),
    Section("sensors", _sensed),
    Section("fingerprint", _fingerprint),
)

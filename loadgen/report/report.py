"""Report: a run as a person reads it, from its facts and records alone: all of it, or what matters most."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from loadgen.base.rule import Severity
from loadgen.base.text import cut_end, format_count, wrap_text
from loadgen.engines import refusals
from loadgen.features.data import data_lines
from loadgen.features.sessions import session_lines
from loadgen.features.shapes import shape_figures, shape_lines
from loadgen.features.shapes.shape_lines import list_cancelled
from loadgen.features.shards import shard_lines
from loadgen.features.targets import target_figures
from loadgen.figures import steady_state, vllm_keys
from loadgen.figures.metrics import FailureTally, compute
from loadgen.host import cpu_use, sensor_summary
from loadgen.report import figure_lines, load_table, result_block, short_lines
from loadgen.report.printing import Colour, Mark, Screen
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions, Room, Section, make_section
from loadgen.server import answer_check, engine_config
from loadgen.transport.failure import CUT_OFF, describe_outcome
from loadgen.verdict import reconcile, run_roofline, verdict
from loadgen.verdict.run_facts import Facts
from loadgen.verdict.verdict import Level

_MOST_LINES = 10  # of a short report under its block
_MOST_KINDS = 3  # of failures in it
_MOST_TARGETS = 8  # in a table of it
_MOST_DETAIL = 150  # characters of one


def render(
    result: Result, explain: bool = False, layout: str | None = None, screen: Screen | None = None
) -> str:
    """The whole report: the server and the workload, the block, the verdict, and remarks.

    A section that cannot be made is a line that names it, in its place; what UTF-8 cannot hold is escaped.
    `layout` is a key of block.LAYOUTS; raises UsageError where there is no such one.
    """
    options = ReportOptions(explain, result_block.layout(layout), screen or Screen())
    return "\n".join(line for section in SECTIONS for line in make_section(section, result, options).lines)


def short(result: Result, directory: str, layout: str | None = None, screen: Screen | None = None) -> str:
    """What matters at once: the block, what was measured above it, and ten lines at most under it.

    More they are only where the verdict and the failures need them, and by the tables of a load that changes
    or has several classes. Raises UsageError as `render` does.
    """
    options = ReportOptions(False, result_block.layout(layout), screen or Screen(), directory)
    sections = [section for section in SECTIONS if section.room]
    parts = {section.name: make_section(section, result, options, section.short) for section in sections}
    under = list(parts)[list(parts).index("block") + 1 :]
    left = _MOST_LINES - sum(len(parts[name].lines) for name in under if parts[name].room is Room.ALWAYS)
    shown: dict[str, list[str]] = {}
    for name, part in sorted(parts.items(), key=lambda item: -item[1].room):
        shown[name] = [line for entry in part.fitting(left) for line in entry]
        left -= len(shown[name]) * (part.room < Room.ALWAYS)
    return "\n".join(line for name in parts for line in shown[name])


def section_lines(name: str, result: Result) -> tuple[str, ...]:
    """Make the lines of one section of the whole report, none of them broken; it cannot raise."""
    options = ReportOptions(False, result_block.layout(None), Screen(sys.maxsize))
    (section,) = (section for section in SECTIONS if section.name == name)
    return tuple(make_section(section, result, options).lines)


def _block(result: Result, options: ReportOptions) -> Iterator[str]:
    """The block; a layout that has its own percentiles shows these, and every latency of its own."""
    metrics, facts, layout = result.metrics, result.facts.block(), options.layout
    if layout.percentiles:
        metrics = compute(result.counted, replace(result.ask, metric_percentiles=layout.percentiles))
        facts = replace(facts, selected=tuple(section.key for section in layout.sections))
    sglang = {"backend": result.facts.profile.backend, **vllm_keys.of_sglang(metrics)}
    figures = {**sglang, **vllm_keys.figures(metrics, facts)}
    yield result_block.render(vllm_keys.known(figures, metrics), layout)


def _heading(result: Result, options: ReportOptions) -> Iterator[str]:
    facts = result.facts
    if facts.partial:
        yield f"PARTIAL: {facts.partial}; the figures cover the requests that had ended by then"
    if facts.server.simulated:
        timing = f"with the timing of {facts.server.simulated}"
        yield f"SIMULATED: the embedded engine answered, {timing}; no model ran"
    if (shard := facts.shard) is not None:
        yield (
            f"shard {shard.number}/{shard.of} of plan {facts.plan_digest}: its part of the load alone "
            "(`loadgen merge` shows all of it)"
        )


def _server(result: Result, options: ReportOptions) -> Iterator[str]:
    facts, server, profile = result.facts, result.facts.server, result.facts.profile
    if profile.name and profile.description:
        yield f"{profile.name}: {profile.description}"
    elif profile.name:  # a file without a description, or flags that make another load of it
        row = load_table.of_run(result)
        yield f"{load_table.title([row])}, {row.load.pressure_words}"
    engine = f"{server.engine} {server.version}".strip()
    others = "".join(f", {url}" for url in facts.targets[1:])
    yield f"server: {engine}, model {server.model}, {server.url}{others}"


def _workload(result: Result, options: ReportOptions) -> Iterator[str]:
    facts = result.facts
    chosen = "given" if facts.seed_chosen else "drawn"
    prompts, plan = data_lines.describe_prompts(facts), facts.plan_digest[:12]
    yield f"prompts: {prompts}; seed {facts.seed} ({chosen}), plan {plan}"
    yield from data_lines.list_data_lines(result)
    yield f"requests: {_requests(facts)}"


def _launched(result: Result, options: ReportOptions) -> Iterator[str]:
    """How the server was started, and what it reports that it runs."""
    facts = result.facts
    if facts.launched is not None:
        server = facts.launched
        yield f"started by {server.how}, ready after {server.ready_s:.1f} s: {shlex.join(server.command)}"
    if facts.as_run is not None:
        yield from engine_config.render_config(facts.as_run, facts.checkpoint)
    yield from facts.lines("launched")
    yield from _traced(result, options)


def _traced(result: Result, options: ReportOptions) -> Iterator[str]:
    if result.facts.traced:
        yield f"TRACED: the engine's profiler wrote to {result.facts.traced}: it was slower than without"


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
    for kind, tally in result.whole.failures.items():
        yield _failure(kind, tally)
        yield from _hint(tally.detail)
    yield from list_cancelled(result)
    yield from _missing(result)


def _failure(kind: str, tally: FailureTally) -> str:
    """One kind of failure, or of what was cut off: how often, and its first error."""
    return f"{describe_outcome(kind)}: {tally.count} × {kind}" + (
        f", the first: {tally.detail}" if tally.detail else ""
    )


def _hint(detail: str) -> Iterator[str]:
    """The flag that leaves out what a server refuses, where its error names a field."""
    if advice := refusals.suggest_fix(detail):
        yield f"the request is refused: {advice}"


def _worst_failures(result: Result, options: ReportOptions) -> Iterator[str]:
    """The same, of the most frequent kinds of failures alone."""
    tallies = result.whole.failures
    kinds = [(kind, tally) for kind, tally in tallies.items() if kind not in CUT_OFF]
    for kind, tally in kinds[:_MOST_KINDS]:
        yield cut_end(_failure(kind, tally), _MOST_DETAIL)
        yield from _hint(tally.detail)
    if rest := kinds[_MOST_KINDS:]:
        count = sum(tally.count for _, tally in rest)
        yield f"failed: {count} more, of {format_count(len(rest), 'other kind')}"
    for kind, tally in tallies.items():
        if kind in CUT_OFF:
            yield cut_end(_failure(kind, tally), _MOST_DETAIL)
    yield from list_cancelled(result)
    yield from _missing(result)


def _missing(result: Result) -> Iterator[str]:
    facts = result.facts
    missing = facts.own_requests - len(result.records) - session_lines.count_dropped(result)
    lost = min(facts.unfinished, max(missing, 0))
    if lost:
        yield f"lost: {lost} of {facts.own_requests} requests were under way when the client was killed"
    if missing - lost > 0:
        what = "not sent, or not in the journal yet" if facts.recovered else "not sent"
        yield f"{what}: {missing - lost} of {facts.own_requests} requests"
    yield from session_lines.list_missing_turns(result)
    resent = int((result.records.resends > 0).sum())
    if resent:
        yield f"sent again: {format_count(resent, 'request')}, after the server closed their idle connection"


def _tokens(result: Result, options: ReportOptions) -> Iterator[str]:
    yield from figure_lines.describe_sample_counts(
        result.metrics, result.measured(result.facts.block().selected)
    )
    yield from _short_tokens(result, options)


def _short_tokens(result: Result, options: ReportOptions) -> Iterator[str]:
    """What the counts rest on; from how many requests the percentiles are, the bounds' line says."""
    metrics = result.metrics
    if not metrics.streamed:
        yield "TTFT, TPOT and ITL need a stream: leave out --disable-stream to measure them"
    elif not metrics.times_tokens:
        yield "TTFT, TPOT and ITL were not measured, and are left out of the block: see arrivals-not-tokens"
    elif metrics.completed and not metrics.itl.n:
        yield "TPOT and ITL need responses of more than one message: there were none"
    yield from figure_lines.describe_token_counts(metrics, result.facts.text_tokenizer)
    facts = result.facts
    yield from figure_lines.describe_reasoning(facts.reasoned, facts.hidden_reasoning, result.whole.completed)
    if metrics.planned_inputs:
        planned = format_count(metrics.planned_inputs, "request")
        yield f"input tokens: as planned for {planned}, not as reported by the server"
    if metrics.unknown_inputs:
        unknown = format_count(metrics.unknown_inputs, "request")
        yield f"input tokens: unknown for {unknown} whose usage has none"


def _load(result: Result, options: ReportOptions) -> Iterator[str]:
    facts, metrics = result.facts, result.metrics
    line = f"concurrency: {metrics.mean_concurrency:.2f} on average"
    if of_sessions := session_lines.describe_in_flight(result):
        yield of_sessions
        yield from short_lines.from_due(result)
    elif not metrics.queue_time.n:
        yield line
    elif facts.held_concurrency is not None or facts.profile.stepped:
        turnaround = f"turnaround {metrics.queue_time.mean_ms:.2f} ms (response end → next send)"
        yield f"{line} of {'at most ' * facts.profile.stepped}{facts.max_concurrency}; {turnaround}"
    else:
        yield f"{line}; send delay {shape_figures.describe_lateness(result.records)} (due → sent)"
        yield from short_lines.from_due(result)


def _targets(result: Result, options: ReportOptions) -> Iterator[str]:
    """What each of several servers did; one entry: it is shown whole or not at all."""
    if rows := target_figures.format_targets(result.by_target):
        yield "\n".join(rows)


def _few_targets(result: Result, options: ReportOptions) -> Iterator[str]:
    rows = result.by_target
    if len(rows) > _MOST_TARGETS:
        yield f"{len(rows)} servers shared the requests: the table by target is in the whole report"
    else:
        yield from target_figures.format_targets(rows)


def _client(result: Result, options: ReportOptions) -> Iterator[str]:
    health, client = result.metrics.health, result.facts.client
    if client.segments:
        clock = "a kernel timestamp for each TCP segment"
        if client.fallen_back:
            lost = format_count(client.dropped_segments, "segment")
            clock += f"; {format_count(client.fallen_back, 'request')} timed by reads ({lost} lost)"
    elif health.unstamped_reads < health.reads:
        lag = f"read lag {health.lag_mean_ms:.2f} ms mean, {health.lag_max_ms:.2f} ms max"
        clock = f"kernel timestamps; {lag}"
        if health.unstamped_reads:
            clock += f"; {health.unstamped_reads} of {health.reads} reads have the client's own timestamp"
    else:
        clock = "user-space timestamps (the kernel gives none): the client's delay is in every figure"
    why = f" ({client.why})" if client.why else ""
    coalesced = f"{100 * health.shared_share:.2g} % of token messages coalesced"
    workers = short_lines.workers(client)
    yield f"client: {client.transport}{why}, {workers}{clock}; {coalesced}; {client.cpu_s:.2f} s of CPU"
    if client.why_workers:
        yield f"workers: {client.workers} ({client.why_workers})"


def _calibration(result: Result, options: ReportOptions) -> Iterator[str]:
    selftest, rate_per_s = result.facts.calibration, result.metrics.messages_per_s
    if selftest is None:
        yield "client error: not measured on this machine: run `loadgen selftest`"
        return
    errors = f"ITL {selftest.gap.p99_us / 1000:.2f} ms, TTFT {selftest.ttft.p99_us / 1000:.2f} ms"
    when = f"{selftest.measured:%Y-%m-%d} at {format_count(selftest.streams, 'stream')}"
    line = f"client error P99: {errors} (self-test of {when})"
    if rate_per_s:
        least = "" if selftest.capacity_bounded else "at least "
        room = selftest.headroom(rate_per_s, result.facts.client.workers)
        line += f"; headroom {least}{room:.3g}×"
    yield line


def _notes(result: Result, options: ReportOptions) -> Iterator[str]:
    yield from result.facts.lines("notes")


def _reconciled(result: Result, options: ReportOptions) -> Iterator[str]:
    window, rows = result.facts.window, result.reconciled
    if not result.facts.whole_load or (window is None and not rows):
        return
    if window is not None and window.error:
        yield from wrap_text(f"server-reported figures: none: {window.error}", width=options.screen.width)
    if rows:
        named = window is not None and window.names
        names = f"server-reported figures ({named})" if named else "figures that its answers report"
        yield f"{names} of the same run:"
        yield from reconcile.render(rows)


def _sensed(result: Result, options: ReportOptions) -> Iterator[str]:
    if result.facts.sensed is not None and result.facts.whole_load:
        yield from sensor_summary.render_summary(result.facts.sensed, result.whole.total_output_tokens)


def _cpu_use(result: Result, options: ReportOptions) -> Iterator[str]:
    if result.facts.cpu_use is not None and result.facts.whole_load:
        yield cpu_use.format_use(result.facts.cpu_use)


def _fingerprint(result: Result, options: ReportOptions) -> Iterator[str]:
    if result.facts.fingerprint is not None:
        yield from answer_check.render_lines(result.facts.fingerprint)


def _nothing(result: Result, options: ReportOptions) -> Iterable[str]:
    """Of a section of the short report alone."""
    return ()


def _more(result: Result, options: ReportOptions) -> Iterator[str]:
    """Where the rest is, of a run that lies somewhere."""
    if not options.directory:
        return
    facts = result.facts
    notes = len(facts.notes) + len(facts.unknown)
    with_notes = f" ({format_count(notes, 'note')})" if notes else ""
    place = shlex.quote(options.directory)
    yield f"more{with_notes}: loadgen report {place} (doubts: --explain)"


def _states(result: Result) -> Iterator[Mark]:
    """What the run is, if not whole and real, is never missed."""
    yield Mark("PARTIAL", Colour.WARNING, bold=True)
    yield Mark("SIMULATED", Colour.WARNING, bold=True)


def _judgement(result: Result) -> Iterator[Mark]:
    """The verdict's word, and each doubt that decided it."""
    level = result.verdict.level
    yield from _states(result)
    yield Mark(level.value, _OF_LEVEL[level], bold=True)
    for finding in result.verdict.grave:
        yield Mark(finding.evidence, _OF_SEVERITY[finding.rule.severity])


_OF_LEVEL = {Level.VALID: Colour.GOOD, Level.SUSPECT: Colour.WARNING, Level.INVALID: Colour.BAD}
_OF_SEVERITY = {Severity.SUSPECT: Colour.WARNING, Severity.INVALID: Colour.BAD}

# Where the short report has no room for all of one `Room`, those that stand first are in it.
SECTIONS = (
    Section("heading", _heading, room=Room.ALWAYS, marks=_states),
    Section("server", _server, room=Room.ALWAYS),
    Section("launched", _launched, room=Room.ALWAYS, short=_traced),
    Section("workload", _workload, room=Room.FIRST, short=data_lines.list_short_lines),
    Section("adapted", lambda result, _: result.facts.lines("adapted"), room=Room.ALWAYS),
    Section("block", _block, wrapped=False, room=Room.ALWAYS),
    Section("measured", session_lines.list_measured_part, room=Room.ALWAYS),
    Section(
        "verdict",
        lambda result, options: (verdict.explain_doubts if options.explain else verdict.summarize_doubts)(
            result.verdict
        ),
        room=Room.ALWAYS,
        marks=_judgement,
    ),
    Section("failures", _failures, room=Room.ALWAYS, short=_worst_failures),
    Section("bounds", figure_lines.describe_bounds, room=Room.ALWAYS, short=figure_lines.describe_highest),
    Section("objectives", figure_lines.describe_objectives, room=Room.ALWAYS),
    Section("tokens", _tokens, room=Room.FIRST, short=_short_tokens),
    Section(
        "more-figures",
        lambda result, _: figure_lines.describe_more_figures(result.metrics, result.facts.reasoned),
    ),
    Section("targets", _targets, wrapped=False, room=Room.ALWAYS, short=_few_targets),
    Section("classes", shape_lines.list_class_table, wrapped=False, room=Room.TABLE),
    Section("stages", shape_lines.list_stage_table, wrapped=False, room=Room.TABLE),
    Section(
        "sessions", session_lines.list_session_lines, room=Room.ALWAYS, short=session_lines.list_short_lines
    ),
    Section("turns", session_lines.list_turn_table, wrapped=False, room=Room.TABLE),
    Section("load-over-time", _nothing, room=Room.TABLE, short=shape_lines.list_unsteady),
    Section("load", _load, room=Room.ALWAYS, short=short_lines.load),
    Section("client", _client, room=Room.FIRST, short=short_lines.client),
    Section("calibration", _calibration),
    Section(
        "shards",
        lambda result, options: shard_lines.list_shard_lines(result.facts, options.explain),
        room=Room.LAST,
    ),
    Section("notes", _notes),
    Section(
        "steady-state",
        lambda result, _: steady_state.lines(result.steady),
        room=Room.LAST,
        short=short_lines.steady,
    ),
    Section("reconciliation", _reconciled, wrapped=False, room=Room.FIRST, short=short_lines.server_reported),
    Section(
        "roofline",
        lambda result, _: run_roofline.lines(result.facts, result.metrics),
        room=Room.LAST,
        short=short_lines.roofline,
    ),
    Section("sensors", _sensed, room=Room.LAST, short=short_lines.sensors),
    Section("cpus", _cpu_use, room=Room.LAST),
    Section("fingerprint", _fingerprint, room=Room.ALWAYS),
    Section("unavailable", _nothing, room=Room.ALWAYS, short=short_lines.unavailable),
    Section("more", _nothing, room=Room.ALWAYS, short=_more),
)

"""Run lines: the report's lines on a run and its figures, a function a section, long and short.

Each takes the run and how it is shown, and yields the lines, still to be wrapped.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

import numpy as np
from msgspec.structs import asdict

from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.text import cut_end, format_count, list_first
from loadgen.engines import refusals
from loadgen.facts.run_facts import Client, Facts
from loadgen.figures.distribution import Distribution, find_least_passing
from loadgen.figures.figure_table import LATENCIES, OURS, OWN, SELECTABLE, SPEEDS, Figure, percentile_name
from loadgen.figures.metrics import FailureTally, Metrics
from loadgen.figures.objectives import ObjectiveEvidence
from loadgen.figures.steady_state import Steady, Unsteady
from loadgen.plan.planned_requests import LengthFacts, ScheduleFacts
from loadgen.plan.request_sources import TRACES
from loadgen.records.record import Records
from loadgen.report.load_identity import describe_classes, identify_measured_load, shorten_digest
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions
from loadgen.server import engine_config
from loadgen.settings.data_settings import RANDOM
from loadgen.transport.failure import CUT_OFF
from loadgen.verdict import evidence, reconcile

_MOST_KINDS = 3  # of failures in a short report
_MOST_DETAIL = 150  # characters of one
_MOST_SHAPE = 150  # characters of how a load changes
_DIFFERS = 0.01  # of TTFT, of a rate: below it the two are the same figure
_WORDS = "words"  # the format of prompts whose length is set by the server's own count
_MADE = {
    "ids": "random token ids of exactly the planned length, from {ids}",
    "corpus": "text of {text}, of exactly the planned length by the tokenizer {name}",
    _WORDS: "text of {text}, as long as asked by the server's own count",
}
_TEXT = "text whose length depends on the server's tokenizer{tokenizer}"


def describe_state(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines if a run was cut short, was simulated, or is one shard's."""
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


def describe_server(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the workload, by its description or its load, and one on the server that answered."""
    facts, server, profile = result.facts, result.facts.server, result.facts.profile
    if profile.name and profile.description:
        yield f"{profile.name}: {profile.description}"
    elif profile.name:  # a file without a description, or flags that make another load of it
        load = identify_measured_load(result)
        parts = ", ".join(load.words.values())
        yield f"{': '.join(filter(None, (load.name, parts)))}, {load.pressure_words}"
    engine = f"{server.engine} {server.version}".strip()
    others = "".join(f", {url}" for url in facts.targets[1:])
    yield f"server: {engine}, model {server.model}, {server.url}{others}"


def describe_workload(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on what the requests were made of, and how they were sent."""
    facts = result.facts
    seed = f"seed {facts.seed} ({'given' if facts.seed_chosen else 'drawn'})"
    yield f"prompts: {describe_prompts(facts)}; {seed}, plan {facts.plan_digest[:12]}"
    yield from describe_data(result)
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
    yield f"requests: {', '.join(parts)}"


def name_tokenizer(given: str) -> str:
    """Return a tokenizer's name: of a directory its last part, in a hub's cache the model; else as given."""
    path = PurePath(given)
    cached = next((part for part in path.parts if part.startswith("models--")), "")
    if cached:
        return cached.removeprefix("models--").replace("--", "/")
    return path.name if path.is_absolute() else given


def describe_prompts(facts: Facts) -> str:
    """Describe the prompts in a line: their file and what of it was left out, or how they were generated."""
    if facts.prompt_replaced:
        return "from --extra-body, the same in every request"
    form, data, tokenizer = facts.prompt_format, facts.data, name_tokenizer(facts.tokenizer or "")
    how = f"{form}, {_MADE.get(form, _TEXT)}".format(
        ids=facts.ids_source,
        text=data.text or "words",
        name=tokenizer or "of the model",
        tokenizer=f", made with the tokenizer {tokenizer}" if tokenizer else "",
    )
    if data.kind == RANDOM:
        return how
    made = "as the file has them" if form not in _MADE else how
    counted = f", lengths by the tokenizer {tokenizer}" if data.text and tokenizer else ""
    return f"{_describe_rows(facts)}; {data.text or made}{counted}"


def describe_data(result: Result) -> Iterator[str]:
    """Yield lines on lengths, prefix reuse, classes, the load over time and a trace's schedule."""
    facts = result.facts
    if parts := list(_list_lengths(facts, result.records)):
        yield f"lengths: {'; '.join(parts)}"
    if parts := list(_list_reuse(facts, result.records)):
        yield f"reuse: {'; '.join(parts)}"
    if facts.profile.classes:
        yield f"classes: {describe_classes(facts.profile.classes)}"
    if facts.profile.shaped:
        yield f"load over time: {'; '.join(facts.profile.shape_words)}"
    if facts.data.schedule is not None:
        yield f"schedule: {'; '.join(_list_schedule(facts.data.schedule))}"


def summarize_data(result: Result, options: object) -> Iterator[str]:
    """Yield one line with the data's kind, file and rows; nothing for random prompts."""
    if result.facts.data.kind != RANDOM:
        yield f"prompts: {_describe_rows(result.facts, why=False)}"


def name_data(facts: Facts) -> str:
    """Name the data's kind and file in a few words; "" for random prompts."""
    data = facts.data
    return "" if data.kind == RANDOM else " ".join(filter(None, (data.kind, Path(data.file).name)))


def _describe_rows(facts: Facts, why: bool = True) -> str:
    """Describe the data: kind, file, rows sent and left out, these with the reasons if `why`."""
    data = facts.data
    parts = [data.kind]
    if data.file:
        of = f"{data.sent:,} of {data.rows:,} rows" if data.rows else f"{data.sent:,} rows"
        parts[0] += f", {of} of {Path(data.file).name} ({shorten_digest(facts)})"
    if data.categories:
        parts.append(f"{len(data.categories)} categories")
    if data.skipped:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in data.skipped.items())
        parts.append(f"left out {sum(data.skipped.values()):,}" + (f" ({reasons})" if why else ""))
    if data.clipped:
        parts.append(f"{data.clipped:,} clipped")
    if data.repeated:
        same = "have an earlier prompt" if data.kind in TRACES else "send a row again"
        parts.append(f"{data.repeated:,} requests {same}")
    return "; ".join(parts)


def _list_lengths(facts: Facts, records: Records) -> Iterator[str]:
    data, profile = facts.data, facts.profile
    if facts.prompt_format == _WORDS:
        yield from _list_server_lengths(facts, records)
    elif data.input is not None and data.input.least < data.input.most:
        yield _describe_lengths("prompts", data.input, _explain_lengths(profile.input_dist, "input", facts))
    elif data.kind != RANDOM:
        counted = LengthFacts.measure(records.input_tokens[records.ok]) if data.input is None else data.input
        how = "" if data.input is not None else "by the server's count"
        yield "prompts of unknown length" if counted is None else _describe_lengths("prompts", counted, how)
    if data.output is not None and data.output.least < data.output.most:
        yield _describe_lengths(
            "outputs", data.output, _explain_lengths(profile.output_dist, "output", facts)
        )
    elif data.kind != RANDOM:
        yield (
            "responses without a limit"
            if data.output is None
            else _describe_lengths("outputs", data.output, "")
        )
    short_of = [facts.requests - each.known for each in (data.input, data.output) if each is not None]
    if data.kind != RANDOM and any(0 < missing < facts.requests for missing in short_of):
        yield f"{max(short_of):,} of {facts.requests:,} requests without a length of their own"


def _describe_lengths(what: str, lengths: LengthFacts, how: str) -> str:
    by = f", {how}" if how else ""
    if lengths.least == lengths.most:
        return f"{what} {lengths.most:,} tokens each{by}"
    mean = f"mean {lengths.mean:,.1f} sent (P50 {lengths.p50:,}, P90 {lengths.p90:,}, P99 {lengths.p99:,})"
    return f"{what} {lengths.least:,} to {lengths.most:,} tokens, {mean}{by}"


def _explain_lengths(dist: str, way: str, facts: Facts) -> str:
    """Explain by which flag lengths were drawn; "" if they come from a file."""
    profile = facts.profile
    if facts.data.kind != RANDOM:
        return ""
    if profile.classes:
        return "by class"
    if dist:
        return f"by --{way}-dist {dist}"
    return f"uniform by --random-range-ratio {profile.range_ratio} (compat {profile.compat})"


def _list_server_lengths(facts: Facts, records: Records) -> Iterator[str]:
    """Yield how long prompts are by the server's count, next to what was asked."""
    planned, counted = facts.data.input, LengthFacts.measure(records.input_tokens[records.ok])
    asked = planned.mean if planned is not None else facts.profile.prefix_len + facts.profile.input_len
    if counted is None:
        yield f"prompts {asked:,.1f} tokens asked on average; the server counted none"
        return
    off = counted.mean / asked - 1
    drawn = ""
    if planned is not None and planned.least < planned.most:
        how = _explain_lengths(facts.profile.input_dist, "input", facts)
        drawn = f" ({planned.least:,} to {planned.most:,}, {how})"
    spread = f"sd {counted.sd:,.1f}, {counted.least:,} to {counted.most:,}"
    yield (
        f"prompts {asked:,.1f} tokens asked on average{drawn}, {counted.mean:,.1f} by the server's count "
        f"({100 * off:+.2f} %; {spread})"
    )


def _list_reuse(facts: Facts, records: Records) -> Iterator[str]:
    """Yield the parts of a line: the prompt tokens' expected cached share, and the share by each source.

    Nothing if no share is expected, and prompts are random or no cached token is reported.
    """
    expected, by = evidence.expected_reuse(facts), evidence.reported_reuse(facts, records)
    if not expected and (facts.data.kind == RANDOM or not any(hits for hits, _ in by.values())):
        return
    if expected is not None:
        yield f"{100 * expected:.1f} % of the prompt tokens expected (cache empty at first, without a limit)"
    for source, (hits, queries) in by.items():
        yield f"{100 * hits / queries:.1f} % cached by {source} ({hits:,} of {queries:,})"
    if not by:
        yield "the server reports no cached tokens"


def _list_schedule(schedule: ScheduleFacts) -> Iterator[str]:
    end = "its end" if schedule.end_s is None else f"{schedule.end_s:,g} s"
    whole = schedule.end_s is None and not schedule.start_s
    part = "the whole trace" if whole else f"{schedule.start_s:,g} s to {end} of the trace"
    yield f"{schedule.format}, {part}, {schedule.requests:,} requests in {schedule.span_s:,.1f} s" + (
        f" at {schedule.speed_up:g} × its speed" if schedule.speed_up != 1 else ""
    )
    yield f"{schedule.rate_per_s:.4g} requests/s on average" if schedule.rate_per_s else "all at one time"
    if schedule.grid_s:
        spread = "spread over it" if schedule.spread else "sent as bursts"
        yield f"{schedule.instants:,} instants on a grid of {schedule.grid_s:g} s, {spread}"
    if schedule.idle_cap_s is not None:
        yield f"{schedule.idle_cut_s:,.1f} s cut out of gaps longer than {schedule.idle_cap_s:g} s"


def describe_launch(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on how the server was started, and on the configuration that it reports."""
    facts = result.facts
    if facts.launched is not None:
        server = facts.launched
        token = f", first token after {server.first_token_s:.1f} s" if server.first_token_s else ""
        ready = f"ready after {server.ready_s:.1f} s{token}"
        yield f"started by {server.how}, {ready}: {shlex.join(server.command)}"
    if facts.as_run is not None:
        yield from engine_config.render_config(facts.as_run, facts.checkpoint)
    if (facts.as_run is not None or facts.checkpoint is not None) and not facts.server.simulated:
        config = facts.as_run or engine_config.EngineConfig()
        yield from filter(None, [engine_config.explain_unknown_kernels(config, facts.checkpoint)])
    yield from facts.lines("launched")
    yield from describe_trace(result, options)


def describe_trace(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on where the engine's profiler trace lies, if it wrote one."""
    if result.facts.traced:
        yield f"TRACED: the engine's profiler wrote to {result.facts.traced}: it was slower than without"


def describe_failures(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield each kind of failure with its count, first error and a fix if known, those cut off last.

    In a short report three kinds have a line, with the begin of the error, and the others one.
    """
    tallies = result.whole.failures
    kinds = [(kind, tally) for kind, tally in tallies.items() if kind not in CUT_OFF]
    most, longest = (_MOST_KINDS, _MOST_DETAIL) if options.short else (len(kinds), sys.maxsize)
    for kind, tally in kinds[:most]:
        yield cut_end(_describe_failure(kind, tally), longest)
        if advice := refusals.suggest_fix(tally.detail):  # of a field of the request
            yield f"the request is refused: {advice}"
    if rest := kinds[most:]:
        count = sum(tally.count for _, tally in rest)
        yield f"failed: {count} more, of {format_count(len(rest), 'other kind')}"
    for kind, tally in tallies.items():
        if kind in CUT_OFF:
            yield cut_end(_describe_failure(kind, tally), longest)


def _describe_failure(kind: str, tally: FailureTally) -> str:
    outcome = "not finished" if kind in CUT_OFF else "failed"
    return f"{outcome}: {tally.count} × {kind}" + (f", the first: {tally.detail}" if tally.detail else "")


def describe_missing(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on planned requests without a record: lost with the client, or never sent."""
    facts, sessions = result.facts, result.sessions
    missing = facts.own_requests - len(result.records) - (0 if sessions is None else sessions.dropped)
    lost = min(facts.unfinished, max(missing, 0))
    if lost:
        yield f"lost: {lost} of {facts.own_requests} requests were under way when the client was killed"
    if missing - lost > 0:
        what = "not sent, or not in the journal yet" if facts.recovered else "not sent"
        yield f"{what}: {missing - lost} of {facts.own_requests} requests"


def describe_resends(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on requests that were sent again over a new connection."""
    if resent := int((result.records.resends > 0).sum()):
        yield f"sent again: {format_count(resent, 'request')}, after the server closed their idle connection"


def describe_load(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield one line on how many requests were in flight, and how late each was sent."""
    facts, metrics = result.facts, result.metrics
    line = f"concurrency: {metrics.mean_concurrency:.2f} on average"
    if facts.held_concurrency is not None or facts.profile.stepped:
        sent = f"; turnaround {metrics.queue_time.mean_ms:.2f} ms mean" if metrics.queue_time.n else ""
        most = "at most " if facts.profile.stepped else ""
        yield f"{line} of {most}{facts.max_concurrency}{sent}"
    else:
        late = describe_lateness(result.records)
        yield f"{line}; send delay {late} (due → sent)" if late else line


def describe_rates(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the rates that were asked, due and sent, if two of them differ by over 1 %.

    A load that changes was not asked for as one rate: of it, due and sent. Of sessions, their first turns.
    """
    rates_per_s = _list_rates(result)
    if rates_per_s and max(rates_per_s.values()) > (1 + _DIFFERS) * min(rates_per_s.values()):
        noun = "requests" if result.sessions is None else "sessions"
        drawn = "" if "asked" not in rates_per_s or result.facts.profile.sent_at_exact_rate else " as drawn"
        rates = ", ".join(f"{rate:.3g} {name}" for name, rate in rates_per_s.items())
        yield f"rate: {rates.replace(' due', f' due{drawn}')} ({noun}/s)"


def _list_rates(result: Result) -> dict[str, float]:
    """List rates asked, due and sent, of requests or sessions per second; {} of a closed loop or one send."""
    facts, records, profile = result.facts, result.records, result.facts.profile
    begun = records.sent if result.sessions is None else records.sent & result.sessions.begins
    due_s, sent_s = (
        float(np.ptp(at[begun])) / SECOND_NS if begun.any() else 0.0
        for at in (records.intended_ns, records.sent_ns)
    )
    if not profile.open_loop or not due_s or not sent_s:
        return {}
    due = (int(begun.sum()) - 1) / due_s
    asked = {}
    if facts.data.schedule is None and not profile.shaped:
        asked = {"asked": facts.planned_rate_per_s}
        if profile.sent_at_exact_rate and not facts.partial:
            due = facts.planned_rate_per_s  # of N requests and N gaps: the first one precedes them all
    return {**asked, "due": due, "sent": due * due_s / sent_s}


def describe_due_ttft(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield an open loop's TTFT from due times next to that from sending, if over 1 % longer."""
    due, sent = result.metrics.ttft_intended, result.metrics.ttft
    if sent.n and due.mean_ms > (1 + _DIFFERS) * sent.mean_ms:
        yield f"TTFT from when due: {_format_spread(due)} (from sent: {_format_spread(sent)})"


def _format_spread(latency: Distribution) -> str:
    ranked = (f", {value:.2f} P{rank:g}" for rank, value in latency.percentiles_ms.items())
    return f"{latency.mean_ms:.2f} ms mean{''.join(ranked)}"


def describe_lateness(records: Records) -> str:
    """Describe how much later than due requests were sent; "" if none was sent."""
    late_ns = (records.sent_ns - records.intended_ns)[records.sent]
    if not len(late_ns):
        return ""
    mean_ms, most_ms = float(late_ns.mean()) / MS_NS, float(late_ns.max()) / MS_NS
    median_ms, p99_ms = (value / MS_NS for value in np.percentile(late_ns, (50, 99)).tolist())
    return f"{mean_ms:.2f} ms mean, {median_ms:.2f} P50, {p99_ms:.2f} P99, {most_ms:.2f} max"


def describe_client(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on what timed the tokens, the client's read lag, and its load."""
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
    coalesced = f"{100 * health.shared_share:.2g} % of token chunks coalesced"
    workers = _name_workers(client)
    yield f"client: {client.transport}{why}, {workers}{clock}; {coalesced}; {client.cpu_s:.2f} s of CPU"
    if client.why_workers:
        yield f"workers: {client.workers} ({client.why_workers})"


def summarize_client(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield one line on what timed the tokens, and the measured error of it."""
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
    yield f"client: {facts.client.transport}, {_name_workers(facts.client)}{clock}{error}"


def _name_workers(client: Client) -> str:
    if client.workers == 1:
        return ""
    return f"{client.workers} workers{f' on CPUs {client.cpus}' if client.cpus else ''}, "


def describe_calibration(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the client's error in its last self-test and its spare capacity, or that none was."""
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


def explain_changing_load(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on why there is no steady state, at most 150 characters long; nothing if there is one."""
    if isinstance(result.steady, Unsteady):
        yield cut_end(f"steady state: none: {result.steady.why}", _MOST_SHAPE)


def summarize_steady_state(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the throughput of the steady window, if there is one."""
    part = result.steady
    if isinstance(part, Steady) and part.whole:
        span = f"{part.begin_s:.1f} to {part.end_s:.1f} s, {100 * part.share:.0f} % of the run"
        yield f"steady state: {part.output_throughput_per_s:.1f} tok/s ({span})"


def describe_reconciled(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on what the server's figures in the table are from, or why there are none."""
    window = result.facts.window
    if window is not None and window.error:
        yield f"server-reported figures: none: {window.error}"
    if result.reconciled:
        counted = window.names if window is not None else ""
        source = f"{counted} counts them" if counted else "its responses report them"
        yield f"server-reported figures: as {source}"


def summarize_reconciled(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on answers' own timings, and on whether the server's counters agree, with TTFT or ITL."""
    window, metrics = result.facts.window, result.whole
    timings = reconcile.measure_answer_timings(result.records, result.metrics.times_tokens)
    if timings is not None and timings.decoded:
        apart = timings.decode_ms - timings.server_decode_ms
        yield (
            f"server's timings: prompt {timings.prefill_ms:.2f} of {timings.ttft_ms:.2f} ms mean TTFT, "
            f"first to last token {timings.server_decode_ms:.2f} ms (client {apart:+.2f})"
        )
    if window is None or not window.is_known:
        return
    differing = [mismatch.figure for mismatch in reconcile.find_mismatches(window, metrics)]
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


def list_unknown(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield one line that lists what is not known of this machine, some with how to learn it."""
    facts, sensed = result.facts, result.facts.sensed
    absent = {
        "server's counters": facts.window is not None and bool(facts.window.error),
        "client error (`loadgen selftest`)": facts.calibration is None,
        "roofline (--hardware)": facts.ceiling is None and bool(facts.no_ceiling),
        "GPU sensors": sensed is not None and not (sensed.gpus or sensed.energy),
    }
    if names := [name for name, missing in absent.items() if missing]:
        yield f"not known: {', '.join(names)}"


def point_to_rest(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the `loadgen report` command that prints the rest of the report, for a run on disk."""
    if not options.directory:
        return
    facts = result.facts
    notes = len(facts.notes) + len(facts.unknown)
    with_notes = f" ({format_count(notes, 'note')})" if notes else ""
    place = shlex.quote(options.directory)
    yield f"more{with_notes}: loadgen report {place} (doubts: --explain)"


def describe_bounds(result: Result, options: object) -> Iterator[str]:
    """Yield a line per percentile, with its upper bound if it has one, and why ITL has none."""
    shown = _select_shown(result)
    for rank in dict.fromkeys(rank for of in shown.values() for rank in of.percentiles_ms):
        yield _format_percentiles(shown, rank)
    if gaps := [SELECTABLE[key].label for key in shown if SELECTABLE[key].of != "requests"]:
        yield f"{', '.join(gaps)}: no bound, since the gaps of one response are alike"


def describe_highest(result: Result, options: object) -> Iterator[str]:
    """Yield a line on the highest percentile, without gaps, which have no bound."""
    shown = {key: of for key, of in _select_shown(result).items() if SELECTABLE[key].of == "requests"}
    if ranks := [rank for of in shown.values() for rank in of.percentiles_ms]:
        yield _format_percentiles(shown, max(ranks))


def describe_objectives(result: Result, options: object) -> Iterator[str]:
    """Yield a line per objective (met or not, value, samples), and whether goodput uses these limits."""
    yield from map(describe_objective, result.objectives)
    limits = result.facts.ask().goodput_limits
    if limits and not result.facts.profile.goodput:
        parts = (f"{name} {limit:g} {SELECTABLE[name].unit}" for name, limit in limits.items())
        yield f"goodput: of requests within {', '.join(parts)} (the limits of --slo)"


def describe_objective(evidence: ObjectiveEvidence) -> str:
    """Describe whether an objective is met, its value with its bound, and how many samples are beyond it."""
    objective, sign = evidence.objective, "≥" if evidence.objective.is_floor else "≤"
    bound = "" if evidence.bound is None else f" ({sign} {_format_value(evidence.bound)} at 99 %)"
    value = f"{_format_value(evidence.value)} {objective.unit}{bound}" if evidence.samples else "no samples"
    beyond = f"{evidence.over} of {evidence.samples} {'below' if objective.is_floor else 'above'}"
    line, needed = (
        f"{objective}: {evidence.standing}, {value}, {beyond}",
        find_least_passing(0, objective.tail),
    )
    if evidence.independent is None or evidence.bound is not None or evidence.samples < needed:
        return line
    return f"{line}; {_describe_dependence(evidence.independent)}, a bound needs {needed}"


def _describe_dependence(independent: int) -> str:
    return f"requests that were slow together tell as much as {independent} independent ones"


def _select_shown(result: Result) -> dict[str, Distribution]:
    selected = result.choose_measured(result.facts.block().selected)
    return {key: of for key, of in result.metrics.selectable.items() if key in selected and of.n}


def _format_percentiles(shown: Mapping[str, Distribution], rank: float) -> str:
    """Format one percentile of several latencies, with the samples its bound needs if there are too few."""
    parts = []
    for key, of in shown.items():
        bound_ms = of.bounds_ms.get(rank)
        bound = "" if bound_ms is None else f" (≤ {bound_ms:.2f} at 99 %)"
        parts.append(f"{SELECTABLE[key].label} {of.percentiles_ms[rank]:.2f} ms{bound}")
    needed = find_least_passing(0, rank) if 0 < rank < 100 else 0
    worth = [(of.n, of.independent) for of in shown.values() if of.independent is not None]
    few = [n for n, _ in worth if n < needed]
    needs = f"; {format_count(min(few), 'sample')}, a bound needs {needed}" if few else ""
    dependent = [independent for n, independent in worth if independent < needed <= n]
    if dependent:
        needs += f"; {_describe_dependence(min(dependent))}, a bound needs {needed}"
    return f"P{percentile_name(rank)} {', '.join(parts)}{needs}"


def _format_value(value: float) -> str:
    """Format a latency in ms or a speed; a latency is infinite if a failed request holds that rank."""
    return "∞" if math.isinf(value) else f"{value:.2f}"


def describe_tokens(result: Result, options: object) -> Iterator[str]:
    """Yield lines on how tokens were counted, and which latencies were not measured."""
    metrics = result.metrics
    if not metrics.streamed:
        yield "TTFT, TPOT and ITL need a stream: leave out --disable-stream to measure them"
    elif not metrics.times_tokens:
        yield "TTFT, TPOT and ITL were not measured, and are left out of the block: see arrivals-not-tokens"
    elif metrics.completed and not metrics.itl.n:
        yield "TPOT and ITL need responses of more than one chunk: there were none"
    yield from describe_token_counts(metrics, result.facts.text_tokenizer)
    shown, hidden, every = result.facts.reasoned, result.facts.hidden_reasoning, result.whole.completed
    if shown:
        yield f"TTFT: to the first token of any kind; in {shown} of {every} responses that is reasoning"
    if hidden:
        yield (
            f"TTFT: includes reasoning that is counted in usage and not streamed, in {hidden} of {every} "
            "responses"
        )
    if metrics.planned_inputs:
        planned = format_count(metrics.planned_inputs, "request")
        yield f"input tokens: as planned for {planned}, not as reported by the server"
    if metrics.unknown_inputs:
        unknown = format_count(metrics.unknown_inputs, "request")
        yield f"input tokens: unknown for {unknown} whose usage has none"


def describe_token_counts(metrics: Metrics, tokenizer: str) -> Iterator[str]:
    """Yield lines on how tokens of answers were counted; `tokenizer` is a directory, or ""."""
    unknown = "chunks were counted instead" if metrics.streamed else "their tokens count 0"
    ways = (
        (metrics.counted_by_usage, "as reported by the server in usage"),
        (
            metrics.counted_by_tokenizer,
            "no usage: counted from the text, without special tokens, by the tokenizer "
            f"{name_tokenizer(tokenizer)}",
        ),
        (metrics.uncounted, f"no usage: {unknown}"),
        (
            metrics.counted_by_messages - metrics.uncounted,
            "no usage: chunks of one token each were counted",
        ),
    )
    every = metrics.completed
    parts = [way if n == every else f"{n} of {every} responses: {way}" for n, way in ways if n > 0]
    if parts:
        yield f"tokens: {'; '.join(parts)}"
    spread = metrics.completed - metrics.exact_tokens - metrics.counted_by_messages
    if spread > 0 and metrics.streamed:
        exactly = " (--continuous-usage counts them one by one)" if metrics.counted_by_usage > 0 else ""
        several = f"chunks: in {format_count(spread, 'request')} some carry several tokens"
        yield f"{several}; ITL is per chunk, TPOT per token{exactly}"


def describe_more_figures(metrics: Metrics, reasoned: int = 0) -> Iterator[str]:
    """Yield lines on figures outside the block: visible tokens, speeds per user and GPU, finish reasons.

    In `reasoned` responses the first token was of reasoning.
    """
    if visible := _describe_visible(metrics, reasoned):
        yield visible
    others = (each for each in (*SPEEDS, *OWN, *LATENCIES) if each.key not in ("ttfvt", "prefill_speed"))
    if sentences := [sentence for figure in others if (sentence := _write_sentence(figure, metrics))]:
        yield "; ".join(sentences)
    if (speed := metrics.prefill_speed).n:
        prefill = [_write_sentence(SELECTABLE["prefill_speed"], metrics)]
        if metrics.prefill_behind:
            behind = f"{metrics.prefill_behind} of {speed.n} requests"
            prefill.append(f"{behind} were sent while another had no token yet")
        if metrics.prefill_queued is not None:
            queued = f"{100 * metrics.prefill_queued:.0f} % of TTFT"
            prefill.append(f"{queued} was in the server's queue, as it reports")
        yield "; ".join(prefill)
    if set(metrics.finish_reasons) - {"none"}:
        counts = (f"{reason} {count}" for reason, count in metrics.finish_reasons.items())
        yield f"finish reasons: {', '.join(counts)}"


def _describe_visible(metrics: Metrics, reasoned: int) -> str:
    """Write the sentence of TTFVT, or that there is none; "" where it is TTFT."""
    ttft, ttfvt = metrics.ttft, metrics.ttfvt
    if not ttft.n or ttfvt == ttft:
        return ""
    if not ttfvt.n:  # all ended within their reasoning, or the run is older than the figure
        none = "TTFVT: none: no response is known to have text after its reasoning"
        return none if reasoned >= ttft.n else ""
    sentence, never = _write_sentence(SELECTABLE["ttfvt"], metrics), ttft.n - ttfvt.n
    ended = f"; {never} of {ttft.n} responses have none: they ended within their reasoning"
    return sentence + ended if never else sentence


def _write_sentence(figure: Figure, metrics: Metrics) -> str:
    """Fill a figure's sentence in the table with its value; "" if it has no sentence, or no value."""
    value = getattr(metrics, figure.field)
    if not figure.sentence or value is None:
        return ""
    if figure.kind == OURS:
        return figure.sentence.format(value)
    return figure.sentence.format_map(figure.words_of(asdict(value))) if value.n else ""

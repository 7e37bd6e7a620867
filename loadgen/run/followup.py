"""Followup: the facts that are learned after a run's last request; a step that fails costs itself alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from loadgen.base import signals
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import Broken, UsageError, make_guarded
from loadgen.base.secrecy import Secrets, hide_secrets
from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Client, Facts
from loadgen.figures.session_rows import list_early_places
from loadgen.plan.plan import Plan
from loadgen.report import report, request_rows, run_directory, run_writer
from loadgen.report.run_directory import Result
from loadgen.run.command.options import Options
from loadgen.run.firing import Outcome
from loadgen.run.live_display import choose_display
from loadgen.run.observation import Local, Observation
from loadgen.server import control, engine_config, sample_file
from loadgen.server.control import ServerInfo
from loadgen.server.exchange import ServerAddress
from loadgen.server.sample_file import NO_SAMPLES, KeptSamples


class FinishedRun(msgspec.Struct, frozen=True):
    """A run with its files written, and what of it could not be made or written, in words."""

    errors: tuple[str, ...]
    signal: int = 0  # that came meanwhile and is to end the command; 0: none did


def add_outcome(known: Facts, outcome: Outcome, journal_error: str, made: Plan) -> Facts:
    """Return the facts with a measured run's outcome: counts, the client's health, and why it ended."""
    health, planned = outcome.health, made.total
    where = getattr(made.requests, "where", None)  # a row of a file
    client = Client(
        transport="wire" if health.instead else known.client.transport,
        why=health.instead or known.client.why,
        cpu_s=health.cpu_ns / 1e9,
        wall_s=(health.ended_ns - health.started_ns) / 1e9,
        clock_step_ms=health.clock_step_ns / 1e6,
        reconnects=health.reconnects,
        late_bodies=health.late_bodies,
        backlog_bytes=health.backlog_bytes,
        stopped_s=health.stopped_ns / 1e9,
        segments=health.segments,
        dropped_segments=health.dropped_segments,
        fallen_back=health.fallen_back,
        held_segments=health.held_segments,
        workers=outcome.workers,
        why_workers=known.client.why_workers,
        busiest_cpu_s=health.busiest_cpu_ns / 1e9,
        cpus=known.client.cpus,
    )
    uncounted = (f"tokens of responses without usage: {outcome.uncounted}",) if outcome.uncounted else ()
    return replace(
        known,
        finished=read_wall_clock().astimezone(),  # with its time zone, which its date is in
        client=client,
        under_way=False,
        cut_short=outcome.cut_short,
        interrupted=outcome.interrupted,
        signal=outcome.signal,
        stop_rule=outcome.rule,
        saturated=outcome.saturated,
        lost=(*known.lost, *outcome.lost),
        reasoned=outcome.reasoned,
        hidden_reasoning=outcome.hidden,
        requests=max(1, len(outcome.records) if planned is None else planned),
        bodies_digest=health.bodies_digest,
        turn_places=list_early_places(known.session_turns, outcome.records, where, known.make_waits())
        if where
        else (),
        journal_error=journal_error,
        unknown=uncounted,
    )


def follow_up(facts: Facts, steps: Iterable[tuple[str, Callable[[Facts], Facts]]]) -> Facts:
    """Return the facts with what each step adds, or why it failed, which raises nothing.

    After a signal, noted in the facts, no step follows.
    """
    for name, step in steps:
        broken: list[Broken] = []
        try:
            facts = make_guarded(name, partial(step, facts), facts, broken)
        except KeyboardInterrupt as stop:
            number = signals.read_number(stop)
            why = f"{signals.explain_stop(number)} after the last request, before {name} was known"
            return replace(facts, signal=number, notes=(*facts.notes, why))
        unknown = tuple(f"{part.name}: {part.why}" for part in broken)
        facts = replace(facts, unknown=(*facts.unknown, *unknown))
    return facts


def keep_samples(facts: Facts, observed: Observation) -> KeptSamples:
    """Collect the samples taken during the run; empty without sensors and scraper, or if that fails."""
    sensors, counters = observed.sensors, observed.counters
    began_ns = counters.began_ns if counters is not None else 0

    series = (() if source is None else source.list_series() for source in (counters, sensors))
    keep = partial(sample_file.keep_samples, chain.from_iterable(series), facts.window, began_ns)
    return make_guarded("samples", keep, NO_SAMPLES, [])


def add_configuration(
    facts: Facts, access: ServerAddress | None, served: ServerInfo, local: Local | None
) -> Facts:
    """Return the facts with the engine's configuration, as it reports (at `access`) and logs it, if any.

    The log of a server that was not started here is read where its output goes to a file of this machine, if
    anything is known of its engine's logs; without `access` it is not.
    """
    info = {} if access is None else control.read_server_info(access, served.engine)
    parts = [engine_config.parse_info(info)] if info else []
    if local is not None and local.log is not None:
        parts.append(engine_config.parse_log(engine_config.read_beginning(local.log)))
    elif local is not None and access is not None and served.engine.log_patterns:
        log = engine_config.read_attached_log(local.pids())
        parts += [engine_config.parse_log(log)] if log else []
    return replace(facts, as_run=engine_config.merge_configs(*parts)) if parts else facts


def write_run(
    run: Result,
    directory: Path,
    options: Options,
    local: Local | None,
    secrets: Secrets,
    interrupts: Interrupts,
    explain: bool,
    layout: str | None,
) -> FinishedRun:
    """Write a run's directory: report, result, a launched server's log without secrets, maybe requests.jsonl.

    Return what could not be made or written, and a signal that came, which waits until all is written.
    """
    broken: list[Broken] = []
    writing = choose_display(options.quiet).waiting(f"writing {directory}")
    with signals.defer_stop(interrupts) as came, writing:
        text = make_guarded("the report", lambda: report.render_report(run, explain, layout), "", broken)
        texts = {run_directory.REPORT: text + "\n"}
        if local is not None and local.log is not None:
            log = local.log  # engines print their keys
            content = engine_config.read_log(log)
            texts[log.name] = hide_secrets(secrets.conceal(content))
        errors = run_writer.save(run, directory, texts, broken)
        if options.save_requests:
            try:
                request_rows.save(run, directory)
            except UsageError as error:
                errors.append(str(error))
    errors += [f"{part.name}: {part.why}; the run is kept in {directory}" for part in broken]
    return FinishedRun(tuple(errors), signal=came[0] if came else 0)

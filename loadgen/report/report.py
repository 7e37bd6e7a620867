"""Report: a run as a person reads it, from its facts and records alone: all of it, or what matters most."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.errors import make_guarded
from loadgen.base.passages import Passage
from loadgen.base.printing import Colour, Mark, Screen
from loadgen.base.rule import Severity
from loadgen.features.attribution import attribution_section
from loadgen.features.fingerprint import answer_check
from loadgen.features.images import image_figures
from loadgen.features.roofline import bound
from loadgen.features.roofline.bound import list_bound_figures
from loadgen.features.routed import role_figures
from loadgen.features.sensors import sensor_summary
from loadgen.features.sessions import session_figures
from loadgen.features.shards import shard_lines
from loadgen.features.speculation import speculation_figures
from loadgen.features.targets import target_figures
from loadgen.figures import steady_state
from loadgen.figures.metrics import drop_unknown, list_figures, list_sglang_figures
from loadgen.host import cpu_use
from loadgen.report import result_block, run_lines, shape_figures
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions, Room, Section, fit_lines, list_lines, make_sections
from loadgen.verdict import reconcile, verdict
from loadgen.verdict.evidence import has_tail
from loadgen.verdict.verdict import Level

_MOST_LINES = 10  # of a short report under its block
_OF_LEVEL = {Level.VALID: Colour.GOOD, Level.SUSPECT: Colour.WARNING, Level.INVALID: Colour.BAD}
_OF_SEVERITY = {Severity.SUSPECT: Colour.WARNING, Severity.INVALID: Colour.BAD}


def render_report(
    result: Result, explain: bool = False, layout: str | None = None, screen: Screen | None = None
) -> str:
    """Render the whole report: the server and the workload, the block, the verdict, and remarks.

    A section that cannot be made is a line that names it, in its place; what UTF-8 cannot hold is escaped.
    `layout` is a key of block.LAYOUTS; raises UsageError where there is no such one.
    """
    options = ReportOptions(explain, result_block.find_layout(layout), screen or Screen())
    return "\n".join(list_lines(SECTIONS, result, options))


def render_short(
    result: Result, directory: str, layout: str | None = None, screen: Screen | None = None
) -> str:
    """Render the short report: headline lines, the block, and at most ten lines under it.

    Verdict, failures, and tables of stages or classes may take more. Raises UsageError as `render_report`.
    """
    options = ReportOptions(False, result_block.find_layout(layout), screen or Screen(), directory)
    sections = [section for section in SECTIONS if section.room]
    return "\n".join(fit_lines(make_sections(sections, result, options), _MOST_LINES, "block"))


def render_for_stdout(result: Result, directory: Path, explain: bool, layout: str | None) -> str:
    """Render the report as standard output takes it: all of it with `explain`, else the short one."""
    screen = Screen.from_stream(sys.stdout)
    if explain:
        return render_report(result, True, layout, screen)
    return render_short(result, str(directory), layout, screen)


def explain_unmeasured(result: Result) -> str:
    """Explain, of a run without success, that every request failed, or some were cancelled as planned."""
    became = "failed or was cancelled" if result.metrics.cancelled else "failed"
    return f"every request {became}: nothing was measured"


def make_page_passage(page: str, result: Result) -> Passage:
    """Make the part of the HTML page of that title: lines, not wrapped, and the first table; never raises."""
    sections = [section for section in SECTIONS if section.page == page]
    options = ReportOptions(False, result_block.find_layout(None), Screen(sys.maxsize))
    lines = list_lines(sections, result, options, tabled=False)
    tables = (
        make_guarded(section.name, partial(section.table, result), None, [])
        for section in sections
        if section.table is not None and section.is_there(result.facts)
    )
    said = (line.removeprefix(f"{page.lower()}: ") for line in lines)
    return Passage(page, lines=tuple(said), table=next(tables, None))


def _render_block(result: Result, options: ReportOptions) -> Iterator[str]:
    metrics, facts, layout = result.metrics, result.facts.block(), options.layout
    if layout.percentiles:
        metrics = result.measure_ranks(layout.percentiles)
        facts = replace(facts, selected=tuple(section.key for section in layout.sections))
    sglang = {"backend": result.facts.profile.backend, **list_sglang_figures(metrics)}
    figures = {**sglang, **list_figures(metrics, facts)}
    yield result_block.render_block(drop_unknown(figures, metrics), layout)


def _describe_roofline(result: Result, options: ReportOptions) -> Iterable[str]:
    """Return lines, not wrapped, on the roofline, or why it is missing."""
    facts = result.facts
    if facts.ceiling is None:
        return [f"roofline: unknown: {facts.no_ceiling}"]
    return bound.render_lines(facts.ceiling, *list_bound_figures(facts, result.metrics))


def _summarize_roofline(result: Result, options: ReportOptions) -> Iterator[str]:
    if (ceiling := result.facts.ceiling) is None:
        return
    step = bound.compare_decode(ceiling, *list_bound_figures(result.facts, result.metrics))
    if step is not None:
        share = f"{100 * step.share:.0f} % of the best decoding of {ceiling.machine.name}"
        yield f"roofline: {share} ({step.reached_tps:,.0f} of {step.best_tps:,.0f} tok/s)"


def _describe_verdict(result: Result, options: ReportOptions) -> Iterable[str]:
    return (verdict.explain_doubts if options.explain else verdict.summarize_doubts)(result.verdict)


def _mark_states(result: Result) -> Iterator[Mark]:
    yield Mark("PARTIAL", Colour.WARNING, bold=True)
    yield Mark("SIMULATED", Colour.WARNING, bold=True)


def _mark_verdict(result: Result) -> Iterator[Mark]:
    level = result.verdict.level
    yield from _mark_states(result)
    yield Mark(level.value, _OF_LEVEL[level], bold=True)
    for finding in result.verdict.grave:
        yield Mark(finding.evidence, _OF_SEVERITY[finding.rule.severity])


_HAS_SESSIONS, _HAS_BRANCHES = attrgetter("session_turns"), attrgetter("session_waits")
_IS_PACED = attrgetter("profile.open_loop")
_IS_WHOLE = attrgetter("whole_load")  # not that of one shard
# If the short report lacks space for all sections of one `Room`, the first ones are in it.
SECTIONS = (
    Section("heading", run_lines.describe_state, marks=_mark_states),
    Section("server", run_lines.describe_server),
    Section("launched", run_lines.describe_launch, short=run_lines.describe_trace),
    Section("workload", run_lines.describe_workload, room=Room.FIRST, short=run_lines.summarize_data),
    Section("adapted", lambda result, _: result.facts.lines("adapted")),
    Section("block", _render_block, wrapped=False),
    Section("measured", session_figures.describe_counted_part, _HAS_SESSIONS),
    Section("verdict", _describe_verdict, marks=_mark_verdict),
    Section("failures", run_lines.describe_failures, page="Notes"),
    Section("cancelled", shape_figures.describe_cancelled, attrgetter("cancels_some"), page="Notes"),
    Section("missing", run_lines.describe_missing, page="Notes"),
    Section("turns-not-sent", session_figures.describe_unsent_turns, _HAS_SESSIONS, page="Notes"),
    Section("resends", run_lines.describe_resends, page="Notes"),
    Section("bounds", run_lines.describe_bounds, short=run_lines.describe_highest),
    Section("objectives", run_lines.describe_objectives, attrgetter("profile.slo")),
    Section("tokens", run_lines.describe_tokens, room=Room.FIRST),
    Section(
        "more-figures",
        lambda result, _: run_lines.describe_more_figures(result.metrics, result.facts.reasoned),
        room=Room.NEVER,
    ),
    Section(
        "targets",
        is_there=attrgetter("targets"),
        room=Room.TABLE,
        page="By target",
        table=target_figures.make_target_table,
        most_rows=8,
    ),
    Section(
        "speculation",
        speculation_figures.describe_speculation,
        attrgetter("speculates"),
        room=Room.FIRST,
        short=speculation_figures.summarize_speculation,
        page="Speculation",
    ),
    Section(
        "images",
        image_figures.describe_images,
        attrgetter("data.images"),
        short=image_figures.summarize_images,
        page="Images",
    ),
    Section(
        "classes",
        shape_figures.describe_classes,
        attrgetter("profile.classes"),
        room=Room.TABLE,
        page="By class",
        table=shape_figures.make_class_table,
    ),
    Section(
        "stages",
        shape_figures.name_unreached,
        attrgetter("profile.shaped"),
        room=Room.TABLE,
        page="By stage",
        table=shape_figures.make_stage_table,
        most_rows=40,
    ),
    Section("sessions", session_figures.describe_sessions, _HAS_SESSIONS, page="Sessions"),
    Section(
        "turns",
        is_there=_HAS_SESSIONS,
        room=Room.TABLE,
        page="By turn",
        table=session_figures.make_turn_table,
    ),
    Section("critical-path", session_figures.describe_critical_path, _HAS_BRANCHES, page="Sessions"),
    Section(
        "branches",
        is_there=_HAS_BRANCHES,
        room=Room.TABLE,
        page="By branch",
        table=session_figures.make_branch_table,
    ),
    Section(
        "load-over-time",
        is_there=attrgetter("profile.shaped"),
        room=Room.TABLE,
        short=run_lines.explain_changing_load,
    ),
    Section(
        "load",
        run_lines.describe_load,
        lambda facts: not facts.session_turns,  # theirs is a section of sessions
    ),
    Section("sessions-in-flight", session_figures.describe_in_flight, _HAS_SESSIONS),
    Section("rates", run_lines.describe_rates, _IS_PACED),
    Section("due", run_lines.describe_due_ttft, _IS_PACED),
    Section(
        "attribution",
        attribution_section.describe_attribution,
        has_tail,
        room=Room.FIRST,
        short=attribution_section.summarize_attribution,
        page=attribution_section.TITLE,
        table=attribution_section.make_attribution_table,
        most_rows=0,
    ),
    Section("client", run_lines.describe_client, room=Room.FIRST, short=run_lines.summarize_client),
    Section("calibration", run_lines.describe_calibration, room=Room.NEVER),
    Section("shards", shard_lines.describe_shards, attrgetter("shards"), room=Room.LAST),
    Section("notes", lambda result, _: result.facts.lines("notes"), room=Room.NEVER, page="Notes"),
    Section(
        "steady-state",
        lambda result, _: steady_state.describe_steady_state(result.steady),
        room=Room.LAST,
        short=run_lines.summarize_steady_state,
        page="Notes",
    ),
    Section(
        "reconciliation",
        run_lines.describe_reconciled,
        _IS_WHOLE,
        room=Room.FIRST,
        short=run_lines.summarize_reconciled,
        page="Client and server-reported figures",
        table=lambda result: reconcile.make_reconciled_table(result.reconciled),
        most_rows=0,
    ),
    Section(
        "roles",
        role_figures.describe_roles,
        lambda facts: _IS_WHOLE(facts) and facts.role_windows,
        room=Room.TABLE,
        short=role_figures.summarize_roles,
        page="By server",
        table=role_figures.make_role_table,
        most_rows=8,
    ),
    Section(
        "roofline",
        _describe_roofline,
        lambda facts: _IS_WHOLE(facts) and (facts.ceiling or facts.no_ceiling),
        room=Room.LAST,
        short=_summarize_roofline,
        page="Roofline",
    ),
    Section(
        "sensors",
        sensor_summary.describe_sensors,
        lambda facts: _IS_WHOLE(facts) and facts.sensed,
        room=Room.LAST,
        short=sensor_summary.summarize_sensors,
        page="Environment",
    ),
    Section(
        "cpus",
        lambda result, _: [cpu_use.format_use(use)] if (use := result.facts.cpu_use) else [],
        _IS_WHOLE,
        room=Room.LAST,
        page="Environment",
    ),
    Section("fingerprint", answer_check.list_answer_lines, attrgetter("fingerprint"), page="Notes"),
    Section("unavailable", short=run_lines.list_unknown),
    Section("more", short=run_lines.point_to_rest),
)

"""Shape lines: the tables by stage and by class, and what became of requests cancelled as planned."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.text import align_cells, cut_end, format_cell_ms, list_first
from loadgen.facts.run_facts import Facts
from loadgen.features.shapes.shape_figures import (
    divide_by_class,
    divide_by_stage,
    list_unreached,
)
from loadgen.plan.plan import draw_cancellations
from loadgen.plan.request_sources import RandomStream
from loadgen.records.record import Records
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions, Room, Section
from loadgen.settings.load_settings import CancelPoint, parse_cancel_rate
from loadgen.verdict.reconcile import count_finished_after_cancel

_STAGE_TITLES = ("Stage", "until", "reqs", "req/s", "in fl.", "max", "TTFT ms", "P99", "E2EL P99")
_STAGE_WIDTHS = (-22, 7, 5, 6, 6, 4, 7, 7, 8)
_CLASS_TITLES = ("Class", "share", "reqs", "fail", "in/out", "TTFT ms", "P99", "TPOT", "E2EL ms", "P99")
_CLASS_WIDTHS = (-12, 5, 5, 4, 9, 7, 7, 6, 7, 7)
_MOST_STAGES = 40  # in the table of a short report
_MOST_NAMED = 3  # of those that a run did not come to


def tabulate_stages(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the stages as a table, and those not reached; nothing without stages.

    A short report has the number of stages alone if there are over 40.
    """
    rows = result.derive(divide_by_stage)
    if options.directory and len(rows) > _MOST_STAGES:  # a terminal would show nothing else
        yield f"{len(rows)} stages: the table by stage is in the whole report"
        return
    if rows:
        yield align_cells(_STAGE_TITLES, _STAGE_WIDTHS, " ")
    for row in rows:
        latencies = (row.mean_ttft_ms, row.p99_ttft_ms, row.p99_e2el_ms)
        yield align_cells(
            (
                cut_end(row.name, -_STAGE_WIDTHS[0]),
                f"{row.end_s:.4g} s",
                str(row.requests),
                f"{row.rate_per_s:.3g}",
                f"{row.mean_in_flight:.1f}",
                str(row.most_in_flight),
                *(format_cell_ms(value) for value in latencies),
            ),
            _STAGE_WIDTHS,
            " ",
        )
    if missing := list_unreached(result.facts, rows):
        yield f"not reached: {list_first(missing, _MOST_NAMED)}"


def tabulate_classes(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the classes as a table, with cancelled requests and those that met the objectives."""
    rows = result.derive(divide_by_class)
    if not rows:
        return
    yield align_cells(_CLASS_TITLES, _CLASS_WIDTHS, " ")
    for row in rows:
        lengths = [
            tokens / row.completed if row.completed else 0 for tokens in (row.input_tokens, row.output_tokens)
        ]
        latencies = (row.mean_ttft_ms, row.p99_ttft_ms, row.mean_tpot_ms, row.mean_e2el_ms, row.p99_e2el_ms)
        counts = f"{100 * row.share:.0f} %", str(row.requests), str(row.failed)
        name = cut_end(row.name, -_CLASS_WIDTHS[0])
        cells = (
            name,
            *counts,
            "/".join(f"{length:.0f}" for length in lengths),
            *map(format_cell_ms, latencies),
        )
        yield align_cells(cells, _CLASS_WIDTHS, " ")
    if result.facts.profile.cancel_point is not None:
        cancelled = (f"{row.name} {row.cancelled} of {row.requests}" for row in rows)
        yield f"cancelled by class: {', '.join(cancelled)} requests"
    if any(row.good is not None for row in rows):
        met = (f"{row.name} {row.good} of {row.completed + row.failed}" for row in rows)
        yield f"goodput by class: {', '.join(met)} requests met the objectives"


def describe_cancelled(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on the requests cancelled as planned; nothing if none are planned."""
    facts, records = result.facts, result.records
    point = facts.profile.cancel_point
    if point is None:
        return
    planned, cancelled = _count_planned(facts, records, point), result.whole.cancelled
    share = f"{100 * parse_cancel_rate(facts.profile.cancel_rate):g} %"
    line = f"cancelled as planned: {cancelled} of {planned} ({share} of the requests) after {point}"
    if cancelled:
        line += f", {_measure_lateness_ns(records, point).mean() / 1e6:.2f} ms late on average"
    yield line
    if planned > cancelled:
        yield f"not cancelled: {planned - cancelled} of these ended before, or failed"
    if cancelled:
        yield f"figures are of the {result.whole.completed} requests that were answered in full"
    if not cancelled or facts.window is None or facts.window.finished is None:
        return
    if aborted := facts.window.requests.get("abort"):
        yield f"the server counts {aborted} aborted requests, {cancelled} were cancelled"
    elif not count_finished_after_cancel(facts.window, result.whole):
        yield f"the server counts no abort, and finished none of the {cancelled} cancelled requests"


def _count_planned(facts: Facts, records: Records, point: CancelPoint) -> int:
    """Count the sent requests that the plan had chosen to cancel, by drawing them again."""
    stream = RandomStream(facts.seed, facts.profile.name, facts.repeat, attempt=facts.attempt)
    count = int(records.index.max(initial=-1)) + 1
    chosen = draw_cancellations(parse_cancel_rate(facts.profile.cancel_rate), point, stream, count).chosen
    return int(np.count_nonzero(chosen[records.index] & records.sent))


def _measure_lateness_ns(records: Records, point: CancelPoint) -> Int64:
    """Compute how long after it was due each cancelled request was closed, int64[cancelled] (ns)."""
    rows = np.flatnonzero(records.cancelled)
    if not point.after_tokens:
        return records.end_ns[rows] - records.sent_ns[rows] - point.after_ns
    due_ns = [records.arrival_ns[records.start[row + 1] - 1] for row in rows]
    return records.end_ns[rows] - np.array(due_ns, np.int64)


SECTIONS = {
    "after failures": (
        Section(
            "cancelled",
            describe_cancelled,
            attrgetter("profile.cancel_point"),
            room=Room.ALWAYS,
            page="Notes",
        ),
    ),
    "before load-over-time": (
        Section("classes", tabulate_classes, attrgetter("profile.classes"), wrapped=False, room=Room.TABLE),
        Section("stages", tabulate_stages, attrgetter("profile.shaped"), wrapped=False, room=Room.TABLE),
    ),
}

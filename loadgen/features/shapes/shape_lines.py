"""Shape lines: the tables by stage and by class, and that a load which changes has no steady state."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.base.table import align_cells
from loadgen.base.text import cut_end, format_cell_ms, list_first
from loadgen.features.shapes import shape_figures
from loadgen.figures.part_figures import ClassFigures
from loadgen.figures.steady_state import Unsteady
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions

_STAGE_TITLES = ("Stage", "until", "reqs", "req/s", "in fl.", "max", "TTFT ms", "P99", "E2EL P99")
_STAGE_WIDTHS = (-22, 7, 5, 6, 6, 4, 7, 7, 8)
_CLASS_TITLES = ("Class", "share", "reqs", "fail", "in/out", "TTFT ms", "P99", "TPOT", "E2EL ms", "P99")
_CLASS_WIDTHS = (-12, 5, 5, 4, 9, 7, 7, 6, 7, 7)
_MOST_STAGES = 40  # in the table of a short report
_MOST_NAMED = 3  # of those that a run did not come to
_MOST_SHAPE = 150  # characters of how a load changes


def over_time(result: Result, options: ReportOptions) -> Iterator[str]:
    """That a load which changes has no steady state, and how it changes."""
    if result.facts.profile.shaped and isinstance(result.steady, Unsteady):
        yield cut_end(f"steady state: none: {result.steady.why}", _MOST_SHAPE)


def stages(result: Result, options: ReportOptions) -> Iterator[str]:
    """The stages as a table; nothing where there are none."""
    rows = result.by_stage
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
    if missing := shape_figures.unreached(result.facts, rows):
        yield f"not reached: {list_first(missing, _MOST_NAMED)}"


def classes(result: Result, options: ReportOptions) -> Iterator[str]:
    """The classes as a table, what of each was cancelled, and what met the objectives.

    Nothing where there is one class.
    """
    rows = result.by_class
    if not rows:
        return
    yield align_cells(_CLASS_TITLES, _CLASS_WIDTHS, " ")
    for row in rows:
        lengths = [tokens / row.completed if row.completed else 0 for tokens in _tokens(row)]
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


def _tokens(row: ClassFigures) -> tuple[int, int]:
    return row.input_tokens, row.output_tokens

"""Sweep table: the points of a sweep in one table, a row each; those that failed with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.plan.profile import Profile
from loadgen.report import load_table, run_directory
from loadgen.report.load_identity import Load
from loadgen.report.load_table import LoadRow
from loadgen.report.sweep_record import FINISHED, SweepRecord
from loadgen.study.series.sweep.grid import GridPoint

_FAILED = "FAILED"


def text(directory: Path, record: SweepRecord, points: Sequence[GridPoint]) -> str:
    """The points that are over, read from their directories, in 80 columns; "" where there is none."""
    rows: dict[str, list[LoadRow]] = {}
    failed: dict[str, LoadRow] = {}
    notes: list[str] = []
    for point, planned in zip(record.points, points, strict=True):
        of = replace(planned, repeat=0).label
        if point.state in FINISHED:
            try:
                rows.setdefault(of, []).append(
                    load_table.of_run(run_directory.load(directory / point.directory))
                )
            except UsageError as error:
                notes.append(str(error))
        elif point.state == "failed":
            failed[of] = _without_figures(planned.workload)
        if point.reason:
            notes.append(
                f"{planned.label}: {_FAILED * (point.state == 'failed') or 'ended early'}: {point.reason}"
            )
    order = dict.fromkeys(replace(planned, repeat=0).label for planned in points)
    measured = [row for of in rows.values() for row in of]
    if not measured:
        return ""
    drawn: list[LoadRow] = []
    for of in order:
        drawn += load_table.merged(rows[of]) if of in rows else []
        if of in failed and of not in rows:
            drawn.append(replace(failed[of], name=measured[0].name, simulated=measured[0].simulated))
    return load_table.text(drawn, notes)


def _without_figures(workload: Profile) -> LoadRow:
    """The row of a point that has no run."""
    load = Load(
        name=workload.name,
        requests=workload.num_prompts,
        max_concurrency=workload.max_concurrency,
        request_rate_per_s=workload.request_rate,
        asked_input_len=workload.input_len,
        asked_output_len=workload.output_len,
        duration_s=workload.duration,
    )
    return LoadRow("", load, verdict=_FAILED)

"""Bench series: the tables of one `loadgen bench` that makes several runs: speeds, loads and repeats.

It is a `RunTables` of `loadgen.run.command.bench`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report.run_directory import Result
from loadgen.run.session import Session
from loadgen.study import load_table, repeats
from loadgen.study.load_table import LoadRow
from loadgen.study.series.climb import LadderClimb
from loadgen.study.series.point_runs import GivenServer
from loadgen.study.speed import ladder_rows, speed_tables


def climb(session: Session, workload: Profile, seed: Seed) -> int:
    """Measure a ladder on the session's server, write and print its tables, and return the exit code."""
    return LadderClimb.begin(workload, session.options).finish(
        lambda ladder: ladder.climb_on(GivenServer(session), seed)
    )


def draw_throughputs(runs: Sequence[Result]) -> str:
    """Return the throughputs of runs that sent all prompts at once, as the text table of the Qwen2 page."""
    return speed_tables.draw_throughput(list(map(ladder_rows.make_throughput_row, runs)), "text")


def make_load_row(run: Result) -> LoadRow:
    """Make a run's row in the table of loads."""
    return load_table.make_load_row(run)


def draw_loads(rows: Sequence[LoadRow]) -> str:
    """Draw rows as a table of loads, repeats of one load as their means; "" if all have the same load."""
    if len({row.load for row in rows}) < 2:
        return ""
    return load_table.render_load_table(load_table.merge_repeats(rows))


def draw_repeats(runs: Sequence[Result]) -> tuple[str, dict[str, Any]]:
    """Draw the spread of each figure over runs of one load as a table, and encode it as JSON."""
    spreads = repeats.measure_spreads([run.metrics for run in runs], [run.steady for run in runs])
    return "\n".join(repeats.render_spreads(spreads)), repeats.encode_spreads(spreads)

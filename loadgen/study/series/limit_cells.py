"""Limit cells: cells of a campaign that are searches for the highest load within objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.bounds import MOST_SEED
from loadgen.base.errors import UsageError
from loadgen.figures import objectives
from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report.limit_record import LimitRecord
from loadgen.run.session import Session
from loadgen.study.series.file import LimitTable
from loadgen.study.series.kept_directory import KeptDirectory
from loadgen.study.series.limit.command import continued, read
from loadgen.study.series.limit.finding import LimitSearch
from loadgen.study.series.limit.limit_request import axis_of
from loadgen.study.series.matrix import Planned
from loadgen.study.series.points.point_servers import PointServers
from loadgen.verdict.campaign_cell import Cell


@dataclass
class CellServers(PointServers):
    """The server of one arm; every run on it is one of the cell that is searched now."""

    cell: Cell | None = None

    def session(self, workload: Profile, serve: Mapping[str, str] | None = None) -> Session:
        """As `PointServers.session`, for the cell."""
        return replace(super().session(workload, serve), cell=self.cell)


def prepared(
    servers: CellServers, planned: Planned, table: LimitTable, place: Path, seed: Seed,
    say: Callable[[str], None],
) -> LimitSearch:  # fmt: skip
    """The search of a cell, in a directory of its own, where an interrupted one goes on.

    Each repeat has other prompts, each arm the same.
    """
    servers.cell = planned.cell
    goals, axis = objectives.parse(table.slo), axis_of(planned.workload, table.over)
    record = LimitRecord(
        name=planned.cell.checkpoint,
        command=("loadgen", "campaign", planned.cell.campaign),
        axis=axis,
        objectives=tuple(map(str, goals)),
        within=table.within,
        budget_s=table.budget_s,
        most_runs=table.max_runs,
        least_run_s=table.min_duration_s,
        fixed=f"{table.slo} over {axis}",
        seed=(seed.value + planned.cell.repeat) % (MOST_SEED + 1),
        start=table.start,
        lowest=table.lowest,
        highest=table.highest,
    )
    with suppress(UsageError):  # nothing was begun there, or not this search
        record = continued(read(place), record)
    kept = KeptDirectory(place, "limit")
    return LimitSearch(
        servers, planned.workload, goals, record, kept, Seed(record.seed, chosen=seed.chosen), say
    )

"""Limit cells: cells of a campaign that are searches for the highest load within objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from loadgen.campaign.file import LimitTable
from loadgen.campaign.kept_directory import KeptDirectory
from loadgen.campaign.limit.command import continued, read
from loadgen.campaign.limit.finding import LimitSearch
from loadgen.campaign.limit.limit_request import axis_of
from loadgen.campaign.matrix import Planned
from loadgen.campaign.points.point_servers import PointServers
from loadgen.errors import UsageError
from loadgen.metrics import objectives
from loadgen.results.limit_record import LimitRecord
from loadgen.session.session import Session
from loadgen.validity.campaign_cell import Cell
from loadgen.workload.bounds import MOST_SEED
from loadgen.workload.plan_inputs import Seed
from loadgen.workload.profile import Profile


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

"""Sweep: a measured sweep as a value, for those who use loadgen from Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from loadgen.report.run import Run
from loadgen.report.sweep_record import FINISHED, PointState, SweepRecord


class SweptPoint(msgspec.Struct, frozen=True):
    """One point of a sweep: the keys of the profile that were varied, and its run.

    `run` is None where nothing was measured; a failed point has a `reason`, and a run if it measured one. A
    `saturated` point was ended early, since the server fell further and further behind.
    """

    settings: dict[str, Any]
    repeat: int
    state: PointState
    reason: str = ""
    run: Run | None = None


class Sweep:
    """One workload measured at many points. `sweep` makes it.

    `directory` is where it lies on disk, None for one that was not written; `partial` is why it ended before
    its last point, "" where it did not.
    """

    def __init__(
        self,
        record: SweepRecord,
        runs: Mapping[int, Run],
        directory: Path | None = None,
        partial: str = "",
    ) -> None:
        self.record = record  # what sweep.json holds
        self.directory, self.partial = directory, partial
        self.points = tuple(
            SweptPoint(point.settings, point.repeat, point.state, point.reason, runs.get(point.number))
            for point in record.points
        )

    def __repr__(self) -> str:
        measured = sum(point.state in FINISHED for point in self.points)
        return f"<loadgen.Sweep {self.record.name}: {measured} of {len(self.points)} points>"

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of its points, in their order; what a failed point measured is none of them."""
        return tuple(point.run for point in self.points if point.run is not None and point.state != "failed")

"""Searches: the records of sweeps and of searches for a limit, next to the runs that they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from loadgen.analysis.importers import text
from loadgen.analysis.run_summary import Reported
from loadgen.errors import UsageError
from loadgen.results import limit_record, sweep_record
from loadgen.results.limit_record import LIMIT, LimitRecord
from loadgen.results.load_table import marked_name
from loadgen.results.sweep_record import SWEEP, SweepRecord

_Kind = TypeVar("_Kind", bound=BaseModel)


class StoredSweep(msgspec.Struct, frozen=True):
    """A sweep and where it is; its runs are read as any others."""

    directory: Path
    record: SweepRecord

    @property
    def saturated(self) -> set[str]:
        """The sources of its runs that were ended early, since the server fell further and further behind."""
        points = (point for point in self.record.points if point.state == "saturated" and point.directory)
        return {str(self.directory / point.directory) for point in points}

    @property
    def places(self) -> set[str]:
        """The entries of its directory that hold its runs; what a failed point measured is none of them."""
        return _first_parts([point.directory for point in self.record.points if point.state != "failed"])


class StoredLimit(msgspec.Struct, frozen=True):
    """A search for the highest load, where it is, and its runs as they were read."""

    directory: Path
    record: LimitRecord
    runs: tuple[Reported, ...] = ()

    @property
    def name(self) -> str:
        """The checkpoint that was searched for, as its runs have it; the search's own without a run."""
        return self.runs[0].name if self.runs else self.record.name

    @property
    def shown_name(self) -> str:
        """The name as tables and pictures have it, with a mark where no model ran."""
        return marked_name(self.name, any(run.simulated for run in self.runs))

    @property
    def saturated(self) -> set[str]:
        """The sources of its runs that were ended early, since the server fell further and further behind."""
        runs = (run for run in self.record.runs if run.saturated and run.directory)
        return {str(self.directory / run.directory) for run in runs}

    @property
    def places(self) -> set[str]:
        """The entries of its directory that hold its runs."""
        return _first_parts([run.directory for run in self.record.runs])

    def owns(self, run: Reported) -> bool:
        """Whether a run is one of its own."""
        return Path(run.source).is_relative_to(self.directory)


def sweep(directory: Path) -> StoredSweep:
    """The sweep of a directory; raises UsageError of a record that is damaged or of a newer format."""
    return StoredSweep(directory, _record(directory / SWEEP, SweepRecord, sweep_record.FORMAT))


def limit(directory: Path) -> StoredLimit:
    """The search of a directory, without its runs; raises UsageError as `sweep`."""
    return StoredLimit(directory, _record(directory / LIMIT, LimitRecord, limit_record.FORMAT))


class _Version(BaseModel, extra="ignore", frozen=True):
    """What every version of a record has."""

    format: int


def _record(path: Path, kind: type[_Kind], newest: int) -> _Kind:
    content = text.bounded(path)
    try:
        version = _Version.model_validate_json(content).format
        if version > newest:
            raise UsageError(
                f"{path} was written by a newer loadgen: it has format {version}, this one reads {newest}"
            )
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path} is damaged: {where}: {first['msg'].lower()}") from None


def _first_parts(directories: list[str]) -> set[str]:
    return {Path(directory).parts[0] for directory in directories if directory}

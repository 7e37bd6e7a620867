"""Searches: the records of sweeps and of searches for a limit, next to the runs that they are made of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
from pydantic import BaseModel

from loadgen.report import limit_record, stored_record, sweep_record
from loadgen.report.limit_record import LIMIT, LimitRecord
from loadgen.report.load_table import marked_name
from loadgen.report.sweep_record import SWEEP, SweepRecord
from loadgen.study.importers import text
from loadgen.study.run_summary import Reported

_Kind = TypeVar("_Kind", bound=BaseModel)


class StoredSweep(msgspec.Struct, frozen=True):
    """A sweep and where it is; its runs are read as any others."""

    directory: Path
    record: SweepRecord

    @property
    def run_directories(self) -> list[Path]:
        """Where its runs are; what a failed point measured is none of them."""
        points = (point for point in self.record.points if point.state != "failed")
        return _below(self.directory, (point.directory for point in points))


class StoredLimit(msgspec.Struct, frozen=True):
    """A search for the highest load, where it is, and its runs as they were read; None: on no disk."""

    directory: Path | None
    record: LimitRecord
    runs: tuple[Reported, ...] = ()
    place: str = ""  # as it was named to be read; "": by none

    @property
    def name(self) -> str:
        """The checkpoint that was searched for, as its runs have it; the search's own without a run."""
        return self.runs[0].name if self.runs else self.record.name

    @property
    def shown_name(self) -> str:
        """The name as tables and pictures have it, with a mark where no model ran."""
        return marked_name(self.name, any(run.simulated for run in self.runs))

    @property
    def run_directories(self) -> list[Path]:
        """Where its runs are; one that was cut off is none of them."""
        runs = (run.directory for run in self.record.runs)
        return [] if self.directory is None else _below(self.directory, runs)


def sweep(directory: Path) -> StoredSweep:
    """The sweep of a directory; raises UsageError of a record that is damaged or of a newer format."""
    return StoredSweep(directory, _record(directory / SWEEP, SweepRecord, sweep_record.FORMAT))


def limit(directory: Path) -> StoredLimit:
    """The search of a directory, without its runs; raises UsageError as `sweep`."""
    return StoredLimit(directory, _record(directory / LIMIT, LimitRecord, limit_record.FORMAT))


def _record(path: Path, kind: type[_Kind], newest: int) -> _Kind:
    return stored_record.parsed(text.bounded(path), path, kind, newest)


def _below(directory: Path, runs: Iterable[str]) -> list[Path]:
    """The directories of runs, but for those that a stranger's record has elsewhere."""
    inside = [Path(run) for run in runs if run]
    return [directory / run for run in inside if not run.is_absolute() and ".." not in run.parts]

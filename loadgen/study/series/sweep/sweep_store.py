"""Sweep store: a sweep's directory; a point that is finished is there whole, even if the rest fails."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from loadgen.report import stored_record
from loadgen.report.sweep_record import FORMAT, SWEEP, SweepPoint, SweepRecord
from loadgen.study.series.kept_directory import KeptDirectory, made
from loadgen.study.series.sweep.grid import GridPoint

POINTS, FAILED, SERVERS = "points", "failed", "servers"
UNFINISHED, INTERRUPTED = "unfinished", "interrupted"


class SweepStore(KeptDirectory):
    """One sweep's directory.

    sweep.json              what is varied, and what came of each point: it decides what is finished
    points/<point>/         the run of a finished point: a run directory
    failed/<point>/         that of a failed one, if there was one
    vllm/                   the runs as `vllm bench sweep plot` reads them
    servers/                logs of the servers that were started
    unfinished/             under way
    interrupted/<point>/    runs that were cut off, with what they had measured: loadgen report reads each
    """

    def __init__(self, directory: Path, begun_here: bool = False) -> None:
        super().__init__(directory, "sweep")
        self._begun_here = begun_here  # by this command or call, not by an earlier one

    def record(self) -> SweepRecord:
        """What the directory holds of its sweep; raises UsageError where it is no sweep's, or damaged."""
        return stored_record.read(self.directory / SWEEP, SweepRecord, FORMAT, "a sweep")

    def write(self, record: SweepRecord) -> None:
        """Keep the record, whole or not at all; raises StoreError."""
        self.replace(self.directory / SWEEP, record.model_dump(mode="json"))

    def begin(self, point: GridPoint) -> Path:
        """An empty directory in which a point is measured; raises StoreError."""
        with self.writing():
            place = self.directory / UNFINISHED / point.directory_name
            made(place)
        return place

    def keep(self, point: GridPoint, run: Path, failed: bool) -> str:
        """Give a point's run its place; the place below the sweep's directory. Raises StoreError."""
        with self.writing():
            place = self.directory / (FAILED if failed else POINTS) / point.directory_name
            for earlier in (FAILED, POINTS):
                shutil.rmtree(self.directory / earlier / point.directory_name, ignore_errors=True)
            self.move(run, place)
            shutil.rmtree(self.directory / UNFINISHED / point.directory_name, ignore_errors=True)
        return str(place.relative_to(self.directory))

    def set_damaged_aside(self, point: GridPoint) -> None:
        """Keep the run of a point that cannot be read under `interrupted`; raises StoreError."""
        with self.writing():
            name = point.directory_name
            self.set_aside(self.directory / POINTS / name, self.directory / INTERRUPTED / name)

    def removed_empty(self) -> bool:
        """Remove a directory that was begun here and holds no run of any point; whether that is so."""
        runs = (self.directory / name for name in (POINTS, FAILED, INTERRUPTED, UNFINISHED))
        planned = all(point.state == "planned" for point in self.record().points)
        empty = self._begun_here and planned and not any(place.exists() for place in runs)
        if empty:
            shutil.rmtree(self.directory, ignore_errors=True)
        return empty

    def drop(self) -> None:
        """Remove what is unfinished; a run that had measured something is kept under `interrupted`."""
        with self.writing():
            unfinished = self.directory / UNFINISHED
            for name in sorted(os.listdir(unfinished)) if unfinished.is_dir() else ():
                self.set_aside(unfinished / name, self.directory / INTERRUPTED / name)
            shutil.rmtree(unfinished, ignore_errors=True)


def updated(record: SweepRecord, point: SweepPoint) -> SweepRecord:
    """The record with another state of one point."""
    points = (*record.points[: point.number], point, *record.points[point.number + 1 :])
    return record.model_copy(update={"points": points})

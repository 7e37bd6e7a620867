"""Climb: rungs measured one after another on a server, with tables that are on disk after each."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from loadgen.base import files, signals
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import MeasureError, decide_exit_code
from loadgen.base.printing import print_text
from loadgen.base.text import clean_text
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.run.command import progress
from loadgen.run.command.options import Options
from loadgen.run.session import Session
from loadgen.study.series.point_runs import (
    GivenServer,
    MeasuredPoint,
    PointServers,
    Step,
    measure_point,
    run_series,
)

Rung = TypeVar("Rung")
Row = TypeVar("Row")


@dataclass
class Climb(ABC, Generic[Rung, Row]):
    """Rungs measured one after another on a server, or on its next start where it died, each with a row.

    The tables on disk are written again after each row. A subclass defines what follows the fields.
    """

    workload: Profile
    directory: Path  # of its runs and tables
    options: Options
    quiet: bool = False  # no line a rung
    rows: list[Row] = field(default_factory=list)  # of the rungs that were measured, or could not be
    left: deque[Rung] = field(init=False)
    seed: Seed = field(init=False)
    servers: PointServers | GivenServer = field(init=False)
    session: Session | None = None  # on which the last rung was measured

    name: ClassVar[str]  # of its directory and files
    forms: ClassVar[tuple[str, ...]]  # of the tables that are written
    speed: ClassVar[str]  # the field of a row with its speed, None where it has none

    def __post_init__(self) -> None:
        self.left = deque(self.list_rungs())

    @abstractmethod
    def list_rungs(self) -> Iterable[Rung]:
        """List all rungs, in the order in which they are measured."""

    @abstractmethod
    def list_changes(self, rung: Rung) -> dict[str, Any]:
        """List the keys of the workload that make a rung, with their values."""

    @abstractmethod
    def make_row(self, run: Result, rung: Rung, directory: str) -> Row:
        """Make the row of a rung from its run."""

    @abstractmethod
    def make_missed_row(self, rung: Rung, why: str) -> Row:
        """Make a row without a speed, with the reason."""

    @abstractmethod
    def draw(self, form: str) -> str:
        """Return all rows as a table in one of `forms`, or as text."""

    @abstractmethod
    def describe(self, row: Row) -> str:
        """Return the line that is printed when a row's rung ends."""

    @abstractmethod
    def encode_rows(self) -> dict[str, Any]:
        """Return all rows as the object that JSON has; nothing is written."""

    def count_measured(self) -> int:
        """Count the rows with a speed."""
        return sum(getattr(row, self.speed) is not None for row in self.rows)

    @classmethod
    def begin(cls, workload: Profile, options: Options) -> Self:
        """Make a climb and its directory below `run_dir`, else `runs`; raises UsageError if it cannot."""
        base = Path(options.run_dir or "runs")
        return cls(workload, files.create_directory(base, cls.name, read_wall_clock()), options)

    def finish(self, measure: Callable[[Self], None]) -> int:
        """Call `measure`, print the table, and return the exit code: 0 where any rung was measured.

        On a signal it returns the signal's code. Without any row the directory is removed if empty.
        """
        try:
            measure(self)
        except KeyboardInterrupt as stop:
            return decide_exit_code(signal=signals.read_number(stop))
        finally:
            if self.rows:
                print_text(f"\n{self.draw('text')}\ntables and runs: {self.directory}", sys.stdout)
            else:
                files.remove_empty(self.directory)
        return decide_exit_code(measured=self.count_measured() > 0)

    def climb_on(self, servers: PointServers | GivenServer, seed: Seed) -> None:
        """Measure the rungs in `left` on a server; one that cannot be measured gets a row with the reason.

        A server that dies of a rung is started again for the next, unless another owns it: raises ServerDied
        then. Raises StoreError, KeyboardInterrupt.
        """
        self.seed, self.servers = seed, servers
        run_series(self, servers)

    def give_up(self, why: str) -> None:
        """Empty `left`, and add a row without a speed, with the reason `why`, for each of its rungs."""
        while self.left:
            self._add(self.make_missed_row(self.left.popleft(), why))

    def choose(self) -> Step[Rung] | None:
        """Remove the next rung from `left` and return it with its workload; None if there is none."""
        if not self.left:
            return None
        keys = {"ladder": None, "description": "", **self.list_changes(self.left[0])}
        return Step(self.left.popleft(), self.workload.model_copy(update=keys))

    def measure(self, step: Step[Rung], session: Session) -> MeasuredPoint:
        """Set `session` and measure a rung, or return why not if its tokens exceed the context."""
        self.session = session
        need = step.workload.prefix_len + step.workload.input_len + step.workload.output_len
        if 0 < (limit := session.context_limit) < need:
            return MeasuredPoint(reason=f"needs {need} tokens, the context limit is {limit}")
        return measure_point(session, step.workload, self.seed, self.directory)

    def keep(self, step: Step[Rung], point: MeasuredPoint) -> None:
        """Add the row of a rung, from its run or with why it has none; raises errors but a MeasureError.

        Where no server could be reached, the rung and all that are left get rows with that reason.
        """
        if point.unserved:
            progress.warn(str(point.error))
            self.left.appendleft(step.what)
            self.give_up("the server did not start again")
            return
        if point.error is not None and not isinstance(point.error, MeasureError):
            raise point.error
        run, why = point.run, point.reason if point.run is None else ""
        if run is not None and point.died is not None and run.records.failed and not run.facts.interrupted:
            why = point.died.summary
        if why:
            self._add(self.make_missed_row(step.what, why))
        elif run is not None and point.directory is not None:
            self._add(self.make_row(run, step.what, point.directory.name))
        if point.died is not None and self.servers.restartable:
            progress.warn(clean_text(str(point.died)))

    def _add(self, row: Row) -> None:
        """Add a row, write every table file again, and print the row unless quiet."""
        self.rows.append(row)
        self.write_tables()
        if not self.quiet:
            print_text(self.describe(row), sys.stdout)

    def write_tables(self) -> None:
        """Write every table file again; one that cannot be written is a warning."""
        for name, text in self.list_tables().items():
            if error := run_directory.write_text(self.directory / name, text):
                progress.warn(error)  # the next rung is worth measuring all the same

    def list_tables(self) -> dict[str, str]:
        """Return the content of each table file by its name."""
        tables = {f"{self.name}.{form}": self.draw(form) for form in self.forms}
        return tables | {f"{self.name}.json": dumps(self.encode_rows(), allow_nan=False)}

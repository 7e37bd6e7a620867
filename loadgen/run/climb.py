"""Climb: rungs measured one after another on a server, a row each; all rows so far are always on the disk."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from loadgen.base.errors import MeasureError, ServerDied
from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report import run_directory, run_place
from loadgen.report.printing import printed
from loadgen.report.run_directory import Result
from loadgen.run import progress, signals
from loadgen.run.session import Session

Rung = TypeVar("Rung")
Row = TypeVar("Row")


class Climb(Generic[Rung, Row]):
    """What is measured rung by rung on a server, and on another one where that died.

    A class of such says how a rung is measured, and what its row is where it cannot be.
    """

    workload: Profile
    directory: Path  # of its runs and tables
    rows: list[Row]  # of the rungs that were measured, or could not be
    left: deque[Rung]

    @property
    def measured(self) -> bool:
        """Whether any rung has a speed."""
        raise NotImplementedError

    def measure(self, session: Session, rung: Rung, seed: Seed) -> None:
        """Measure a rung and add its row; raises MeasureError, ServerDied and signals.Stopped."""
        raise NotImplementedError

    def missed(self, rung: Rung, why: str, session: Session | None = None) -> Row:
        """A row without a speed, with the reason; with rows before it no session is needed."""
        raise NotImplementedError

    def add(self, row: Row) -> None:
        """Keep a row, write every table again, and print the row."""
        raise NotImplementedError

    def tables(self) -> str:
        """What is printed at the end of at least one row."""
        raise NotImplementedError

    def on(self, session: Session, seed: Seed) -> None:
        """Measure what is left on a server. A rung that cannot be measured is a row with the reason.

        Raises MeasureError where the server has died of one, whose row is kept, and KeyboardInterrupt.
        """
        inside = replace(session, options=replace(session.options, run_dir=str(self.directory)))
        while self.left:
            rung = self.left.popleft()
            try:
                self.measure(inside, rung, seed)
            except MeasureError as error:
                self.add(self.missed(rung, error.summary, session))
                if isinstance(error, ServerDied):
                    raise

    def give_up(self, why: str) -> None:
        """Add a row for each rung that is left, with the reason."""
        while self.left:
            self.add(self.missed(self.left.popleft(), why))

    def ran(self, session: Session, update: Mapping[str, Any], seed: Seed) -> tuple[Result, str, int]:
        """Run the workload with some keys changed: the result, its directory's name, a signal that came."""
        changed = {"ladder": None, "description": "", **update}
        run, directory = session.run(self.workload.model_copy(update=changed), seed)
        kept = session.keep(run, directory)
        for error in kept.errors:
            progress.warn(error)
        if run.records.failed and not run.facts.interrupted:
            session.check_alive(failed=True)
        return run, directory.name, run.facts.signal or kept.signal

    def write(self, texts: Mapping[str, str]) -> None:
        """Write files by their names; the next rung is worth measuring where one cannot be."""
        for name, text in texts.items():
            if error := run_directory.write_text(self.directory / name, text):
                progress.warn(error)

    def print_tables(self) -> None:
        """Print what was measured; without rows, remove the directory."""
        if not self.rows:
            run_place.remove_empty(self.directory)
            return
        printed(f"\n{self.tables()}\ntables and runs: {self.directory}", sys.stdout)


def check_room(session: Session, need: int) -> None:
    """Raises MeasureError where a rung needs more tokens than the server's context has."""
    if 0 < (limit := session.context_limit) < need:
        raise MeasureError(f"needs {need} tokens, the context limit is {limit}")


def exit_code(climb: Climb[Any, Any], measure: Callable[[], None]) -> int:
    """Measure a climb and print its tables; the command's exit code, 0 where any rung was measured."""
    try:
        measure()
    except KeyboardInterrupt as stop:
        return signals.exit_code(signals.number_of(stop))
    finally:
        climb.print_tables()
    return 0 if climb.measured else MeasureError.exit_code

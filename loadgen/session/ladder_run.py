"""Climb: a ladder of input lengths on one server, a row each; all rows so far are always on the disk."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from loadgen.errors import MeasureError, ServerDied
from loadgen.results import run_directory, run_place, speed_ladder, speed_tables
from loadgen.results.printing import printed
from loadgen.results.speed_formulas import TOTAL
from loadgen.results.speed_rows import SpeedRow
from loadgen.session import progress, signals
from loadgen.session.session import Session
from loadgen.workload.plan_inputs import Seed
from loadgen.workload.profile import Profile

_FILES = ("html", "rst", "md", "csv")


class Climbing(Protocol):
    """What is measured rung by rung on a server, and on another one where that died."""

    workload: Profile

    @property
    def directory(self) -> Path:
        """Where its runs and tables are."""

    @property
    def rows(self) -> Sized:
        """Those of the rungs that were measured, or could not be."""

    @property
    def left(self) -> Sized:
        """The rungs that were not."""

    @property
    def measured(self) -> bool:
        """Whether any rung has a speed."""

    def on(self, session: Session, seed: Seed) -> None:
        """Measure what is left on a server."""

    def give_up(self, why: str) -> None:
        """Add a row for each rung that is left, with the reason."""

    def print_tables(self) -> None:
        """Print what was measured."""


@dataclass
class Climb:
    """The rungs of a profile's ladder that are left, and the rows of those that are not."""

    workload: Profile
    directory: Path
    formula: str = TOTAL
    quiet: bool = False  # no line a rung
    rows: list[SpeedRow] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # the directory of each row's run; "" where nothing ran
    left: deque[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = deque(self.workload.ladder or ())

    @property
    def measured(self) -> bool:
        """Whether any rung has a speed."""
        return any(row.speed_tok_s is not None for row in self.rows)

    def on(self, session: Session, seed: Seed) -> None:
        """Measure what is left on a server. A length that cannot be measured is a row with the reason.

        Raises MeasureError where the server has died of one, whose row is kept, and KeyboardInterrupt.
        """
        inside = replace(session, options=replace(session.options, run_dir=str(self.directory)))
        while self.left:
            length = self.left.popleft()
            try:
                self._rung(inside, length, seed)
            except MeasureError as error:
                self._add(self._missed(length, error.summary, session))
                if isinstance(error, ServerDied):
                    raise

    def give_up(self, why: str) -> None:
        """Add a row for each length that is left, with the reason."""
        while self.left:
            self._add(self._missed(self.left.popleft(), why))

    def print_tables(self) -> None:
        """Print our table and the published one; without rows, remove the directory."""
        if not self.rows:
            run_place.remove_empty(self.directory)
            return
        drawn = filter(None, (speed_tables.render(self.rows, "text"), speed_tables.compared(self.rows)))
        printed("\n" + "\n".join(drawn) + f"\ntables and runs: {self.directory}", sys.stdout)

    def _rung(self, session: Session, length: int, seed: Seed) -> None:
        need = length + self.workload.output_len
        if 0 < (limit := session.context_limit) < need:
            raise MeasureError(f"needs {need} tokens, the context limit is {limit}")
        update = {"ladder": None, "input_len": length, "name": f"{self.workload.name}-{length}"}
        run, directory = session.run(self.workload.model_copy(update=update), seed)
        kept = session.keep(run, directory)
        for error in kept.errors:
            progress.warn(error)
        if run.records.failed and not run.facts.interrupted:
            session.check_alive(failed=True)
        self._add(speed_ladder.row(run, self.formula), directory.name)
        if number := run.facts.signal or kept.signal:
            raise signals.Stopped(number)

    def _missed(self, length: int, why: str, session: Session | None = None) -> SpeedRow:
        """A row without a speed, with the reason; model and machine are those of the row before."""
        if self.rows:
            previous = self.rows[-1]
        else:
            assert session is not None
            served = session.served
            root = "" if served.engine.simulated else served.model_root
            base, quantization = speed_ladder.named(root or served.model, session.checkpoint)
            backend = speed_ladder.backend(served.engine.name)
            previous = SpeedRow(base, backend, "", length, quantization, None, None)
        return replace(
            previous,
            input_length=length,
            gpu_num=None,
            speed_tok_s=None,
            ttft_ms=None,
            decode_tok_s=None,
            gpu_memory=None,
            note=why,
            formula=self.formula,
            output_length=self.workload.output_len,
        )

    def _add(self, row: SpeedRow, run: str = "") -> None:
        """Keep a row, write every table again, and print the row."""
        self.rows.append(row)
        self.runs.append(run)
        listed = [speed_ladder.json(row, where) for row, where in zip(self.rows, self.runs, strict=True)]
        texts = {f"ladder.{form}": speed_tables.render(self.rows, form) for form in _FILES}
        for name, text in {**texts, "ladder.json": dumps({"rows": listed}, allow_nan=False)}.items():
            if error := run_directory.write_text(self.directory / name, text):
                progress.warn(error)  # the next rung is worth measuring all the same
        if not self.quiet:
            printed(speed_ladder.line(row), sys.stdout)


def exit_code(climb: Climbing, measure: Callable[[], None]) -> int:
    """Measure a climb and print its tables; the command's exit code, 0 where any rung was measured."""
    try:
        measure()
    except KeyboardInterrupt as stop:
        return signals.exit_code(signals.number_of(stop))
    finally:
        climb.print_tables()
    return 0 if climb.measured else MeasureError.exit_code


def begin(workload: Profile, run_dir: str | None, formula: str | None = None) -> Climb:
    """A climb with a directory of its own for its rows; raises UsageError where there can be none."""
    directory = run_place.create_directory(Path(run_dir or "runs"), "ladder", run_place.now())
    return Climb(workload, directory, formula or TOTAL)

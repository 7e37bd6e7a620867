"""Ladder run: a ladder of input lengths on one server, a row each."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path

from msgspec.structs import replace

from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report import run_place, speed_ladder, speed_tables
from loadgen.report.printing import printed
from loadgen.report.speed_formulas import TOTAL
from loadgen.report.speed_rows import SpeedRow
from loadgen.run import climb, signals
from loadgen.run.climb import Climb
from loadgen.run.session import Session

_FILES = ("html", "rst", "md", "csv")


@dataclass
class LadderClimb(Climb[int, SpeedRow]):
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
        return any(row.speed_tok_s is not None for row in self.rows)

    def tables(self) -> str:
        """Our table and the published one."""
        drawn = (speed_tables.render(self.rows, "text"), speed_tables.compared(self.rows))
        return "\n".join(filter(None, drawn))

    def measure(self, session: Session, rung: int, seed: Seed) -> None:
        climb.check_room(session, rung + self.workload.output_len)
        update = {"input_len": rung, "name": f"{self.workload.name}-{rung}"}
        run, name, number = self.ran(session, update, seed)
        self.add(speed_ladder.row(run, self.formula), name)
        if number:
            raise signals.Stopped(number)

    def missed(self, rung: int, why: str, session: Session | None = None) -> SpeedRow:
        """A row without a speed; model and machine are those of the row before."""
        if self.rows:
            previous = self.rows[-1]
        else:
            assert session is not None
            served = session.served
            root = "" if served.engine.simulated else served.model_root
            base, quantization = speed_ladder.named(root or served.model, session.checkpoint)
            backend = speed_ladder.backend(served.engine.name)
            previous = SpeedRow(base, backend, "", rung, quantization, None, None)
        return replace(
            previous,
            input_length=rung,
            gpu_num=None,
            speed_tok_s=None,
            ttft_ms=None,
            decode_tok_s=None,
            gpu_memory=None,
            note=why,
            formula=self.formula,
            output_length=self.workload.output_len,
        )

    def add(self, row: SpeedRow, run: str = "") -> None:
        self.rows.append(row)
        self.runs.append(run)
        listed = [speed_ladder.json(row, where) for row, where in zip(self.rows, self.runs, strict=True)]
        texts = {f"ladder.{form}": speed_tables.render(self.rows, form) for form in _FILES}
        self.write({**texts, "ladder.json": dumps({"rows": listed}, allow_nan=False)})
        if not self.quiet:
            printed(speed_ladder.line(row), sys.stdout)


def begin(workload: Profile, run_dir: str | None, formula: str | None = None) -> LadderClimb:
    """A climb with a directory of its own for its rows; raises UsageError where there can be none."""
    directory = run_place.create_directory(Path(run_dir or "runs"), "ladder", run_place.now())
    return LadderClimb(workload, directory, formula or TOTAL)

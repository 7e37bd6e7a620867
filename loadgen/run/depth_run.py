"""Depth run: prompt and generation speed of one request after ever more cached tokens, a row each.

The prefix is the same for all requests of a test: the first one puts it into the server's cache, and whether
it was found there is read from each answer.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path

from msgspec.structs import replace

from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report import depth_rows, run_place, speed_ladder
from loadgen.report.depth_rows import GENERATION, PROMPT, DepthRow, DepthTest
from loadgen.report.printing import printed
from loadgen.run import climb, signals
from loadgen.run.climb import Climb
from loadgen.run.session import Session

_FILES = ("md", "csv")


@dataclass
class DepthClimb(Climb[DepthTest, DepthRow]):
    """The tests that are left, and the rows of those that are not."""

    workload: Profile
    directory: Path
    depths: Sequence[int]
    rows: list[DepthRow] = field(default_factory=list)
    left: deque[DepthTest] = field(init=False)

    def __post_init__(self) -> None:
        tests = {PROMPT: self.workload.input_len, GENERATION: self.workload.output_len}
        self.left = deque(
            DepthTest(kind, tokens, depth) for depth in self.depths for kind, tokens in tests.items()
        )

    @property
    def measured(self) -> bool:
        return any(row.tok_s is not None for row in self.rows)

    def tables(self) -> str:
        return depth_rows.render(self.rows, "text")

    def measure(self, session: Session, rung: DepthTest, seed: Seed) -> None:
        climb.check_room(session, rung.need)
        repeats = self.workload.num_prompts or 1
        # At a depth the first request warms up: one of a warm-up would have a prefix of its own.
        update = {
            "input_len": rung.input_len,
            "output_len": rung.output_len,
            "prefix_len": rung.depth,
            "num_prompts": repeats + (rung.depth > 0),
            "num_warmups": 0 if rung.depth else self.workload.num_warmups,
            "name": f"{rung.kind}{rung.tokens}-d{rung.depth}",
        }
        run, name, number = self.ran(session, update, seed)
        self.add(replace(depth_rows.row(run, rung), run=name))
        if number:
            raise signals.Stopped(number)

    def missed(self, rung: DepthTest, why: str, session: Session | None = None) -> DepthRow:
        """A row without a speed; the model is that of the row before."""
        if self.rows:
            before = self.rows[-1]
            model, quantization, backend = before.model, before.quantization, before.backend
        else:
            assert session is not None
            served = session.served
            model, quantization = speed_ladder.named(served.model_root or served.model, session.checkpoint)
            backend = speed_ladder.backend(served.engine.name)
        return DepthRow(model, quantization, backend, str(rung), rung.depth, note=why)

    def add(self, row: DepthRow) -> None:
        self.rows.append(row)
        texts = {f"depth.{form}": depth_rows.render(self.rows, form) for form in _FILES}
        self.write({**texts, "depth.json": dumps(depth_rows.json(self.rows), allow_nan=False)})
        printed(depth_rows.line(row), sys.stdout)


def begin(workload: Profile, run_dir: str | None, depths: Sequence[int]) -> DepthClimb:
    """A climb with a directory of its own for its rows; raises UsageError where there can be none."""
    directory = run_place.create_directory(Path(run_dir or "runs"), "depth", run_place.now())
    return DepthClimb(workload, directory, depths)

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

from loadgen.errors import MeasureError, ServerDied
from loadgen.results import depth_rows, run_directory, run_place, speed_ladder
from loadgen.results.depth_rows import GENERATION, PROMPT, DepthRow, DepthTest
from loadgen.results.printing import printed
from loadgen.session import progress, signals
from loadgen.session.session import Session
from loadgen.workload.plan_inputs import Seed
from loadgen.workload.profile import Profile

_FILES = ("md", "csv")


@dataclass
class DepthClimb:
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
        """Whether any test has a speed."""
        return any(row.tok_s is not None for row in self.rows)

    def on(self, session: Session, seed: Seed) -> None:
        """Measure what is left on a server. A test that cannot be measured is a row with the reason.

        Raises MeasureError where the server has died of one, whose row is kept, and KeyboardInterrupt.
        """
        inside = replace(session, options=replace(session.options, run_dir=str(self.directory)))
        while self.left:
            test = self.left.popleft()
            try:
                self._test(inside, test, seed)
            except MeasureError as error:
                self._add(self._missed(test, error.summary, session))
                if isinstance(error, ServerDied):
                    raise

    def give_up(self, why: str) -> None:
        """Add a row for each test that is left, with the reason."""
        while self.left:
            self._add(self._missed(self.left.popleft(), why))

    def print_tables(self) -> None:
        """Print the table; without rows, remove the directory."""
        if not self.rows:
            run_place.remove_empty(self.directory)
            return
        printed(f"\n{depth_rows.render(self.rows, 'text')}\ntables and runs: {self.directory}", sys.stdout)

    def _test(self, session: Session, test: DepthTest, seed: Seed) -> None:
        if 0 < (limit := session.context_limit) < test.need:
            raise MeasureError(f"needs {test.need} tokens, the context limit is {limit}")
        repeats = self.workload.num_prompts or 1
        # At a depth the first request warms up: one of a warm-up would have a prefix of its own.
        update = {
            "ladder": None,
            "input_len": test.input_len,
            "output_len": test.output_len,
            "prefix_len": test.depth,
            "num_prompts": repeats + (test.depth > 0),
            "num_warmups": 0 if test.depth else self.workload.num_warmups,
            "name": f"{test.kind}{test.tokens}-d{test.depth}",
        }
        run, directory = session.run(self.workload.model_copy(update=update), seed)
        kept = session.keep(run, directory)
        for error in kept.errors:
            progress.warn(error)
        if run.records.failed and not run.facts.interrupted:
            session.check_alive(failed=True)
        self._add(replace(depth_rows.row(run, test), run=directory.name))
        if number := run.facts.signal or kept.signal:
            raise signals.Stopped(number)

    def _missed(self, test: DepthTest, why: str, session: Session | None = None) -> DepthRow:
        """A row without a speed, with the reason; the model is that of the row before."""
        if self.rows:
            before = self.rows[-1]
            model, quantization, backend = before.model, before.quantization, before.backend
        else:
            assert session is not None
            served = session.served
            model, quantization = speed_ladder.named(served.model_root or served.model, session.checkpoint)
            backend = speed_ladder.backend(served.engine.name)
        return DepthRow(model, quantization, backend, str(test), test.depth, note=why)

    def _add(self, row: DepthRow) -> None:
        """Keep a row, write every table again, and print the row."""
        self.rows.append(row)
        texts = {f"depth.{form}": depth_rows.render(self.rows, form) for form in _FILES}
        for name, text in {**texts, "depth.json": dumps(depth_rows.json(self.rows), allow_nan=False)}.items():
            if error := run_directory.write_text(self.directory / name, text):
                progress.warn(error)  # the next test is worth measuring all the same
        printed(depth_rows.line(row), sys.stdout)


def begin(workload: Profile, run_dir: str | None, depths: Sequence[int]) -> DepthClimb:
    """A climb with a directory of its own for its rows; raises UsageError where there can be none."""
    directory = run_place.create_directory(Path(run_dir or "runs"), "depth", run_place.now())
    return DepthClimb(workload, directory, depths)

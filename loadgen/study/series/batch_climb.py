"""Batch climb: speed at each depth with each number of requests at once, a run a batch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from json import dumps
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base.clock import read_wall_clock
from loadgen.base.printing import print_text
from loadgen.base.version import __version__
from loadgen.report.run_directory import Result
from loadgen.run.session import Session
from loadgen.study.series.climb import Climb
from loadgen.study.series.point_runs import MeasuredPoint, Step
from loadgen.study.speed import batch_rows, ladder_rows
from loadgen.study.speed.batch_rows import BatchRow, BatchTest, make_benchy_report

BATCHES = 3  # of each test, without --num-prompts
_REPORT = "llama-benchy.json"


class BatchRung(msgspec.Struct, frozen=True):
    """One batch of a test: its number, from 0, and whether it is the first that the test sends."""

    test: BatchTest
    number: int
    warms_up: bool


@dataclass
class BatchClimb(Climb[BatchRung, BatchRow]):
    """The batches that are left of each depth and concurrency, and a row of each test that was begun.

    At a depth a batch of the contexts alone comes before each batch; no other has the contexts of the two.
    """

    began: datetime = field(default_factory=read_wall_clock)
    ended: Counter[BatchTest] = field(default_factory=Counter)  # batches by test, those without figures too

    name, forms, speed = "depth", ("md", "csv"), "batches"

    def list_rungs(self) -> Iterable[BatchRung]:
        for depth in self.options.depth or ():
            for level in self.options.batch_sizes or ():
                test = BatchTest(self.workload.input_len, self.workload.output_len, depth, level)
                for number in range(self.batches):
                    if depth:
                        yield BatchRung(replace(test, is_context=True), number, number == 0)
                    yield BatchRung(test, number, number == 0 and not depth)

    @property
    def batches(self) -> int:
        """The number of batches of each test: --num-prompts."""
        return self.workload.num_prompts or BATCHES

    def list_changes(self, rung: BatchRung) -> dict[str, Any]:
        """Return the workload of a batch's test, all sent at once; the first batch of a test warms up."""
        warmups = "wave" if rung.warms_up and self.workload.num_warmups else 0
        return {**rung.test.workload, "request_rate": float("inf"), "num_warmups": warmups}

    def measure(self, step: Step[BatchRung], session: Session) -> MeasuredPoint:
        """Measure a batch as any rung, with prompts by its number."""
        self.seed = replace(self.seed, repeat=step.what.number)
        return super().measure(step, session)

    def make_row(self, run: Result, rung: BatchRung, directory: str) -> BatchRow:
        return batch_rows.make_batch_row(run, rung.test, directory)

    def make_missed_row(self, rung: BatchRung, why: str) -> BatchRow:
        """Make a row without a batch; the model is that of the row before, else the session's."""
        if self.rows:
            before = self.rows[-1]
            names = before.model, before.quantization, before.backend, before.served
        else:
            served = self.session.served.model if self.session is not None else ""
            names = *ladder_rows.name_served(self.session), served
        return BatchRow(*names, rung.test, note=why)

    def count_measured(self) -> int:
        return sum(bool(row.batches) for row in self.rows)

    def _add(self, row: BatchRow) -> None:
        """Merge a batch into its test's row, write every table, and print the test as its last batch ends."""
        places = [place for place, known in enumerate(self.rows) if known.test == row.test]
        if places:
            row = self.rows[places[0]] = self.rows[places[0]].merge(row)
        else:
            self.rows.append(row)
        self.ended[row.test] += 1
        self.write_tables()
        if not self.quiet and self.ended[row.test] == self.batches:
            print_text(self.describe(row), sys.stdout)

    def draw(self, form: str) -> str:
        return batch_rows.draw_batches(self.rows, form)

    def describe(self, row: BatchRow) -> str:
        return batch_rows.describe_batch(row)

    def encode_rows(self) -> dict[str, Any]:
        return {"rows": list(map(batch_rows.encode_batch_row, self.rows))}

    def list_tables(self) -> dict[str, str]:
        """Return the tables and, once a batch was measured, llama-benchy's report."""
        if not self.count_measured():
            return super().list_tables()
        report = make_benchy_report(self.rows, self.began, f"loadgen {__version__}")
        return super().list_tables() | {_REPORT: dumps(report, indent=2, allow_nan=False)}

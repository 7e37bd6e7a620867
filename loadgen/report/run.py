"""Run: one measured run as a value, for those who use loadgen from Python, and what --fail-on asks of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from numpy.typing import NDArray

from loadgen.base import files
from loadgen.base.errors import FAIL_CODES, Broken, LoadgenError, UsageError
from loadgen.base.rule import Finding, encode_finding
from loadgen.figures.metrics import Metrics
from loadgen.figures.objectives import ObjectiveEvidence
from loadgen.plan.profile import Profile
from loadgen.report import report, request_rows, run_directory, run_writer
from loadgen.report.run_directory import Result
from loadgen.verdict.verdict import Level

if TYPE_CHECKING:
    import pandas

_PERCENTILES = (90.0, 95.0, 99.0)
Place = str | os.PathLike[str]


class Doubt(msgspec.Struct, frozen=True):
    """One reason why a figure may not be true, with the figures that show it; docs/validity.md lists all."""

    name: str
    severity: Literal["note", "suspect", "invalid"]
    evidence: str
    condition: str
    remedy: str


class Verdict(msgspec.Struct, frozen=True):
    """Whether a run's figures can be believed: the worst severity among its doubts decides.

    UNCHECKED is of published figures alone, where there was nothing to compare them with.
    """

    status: Literal["VALID", "SUSPECT", "INVALID", "UNCHECKED"]
    doubts: tuple[Doubt, ...]  # worst first; a note changes nothing
    not_checked: tuple[str, ...] = ()  # the checks that matter and could not be made, as "roofline"

    @classmethod
    def from_findings(
        cls, level: Level, findings: Sequence[Finding], not_checked: tuple[str, ...] = ()
    ) -> Verdict:
        """Make the public verdict of a level and its findings, which are already sorted, gravest first."""
        doubts = tuple(msgspec.convert(encode_finding(finding), Doubt) for finding in findings)
        return cls(level.value, doubts, not_checked)

    def __str__(self) -> str:
        return f"{self.status}: {', '.join(doubt.name for doubt in self.doubts)}".rstrip(": ")


class Run:
    """One measured run: its figures, its verdict and its requests. `bench` and `load` make it.

    `directory` is where it lies on disk, None for one that was not written. `warnings` are lines on what
    could not be written.
    """

    def __init__(self, result: Result, directory: Path | None = None, warnings: Sequence[str] = ()) -> None:
        self.result = result  # facts and records, whose form may change between versions
        self.directory = directory
        self.warnings = tuple(warnings)

    def __repr__(self) -> str:
        facts, metrics = self.result.facts, self.metrics
        tokens = f"{metrics.output_throughput_per_s:.4g} tok/s"
        return (
            f"<loadgen.Run {facts.profile.name or 'bench'} on {facts.server.model}: {metrics.completed} of "
            f"{facts.own_requests} requests, {tokens}, {self.verdict.status}>"
        )

    def _repr_html_(self) -> str:
        """Render the run for a notebook's cell: the block, and the short report's lines under it."""
        return f"<pre>{escape(report.render_short(self.result, str(self.directory or '')))}</pre>"

    @cached_property
    def metrics(self) -> Metrics:
        """Every figure, latencies in milliseconds with mean, median, standard deviation, P90, P95 and P99."""
        return self.result.measure_ranks(dict.fromkeys((*_PERCENTILES, *self.result.ask.metric_percentiles)))

    @cached_property
    def verdict(self) -> Verdict:
        """VALID, SUSPECT or INVALID, and the doubts that were found."""
        judged = self.result.verdict
        return Verdict.from_findings(judged.level, judged.findings, judged.not_checked)

    @property
    def objectives(self) -> tuple[ObjectiveEvidence, ...]:
        """The evidence for each objective of `slo`: its `standing` is meets, fails or not shown."""
        return self.result.objectives

    @property
    def profile(self) -> Profile:
        """The workload, as it was measured."""
        return self.result.facts.profile

    @property
    def seed(self) -> int:
        """The seed of prompts and arrival times: with it the same requests are sent again."""
        return self.result.facts.seed

    @property
    def partial(self) -> str:
        """Why the run ended before its plan; "" where every request was sent and ended."""
        return self.result.facts.partial

    @property
    def simulated(self) -> bool:
        """Whether the embedded engine answered: then no model ran."""
        return bool(self.result.facts.server.simulated)

    def requests(self) -> dict[str, NDArray[Any]]:
        """The requests in plan order as columns, one value a request: those of `loadgen export`.

        Times are nanoseconds of CLOCK_MONOTONIC. Numbers are int64 (`tpot_ns`: float64), -1 where there is
        none; `ok` is bool, texts are object arrays.
        """
        return request_rows.list_arrays(self.result)

    def to_pandas(self) -> pandas.DataFrame:
        """The requests as a DataFrame, a row each, missing values as NA.

        Raises LoadgenError without pandas: in the clone, .venv/bin/pip install '.[pandas]'.
        """
        return request_rows.make_frame(self.result)

    def report(self, *, explain: bool = False, layout: str | None = None) -> str:
        """The whole report, as `loadgen report` prints it; `explain` adds each doubt's condition and remedy.

        `layout` is the block's: vllm-0.32 (default) or sglang; raises LoadgenError on another.
        """
        return report.render_report(self.result, explain, layout)

    def json(self, *, detailed: bool = False) -> dict[str, Any]:
        """The result under the keys of vLLM's result file; `detailed` adds every request."""
        return run_writer.encode_run(self.result, detailed)

    def save(self, directory: Place) -> Path:
        """Write the run's directory, which `load`, `loadgen report` and `loadgen compare` read.

        It is made where it is missing. Raises LoadgenError where it holds a run already or cannot be written.
        """
        place = Path(directory)
        files.create_place(place, "directory")
        if run_directory.is_run(place):
            raise UsageError(f"{place} holds a run already: choose another directory")
        broken: list[Broken] = []
        errors = run_writer.save(self.result, place, {run_directory.REPORT: self.report() + "\n"}, broken)
        errors += [f"{part.name}: {part.why}" for part in broken]
        if errors:
            raise LoadgenError("; ".join(errors))
        self.directory = place
        return place


_HOLDS: Mapping[str, Callable[[Result], bool]] = {
    "invalid": lambda run: run.verdict.level is Level.INVALID,
    "failures": lambda run: bool(run.records.failed),
    "suspect": lambda run: run.verdict.level is not Level.VALID,
    "slo": lambda run: not all(evidence.objective.holds(evidence.value) for evidence in run.objectives),
}


def find_failing(run: Result, asked: Collection[str]) -> set[str]:
    """Find which of the conditions `asked`, names in FAIL_CODES, hold for a run."""
    return {name for name in FAIL_CODES if name in asked and _HOLDS[name](run)}


def check_fail_on(asked: Collection[str], workloads: Iterable[Profile]) -> None:
    """Raise UsageError for a ladder if anything is asked, and for `slo` without an objective."""
    for workload in workloads if asked else ():
        if workload.ladder is not None:
            raise UsageError("--fail-on judges runs under one load, and a ladder has many: leave it out")
        if "slo" in asked and not workload.slo:
            raise UsageError("--fail-on slo: no objective is given: give --slo, as --slo 'ttft p90 < 500ms'")

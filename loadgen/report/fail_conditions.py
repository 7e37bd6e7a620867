"""Fail conditions: what `--fail-on` may name, and which of them hold for a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from loadgen.base.errors import FAIL_CODES, UsageError
from loadgen.plan.profile import Profile
from loadgen.report.run_directory import Result
from loadgen.verdict.verdict import Level

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

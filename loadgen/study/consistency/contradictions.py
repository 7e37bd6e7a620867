"""Contradictions: checks of a run's own figures, of any client, that no measurement fails."""

from __future__ import annotations

from msgspec.structs import replace

from loadgen.base import rule
from loadgen.base.rule import Rule
from loadgen.study.consistency import self_consistency, value_checks
from loadgen.study.consistency.subject import AuditedRun
from loadgen.study.run_summary import OURS, Reported
from loadgen.verdict.verdict import Level

CONTRADICTIONS: tuple[Rule[AuditedRun], ...] = (
    value_checks.impossible_value,
    self_consistency.figures_disagree,
    self_consistency.counts_disagree,
    self_consistency.impossible_order,
    self_consistency.longer_than_the_run,
    self_consistency.beyond_schedule,
    self_consistency.nothing_measured,
    self_consistency.many_failures,
)


def judge(run: Reported) -> Reported:
    """The run, INVALID where its figures contradict one another; our own has a verdict of every arrival."""
    if run.told_by == OURS:
        return run
    found = [finding.rule.code for finding in rule.findings(CONTRADICTIONS, AuditedRun(run))]
    doubts = tuple(dict.fromkeys((*found, *run.doubts)))
    return replace(run, level=Level.INVALID.value, doubts=doubts) if found else run

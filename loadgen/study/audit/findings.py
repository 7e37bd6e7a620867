"""Findings: the closed set of an audit's checks, and what they find in each of some published runs.

A check needs no more than what is published. Those whose question our own verdict answers better, from every
arrival, are not applied to our own runs (`OF_OURS`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadgen.base import rule
from loadgen.base.rule import Finding, Rule, Source
from loadgen.facts.ceiling import Ceiling, Machine
from loadgen.features.roofline import bound, machines, models
from loadgen.study.audit import audit_checks
from loadgen.study.consistency import self_consistency
from loadgen.study.consistency.ceilings import Ceilings
from loadgen.study.consistency.self_consistency import CONTRADICTIONS
from loadgen.study.consistency.subject import AuditedRun, group_pages
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import DOUBTS, Level

_BY_VERDICT = "found by the run's own verdict; its directory has the figures"


class RunFindings(msgspec.Struct, frozen=True):
    """The findings on one run, worst first, and why a check was not made."""

    reported: Reported
    findings: tuple[Finding, ...]
    ceiling: Ceiling | None = None
    no_ceiling: str = ""  # why there is no roofline, and what to pass
    unchecked: tuple[str, ...] = ()  # what could not be checked: roofline, relations
    no_machine: bool = False  # the roofline lacks one
    no_shape: bool = False  # it lacks the model's

    @property
    def level(self) -> Level:
        """The level by its findings, or its own report if graver; UNCHECKED if VALID with no check made."""
        level = Level.from_findings(self.findings)
        if self.by_its_report:
            return Level(self.reported.level)
        return Level.UNCHECKED if level is Level.VALID and len(self.unchecked) == len(CHECKABLE) else level

    @property
    def by_its_report(self) -> bool:
        """Whether the verdict in a pasted report is graver than what the findings give."""
        graver = {Level.VALID: (Level.SUSPECT, Level.INVALID), Level.SUSPECT: (Level.INVALID,)}
        return self.reported.level in graver.get(Level.from_findings(self.findings), ())

    @property
    def verdict(self) -> str:
        """The level; of a VALID run with what was not checked, as in VALID (not checked: roofline)."""
        if self.level is not Level.VALID or not self.unchecked:
            return self.level.value
        return f"{self.level} (not checked: {', '.join(self.unchecked)})"

    @property
    def roofline(self) -> float | None:
        """The share of the roofline that decoding reached (prefill in a row of it alone); None if unknown."""
        return audit_checks.compute_decode_share(self.reported, self.ceiling)


def audit_runs(
    reported: Sequence[Reported], machine: Machine | None, config: Path | None, model: str = ""
) -> list[RunFindings]:
    """Apply every check that the data allow to each run, next to the others of its page; return the findings.

    `machine` overrides what a run reports of its own; None: as the run names it, else no roofline. `model` is
    used for every run's name; `config` is the shape of the models that the table does not know, of all where
    they are one model.
    """
    ceilings = Ceilings(machine, model, "--model-config, or --model NAME")
    names = (model or run.checkpoint for run in reported)
    config_of_all = (
        len({name if (known := models.find_model(name)) is None else known.key for name in names}) == 1
    )
    audits = []
    for run, page in zip(reported, group_pages(reported), strict=True):
        shape = config if config_of_all or models.find_architecture(model or run.checkpoint) is None else None
        ceiling, why = ceilings.find(run, shape)
        audited = AuditedRun(run, page, ceiling)
        lacks = _list_lacks(run, machine, model, shape) if ceiling is None else (False, False)
        audits.append(
            RunFindings(run, _collect_findings(audited), ceiling, why, list_unchecked(audited), *lacks)
        )
    return audits


def _list_lacks(run: Reported, machine: Machine | None, model: str, shape: Path | None) -> tuple[bool, bool]:
    """Return whether a run without a roofline lacks a machine, and whether it lacks the model's shape.

    Of a simulated run without a `machine` neither is needed.
    """
    if run.simulated and machine is None:
        return False, False
    name = model or run.checkpoint
    known = (
        shape is not None
        or models.find_architecture(name) is not None
        or os.path.exists(os.path.expanduser(name))
    )
    return machines.settle_machine(machine, run.machine) is None, not known


def _collect_findings(audited: AuditedRun) -> tuple[Finding, ...]:
    """Join the findings of a run's own verdict with those of the audit's checks; worst first.

    Of a run of ours few checks are applied. A check is not where the verdict has a doubt of its name or of
    its question.
    """
    run = audited.reported.run
    if run is not None:
        own = list(run.verdict.findings)
    else:
        own = [Finding(doubt, _BY_VERDICT) for doubt in DOUBTS if doubt.code in audited.reported.doubts]
    codes = {finding.rule.code for finding in own}
    no_roofline = run is None or run.facts.ceiling is None
    checks = (
        check
        for check in CHECKS
        if (run is None or check.code in OF_OURS or (check.source is Source.ROOFLINE and no_roofline))
        and not {check.code, SAME_AS.get(check.code)} & codes
    )
    return tuple(rule.sort_by_severity([*own, *rule.apply_rules(checks, audited)]))


CHECKS: tuple[Rule[AuditedRun], ...] = (
    # Figures that are impossible.
    self_consistency.impossible_value,
    audit_checks.beyond_roofline,
    *(each for each in CONTRADICTIONS if each is not self_consistency.impossible_value),
    # Figures that are not what they are called.
    audit_checks.warm_cache,
    audit_checks.beyond_peak,
    audit_checks.above_roofline,
    audit_checks.draft_not_stated,
    audit_checks.draft_not_seen,
    audit_checks.slow_kernel,
    self_consistency.not_a_number,
    self_consistency.unstreamed_answers,
    self_consistency.failures,
    audit_checks.duplicate,
    self_consistency.single_request,
    # Another load than that of the other runs.
    audit_checks.answers_short,
    audit_checks.prompts_off,
    audit_checks.prompts_differ,
    audit_checks.concurrency_differs,
    self_consistency.concurrency_not_held,
    self_consistency.tokens_recounted,
    # Notes.
    audit_checks.requests_differ,
    audit_checks.known_prompts,
    audit_checks.nine_tenths,
    self_consistency.thin_percentiles,
    self_consistency.peak_below_mean,
    self_consistency.peak_over_limit,
    self_consistency.gaps_are_not_tokens,
    self_consistency.bursts,
    self_consistency.client_untold,
)
OF_OURS = frozenset({"warm-cache", "duplicate", "requests-differ"})  # applied to our own runs too
SAME_AS = {"warm-cache": "prefix-cache"}  # a doubt of our verdict: where it holds, the check is not repeated


ROOFLINE, RELATIONS = CHECKABLE = ("roofline", "relations")


def list_unchecked(run: AuditedRun) -> tuple[str, ...]:
    """List what could not be checked in a run: the roofline, the relations between its figures, or both.

    A run of ours was judged from every arrival: only its roofline may be lacking.
    """
    lacking = [] if _has_roofline(run) else [ROOFLINE]
    if run.reported.run is None and not self_consistency.has_relations(run):
        lacking.append(RELATIONS)
    return tuple(lacking)


def _has_roofline(run: AuditedRun) -> bool:
    """Whether decoding or prefill could be compared with what the machine does at best."""
    if run.ceiling is None:
        return False
    figures, load = run.reported.figures, run.reported.load
    decoded = bound.compare_decode(run.ceiling, figures, load)
    return decoded is not None or bound.measure_prefill_excess(run.ceiling, figures, load) is not None

"""Findings: what an audit finds in each of the runs that somebody reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from loadgen.analysis.audit import roofline_checks
from loadgen.analysis.audit.checks import CHECKS, ROOFLINE, Check
from loadgen.analysis.audit.subject import AuditedRun, pages
from loadgen.analysis.run_summary import Reported
from loadgen.errors import UsageError
from loadgen.roofline import bound, machines, models
from loadgen.roofline.ceiling import Ceiling
from loadgen.roofline.machine import Machine
from loadgen.validity.doubts import DOUBTS, Doubt, Severity
from loadgen.validity.verdict import Level

_TOLD = "found by the run's own verdict; its directory has the figures"
_LEVELS = {Severity.NOTE: Level.VALID, Severity.SUSPECT: Level.SUSPECT, Severity.INVALID: Level.INVALID}


class Finding(msgspec.Struct, frozen=True):
    """A doubt that holds, with the figures that show it."""

    doubt: Check | Doubt  # Doubt: of our own verdict
    evidence: str


class RunFindings(msgspec.Struct, frozen=True):
    """What was found in one run, worst first."""

    reported: Reported
    found: tuple[Finding, ...]
    ceiling: Ceiling | None = None
    no_ceiling: str = ""  # why there is no roofline, and what to pass

    @property
    def level(self) -> Level:
        """The worst severity as a word."""
        return _LEVELS[max((one.doubt.severity for one in self.found), default=Severity.NOTE)]

    @property
    def roofline(self) -> float | None:
        """The share of the ceiling that decoding reached."""
        return roofline_checks.share(self.reported, self.ceiling)


def audit(
    reported: Sequence[Reported], machine: Machine | None, config: Path | None, model: str = ""
) -> list[RunFindings]:
    """Every doubt that the data allow, on each run beside the others of its page.

    `machine` stands over what a run says of its own; None: as the run names it, else no roofline. `model` is
    read for every run's name; `config` is the shape of the models that the table does not know, of all where
    they are one model.
    """
    known: dict[tuple[str, str], Ceiling | str] = {}
    config_of_all = len({_base(model or one.name) for one in reported}) == 1
    findings = []
    for one, page in zip(reported, pages(reported), strict=True):
        shape = config if config_of_all or models.named(model or one.name) is None else None
        ceiling, why = _ceiling(one, machine, shape, model, known)
        found = _found(AuditedRun(one, page, ceiling))
        findings.append(RunFindings(one, found, ceiling, why))
    return findings


def _found(subject: AuditedRun) -> tuple[Finding, ...]:
    """What our own verdict found, where there is one, then what the audit adds to it; worst first."""
    run = subject.reported.run
    found = list(_of_its_verdict(subject.reported))
    told = {one.doubt.name for one in found}
    judged = run is not None and run.facts.ceiling is not None
    for check in CHECKS:
        new = check.needs == ROOFLINE and not judged
        if (run is None or check.of_ours or new) and not {check.name, check.like} & told:
            found += [Finding(check, evidence)] if (evidence := check.find(subject)) else []
    return tuple(sorted(found, key=lambda one: -one.doubt.severity))


def _of_its_verdict(reported: Reported) -> Iterator[Finding]:
    """What our own verdict found: with its figures where the arrivals are there, else by name."""
    if reported.run is not None:
        yield from (Finding(one.doubt, one.evidence) for one in reported.run.verdict.found)
        return
    yield from (Finding(doubt, _TOLD) for doubt in DOUBTS if doubt.name in reported.doubts)


def _base(name: str) -> str:
    found = models.find(name)
    return name if found is None else found.key


def _ceiling(
    one: Reported,
    machine: Machine | None,
    config: Path | None,
    model: str,
    known: dict[tuple[str, str], Ceiling | str],
) -> tuple[Ceiling | None, str]:
    """The ceiling, or None and why; a run's own weights are better than any table's."""
    if one.ceiling is not None and not model:
        on = machines.meant(machine, one.machine, one.ceiling.machine)
        return one.ceiling.model_copy(update={"machine": on}), ""
    at = (one.name, one.machine)
    if at not in known:
        known[at] = _looked_up(one, machine, config, model)
    made = known[at]
    return (made, "") if isinstance(made, Ceiling) else (None, made)


def _looked_up(one: Reported, machine: Machine | None, config: Path | None, model: str) -> Ceiling | str:
    if machine is None and one.run is not None and one.run.facts.server.simulated:
        return "no model runs in a simulation"
    on = machines.meant(machine, one.machine)
    if on is None:
        told = f"the machine {one.machine!r} is unknown" if one.machine else "no machine is named"
        return f"{told}: pass --hardware KEY, as jetson-thor, or --bandwidth GB/s"
    stored = models.suffix(one.name) if model and not models.suffix(model) else ""
    try:
        return bound.ceiling(model or one.name, on, quantization=stored, config=config)
    except UsageError as error:
        return str(error).replace(
            "pass --model-config, its config.json", "pass --model-config, or --model NAME"
        )

"""Verdict: VALID, SUSPECT or INVALID, which is what the worst doubt found makes of a run."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import asdict

from loadgen.validity.doubts import DOUBTS, Doubt, Severity
from loadgen.validity.evidence import EvidenceSource, RunEvidence
from loadgen.validity.sections import Broken, guarded

_SHOWN = 2  # doubts told whole under the block


class Level(StrEnum):
    """What is said of a run."""

    VALID = "VALID"
    SUSPECT = "SUSPECT"
    INVALID = "INVALID"


_LEVELS = {Severity.NOTE: Level.VALID, Severity.SUSPECT: Level.SUSPECT, Severity.INVALID: Level.INVALID}


class Finding(msgspec.Struct, frozen=True):
    """A doubt that holds, with the figures that show it."""

    doubt: Doubt
    evidence: str


class Verdict(msgspec.Struct, frozen=True):
    """What was found, worst first, and what could not be looked at."""

    found: tuple[Finding, ...]
    blind: tuple[Doubt, ...]  # not found, for want of their source
    failed: tuple[Broken, ...] = ()  # not judged: these raised

    @property
    def level(self) -> Level:
        """The worst severity as a word; a run that could not be judged in full is SUSPECT at least."""
        worst = max((one.doubt.severity for one in self.found), default=Severity.NOTE)
        return _LEVELS[max(worst, Severity.SUSPECT) if self.failed else worst]

    @property
    def looked_at(self) -> int:
        """How many doubts were judged, found or not."""
        failed = {one.name for one in self.failed}
        return len(DOUBTS) - len(self.blind) - sum(doubt.name in failed for doubt in DOUBTS)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What the level rests on: the grave doubts by name, and that some could not be judged."""
        return (*(one.doubt.name for one in self.grave), *("not judged in full",) * bool(self.failed))

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What was found and changes nothing."""
        return tuple(one for one in self.found if one.doubt.severity is Severity.NOTE)

    @property
    def grave(self) -> tuple[Finding, ...]:
        """What was found and decides."""
        return tuple(one for one in self.found if one.doubt.severity is not Severity.NOTE)


def judge(case: RunEvidence) -> Verdict:
    """Look at every doubt; one that raises is not judged, and costs no other."""
    failed: list[Broken] = []
    said = {one.name: guarded(one.name, partial(one.find, case), "", failed) for one in DOUBTS}
    held = [Finding(doubt, said[doubt.name]) for doubt in DOUBTS if said[doubt.name]]
    judged = guarded("sources", lambda: case.sources, set(EvidenceSource), failed)
    looked = {one.doubt.name for one in held} | {one.name for one in failed}
    return Verdict(
        found=tuple(sorted(held, key=lambda one: -one.doubt.severity)),
        blind=tuple(d for d in DOUBTS if d.name not in looked and d.source not in judged),
        failed=tuple(failed),
    )


def lines(verdict: Verdict) -> list[str]:
    """What stands under the block, each line still to be wrapped: the gravest whole, the rest by name."""
    whole = [f"{one.evidence}; {one.doubt.remedy}" for one in verdict.grave[:_SHOWN]]
    also = ", ".join(one.doubt.name for one in verdict.grave[_SHOWN:])
    notes = ", ".join(one.doubt.name for one in verdict.notes)
    first = f"verdict: {verdict.level}"
    named = [f"also {also}"] * bool(also) + [f"notes: {notes}"] * bool(notes)
    named += ["--explain tells"] * bool(named)
    unjudged = list(_unjudged(verdict))
    if not whole:
        return ["; ".join([first, *named]), *unjudged]
    rest = ["; ".join(named)] * bool(named)
    return [f"{first}: {whole[0]}", *(f"and: {one}" for one in whole[1:]), *rest, *unjudged]


def _unjudged(verdict: Verdict) -> Iterator[str]:
    """A line for each exception that kept doubts from being judged: our fault, and no doubt about the run."""
    for why in dict.fromkeys(one.why for one in verdict.failed):
        names = ", ".join(one.name for one in verdict.failed if one.why == why)
        yield f"not judged: {names} raised {why}; please report it"


def explain(verdict: Verdict) -> list[str]:
    """Every doubt found, with evidence, condition and remedy; then what was not found or could not be."""
    said = [f"verdict: {verdict.level}"]
    for one in verdict.found:
        doubt = one.doubt
        said += [
            f"{doubt.severity.name.lower()}: {doubt.name}: {one.evidence}",
            f"  condition: {doubt.condition}",
            f"  remedy: {doubt.remedy}",
        ]
    said += _unjudged(verdict)
    absent = verdict.looked_at - len(verdict.found)
    said.append(f"looked for and not found: {absent} of {len(DOUBTS)} doubts (docs/validity.md)")
    for source in EvidenceSource:
        names = ", ".join(doubt.name for doubt in verdict.blind if doubt.source is source)
        if names:
            said.append(f"not looked for, without {source}: {names}")
    return said


def json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as it stands in the result."""
    return {
        "level": verdict.level.value,
        "doubts": [
            {
                "name": one.doubt.name,
                "severity": one.doubt.severity.name.lower(),
                "evidence": one.evidence,
                "condition": one.doubt.condition,
                "remedy": one.doubt.remedy,
            }
            for one in verdict.found
        ],
        "looked_at": verdict.looked_at,
        "not_looked_at": [doubt.name for doubt in verdict.blind],
        "not_judged": [asdict(one) for one in verdict.failed],
    }


def table() -> str:
    """Every doubt as Markdown, gravest first, as docs/validity.md has it."""
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    for severity in sorted(Severity, reverse=True):
        yield f"## {severity.name.capitalize()}\n"
        yield "| doubt | condition | judged by | remedy |"
        yield "| --- | --- | --- | --- |"
        for doubt in (one for one in DOUBTS if one.severity is severity):
            yield f"| `{doubt.name}` | {doubt.condition} | {doubt.source} | {doubt.remedy} |"
        yield ""

"""Rule: one thing that can be wrong, how it is found, and what to do about it.

Doubts judge a run of ours, checks anyone's published figures, comparability two runs side by side: each is a
closed set of rules, found by one engine and shown by one renderer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

Evidence = str  # the figures that show that a rule holds, in one line for people; None where it does not hold
Judged = TypeVar("Judged")
Find = Callable[[Judged], Evidence | None]


class Severity(IntEnum):
    """The effect of a finding on the verdict; the gravest finding of a run decides."""

    NOTE = 0  # good to know, changes nothing
    SUSPECT = 1  # a figure may not be what it is called
    INVALID = 2  # the run does not measure what it was made to measure
    MARKED = 3  # of two runs: compared, and the difference is shown
    REFUSED = 4  # of two runs: not compared

    @property
    def word(self) -> str:
        """The severity as reports and JSON have it."""
        return self.name.lower()


class Source(StrEnum):
    """The data that a rule needs: the run alone, the server's counters, a self-test, …"""

    RUN = "the run alone"
    COUNTERS = "the server's /metrics"
    GAUGES = "samples of the server's gauges"
    SELFTEST = "a self-test of this client"
    ROOFLINE = "a roofline"
    PAGE = "other runs of the page"


class Origin(StrEnum):
    """The cause of a finding, as a search for a limit distinguishes it: this client, the load, or other."""

    CLIENT = "client"  # or its machine, or the load was not sent: the run shows nothing of the server
    # Other programs on its machine: times are at most too long; arrivals read late: those from sending are.
    # What is met all the same is met.
    MACHINE = "machine"
    READING = "reading"
    LOAD = "load"  # the server did not stand it
    OTHER = "other"


class Rule(msgspec.Struct, Generic[Judged], frozen=True):
    """One thing that can be wrong: a function that finds evidence of it, its code, condition and remedy."""

    code: str
    severity: Severity
    find: Find[Judged]
    condition: str  # when it holds, with its thresholds
    remedy: str
    source: Source = Source.RUN
    origin: Origin = Origin.OTHER


class Finding(msgspec.Struct, frozen=True):
    """A rule that applies to what was judged, and the sentence with figures that shows it."""

    rule: Rule[Any]
    evidence: Evidence


def rule(
    severity: Severity,
    code: str,
    condition: str,
    remedy: str,
    source: Source = Source.RUN,
    origin: Origin = Origin.OTHER,
) -> Callable[[Find[Judged]], Rule[Judged]]:
    """Make a decorator that turns a function from evidence to a sentence (or None) into a Rule."""
    return lambda find: Rule(code, severity, find, condition, remedy, source, origin)


note, suspect, invalid, marked, refused = (partial(rule, severity) for severity in Severity)


def apply_rules(rules: Iterable[Rule[Judged]], judged: Judged) -> list[Finding]:
    """Apply each rule to what is judged; return the findings, gravest first, else in the rules' order."""
    held = ((each, each.find(judged)) for each in rules)
    return sort_by_severity(Finding(each, evidence) for each, evidence in held if evidence is not None)


def sort_by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings, gravest first; equally grave ones keep their order."""
    return sorted(findings, key=lambda finding: -finding.rule.severity)


def join_evidence(parts: Iterable[Evidence | None]) -> Evidence | None:
    """Join several sentences of evidence by "; "; None if there is none."""
    return "; ".join(filter(None, parts)) or None


def encode_finding(finding: Finding) -> dict[str, str]:
    """Encode a finding as the JSON object that results and audits store."""
    rule = finding.rule
    return {
        "name": rule.code,
        "severity": rule.severity.word,
        "evidence": finding.evidence,
        "condition": rule.condition,
        "remedy": rule.remedy,
    }

"""Doubt: one thing that can be wrong with a run, its severity, and how it is found."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import msgspec

from loadgen.validity.evidence import EvidenceSource, RunEvidence


class Severity(IntEnum):
    """What a doubt does to the verdict; the worst one decides."""

    NOTE = 0  # good to know, changes nothing
    SUSPECT = 1  # a figure may not be what it is called
    INVALID = 2  # the run does not say what it was made to say


class Doubt(msgspec.Struct, frozen=True):
    """One thing that can be wrong; `find` gives the evidence with its figures, "" where there is none."""

    name: str
    severity: Severity
    find: Callable[[RunEvidence], str]
    condition: str
    remedy: str
    source: EvidenceSource = EvidenceSource.RECORDS


NOTE, SUSPECT, INVALID = Severity.NOTE, Severity.SUSPECT, Severity.INVALID

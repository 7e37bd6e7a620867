"""Proof: one run, from its files: whether what it states is what its arrivals give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.rule import Severity
from loadgen.base.untrusted import NOT_JSON, read_file_bytes
from loadgen.figures.metrics import DEFINITIONS_VERSION
from loadgen.report import run_directory
from loadgen.report.result_file import OURS
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT, Result
from loadgen.study.audit.findings import audit_runs
from loadgen.study.bundle.manifest import LARGEST_RESULT
from loadgen.study.run_summary import summarise_run
from loadgen.study.verify.held_figures import (
    OF_ARRIVALS,
    Difference,
    Held,
    hold_copies,
    hold_lengths,
    hold_report,
    hold_result,
    is_of_this_version,
)

_MOST_REPORT = 4 << 20
# What a stranger's file can make of a computation: it costs the proof.
DAMAGE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, OSError)


class Proof(msgspec.Struct, frozen=True):
    """What became of one run, or of a series' record: what was held to arrivals, what differs, what could not
    be checked, and what the audit found that the run's own verdict has not."""

    place: str
    values: int = 0
    differences: tuple[Difference, ...] = ()
    unchecked: tuple[str, ...] = ()
    verdict: str = ""
    requests: int = 0
    audit: tuple[str, ...] = ()
    source: str = OF_ARRIVALS  # of what was found

    @property
    def proven(self) -> bool:
        """Whether everything was checked, and is as the arrivals give it."""
        return not self.differences and not self.unchecked


def prove_run(directory: Path, place: str) -> Proof:
    """Compute everything that a run states again from its arrivals, and compare.

    Raises UsageError if there is no finished run, or it is damaged.
    """
    try:
        return _prove_run(directory, place)
    except UsageError as error:
        if str(error).startswith(tuple(f"{directory}{end}" for end in "/: ")):
            raise
        raise UsageError(f"{directory} is damaged: {error}") from None  # a setting of it, as of a flag
    except DAMAGE as error:
        raise UsageError(f"{directory} is damaged: {' '.join(str(error).split())[:200]}") from None


def _prove_run(directory: Path, place: str) -> Proof:
    """Do what `prove_run` does; may raise any of DAMAGE."""
    if not (directory / ARRIVALS).is_file():
        return Proof(place, unchecked=(f"it has no {ARRIVALS}: nothing proves its figures",))
    stored = read_stored(directory / RESULT)
    run = run_directory.load(directory)
    version = stored[OURS].get("definitions_version")
    if version != DEFINITIONS_VERSION:
        why = (
            f"its figures have definitions {version}, this loadgen {DEFINITIONS_VERSION}: use one with those"
        )
        return Proof(place, unchecked=(why,), requests=len(run.records))
    held = Held()
    hold_result(stored, run, held)
    hold_copies(run, held)
    hold_lengths(run, held)
    if run.samples.error:
        held.unchecked.append(run.samples.error)
    same = is_of_this_version(stored, run)
    if (printed := directory / REPORT).is_file():
        text = read_file_bytes(printed, _MOST_REPORT).decode("utf-8", "replace")
        hold_report(text, run, same, held)
    if not same:
        by = run.facts.environment.get("loadgen", "an unknown version")
        held.unchecked = [f"{each} (written by loadgen {by})" for each in held.unchecked]
    found = tuple(_list_audit(directory, run))
    return Proof(
        place, held.values, tuple(held.differences), tuple(held.unchecked), run.verdict.level.value,
        len(run.records), found,
    )  # fmt: skip


def read_stored(path: Path) -> dict[str, Any]:
    """Read a stored result; raises UsageError if there is none, or it is damaged."""
    try:
        stored: dict[str, Any] = json.loads(read_file_bytes(path, LARGEST_RESULT))
        dict(stored[OURS])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (*NOT_JSON, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {str(error)[:100]}") from None
    return stored


def _list_audit(directory: Path, run: Result) -> Iterator[str]:
    """Yield what the audit's checks find of a run beyond its verdict, notes left out."""
    own = {finding.rule.code for finding in run.verdict.findings}
    for audited in audit_runs([summarise_run(directory, run)], None, None):
        for finding in audited.findings:
            if finding.rule.code not in own and finding.rule.severity is not Severity.NOTE:
                yield f"{finding.rule.code}: {finding.evidence}"

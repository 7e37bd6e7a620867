"""Proof: one run, from its files: whether what it states is what its arrivals give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.rule import Severity
from loadgen.base.untrusted import NOT_JSON, read_file_bytes
from loadgen.report import run_directory
from loadgen.report.result_file import OURS
from loadgen.report.run_directory import ARRIVALS, REPORT, RESULT, Result
from loadgen.server import sample_file
from loadgen.server.sample_file import SAMPLES
from loadgen.study.audit.findings import audit_runs
from loadgen.study.bundle.manifest import LARGEST_RESULT
from loadgen.study.importers.clients.loadgen_runs import CAMPAIGN, CELLS, FAILED
from loadgen.study.run_summary import summarise_run
from loadgen.study.verify.held_figures import (
    OF_ARRIVALS,
    Difference,
    Held,
    excuse_version,
    hold_archive,
    hold_copies,
    hold_document,
    hold_lengths,
    hold_report,
)

_MOST_REPORT = 4 << 20
_DEEPEST = 4  # folders of a cell, from its run to the campaign's
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


def prove_run(directory: Path, place: str, root: Path | None = None) -> Proof:
    """Compute everything that a run states again from its arrivals, and compare.

    The cell of a campaign's run is unchecked unless the campaign's directory is `root` or lies below it.
    Raises UsageError if there is no finished run, or it is damaged.
    """
    try:
        return _prove_run(directory, place, root or directory)
    except UsageError as error:
        if str(error).startswith(tuple(f"{directory}{end}" for end in "/: ")):
            raise
        raise UsageError(f"{directory} is damaged: {error}") from None  # a setting of it, as of a flag
    except DAMAGE as error:
        raise UsageError(f"{directory} is damaged: {' '.join(str(error).split())[:200]}") from None


def _prove_run(directory: Path, place: str, root: Path) -> Proof:
    """Do what `prove_run` does; may raise any of DAMAGE."""
    if not (directory / ARRIVALS).is_file():
        return Proof(place, unchecked=(f"it has no {ARRIVALS}: nothing proves its figures",))
    raw = read_stored(directory / RESULT)
    run, held = run_directory.load(directory), Held()
    hold_document(raw, json.dumps(run.json(), allow_nan=False).encode(), RESULT, held)
    hold_copies(run, held)
    hold_lengths(run, held)
    if (printed := directory / REPORT).is_file():
        hold_report(read_file_bytes(printed, _MOST_REPORT), run, held)
    else:
        held.unchecked.append(f"it has no {REPORT}: its printed lines are not here")
    hold_archive(directory / ARRIVALS, run.records.save, held)
    if run.samples.error:
        held.unchecked.append(run.samples.error)
    elif run.samples.series:
        hold_archive(directory / SAMPLES, partial(sample_file.save, run.samples), held)
    if run.facts.cell is not None and not _is_in_campaign(directory, root):
        held.unchecked.append(f"that it is of {run.facts.cell.arm}: there is no {CAMPAIGN} of it here")
    definitions = json.loads(raw)[OURS].get("definitions_version")
    excuse_version(run.facts.environment.get("loadgen"), definitions, held)
    found = tuple(_list_audit(directory, run))
    return Proof(
        place, held.values, tuple(held.differences), tuple(held.unchecked), run.verdict.level.value,
        len(run.records), found,
    )  # fmt: skip


def read_stored(path: Path) -> bytes:
    """Read the bytes of a stored result; raises UsageError if there is none, or it is damaged."""
    try:
        raw = read_file_bytes(path, LARGEST_RESULT)
        dict(json.loads(raw)[OURS])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (*NOT_JSON, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {str(error)[:100]}") from None
    return raw


def _is_in_campaign(directory: Path, root: Path) -> bool:
    """Whether a run lies in a cell of a campaign's directory that is `root` or below it."""
    above = directory.parents[: _DEEPEST if directory != root else 0]
    return any(
        each.name in (CELLS, FAILED) and (each.parent / CAMPAIGN).is_file() and each.is_relative_to(root)
        for each in above
    )


def _list_audit(directory: Path, run: Result) -> Iterator[str]:
    """Yield what the audit's checks find of a run beyond its verdict, notes left out."""
    own = {finding.rule.code for finding in run.verdict.findings}
    for audited in audit_runs([summarise_run(directory, run)], None, None):
        for finding in audited.findings:
            if finding.rule.code not in own and finding.rule.severity is not Severity.NOTE:
                yield f"{finding.rule.code}: {finding.evidence}"

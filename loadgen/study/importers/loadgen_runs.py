"""Own: runs of ours from their directories and files, whose arrivals are read when they are needed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from msgspec.structs import replace

from loadgen import __version__
from loadgen.base.errors import UsageError
from loadgen.base.untrusted import listed, mapping
from loadgen.figures.metrics import DEFINITIONS_VERSION
from loadgen.report import run_directory
from loadgen.report.run_directory import ARRIVALS, RESULT, Result
from loadgen.report.run_place import JOURNAL
from loadgen.report.vllm_json import OURS
from loadgen.study.importers import json_fields, text
from loadgen.study.run_summary import Reported, of_json, of_run
from loadgen.verdict.campaign_cell import FailedCell
from loadgen.verdict.run_facts import FORMATS, Facts

MARKS: tuple[bytes, ...] = (b'"loadgen"',)
LADDER, CAMPAIGN = "ladder.json", "campaign.json"
CELLS, FAILED = "cells", "failed"
_MOST_BYTES = 512 << 20  # of a result of ours: it has two times of every request


class StoredRun(Result):
    """A run on disk, whose arrivals and samples are read when they are first used; raises UsageError then."""

    def __init__(self, facts: Facts, directory: Path) -> None:
        object.__setattr__(self, "facts", facts)
        object.__setattr__(self, "directory", directory)

    def __getattr__(self, name: str) -> Any:
        if name not in ("records", "samples"):
            raise AttributeError(name)
        run = run_directory.load(self.__dict__["directory"])
        object.__setattr__(self, "records", run.records)
        object.__setattr__(self, "samples", run.samples)
        return self.__dict__[name]


def tells(document: Mapping[str, Any]) -> bool:
    """Whether a document is a result of ours, as --save-result writes it."""
    return isinstance(document.get(OURS), dict) and "metrics" in document[OURS]


def read(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """The one run of a result file, without its arrivals; raises UsageError of a damaged or newer one."""
    yield _summary(document, source, None)


def is_run(directory: Path) -> bool:
    """Whether a directory holds a run of ours, or the rest of one."""
    try:
        if any((directory / name).is_file() for name in (ARRIVALS, JOURNAL)):
            return True
        return MARKS[0] in text.bounded(directory / RESULT, _MOST_BYTES)
    except (OSError, UsageError):  # OSError: the name is of a record, and may be longer than a name can be
        return False


def run(directory: Path) -> Reported:
    """The run of a directory; raises UsageError if there is none that can be read.

    Figures and verdict are the stored ones where this very version made them, else they are computed
    again from the arrivals. Without arrivals the figures remain.
    """
    if not (directory / RESULT).is_file():
        shown = f"; loadgen report {shlex.quote(str(directory))} shows what its journal holds"
        hint = shown if (directory / JOURNAL).is_file() else ""
        raise UsageError(f"{directory} is an unfinished run: it has no {RESULT}{hint}")
    try:
        stored = json.loads(text.bounded(directory / RESULT, _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{directory}: {RESULT} is cut off or damaged: {error}") from None
    facts = _facts(stored, str(directory))
    arrivals = directory / ARRIVALS
    if not (arrivals.is_file() and is_zipfile(arrivals)):  # a FIFO would keep us waiting
        reported = _summary(stored, str(directory), None)
        remark = f"{ARRIVALS} is missing or damaged: only the stored figures are shown"
        return replace(reported, remarks=(*reported.remarks, remark))
    ours = stored[OURS]
    made_by = ours.get("definitions_version"), facts.environment.get("loadgen")
    if made_by != (DEFINITIONS_VERSION, __version__):
        return of_run(directory, run_directory.load(directory))
    return _summary(stored, str(directory), StoredRun(facts, directory))


def rungs(directory: Path) -> dict[str, dict[str, Any]]:
    """The rows of a ladder's directory by the name of their run's; empty if it is not a ladder's."""
    try:
        ladder = json.loads(text.bounded(directory / LADDER))
    except (UsageError, ValueError, RecursionError):
        return {}
    rows = [mapping(row) for row in listed(json_fields.inside(ladder, "rows"))]
    return {json_fields.word(row.get("run")): row for row in rows if row.get("run")}


def rung(reported: Reported, row: Mapping[str, Any]) -> Reported:
    """A run with the speed of its ladder's row."""
    speed, formula = json_fields.number(row.get("speed_tok_s")), json_fields.word(row.get("formula"))
    if speed is None:
        return reported
    load = replace(reported.load, name=f"input {reported.load.asked_input_len}")
    figures = {**reported.figures, "speed_tok_s": speed}
    remarks = (*reported.remarks, f"speed is {formula}")
    return replace(reported, figures=figures, load=load, speed_formula=formula, remarks=remarks)


def failures(directory: Path) -> Iterator[FailedCell | str]:
    """The failed cells of a campaign, and what is wrong with those that cannot be read."""
    for path in sorted((directory / FAILED).glob("*.json")):
        try:
            yield FailedCell.model_validate_json(text.bounded(path))
        except (UsageError, ValueError) as error:
            yield f"{path} is not a valid record of a failed cell: {str(error).splitlines()[0]}"


def _summary(stored: Mapping[str, Any], source: str, run: Result | None) -> Reported:
    try:
        return of_json(_facts(stored, source), stored, source, run)
    except KeyError as error:
        raise UsageError(f"{source} is damaged: no {error}") from None
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{source} is damaged: {error}") from None


def _facts(stored: Any, source: str) -> Facts:
    """A result's metadata; raises UsageError if it is damaged, or of a newer format."""
    ours = mapping(json_fields.inside(stored, OURS))
    version = ours.get("format")
    supported = ", ".join(map(str, FORMATS))
    if isinstance(version, int) and version > max(FORMATS):
        raise UsageError(
            f"{source} was written by a newer loadgen: it has format {version}, this one reads {supported}"
        )
    if version not in FORMATS:
        raise UsageError(f"{source} has format {version}, this loadgen reads {supported}")
    try:
        return Facts.stored(ours)
    except ValueError as error:
        raise UsageError(f"{source} is damaged: {error}") from None

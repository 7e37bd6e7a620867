"""loadgen runs: runs, sweeps and searches of ours on disk; arrivals are read when they are needed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import msgspec
from msgspec.structs import replace

from loadgen import __version__
from loadgen.base.errors import UsageError
from loadgen.base.parsing import read_figure
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.facts.run_facts import Facts, OtherVersion
from loadgen.figures.metrics import DEFINITIONS_VERSION
from loadgen.records.journal import JOURNAL
from loadgen.report import run_directory
from loadgen.report.result_file import OURS
from loadgen.report.run_directory import ARRIVALS, RESULT, Result
from loadgen.study import sweep_record
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import ClientFormat
from loadgen.study.limit_record import LimitRecord
from loadgen.study.load_table import mark_simulated
from loadgen.study.run_summary import FailedCell, Reported, summarise_result, summarise_run
from loadgen.study.speed.ladder_rows import make_speed_row
from loadgen.study.speed.speed_rows import FORMULAS
from loadgen.study.sweep_record import FINISHED, SweepRecord, SweptPoint

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


LOADGEN = ClientFormat(
    OURS,
    (b'"loadgen"',),
    lambda document: "metrics" in read_mapping(document.get(OURS)),
    lambda document, source: iter([_summarise(document, source, None)]),
)


def is_run(directory: Path) -> bool:
    """Whether a directory has arrivals, a journal or a result of ours; False if it cannot be read."""
    try:
        if any((directory / name).is_file() for name in (ARRIVALS, JOURNAL)):
            return True
        return LOADGEN.marks[0] in json_fields.read_bounded(directory / RESULT, _MOST_BYTES)
    except (OSError, UsageError):  # OSError: the name is of a record, and may be longer than a name can be
        return False


def read_run(directory: Path, again: bool = False) -> Reported:
    """Read the run of a directory; raises UsageError if there is none that can be read.

    Figures and verdict are the stored ones where this very version made them, else, or with `again`, they are
    computed again from the arrivals. Without arrivals the figures remain.
    """
    if not (directory / RESULT).is_file():
        shown = f"; loadgen report {shlex.quote(str(directory))} shows what its journal holds"
        hint = shown if (directory / JOURNAL).is_file() else ""
        raise UsageError(f"{directory} is an unfinished run: it has no {RESULT}{hint}")
    try:
        stored = json.loads(json_fields.read_bounded(directory / RESULT, _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{directory}: {RESULT} is cut off or damaged: {error}") from None
    facts = _read_facts(stored, str(directory))
    arrivals = directory / ARRIVALS
    if not (arrivals.is_file() and is_zipfile(arrivals)):  # a FIFO would keep us waiting
        reported = _summarise(stored, str(directory), None)
        remark = f"{ARRIVALS} is missing or damaged: only the stored figures are shown"
        return replace(reported, remarks=(*reported.remarks, remark))
    ours = stored[OURS]
    made_by = ours.get("definitions_version"), facts.environment.get("loadgen")
    if again or made_by != (DEFINITIONS_VERSION, __version__):
        return summarise_run(directory, run_directory.load(directory))
    return _summarise(stored, str(directory), StoredRun(facts, directory))


def add_ladder_speed(reported: Reported, directory: Path, again: bool = False) -> Reported:
    """Return the run of a directory with its ladder's speed, a load named by prompt length, and a remark.

    With `again` the speed is that which the run's arrivals give. A run of no ladder is unchanged.
    """
    try:
        ladder = json.loads(json_fields.read_bounded(directory.parent / LADDER))
    except (UsageError, ValueError, RecursionError):
        return reported
    rows = [read_mapping(row) for row in read_list(json_fields.find_value(ladder, "rows"))]
    row = {json_fields.read_word(row.get("run")): row for row in rows}.get(directory.name, {})
    speed, formula = read_figure(row.get("speed_tok_s")), json_fields.read_word(row.get("formula"))
    if again:
        ours = None if formula not in FORMULAS else reported.run
        made = None if ours is None else make_speed_row(ours, formula).speed_tok_s
        speed = None if made is None else float(made)
    if speed is None:
        return reported
    load = replace(reported.load, name=f"input {reported.load.asked_input_len}")
    figures = {**reported.figures, "speed_tok_s": speed}
    remarks = (*reported.remarks, f"speed is {formula}")
    return replace(reported, figures=figures, load=load, speed_formula=formula, remarks=remarks)


def read_failures(directory: Path) -> Iterator[FailedCell | str]:
    """Yield the failed cells of a campaign, and for each that cannot be read a line on why."""
    for path in sorted((directory / FAILED).glob("*.json")):
        try:
            yield FailedCell.model_validate_json(json_fields.read_bounded(path))
        except (UsageError, ValueError) as error:
            yield f"{path} is not a valid record of a failed cell: {str(error).splitlines()[0]}"


def _summarise(stored: Mapping[str, Any], source: str, run: Result | None) -> Reported:
    """Summarise a stored result; raises UsageError if it is damaged. `run` is what it was stored of."""
    try:
        return summarise_result(_read_facts(stored, source), stored, source, run)
    except KeyError as error:
        raise UsageError(f"{source} is damaged: no {error}") from None
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{source} is damaged: {error}") from None


def _read_facts(stored: Any, source: str) -> Facts:
    """Read the facts of a stored result; raises UsageError if they are damaged or of another version."""
    ours = read_mapping(json_fields.find_value(stored, OURS))
    try:
        return Facts.read_stored(ours)
    except OtherVersion as error:
        raise UsageError(f"{source} {error}") from None
    except ValueError as error:
        raise UsageError(f"{source} is damaged: {error}") from None


class StoredSweep(msgspec.Struct, frozen=True):
    """A sweep and where it is; its runs are read as any others."""

    directory: Path
    record: SweepRecord
    points: tuple[SweptPoint, ...]

    @property
    def run_directories(self) -> list[Path]:
        """The directories of its runs, without those of failed points."""
        return [self.directory / point.directory for point in self.points if point.state in FINISHED]


class StoredLimit(msgspec.Struct, frozen=True):
    """A search for the highest load, where it is, and its runs as they were read; None: on no disk."""

    directory: Path | None
    record: LimitRecord
    runs: tuple[Reported, ...] = ()
    place: str = ""  # as it was named to be read; "": by none

    @property
    def name(self) -> str:
        """The checkpoint that was searched for, as its runs have it; the search's own without a run."""
        return self.runs[0].name if self.runs else self.record.name

    @property
    def shown_name(self) -> str:
        """The name as tables and pictures have it, with a mark where no model ran."""
        return mark_simulated(self.name, any(run.simulated for run in self.runs))

    @property
    def run_directories(self) -> list[Path]:
        """The directories of its runs that measured, only those below its own; none if it is on no disk."""
        if self.directory is None:
            return []
        named = [Path(run.directory) for run in self.record.runs if run.directory]
        return [self.directory / path for path in named if not path.is_absolute() and ".." not in path.parts]


def read_sweep(directory: Path) -> StoredSweep:
    """Read the sweep of a directory; raises UsageError of a record that is damaged or of another format."""
    record = SweepRecord.read(directory)
    return StoredSweep(directory, record, sweep_record.read_points(directory, record))


def read_limit(directory: Path) -> StoredLimit:
    """Read the search of a directory, without its runs; raises UsageError as `read_sweep`."""
    return StoredLimit(directory, LimitRecord.read(directory))

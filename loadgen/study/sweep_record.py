"""Sweep record: the points of a sweep: `sweep.json`, in words, and as a value for those who use Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError, field_validator

from loadgen import __version__
from loadgen.base.errors import UsageError
from loadgen.base.text import clean_line
from loadgen.base.untrusted import read_file_bytes
from loadgen.report.run import Run
from loadgen.settings.validation import explain_format, explain_unknown

SWEEP = "sweep.json"
# 1: the first.
FORMAT = 1

LoadAxis = Literal["concurrency", "rate"]  # requests in flight; requests per second
# The keys of a profile that are a load.
AXES: dict[str, LoadAxis] = {"max_concurrency": "concurrency", "request_rate": "rate"}
# under-way: it was begun, and no run of it is finished.
PointState = Literal["planned", "under-way", "done", "saturated", "failed"]
FINISHED: tuple[PointState, ...] = ("done", "saturated")  # of a point that is not measured again


class SweepPoint(BaseModel, extra="forbid", frozen=True):
    """One point: what was varied, and what came of it."""

    number: int  # from 0, in the order of measuring
    settings: dict[str, Any]  # keys of the profile that were varied, as max_concurrency or request_rate
    repeat: int = 0  # of these settings, from 0
    serve: dict[str, str] = {}  # flags of a launched server that were varied, without their dashes
    state: PointState = "planned"
    directory: str = ""  # of its run, below the sweep's; "": there is none
    reason: str = ""  # why it failed, or was ended early
    verdict: str = ""  # VALID, SUSPECT or INVALID; "": there is no run
    duration_s: float = 0.0  # that measuring took, a start of the server left out
    attempts: int = 0  # how often it was begun: each has prompts of its own


class SweepRecord(BaseModel, extra="forbid", frozen=True):
    """A sweep: what its command varied, and its points."""

    format: int = FORMAT
    loadgen: str = __version__
    name: str
    command: tuple[str, ...]  # secrets hidden
    fixed: str  # a digest of all that changes a figure: a sweep is resumed only with the same
    seed: int
    axis: LoadAxis | None = None  # the load that was varied; None: only other fields were
    points: tuple[SweepPoint, ...]

    @field_validator("points")
    @classmethod
    def _check_numbers(cls, points: tuple[SweepPoint, ...]) -> tuple[SweepPoint, ...]:
        if len({point.number for point in points}) < len(points):
            raise ValueError("two have the same number")
        return points


_STATES = {
    "failed": "failed",
    "saturated": "ended early, saturated",
    "planned": "not measured",
    "under-way": "begun, not finished",
}


def list_unfinished(record: SweepRecord) -> list[str]:
    """Write a line on each point that is not done, saturated ones too: its name, state and reason."""
    lines = []
    for point in record.points:
        if point.state in _STATES:
            reason = f": {clean_line(point.reason)}" if point.reason else ""
            what = clean_line(name_point(point.settings, point.serve, point.repeat))
            lines.append(f"{what}: {_STATES[point.state]}{reason}")
    return lines


def name_point(settings: Mapping[str, Any], serve: Mapping[str, str], repeat: int = 0) -> str:
    """Name a point by what was varied at it: max-num-seqs=16 concurrency=8 repeat 1."""
    named = {**serve, **{AXES.get(key, key): value for key, value in settings.items()}}
    again = f" repeat {repeat}" if repeat else ""
    return " ".join(f"{name}={format_value(value)}" for name, value in named.items()) + again


def format_value(value: Any) -> str:
    """Format a value as a command line has it, a float with the fewest digits that are exactly it."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


LARGEST_BYTES = 64 << 20
_Kind = TypeVar("_Kind", bound=BaseModel)


class _Version(BaseModel, extra="ignore", frozen=True):
    """The fields that every version of a record has."""

    format: int
    loadgen: str = ""


def read_record(path: Path, kind: type[_Kind], reads: int, of: str) -> _Kind:
    """Read the record in a file of `of` directory, as "a sweep's"; raises UsageError.

    It is raised of a file that cannot be read, is damaged, or has another format than `reads`.
    """
    try:
        content = read_file_bytes(path, LARGEST_BYTES)
    except OSError as error:
        raise UsageError(f"{path.parent} is not {of} directory: {path}: {error.strerror}") from None
    return parse_record(content, path, kind, reads)


def parse_record(content: bytes, path: Path, kind: type[_Kind], reads: int) -> _Kind:
    """Parse the record in a file's content; raises UsageError where it is damaged or of another format."""
    try:
        version = _Version.model_validate_json(content)
        if other := explain_format(version.format, reads, version.loadgen):
            raise UsageError(f"{path} {other}")
        return kind.model_validate_json(content)
    except ValidationError as error:
        if unknown := explain_unknown(error):
            raise UsageError(f"{path} {unknown}") from None
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))  # "" of what is no JSON at all
        what = ": ".join(filter(None, (where, first["msg"].lower())))
        raise UsageError(f"{path} is damaged: {what}") from None


class SweptPoint(msgspec.Struct, frozen=True):
    """One point of a sweep: the keys of the profile that were varied, and its run.

    `run` is None where nothing was measured; a failed point has a `reason`, and a run if it measured one. A
    `saturated` point was ended early, since the server fell further and further behind.
    """

    settings: dict[str, Any]
    repeat: int
    state: PointState
    reason: str = ""
    run: Run | None = None


class Sweep:
    """One workload measured at many points. `sweep` makes it.

    `directory` is where it lies on disk, None for one that was not written; `partial` is why it ended before
    its last point, "" where it did not.
    """

    def __init__(
        self, record: SweepRecord, runs: Mapping[int, Run], directory: Path | None = None, partial: str = ""
    ) -> None:
        self.record = record  # what sweep.json holds
        self.directory, self.partial = directory, partial
        self.points = tuple(
            SweptPoint(point.settings, point.repeat, point.state, point.reason, runs.get(point.number))
            for point in record.points
        )

    def __repr__(self) -> str:
        measured = sum(point.state in FINISHED for point in self.points)
        return f"<loadgen.Sweep {self.record.name}: {measured} of {len(self.points)} points>"

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of its points, in their order; what a failed point measured is not among them."""
        return tuple(point.run for point in self.points if point.run is not None and point.state != "failed")

"""Sweep record: the points of a sweep: `sweep.json`, in words, and as a value for those who use Python."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, field_validator
from pydantic_core import to_jsonable_python

from loadgen import __version__
from loadgen.base.text import clean_line
from loadgen.base.untrusted import read_file_bytes, read_mapping
from loadgen.report.result_file import OURS
from loadgen.report.run import Run
from loadgen.report.run_directory import LARGEST_RESULT, RESULT
from loadgen.study.series_record import SeriesRecord

SWEEP = "sweep.json"
POINTS, FAILED = "points", "failed"  # folders of the runs, and of why a point has none that counts

LoadAxis = Literal["concurrency", "rate"]  # requests in flight; requests per second
# The keys of a profile that are a load.
AXES: dict[str, LoadAxis] = {"max_concurrency": "concurrency", "request_rate": "rate"}
PointState = Literal["planned", "done", "saturated", "failed"]
FINISHED: tuple[PointState, ...] = ("done", "saturated")  # of a point that is not measured again
_LONGEST_NAME = 80


class SweepPoint(BaseModel, extra="forbid", frozen=True):
    """One point: what is varied at it."""

    number: int  # from 0, in the order of measuring
    settings: dict[str, Any]  # keys of the profile that are varied, as max_concurrency or request_rate
    repeat: int = 0  # of these settings, from 0
    serve: dict[str, str] = {}  # flags of a launched server that are varied, without their dashes

    @property
    def label(self) -> str:
        """The varied values in words: server flags, profile keys, and the repeat."""
        return name_point(self.settings, self.serve, self.repeat)

    @property
    def id(self) -> str:
        """The name of its directory, its number and label in at most 80 characters: 003-concurrency-8."""
        plain = re.sub(r"[^\w.]+", "-", self.label, flags=re.ASCII).strip("-")
        return f"{self.number:03d}-{plain}"[:_LONGEST_NAME]


class SweepRecord(SeriesRecord, frozen=True):
    """A sweep: what its command varied, and its points."""

    file_name, owner = SWEEP, "a sweep's"
    format: int = 2  # 1: also what became of each point, which is read from its run since
    loadgen: str = __version__
    name: str
    command: tuple[str, ...]  # secrets hidden
    fixed: str  # a digest of all that changes a figure: a sweep is resumed only with the same
    seed: int
    axis: LoadAxis | None = None  # the load that is varied; None: only other fields are
    points: tuple[SweepPoint, ...]

    @field_validator("points")
    @classmethod
    def _check_numbers(cls, points: tuple[SweepPoint, ...]) -> tuple[SweepPoint, ...]:
        if len({point.number for point in points}) < len(points):
            raise ValueError("two have the same number")
        return points


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
    serve: dict[str, str] = {}  # flags of a launched server that were varied
    directory: str = ""  # of its run, below the sweep's; "": there is none

    def json(self) -> dict[str, Any]:
        """Encode the point without its run."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "run"}
        return dict(to_jsonable_python(shown))


def read_points(directory: Path, record: SweepRecord) -> tuple[SweptPoint, ...]:
    """Read what became of each point of a sweep from the files in its directory; runs are not loaded."""
    return tuple(_read_point(directory, point) for point in record.points)


def _read_point(directory: Path, point: SweepPoint) -> SweptPoint:
    """Read a point's state: from its run's directory, else its failure's file; without both it is planned."""
    swept = SweptPoint(point.settings, point.repeat, "planned", serve=point.serve)
    whole, failed = f"{POINTS}/{point.id}", f"{FAILED}/{point.id}"
    if (directory / whole).is_dir():
        ours = read_mapping(_read_json(directory / whole / RESULT).get(OURS))
        saturated = ours.get("saturated") is True
        reason = clean_line(str(ours.get("partial"))) if saturated else ""
        return replace(swept, state=FINISHED[saturated], reason=reason, directory=whole)
    if (directory / f"{failed}.json").is_file():
        reason = str(_read_json(directory / f"{failed}.json").get("reason")).partition("\n")[0]
        return replace(
            swept, state="failed", reason=reason, directory=failed if (directory / failed).is_dir() else ""
        )
    return swept


def _read_json(path: Path) -> Mapping[str, object]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return read_mapping(json.loads(read_file_bytes(path, LARGEST_RESULT)))
    return {}


_STATES = {"failed": "failed", "saturated": "ended early, saturated", "planned": "not measured"}


def list_unfinished(points: Iterable[SweptPoint]) -> list[str]:
    """Write a line on each point that is not done, saturated ones too: its name, state and reason."""
    lines = []
    for point in points:
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


class Sweep(msgspec.Struct, frozen=True):
    """One workload measured at many points. `sweep` makes it.

    `directory` is where it lies on disk, None for one that was not written; `partial` is why it ended before
    its last point, "" where it did not.
    """

    record: SweepRecord  # what sweep.json holds
    points: tuple[SweptPoint, ...]
    directory: Path | None = None
    partial: str = ""

    def __repr__(self) -> str:
        measured = sum(point.state in FINISHED for point in self.points)
        return f"<loadgen.Sweep {self.record.name}: {measured} of {len(self.points)} points>"

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of its points, in their order; what a failed point measured is not among them."""
        return tuple(point.run for point in self.points if point.run is not None and point.state != "failed")

"""Sweep record: `sweep.json`, what a sweep's directory holds of its points; analysis reads it from there."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, field_validator

from loadgen import __version__

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


def blank(point: SweepPoint) -> SweepPoint:
    """The point before it is measured, without what came of it; how often it was begun stays."""
    return SweepPoint(
        number=point.number,
        settings=point.settings,
        repeat=point.repeat,
        serve=point.serve,
        attempts=point.attempts,
    )


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
    def _numbered(cls, points: tuple[SweepPoint, ...]) -> tuple[SweepPoint, ...]:
        """A point is found by its number."""
        if len({point.number for point in points}) < len(points):
            raise ValueError("two have the same number")
        return points

"""Sweep lines: the points of a sweep that have no whole run, each in words with its reason."""

from __future__ import annotations

from loadgen.protocol.printable import printable
from loadgen.results.sweep_record import SweepPoint, SweepRecord

_STATES = {
    "failed": "failed",
    "saturated": "ended early, saturated",
    "planned": "not measured",
    "under-way": "begun, not finished",
}


def notes(record: SweepRecord) -> list[str]:
    """A line a point that is not done, in the order of the points."""
    return [_note(point) for point in record.points if point.state in _STATES]


def where(point: SweepPoint) -> str:
    """What was varied at a point: max_concurrency 8, --max-num-seqs 16."""
    settings = [f"{key} {value}" for key, value in point.settings.items()]
    return printable(", ".join([*settings, *(f"--{flag} {value}" for flag, value in point.serve.items())]))


def _note(point: SweepPoint) -> str:
    reason = f": {printable(point.reason)}" if point.reason else ""
    return f"{where(point)}: {_STATES[point.state]}{reason}"

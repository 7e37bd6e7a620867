"""Sweep lines: what was varied at a point of a sweep, and the points without a whole run with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.base.text import clean_line
from loadgen.report.sweep_record import AXES, SweepPoint, SweepRecord

_STATES = {
    "failed": "failed",
    "saturated": "ended early, saturated",
    "planned": "not measured",
    "under-way": "begun, not finished",
}


def notes(record: SweepRecord) -> list[str]:
    """A line a point that is not done, in the order of the points."""
    return [_note(point) for point in record.points if point.state in _STATES]


def label(settings: Mapping[str, Any], serve: Mapping[str, str], repeat: int = 0) -> str:
    """What was varied at a point: max-num-seqs=16 concurrency=8 repeat 1."""
    named = {**serve, **{AXES.get(key, key): value for key, value in settings.items()}}
    again = f" repeat {repeat}" if repeat else ""
    return " ".join(f"{name}={shown_value(value)}" for name, value in named.items()) + again


def shown_value(value: Any) -> str:
    """A value as it is written on a command line, no two alike."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _note(point: SweepPoint) -> str:
    reason = f": {clean_line(point.reason)}" if point.reason else ""
    what = clean_line(label(point.settings, point.serve, point.repeat))
    return f"{what}: {_STATES[point.state]}{reason}"

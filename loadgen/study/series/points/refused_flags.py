"""Refused flags: those of `loadgen bench` that a series of runs would not heed."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.base.errors import UsageError
from loadgen.run.options import TABLE, Options, is_given


def refuse(options: Options, series: str, own: Mapping[str, tuple[bool, str]]) -> None:
    """Raises UsageError for a flag that does not apply to `series`, with what to do instead.

    `own` has more of them: whether each was given, and the advice.
    """
    rows = [row for row in TABLE if row.series]
    advice = {**own, **{row.option: (is_given(options, row), row.series) for row in rows}}
    for flag, (given, what_to_do) in advice.items():
        if given:
            raise UsageError(f"{flag} does not apply to {series}: {what_to_do}")

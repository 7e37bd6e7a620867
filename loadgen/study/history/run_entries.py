"""Run entries: the measurements of a history, made of runs: means over those that measured one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import PurePath

import numpy as np

from loadgen.base.errors import UsageError
from loadgen.base.parsing import parse_metadata
from loadgen.base.text import list_first
from loadgen.report.load_identity import Load
from loadgen.study.compare.comparability import format_value
from loadgen.study.compare.comparison import INVALID
from loadgen.study.history.history_file import HistoryEntry
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

_COMMIT_KEYS = ("commit", "git_commit", "git_sha", "sha", "revision")  # of --metadata
_LEVELS = (Level.INVALID, Level.SUSPECT, Level.VALID)  # the gravest first
_NAMED = 3


def describe_machine(run: Reported) -> str:
    """Describe where a run was measured: the machine with its power mode, or the simulated engine.

    "" where it is not known.
    """
    if run.simulated:
        return f"simulated: {run.simulated}"
    return ", ".join(filter(None, (run.machine, run.power_mode)))


def describe_history_load(load: Load) -> str:
    """Describe a load in a line that two runs of ours share only if they were under the same load."""
    known = {name: value for name, value in load.list_facts().items() if value not in (None, "", ())}
    facts = [f"{name} {_write_fact(value)}" for name, value in known.items()]
    return ": ".join(filter(None, (load.name, ", ".join(facts)))) or "not known"


def _write_fact(value: object) -> str:
    if isinstance(value, tuple):  # settings that differ from the defaults
        return " ".join(f"{name}={format_value(each)}" for name, each in value)
    return value if isinstance(value, str) else f"{value:g}"


def find_commit(run: Reported) -> str:
    """Return the commit that a run's `--metadata` names; "" if it names none."""
    named = {} if run.facts is None else parse_metadata(run.facts.metadata)
    return next((named[key] for key in _COMMIT_KEYS if named.get(key)), "")


def make_entry(
    runs: Sequence[Reported], label: str | None = None, commit: str | None = None, verdict: str | None = None
) -> HistoryEntry:
    """Make the measurement of runs of one load, of the means of the figures that all have.

    Label, commit and verdict are the runs' where they are not given: the checkpoint's name, what --metadata
    names, the gravest level. Raises UsageError where no run has a time, or all lack figures.
    """
    times = [run.started for run in runs if run.started is not None]
    held = [run.held for run in runs]
    keys = [key for key in held[0] if all(key in figures for figures in held)] if held else []
    if not times or not keys:
        lacks = "figures" if times else "time"
        raise UsageError(
            f"{runs[0].source if runs else 'nothing'} has no {lacks}: it has no place in a history"
        )
    levels = {run.level for run in runs}
    return HistoryEntry(
        time=min(times, key=_order_time).astimezone(),
        label=runs[0].name if label is None else label,
        commit=find_commit(runs[0]) if commit is None else commit,
        machine=describe_machine(runs[0]),
        load=describe_history_load(runs[0].load),
        figures={key: float(np.mean([figures[key] for figures in held])) for key in keys},
        verdict=next((level for level in _LEVELS if level in levels), "") if verdict is None else verdict,
        runs=len(runs),
    )


def list_run_entries(reported: Iterable[Reported], name: str = "") -> tuple[list[HistoryEntry], list[str]]:
    """List the measurements of runs in the order of time, and lines on the runs that are left out.

    Runs of one directory of a campaign are one measurement, and successive ones of one commit; any other run
    is one by itself. With `name` other checkpoints are left out. Raises UsageError where a campaign has
    several checkpoints, and where nothing is left.
    """
    runs = [run for run in reported if not name or run.name == name]
    apart: list[tuple[str, Callable[[Reported], bool]]] = [
        (INVALID, lambda run: run.level == INVALID),
        ("without a time", lambda run: run.started is None),
        ("ended early", lambda run: run.saturated),
    ]
    notes = []
    for why, is_out in apart:
        if out := [run.source for run in runs if is_out(run)]:
            notes.append(f"left out, {why}: {list_first(out, _NAMED)}")
        runs = [run for run in runs if not is_out(run)]
    if not runs:
        raise UsageError(
            f"no run{f' of {name}' if name else ''} is left: {'; '.join(notes) or 'name others'}"
        )
    runs.sort(key=lambda run: _order_time(run.started))
    groups = [list(group) for _, group in groupby(runs, key=_identify_measurement)]
    for group in groups:
        names = list(dict.fromkeys(run.name for run in group))
        if len(names) > 1:
            raise UsageError(
                f"one measurement has several checkpoints ({list_first(names, _NAMED)}): name one, --name"
            )
    return [make_entry(group) for group in groups], notes


def _identify_measurement(run: Reported) -> tuple[str, ...]:
    """Return what the runs of one measurement share: the campaign's directory, or a commit."""
    if run.cell is not None:
        return run.cell.campaign, str(PurePath(run.source).parent.parent)
    commit = find_commit(run)
    return (commit, run.name) if commit else (run.source,)


def _order_time(time: datetime | None) -> float:
    return 0.0 if time is None else time.timestamp()

"""History file: measurements of one load on one machine, made of runs, each a line of JSON appended whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path, PurePath

import numpy as np
from pydantic import AwareDatetime, BaseModel, Field, FiniteFloat, ValidationError

from loadgen.base import files
from loadgen.base.errors import UsageError
from loadgen.base.files import ANYONES, expand_path
from loadgen.base.parsing import parse_metadata
from loadgen.base.printing import print_text
from loadgen.base.text import clean_line, list_first
from loadgen.report.load_identity import Load
from loadgen.study.compare.comparability import format_value
from loadgen.study.compare.comparison import INVALID
from loadgen.study.importers import json_fields
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

_SHORT_COMMIT = 12  # characters of one that are shown
_HEXADECIMAL = frozenset("0123456789abcdef")
_MOST_BYTES = 64 << 20
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_TORN = "its last line was cut off as it was written"
_OTHER_FILE = "write this one to another file"


class HistoryEntry(BaseModel, extra="ignore", frozen=True, defer_build=True):
    """One measurement: what was measured, where and when, its figures under vLLM's keys, and its verdict."""

    time: AwareDatetime
    label: str = ""  # of what was measured: a checkpoint, a version; "": none
    commit: str = ""  # that was measured; "": not known
    machine: str = ""  # and its power mode; "": not known
    load: str  # in words, equal for two runs only if their loads were
    figures: dict[str, FiniteFloat] = Field(min_length=1)  # means over the runs
    verdict: str = ""  # of the gate, or the gravest of the runs'
    runs: int = Field(1, ge=1)

    @property
    def name(self) -> str:
        """What a reader finds the measurement by: commit and label, else its time."""
        commit = self.commit[:_SHORT_COMMIT] if _HEXADECIMAL.issuperset(self.commit) else self.commit
        named = clean_line(" ".join(filter(None, (commit, self.label))))
        return named or f"{self.time:%Y-%m-%d %H:%M}"


def append_entry(path: str | Path, entry: HistoryEntry) -> None:
    """Append a measurement to a history file as one whole line, which is on the disk when this returns.

    A missing file is made; a measurement that the file has already is not appended again, as where a gate is
    judged again. A torn last line is removed, and a line on standard error says so. Raises UsageError, and
    leaves the file as it was, where it cannot be written, is no history, or is of another machine or load.
    """
    place = expand_path(path)
    try:
        handle = files.open_refusing_link(place, _FLAGS, ANYONES)
    except OSError as error:
        raise _refuse(place, error) from None
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        before = read_history(place) if os.fstat(handle).st_size else []
        check_one_subject([*before, entry], place, _OTHER_FILE)
        if entry not in before:
            raw = os.pread(handle, min(os.fstat(handle).st_size, _MOST_BYTES), 0)
            if find_torn_line(raw.decode("utf-8", "replace")):  # as by a machine that lost power
                os.ftruncate(handle, raw.rfind(b"\n") + 1)
                print_text(clean_line(f"loadgen: {place}: {_TORN}: it is removed"), sys.stderr)
            _append_line(handle, entry)
    except OSError as error:
        raise _refuse(place, error) from None
    finally:
        os.close(handle)


def find_torn_line(text: str) -> str:
    """Return a history's last line if it has no end and is only the begin of an entry, else ""."""
    last = text.rpartition("\n")[2]
    try:
        json.loads(last or "{}")
    except ValueError:
        return last if last.startswith("{") else ""
    return ""


def _append_line(handle: int, entry: HistoryEntry) -> None:
    """Append the line of an entry and sync it; an OSError of the disk leaves the file as it was."""
    size = os.fstat(handle).st_size
    line = entry.model_dump_json().encode() + b"\n"
    if size and os.pread(handle, 1, size - 1) != b"\n":  # edited by hand
        line = b"\n" + line
    try:
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # what was written is cut off below
        os.fsync(handle)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, size)
        raise


def read_history(path: str | Path) -> list[HistoryEntry]:
    """Read a history file in the order of time.

    A torn last line is left out. Raises UsageError for an empty file, a bad line, and two loads or machines.
    """
    place = expand_path(path)
    text = json_fields.decode_text(json_fields.read_bounded(place, _MOST_BYTES), place)
    torn = find_torn_line(text)
    text = text.removesuffix(torn)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not (lines or torn):
        raise UsageError(f"{place} is empty: `loadgen gate --history {place}` appends to it")
    entries = []
    for number, line in lines:
        try:
            entries.append(HistoryEntry.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            why = clean_line(f"{key}: {first['msg']}" if key else first["msg"])
            raise UsageError(f"{place}:{number} is no entry of a history ({why}): remove the line") from None
    check_one_subject(entries, place)
    return sorted(entries, key=lambda entry: entry.time)


def check_one_subject(
    entries: Sequence[HistoryEntry], place: Path, advice: str = "keep a file for each"
) -> None:
    """Raise UsageError if two entries are of two loads, or of two machines that are both known."""
    for what in ("load", "machine"):
        values = list(dict.fromkeys(filter(None, (getattr(entry, what) for entry in entries))))
        if len(values) > 1:
            shown = " and ".join(map(clean_line, values[:2]))
            raise UsageError(f"{place} has more than one {what} ({shown}): {advice}")


class UnwrittenHistory(UsageError):
    """A history cannot be written to."""


def _refuse(place: Path, error: OSError) -> UnwrittenHistory:
    return UnwrittenHistory(f"cannot write {place}: {error.strerror or error}; name another history")


_COMMIT_KEYS = ("commit", "git_commit", "git_sha", "sha", "revision")  # of --metadata
_LEVELS = (Level.INVALID, Level.SUSPECT, Level.VALID)  # the gravest first
_NAMED = 3


def describe_history_load(load: Load) -> str:
    """Describe a load in a line that two runs of ours share only if they were under the same load."""
    known = {name: value for name, value in load.list_facts().items() if value not in (None, "", ())}
    facts = []
    for name, value in known.items():
        if isinstance(value, tuple):  # settings that differ from the defaults
            shown = " ".join(f"{key}={format_value(each)}" for key, each in value)
        else:
            shown = value if isinstance(value, str) else f"{value:g}"
        facts.append(f"{name} {shown}")
    return ": ".join(filter(None, (load.name, ", ".join(facts)))) or "not known"


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
    levels, first = {run.level for run in runs}, runs[0]
    # Where it was measured: the simulated engine, or the machine with its power mode, "" where not known.
    machine = ", ".join(filter(None, (first.machine, first.power_mode)))
    if first.simulated:
        machine = f"simulated: {first.simulated}"
    return HistoryEntry(
        time=min(times, key=_order_time).astimezone(),
        label=first.name if label is None else label,
        commit=find_commit(first) if commit is None else commit,
        machine=machine,
        load=describe_history_load(first.load),
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

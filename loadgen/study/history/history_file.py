"""History file: a line of JSON a measurement of one load on one machine, appended whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field, FiniteFloat, ValidationError

from loadgen.base import files
from loadgen.base.errors import UsageError
from loadgen.base.files import ANYONES, expand_path
from loadgen.base.printing import print_text
from loadgen.base.text import clean_line
from loadgen.study.importers import json_fields

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
            _remove_torn_line(handle, place)
            _append_line(handle, entry)
    except OSError as error:
        raise _refuse(place, error) from None
    finally:
        os.close(handle)


def _remove_torn_line(handle: int, place: Path) -> None:
    """Cut off a last line that was not written to its end, as by a machine that lost power."""
    size = os.fstat(handle).st_size
    raw = os.pread(handle, min(size, _MOST_BYTES), 0)
    if find_torn_line(raw.decode("utf-8", "replace")):
        os.ftruncate(handle, raw.rfind(b"\n") + 1)
        print_text(clean_line(f"loadgen: {place}: {_TORN}: it is removed"), sys.stderr)


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

    A torn last line is left out. Raises UsageError of a file that is empty, of a line that is no entry, and
    of two machines or loads.
    """
    place = expand_path(path)
    text = json_fields.decode_text(json_fields.read_bounded(place, _MOST_BYTES), place)
    torn = find_torn_line(text)
    text = text.removesuffix(torn)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not (lines or torn):
        raise UsageError(f"{place} is empty: `loadgen gate --history {place}` appends to it")
    entries = [_read_line(line, f"{place}:{number}") for number, line in lines]
    check_one_subject(entries, place)
    return sorted(entries, key=lambda entry: entry.time)


def _read_line(line: str, where: str) -> HistoryEntry:
    try:
        return HistoryEntry.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        why = f"{place}: {first['msg']}" if place else first["msg"]
        raise UsageError(f"{where} is no entry of a history ({clean_line(why)}): remove the line") from None


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
    """Make the error of a history that cannot be written."""
    return UnwrittenHistory(f"cannot write {place}: {error.strerror or error}; name another history")

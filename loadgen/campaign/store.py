"""Store: a campaign's directory; what is finished is there whole, whatever happens to the rest."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any, BinaryIO

from pydantic import ValidationError

from loadgen.campaign import record
from loadgen.campaign.matrix import Planned
from loadgen.campaign.record import CampaignRecord
from loadgen.errors import UsageError
from loadgen.metrics.files import write_whole
from loadgen.results import run_directory
from loadgen.results.vllm_json import OURS
from loadgen.validity.campaign_cell import Cell

RECORD, LOCK, LADDER = "campaign.json", "campaign.lock", "ladder.json"
CELLS, FAILED, UNFINISHED, SERVERS = "cells", "failed", "unfinished", "servers"
INTERRUPTED = "interrupted"


class StoreError(UsageError):
    """The campaign's directory cannot be written: nothing more can be kept."""


class Store:
    """One campaign's directory; every change of it is one rename.

    campaign.json           what is run
    cells/<id>/             a finished cell: a run directory, of a ladder one with a run for each length
    failed/<id>.json        a failed one: {"cell", "reason", "at"}; failed/<id>/ is its run, if there was one
    servers/                logs of the servers that were started
    unfinished/             under way
    interrupted/<id>/       runs that were cut off, with what they had measured: loadgen report reads each
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def record(self) -> CampaignRecord:
        """What is run; raises UsageError where the directory is no campaign's."""
        path = self.directory / RECORD
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise UsageError(f"{self.directory} is no campaign's directory: {path}: {why}") from None
        return record.read(text, path)

    def write(self, told: CampaignRecord) -> None:
        """Keep what is run."""
        with self._writing():
            _replace(self.directory / RECORD, told.model_dump(mode="json"))

    def finished(self) -> set[str]:
        """Ids of the cells that are done."""
        return _names(self.directory / CELLS)

    def failed(self) -> set[str]:
        """Ids of the cells that failed."""
        return {name.removesuffix(".json") for name in _names(self.directory / FAILED, ".json")}

    def ran(self, failed: bool) -> list[Cell]:
        """Every cell that is finished, and those that failed too."""
        told = [next(self.facts(known), {}).get("cell") for known in sorted(self.finished())]
        try:
            names = sorted(self.failed()) if failed else []
            paths = [self.directory / FAILED / f"{known}.json" for known in names]
            told += [json.loads(path.read_text("utf-8"))["cell"] for path in paths]
            return [Cell.model_validate(cell) for cell in told if cell is not None]
        except (ValidationError, ValueError, KeyError, TypeError, OSError) as error:
            raise UsageError(f"{self.directory} is damaged: {str(error).splitlines()[0]}") from None

    def facts(self, known: str) -> Iterator[dict[str, Any]]:
        """What the runs of a finished cell say of themselves: one, of a ladder one for each length."""
        place = self.directory / CELLS / known
        for path in [place / run_directory.RESULT, *sorted(place.glob(f"*/{run_directory.RESULT}"))]:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                yield dict(json.loads(path.read_text("utf-8"))[OURS])

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works in this directory meanwhile; raises UsageError where somebody does.

        The lock is the process's own: neither a fork of it nor a server it started holds it on.
        """
        with self._writing():
            _made(self.directory)
            descriptor = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            file: IO[str] = os.fdopen(descriptor, "r+", encoding="utf-8")
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                who = file.read().strip() or "not known"
                raise UsageError(
                    f"another loadgen campaign works in {self.directory} (pid {who}): wait for it, or end it"
                ) from None
            with self._writing():
                file.truncate(0)
                print(os.getpid(), file=file, flush=True)
            yield

    def clear(self) -> None:
        """Take away what a campaign that was ended left half done."""
        with self._writing():
            self.drop()
            for known in self.finished() & self.failed():  # it was ended between the two
                self._forget(known)

    def begin(self, planned: Planned) -> Path:
        """An empty directory in which a cell is measured."""
        with self._writing():
            place = self.directory / UNFINISHED / planned.id
            _made(place.parent)
            place.mkdir(mode=0o700)
        return place

    def finish(self, planned: Planned, directory: Path) -> None:
        """Keep a cell that was measured: it is there whole, on the disk, or not at all."""
        with self._writing():
            self._move(directory, self.directory / CELLS / planned.id)
            self._forget(planned.id)
            shutil.rmtree(self.directory / UNFINISHED / planned.id, ignore_errors=True)

    def fail(self, planned: Planned, reason: str, at: datetime, directory: Path | None = None) -> None:
        """Keep why a cell failed, and what it had measured, if anything."""
        with self._writing():
            place = self.directory / FAILED / planned.id
            if place.exists():
                shutil.rmtree(place)
            if directory is not None:
                self._move(directory, place)
            _made(place.parent)
            told = {"cell": planned.cell.model_dump(mode="json"), "reason": reason, "at": at.isoformat()}
            _replace(place.with_name(f"{planned.id}.json"), told)
            self._set_aside(self.directory / UNFINISHED / planned.id)

    def drop(self) -> None:
        """Take away what is half done; a run that had measured something is kept under `interrupted`."""
        for place in _paths(self.directory / UNFINISHED):
            self._set_aside(place)
        shutil.rmtree(self.directory / UNFINISHED, ignore_errors=True)

    def _set_aside(self, place: Path) -> None:
        """Keep what the runs of a cell that was cut off or failed had measured; the rest is taken away."""
        marks = [path for name in (run_directory.JOURNAL, run_directory.RESULT) for path in place.rglob(name)]
        for run in {mark.parent for mark in marks}:
            kept = self.directory / INTERRUPTED / place.name / run.name
            _made(kept.parent)
            os.rename(run, kept)
        shutil.rmtree(place, ignore_errors=True)

    def _move(self, source: Path, target: Path) -> None:
        _made(target.parent)
        for path in (*source.rglob("*"), source):
            _sync(path)
        os.rename(source, target)
        _sync(target.parent)

    def _forget(self, known: str) -> None:
        """A cell that failed before and is finished now is no failed one."""
        failed = self.directory / FAILED
        (failed / f"{known}.json").unlink(missing_ok=True)
        shutil.rmtree(failed / known, ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot write {self.directory}: {error.strerror or error}") from None


def latest(base: Path, name: str) -> Store:
    """The directory of the campaign of that name that began last under `base`; raises UsageError."""
    for path in sorted(base.glob(f"*/{RECORD}"), reverse=True):
        with contextlib.suppress(UsageError):
            if Store(path.parent).record.name == name:
                return Store(path.parent)
    raise UsageError(f"no campaign {name!r} under {base} to go on with: give its directory to --resume")


def _paths(directory: Path) -> list[Path]:
    return [directory / name for name in sorted(_names(directory))]


def _names(directory: Path, suffix: str = "") -> set[str]:
    try:
        return {name for name in os.listdir(directory) if name.endswith(suffix)}
    except OSError:
        return set()


def _replace(path: Path, told: object) -> None:
    data = (json.dumps(told, allow_nan=False, indent=1) + "\n").encode()

    def write(file: BinaryIO) -> None:
        file.write(data)

    write_whole(path, write)


def _made(directory: Path) -> None:
    """See to it that a directory is there, this user's alone: it holds prompts, answers and commands."""
    for path in (*reversed(directory.parents), directory):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def _sync(path: Path) -> None:
    """See to it that a file or a directory's list of them is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

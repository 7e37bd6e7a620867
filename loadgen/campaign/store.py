"""Store: a campaign's directory; what is finished is there whole, even if the rest fails."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from loadgen.campaign import record
from loadgen.campaign.matrix import Planned
from loadgen.campaign.record import CampaignRecord
from loadgen.errors import UsageError
from loadgen.metrics import files
from loadgen.results import run_directory, run_place
from loadgen.results.vllm_json import OURS
from loadgen.validity.campaign_cell import Cell

RECORD, LOCK = "campaign.json", "campaign.lock"
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
            why = getattr(error, "strerror", None) or "not a text file"
            raise UsageError(f"{self.directory} is not a campaign's directory: {path}: {why}") from None
        return record.read(text, path)

    def write(self, campaign: CampaignRecord) -> None:
        """Keep what is run."""
        with self._writing():
            _replace(self.directory / RECORD, campaign.model_dump(mode="json"))

    def finished(self) -> set[str]:
        """Ids of the cells that are done."""
        return _names(self.directory / CELLS)

    def failed(self) -> set[str]:
        """Ids of the cells that failed."""
        return {name.removesuffix(".json") for name in _names(self.directory / FAILED, ".json")}

    def ran(self, failed: bool) -> list[Cell]:
        """Every cell that is finished, and those that failed too."""
        cells = [next(self.facts(cell_id), {}).get("cell") for cell_id in sorted(self.finished())]
        try:
            names = sorted(self.failed()) if failed else []
            paths = [self.directory / FAILED / f"{cell_id}.json" for cell_id in names]
            cells += [json.loads(path.read_text("utf-8"))["cell"] for path in paths]
            return [Cell.model_validate(cell) for cell in cells if cell is not None]
        except (ValidationError, ValueError, KeyError, TypeError, OSError) as error:
            raise UsageError(f"{self.directory} is damaged: {str(error).splitlines()[0]}") from None

    def facts(self, cell_id: str) -> Iterator[dict[str, Any]]:
        """The metadata of a finished cell's runs: one, of a ladder one for each length."""
        place = self.directory / CELLS / cell_id
        for path in [place / run_directory.RESULT, *sorted(place.glob(f"*/{run_directory.RESULT}"))]:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                yield dict(json.loads(path.read_text("utf-8"))[OURS])

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for this process; raises UsageError if another holds it.

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
                who = file.read().strip() or "unknown"
                raise UsageError(
                    f"another loadgen campaign is running in {self.directory} (pid {who}): wait for it, or "
                    "stop it"
                ) from None
            with self._writing():
                file.truncate(0)
                print(os.getpid(), file=file, flush=True)
            yield

    def clear(self) -> None:
        """Remove what an interrupted campaign left unfinished."""
        with self._writing():
            self.drop()
            for cell_id in self.finished() & self.failed():  # it was ended between the two
                self._forget(cell_id)

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
            failure = {"cell": planned.cell.model_dump(mode="json"), "reason": reason, "at": at.isoformat()}
            _replace(place.with_name(f"{planned.id}.json"), failure)
            self._set_aside(self.directory / UNFINISHED / planned.id)

    def drop(self) -> None:
        """Remove what is unfinished; a run that had measured something is kept under `interrupted`."""
        for name in sorted(_names(self.directory / UNFINISHED)):
            self._set_aside(self.directory / UNFINISHED / name)
        shutil.rmtree(self.directory / UNFINISHED, ignore_errors=True)

    def _set_aside(self, place: Path) -> None:
        """Keep what the runs of an interrupted or failed cell had measured; the rest is removed."""
        marks = [path for name in (run_place.JOURNAL, run_directory.RESULT) for path in place.rglob(name)]
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

    def _forget(self, cell_id: str) -> None:
        """Remove the record of a failed cell that is finished now."""
        failed = self.directory / FAILED
        (failed / f"{cell_id}.json").unlink(missing_ok=True)
        shutil.rmtree(failed / cell_id, ignore_errors=True)

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
    raise UsageError(f"no campaign {name!r} to resume under {base}: give its directory to --resume")


def _names(directory: Path, suffix: str = "") -> set[str]:
    with contextlib.suppress(OSError):
        return {name for name in os.listdir(directory) if name.endswith(suffix)}
    return set()


def _replace(path: Path, value: object) -> None:
    files.write_text(path, json.dumps(value, allow_nan=False, indent=1) + "\n")


def _made(directory: Path) -> None:
    """Create a directory, private to this user: it holds prompts, answers and commands."""
    for path in (*reversed(directory.parents), directory):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def _sync(path: Path) -> None:
    """Sync a file or a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

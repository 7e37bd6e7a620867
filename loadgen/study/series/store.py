"""Store: a campaign's directory; what is finished is there whole, even if the rest fails."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_file_bytes
from loadgen.report import run_directory
from loadgen.report.limit_record import LIMIT
from loadgen.report.stored_record import LARGEST_BYTES
from loadgen.report.vllm_json import OURS
from loadgen.study.series import record
from loadgen.study.series.kept_directory import KeptDirectory, made
from loadgen.study.series.matrix import Planned
from loadgen.study.series.record import CampaignRecord
from loadgen.verdict.campaign_cell import Cell

RECORD = "campaign.json"
CELLS, FAILED, UNFINISHED, SERVERS = "cells", "failed", "unfinished", "servers"
ATTEMPTS = "attempts.json"
INTERRUPTED = "interrupted"
_SEARCH = "limit"  # below a cell's place: the directory of its search


class Store(KeptDirectory):
    """One campaign's directory; every change of it is one rename.

    campaign.json           what is run
    attempts.json           how often each cell was begun, by its id
    cells/<id>/             a finished cell: a run directory, of a ladder or a search one with several
    failed/<id>.json        a failed one: {"cell", "reason", "at"}; failed/<id>/ is its run, if there was one
    servers/                logs of the servers that were started
    unfinished/             under way
    interrupted/<id>/       runs that were cut off, with what they had measured: loadgen report reads each;
                            limit/ of it is a search, which goes on when the campaign is resumed
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "campaign")

    @property
    def record(self) -> CampaignRecord:
        """What is run; raises UsageError where the directory is no campaign's."""
        path = self.directory / RECORD
        try:
            text = read_file_bytes(path, LARGEST_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not a text file"
            raise UsageError(f"{self.directory} is not a campaign's directory: {path}: {why}") from None
        return record.read(text, path)

    def write(self, campaign: CampaignRecord) -> None:
        """Keep what is run."""
        self.replace(self.directory / RECORD, campaign.model_dump(mode="json"))

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
            cells += [_json(path)["cell"] for path in paths]
            return [Cell.model_validate(cell) for cell in cells if cell is not None]
        except (
            ValidationError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OSError,
            RecursionError,
        ) as error:
            raise UsageError(f"{self.directory} is damaged: {str(error).splitlines()[0]}") from None

    def facts(self, cell_id: str) -> Iterator[dict[str, Any]]:
        """The metadata of a finished cell's runs: one, of a ladder or a search several."""
        place = self.directory / CELLS / cell_id
        below = [
            path for depth in ("*", "*/*") for path in sorted(place.glob(f"{depth}/{run_directory.RESULT}"))
        ]
        for path in [place / run_directory.RESULT, *below]:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                yield dict(_json(path)[OURS])

    def clear(self) -> None:
        """Remove what an interrupted campaign left unfinished."""
        with self.writing():
            self.drop()
            for cell_id in self.finished() & self.failed():  # it was ended between the two
                self._forget(cell_id)

    def begin(self, planned: Planned) -> Path:
        """An empty directory in which a cell is measured."""
        with self.writing():
            place = self.directory / UNFINISHED / planned.id
            made(place.parent)
            place.mkdir(mode=0o700)
        return place

    def attempted(self, planned: Planned) -> int:
        """How often a cell was begun before, and note that it is begun once more; raises StoreError."""
        path = self.directory / ATTEMPTS
        counts: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            counts = {str(name): int(count) for name, count in _json(path).items()}
        before = counts.get(planned.id, 0)
        self.replace(path, {**counts, planned.id: before + 1})
        return before

    def begin_search(self, planned: Planned) -> Path:
        """The directory in which a cell is searched: empty, or what an interrupted search of it has left."""
        place = self.begin(planned) / _SEARCH
        with self.writing():
            try:
                os.rename(self.directory / INTERRUPTED / planned.id / _SEARCH, place)
            except FileNotFoundError:
                place.mkdir(mode=0o700)
        return place

    def finish(self, planned: Planned, directory: Path) -> None:
        """Keep a cell that was measured: it is there whole, on the disk, or not at all."""
        with self.writing():
            self.move(directory, self.directory / CELLS / planned.id)
            self._forget(planned.id)
            shutil.rmtree(self.directory / UNFINISHED / planned.id, ignore_errors=True)

    def fail(self, planned: Planned, reason: str, at: datetime, directory: Path | None = None) -> None:
        """Keep why a cell failed, and what it had measured, if anything."""
        with self.writing():
            place = self.directory / FAILED / planned.id
            if place.exists():
                shutil.rmtree(place)
            if directory is not None:
                self.move(directory, place)
            made(place.parent)
            failure = {"cell": planned.cell.model_dump(mode="json"), "reason": reason, "at": at.isoformat()}
            self.replace(place.with_name(f"{planned.id}.json"), failure)
            self._set_aside(self.directory / UNFINISHED / planned.id)

    def drop(self) -> None:
        """Remove what is unfinished; a run that had measured something is kept under `interrupted`."""
        for name in sorted(_names(self.directory / UNFINISHED)):
            self._set_aside(self.directory / UNFINISHED / name)
        shutil.rmtree(self.directory / UNFINISHED, ignore_errors=True)

    def _set_aside(self, place: Path) -> None:
        """Keep what the runs of an interrupted or failed cell had measured; the rest is removed.

        A search stays whole, so that it can go on.
        """
        kept = self.directory / INTERRUPTED / place.name
        if (place / _SEARCH / LIMIT).is_file():
            shutil.rmtree(kept / _SEARCH, ignore_errors=True)
            self.move(place / _SEARCH, kept / _SEARCH)
        self.set_aside(place, kept)

    def _forget(self, cell_id: str) -> None:
        """Remove the record of a failed cell that is finished now."""
        failed = self.directory / FAILED
        (failed / f"{cell_id}.json").unlink(missing_ok=True)
        shutil.rmtree(failed / cell_id, ignore_errors=True)


def latest(base: Path, name: str) -> Store:
    """The directory of the campaign of that name that began last under `base`; raises UsageError."""
    for path in sorted(base.glob(f"*/{RECORD}"), reverse=True):
        with contextlib.suppress(UsageError):
            if Store(path.parent).record.name == name:
                return Store(path.parent)
    raise UsageError(f"no campaign {name!r} to resume under {base}: give its directory to --resume")


def _json(path: Path) -> Any:
    """What a JSON file holds; raises OSError, ValueError and RecursionError."""
    return json.loads(read_file_bytes(path, LARGEST_BYTES))


def _names(directory: Path, suffix: str = "") -> set[str]:
    with contextlib.suppress(OSError):
        return {name for name in os.listdir(directory) if name.endswith(suffix)}
    return set()

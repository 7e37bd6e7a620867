"""Campaign store: the directory of a campaign, its record, what is finished there, how the rest goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from loadgen import __version__
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.secrecy import Secrets
from loadgen.facts.run_facts import Cell
from loadgen.host.machine_state import MachineState
from loadgen.plan import profile
from loadgen.plan.request_sources import Seed
from loadgen.study.series.campaign import campaign_file
from loadgen.study.series.campaign.arms import list_cells, plan_starts
from loadgen.study.series.campaign.campaign_file import AnswerTable, CampaignFile, CampaignOptions
from loadgen.study.series.campaign.steps import Arm
from loadgen.study.series.series_store import DAMAGE, FAILED, SeriesStore, read_json
from loadgen.study.series_record import SeriesRecord

RECORD = "campaign.json"
CELLS = "cells"


class CampaignStore(SeriesStore):
    """One campaign's directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "campaign", CELLS)

    @property
    def record(self) -> CampaignRecord:
        """The record read from `campaign.json`; raises UsageError if missing, damaged or not a campaign's."""
        return CampaignRecord.read(self.directory)

    def list_measured(self, failed: bool) -> list[Cell]:
        """List every finished cell, and with `failed` the failed ones, as their runs and records have them.

        A finished cell whose run is damaged is left out; raises UsageError if a record is damaged.
        """
        cells = [next(self.read_facts(cell_id), {}).get("cell") for cell_id in sorted(self.list_finished())]
        try:
            names = sorted(self.list_failed()) if failed else []
            paths = [self.directory / FAILED / f"{cell_id}.json" for cell_id in names]
            cells += [read_json(path)["cell"] for path in paths]
            return [Cell.model_validate(cell) for cell in cells if cell is not None]
        except (*DAMAGE, ValidationError, AttributeError) as error:
            raise UsageError(f"{self.directory} is damaged: {str(error).splitlines()[0]}") from None

    def read_state_before(self, cell_id: str) -> MachineState | None:
        """Read the machine's state before a finished cell, of its first run that has one; else None."""
        states = (run.get("state_before") for run in self.read_facts(cell_id))
        with contextlib.suppress(msgspec.ValidationError):
            return next((msgspec.convert(state, MachineState) for state in states if state), None)
        return None


class ArmRecord(BaseModel, extra="forbid", frozen=True):
    """A checkpoint on a server: flags of `loadgen bench` as keys, variables filled in, secrets hidden."""

    checkpoint: str
    server: str
    flags: dict[str, Any]
    profiles: tuple[str, ...]


class CampaignRecord(SeriesRecord, CampaignOptions, frozen=True, strict=False):
    """`campaign.json`: the file as resolved, and what was decided once for all."""

    file_name, owner = RECORD, "a campaign's"
    format: int = 1
    loadgen: str = __version__
    file: str
    created: datetime
    seed: int
    seed_chosen: bool
    arms: tuple[ArmRecord, ...]
    profiles: dict[str, dict[str, Any]]  # each as its file has it, secrets hidden
    order: tuple[str, ...]  # ids of cells


def make_record(file: CampaignFile, path: Path, arms: Sequence[Arm], at: datetime) -> CampaignRecord:
    """Make the record of a campaign of all arms that begins at `at`, secrets hidden; nothing is written.

    Without a seed in the file one is drawn; without a baseline it is the first arm's checkpoint.
    """
    seed = Seed.draw() if file.seed is None else Seed(file.seed, chosen=True)
    profiles = {}
    for name, place in {name: place for arm in arms for name, place in arm.places.items()}.items():
        keys = profile.load(place, {}).model_dump(mode="json", exclude_defaults=True)
        server = keys.get("server") or {}
        if "environment" in server:
            server["environment"] = Secrets().mask(server["environment"], names_too=True)
        profiles[name] = keys
    settings = {key: getattr(file, key) for key in CampaignOptions.model_fields}
    scores = {
        row.name: str(path.parent / expand_path(row.lm_eval)) for row in file.checkpoints if row.lm_eval
    }
    if scores:
        settings["answer"] = (file.answer or AnswerTable()).model_copy(update={"lm_eval": scores})
    return CampaignRecord(
        **{**settings, "baseline": file.baseline or arms[0].checkpoint},
        file=str(path.absolute()),
        created=at,
        seed=seed.value,
        seed_chosen=seed.chosen,
        arms=tuple(
            ArmRecord(
                checkpoint=arm.checkpoint,
                server=arm.server,
                flags=campaign_file.hide_flag_secrets(arm.flags),
                profiles=tuple(workload.name for workload in arm.profiles),
            )
            for arm in arms
        ),
        profiles=profiles,
        order=tuple(planned.id for planned in list_cells(plan_starts(file, arms))),
    )


LATEST = ""  # --resume without a directory
# These may change after cells were run: they only affect how cells are read, or add to them.
_HARMLESS = ("description", "repeats", "baseline", "margin", "hardware", "answer")


def find_store(resume: str | None, file: str | None, base: Path) -> CampaignStore | None:
    """Find the campaign that --resume names; None without --resume, where a new one begins.

    With LATEST and a `file` it is the last begun under `base` that has the file's `name`; damaged ones are
    passed over. Raises UsageError if there is none, the record of the directory given is damaged, or `resume`
    is a .toml file.
    """
    if resume is None:
        return None
    if resume == LATEST and file is not None:
        name = campaign_file.load_campaign(campaign_file.locate_campaign(file)).name
        for path in sorted(base.glob(f"*/{RECORD}"), reverse=True):
            with contextlib.suppress(UsageError):  # of a damaged record
                if CampaignStore(path.parent).record.name == name:
                    return CampaignStore(path.parent)
        raise UsageError(f"no campaign {name!r} to resume under {base}: give its directory to --resume")
    if resume.endswith(".toml"):
        raise UsageError("--resume takes the campaign's directory: put the file before it")
    store = CampaignStore(Path(resume))
    _ = store.record  # raises where it is missing
    return store


def list_done(store: CampaignStore, retry_failed: bool) -> set[str]:
    """List ids of the cells that are not measured again: finished ones, failed ones unless `retry_failed`."""
    return store.list_finished() | (set() if retry_failed else store.list_failed())


def list_differences(old: CampaignRecord, new: CampaignRecord, ran: Collection[Cell]) -> Iterator[str]:
    """Yield a sentence on each key whose value changed between two records, as far as it affects cells `ran`.

    Compared are keys of the campaign, a seed if `new` has a chosen one, flags of the arms and settings of the
    profiles that ran, and whether these are still there. Nothing is yielded if `ran` is empty; arms and
    profiles that are new, and keys that only affect how cells are read or add some, are no difference.
    """
    if not ran:
        return
    keys = set(CampaignOptions.model_fields) - old.steps.keys() - new.steps.keys()
    keys |= {"seed"} if new.seed_chosen else set()
    before, after = (
        {
            "": {key: getattr(record, key) for key in CampaignRecord.model_fields if key in keys},
            **{f"{arm.checkpoint} on {arm.server}": arm.flags for arm in record.arms},
            **{f"profile {name}": settings for name, settings in record.profiles.items()},
        }
        for record in (old, new)
    )
    both = old.steps.keys() & new.steps.keys()
    for tables, record in ((before, old), (after, new)):
        steps = {key: table for key, table in record.steps.items() if key in both}
        tables |= {f"[{key}]": table.model_dump(include=set(table.decides)) for key, table in steps.items()}
    of_cells = [f"{cell.checkpoint} on {cell.server}" for cell in ran]
    of_cells += [f"profile {cell.profile}" for cell in ran]
    for where in dict.fromkeys(("", *(f"[{key}]" for key in both), *of_cells)):
        was, now = before.get(where, {}), after.get(where, {})
        if where in of_cells and where not in after:
            yield f"{where} was run and is no longer in the file"
            continue
        for key in dict.fromkeys((*was, *now)):
            if key not in _HARMLESS and was.get(key) != now.get(key):
                shown = [
                    repr(table[key]) if table.get(key) is not None else "not given" for table in (was, now)
                ]
                yield f"{f'{where}: ' if where else ''}{key} was {shown[0]} and is {shown[1]}"


def continue_record(
    store: CampaignStore, new: CampaignRecord, path: Path, retry_failed: bool
) -> CampaignRecord:
    """Make the record of a resumed campaign: `new`, of the file at `path`, with the stored seed and time.

    Arms, profiles and cells that only the stored one has stay after the new ones; of two repeats the larger
    counts. Raises UsageError, with the differences, if they change cells that were measured and are not
    retried.
    """
    old, measured = store.record, store.list_measured(failed=not retry_failed)
    if changed := list(list_differences(old, new, measured)):
        raise UsageError(
            f"{path} has changed since {store.directory} was run: {'; '.join(changed)}: "
            "restore it, or start another campaign"
        )
    known = {(arm.checkpoint, arm.server) for arm in new.arms}
    return new.model_copy(
        update={
            "created": old.created,
            "seed": old.seed,
            "seed_chosen": old.seed_chosen,
            "repeats": max(old.repeats, new.repeats),
            "arms": (*new.arms, *(arm for arm in old.arms if (arm.checkpoint, arm.server) not in known)),
            "profiles": {**old.profiles, **new.profiles},
            "order": (*new.order, *(cell_id for cell_id in old.order if cell_id not in new.order)),
        }
    )

"""Record: what a campaign's directory records of the campaign, and how a changed file differs from it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from loadgen import __version__
from loadgen.base.errors import UsageError
from loadgen.base.secrecy import Secrets
from loadgen.plan import profile
from loadgen.plan.plan_inputs import Seed
from loadgen.study.series.arms import Arm
from loadgen.study.series.file import CampaignOptions, File
from loadgen.study.series.keys import without_secrets
from loadgen.study.series.matrix import Start, cells_of
from loadgen.verdict.campaign_cell import Cell

# 1: the first.
FORMAT = 1
# What may change after cells were run: it only affects how they are read, or adds to them.
_HARMLESS = (
    "loadgen", "created", "description", "file", "repeats", "baseline", "margin", "hardware", "order",
)  # fmt: skip


class ArmRecord(BaseModel, extra="forbid", frozen=True):
    """A checkpoint on a server: flags of `loadgen bench` as keys, variables filled in, secrets hidden."""

    checkpoint: str
    server: str
    flags: dict[str, Any]
    profiles: tuple[str, ...]


class CampaignRecord(CampaignOptions, frozen=True, strict=False):
    """`campaign.json`: the file as resolved, and what was decided once for all."""

    format: int = FORMAT
    loadgen: str = __version__
    file: str
    created: datetime
    seed: int
    seed_chosen: bool
    arms: tuple[ArmRecord, ...]
    profiles: dict[str, dict[str, Any]]  # each as its file has it, secrets hidden
    order: tuple[str, ...]  # ids of cells


def made(
    file: File, path: Path, arms: Sequence[Arm], starts: Sequence[Start], at: datetime
) -> CampaignRecord:
    """The record of a campaign that begins; without a seed in the file one is drawn."""
    seed = Seed.drawn() if file.seed is None else Seed(file.seed, chosen=True)
    profiles = {name: place for arm in arms for name, place in arm.places.items()}
    settings = {key: getattr(file, key) for key in CampaignOptions.model_fields}
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
                flags=without_secrets(arm.flags),
                profiles=tuple(workload.name for workload in arm.profiles),
            )
            for arm in arms
        ),
        profiles={name: _written(place) for name, place in profiles.items()},
        order=tuple(planned.id for planned in cells_of(starts)),
    )


def _written(place: str) -> dict[str, Any]:
    settings = profile.load(place, {}).model_dump(mode="json", exclude_defaults=True)
    server = settings.get("server") or {}
    if "environment" in server:
        server["environment"] = Secrets().mask(server["environment"], names_too=True)
    return settings


def read(text: str, path: Path) -> CampaignRecord:
    """The record in a file's text; raises UsageError if it is not one, or of a newer format."""
    try:
        table = json.loads(text)
        version = table.get("format") if isinstance(table, dict) else None
        if version is None:
            raise UsageError(f"{path} is not a campaign of this loadgen")
        if version != FORMAT:
            raise UsageError(
                f"{path} has format {version}, this loadgen reads {FORMAT}: use the one that wrote it"
            )
        return CampaignRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
        raise UsageError(f"{path} is damaged: {problem}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None


def differences(old: CampaignRecord, new: CampaignRecord, ran: Collection[Cell]) -> Iterator[str]:
    """What differs of what was run, each with its key; additions are no difference."""
    if not ran:
        return
    for key in CampaignRecord.model_fields:
        if key in _HARMLESS or key in ("arms", "profiles", "seed", "seed_chosen", "format"):
            continue
        yield from _changed(key, getattr(old, key), getattr(new, key))
    if new.seed_chosen:
        yield from _changed("seed", old.seed, new.seed)
    arms = [{(arm.checkpoint, arm.server): arm for arm in record.arms} for record in (old, new)]
    for pair in dict.fromkeys((cell.checkpoint, cell.server) for cell in ran):
        before, after = (arms_by_key.get(pair) for arms_by_key in arms)
        where = f"{pair[0]} on {pair[1]}"
        if after is None:
            yield f"{where} was run and is no longer in the file"
        elif before is not None:
            yield from _tables(where, before.flags, after.flags)
    for name in dict.fromkeys(cell.profile for cell in ran):
        if name in new.profiles:
            yield from _tables(f"profile {name}", old.profiles.get(name, {}), new.profiles[name])
        else:
            yield f"profile {name} was run and is no longer in the file"


def _tables(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        if key not in ("hardware", "description"):
            yield from _changed(f"{where}: {key}", old.get(key), new.get(key))


def _changed(key: str, old: Any, new: Any) -> Iterator[str]:
    if old != new:
        yield f"{key} was {_shown(old)} and is {_shown(new)}"


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)


def continued(old: CampaignRecord, new: CampaignRecord) -> CampaignRecord:
    """The record of a campaign that goes on: the seed and the beginning stay, the rest is as the file has it.

    What was run before and is not asked for now stays in the order.
    """
    kept = [cell_id for cell_id in old.order if cell_id not in new.order]
    return new.model_copy(
        update={
            "created": old.created,
            "seed": old.seed,
            "seed_chosen": old.seed_chosen,
            "repeats": max(old.repeats, new.repeats),
            "arms": (*new.arms, *(arm for arm in old.arms if _at(arm) not in map(_at, new.arms))),
            "profiles": {**old.profiles, **new.profiles},
            "order": (*new.order, *kept),
        }
    )


def _at(arm: ArmRecord) -> tuple[str, str]:
    return arm.checkpoint, arm.server

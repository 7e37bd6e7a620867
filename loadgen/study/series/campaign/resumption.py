"""Resumption: how an interrupted campaign goes on: what is done, what may have changed, what is removed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Cell
from loadgen.study.series.campaign.campaign_file import load_campaign, locate_campaign
from loadgen.study.series.campaign.campaign_store import RECORD, ArmRecord, CampaignRecord, CampaignStore

LATEST = ""  # --resume without a directory
# What may change after cells were run: it only affects how they are read, or adds to them.
_HARMLESS = (
    "loadgen", "created", "description", "file", "repeats", "baseline", "margin", "hardware", "order",
    "answer",
)  # fmt: skip


def find_store(resume: str | None, file: str | None, base: Path) -> CampaignStore | None:
    """Find the campaign that --resume names; None without --resume, where a new one begins.

    With LATEST and a `file` it is the campaign of that file's name that began last under `base`. Raises
    UsageError if there is none, its record is damaged, or `resume` is a .toml file.
    """
    if resume is None:
        return None
    if resume == LATEST and file is not None:
        return find_latest_campaign(base, load_campaign(locate_campaign(file)).name)
    if resume.endswith(".toml"):
        raise UsageError("--resume takes the campaign's directory: put the file before it")
    store = CampaignStore(Path(resume))
    _ = store.record  # raises where it is missing
    return store


def find_latest_campaign(base: Path, name: str) -> CampaignStore:
    """Find the campaign of that name whose directory sorts last (the newest) among those in `base`.

    Directories with damaged records are skipped; raises UsageError if none is left.
    """
    for path in sorted(base.glob(f"*/{RECORD}"), reverse=True):
        with contextlib.suppress(UsageError):
            if CampaignStore(path.parent).record.name == name:
                return CampaignStore(path.parent)
    raise UsageError(f"no campaign {name!r} to resume under {base}: give its directory to --resume")


def list_done(store: CampaignStore, retry_failed: bool) -> set[str]:
    """List ids of the cells that are not measured again: finished ones, failed ones unless `retry_failed`."""
    return store.list_finished() | (set() if retry_failed else store.list_failed())


def clear_unfinished(store: CampaignStore) -> None:
    """Remove an interrupted campaign's unfinished cells, and failures of cells that have finished since.

    Runs that had measured something are moved to `interrupted`. Raises StoreError.
    """
    store.drop_unfinished()
    with store.writing():
        for cell_id in store.list_finished() & store.list_failed():  # it was ended between the two
            store.forget_failure(cell_id)


def resume_record(
    store: CampaignStore, new: CampaignRecord, path: Path, retry_failed: bool
) -> CampaignRecord:
    """Return the stored record continued by `new`, the one that the file at `path` makes now.

    Raises UsageError, with the differences, if they change cells that were measured and are not retried.
    """
    measured = store.list_measured(failed=not retry_failed)
    if changed := list(list_differences(store.record, new, measured)):
        raise UsageError(
            f"{path} has changed since {store.directory} was run: {'; '.join(changed)}: "
            "restore it, or start another campaign"
        )
    return continue_record(store.record, new)


def list_differences(old: CampaignRecord, new: CampaignRecord, ran: Collection[Cell]) -> Iterator[str]:
    """Yield a sentence on each key whose value changed between two records, as far as it affects cells `ran`.

    Compared are keys of the campaign, a seed if `new` has a chosen one, flags of the arms and settings of the
    profiles that ran, and whether these are still there. Nothing is yielded if `ran` is empty; arms and
    profiles that are new, and keys that only affect how cells are read or add some, are no difference.
    """
    if not ran:
        return
    for key in CampaignRecord.model_fields:
        if key in _HARMLESS or key in ("arms", "profiles", "seed", "seed_chosen", "format", "quality"):
            continue
        yield from _compare_values(key, getattr(old, key), getattr(new, key))
    if new.seed_chosen:
        yield from _compare_values("seed", old.seed, new.seed)
    if old.quality is not None and new.quality is not None:  # more tokens, or another margin, go on
        for key in ("reference", "text"):
            yield from _compare_values(
                f"[quality]: {key}", getattr(old.quality, key), getattr(new.quality, key)
            )
    arms = [{(arm.checkpoint, arm.server): arm for arm in record.arms} for record in (old, new)]
    for pair in dict.fromkeys((cell.checkpoint, cell.server) for cell in ran):
        before, after = (arms_by_key.get(pair) for arms_by_key in arms)
        where = f"{pair[0]} on {pair[1]}"
        if after is None:
            yield f"{where} was run and is no longer in the file"
        elif before is not None:
            yield from _compare_tables(where, before.flags, after.flags)
    for name in dict.fromkeys(cell.profile for cell in ran):
        if name in new.profiles:
            yield from _compare_tables(f"profile {name}", old.profiles.get(name, {}), new.profiles[name])
        else:
            yield f"profile {name} was run and is no longer in the file"


def _compare_tables(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence on each key whose value differs; not on `hardware` and `description`."""
    for key in dict.fromkeys((*old, *new)):
        if key not in ("hardware", "description"):
            yield from _compare_values(f"{where}: {key}", old.get(key), new.get(key))


def _compare_values(key: str, old: Any, new: Any) -> Iterator[str]:
    """Yield a sentence with both values if they differ."""
    if old != new:
        was, now = ("not given" if value is None else repr(value) for value in (old, new))
        yield f"{key} was {was} and is {now}"


def continue_record(old: CampaignRecord, new: CampaignRecord) -> CampaignRecord:
    """Make the record of a resumed campaign: `new` with the seed and the creation time of `old`.

    Arms, profiles and cells that only `old` has stay after the new ones; of two repeats the larger counts.
    """
    kept = [cell_id for cell_id in old.order if cell_id not in new.order]
    return new.model_copy(
        update={
            "created": old.created,
            "seed": old.seed,
            "seed_chosen": old.seed_chosen,
            "repeats": max(old.repeats, new.repeats),
            "arms": (
                *new.arms,
                *(arm for arm in old.arms if _make_arm_key(arm) not in map(_make_arm_key, new.arms)),
            ),
            "profiles": {**old.profiles, **new.profiles},
            "order": (*new.order, *kept),
        }
    )


def _make_arm_key(arm: ArmRecord) -> tuple[str, str]:
    return arm.checkpoint, arm.server

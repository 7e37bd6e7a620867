"""Campaigns: what the file of a campaign says of how its runs are to be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec

from loadgen.analysis.importers import json_fields, text
from loadgen.errors import UsageError
from loadgen.workload.paths import place

RECORD = "campaign.json"


class CampaignSettings(msgspec.Struct, frozen=True):
    """Empty or None where no campaign says it."""

    baseline: str = ""
    margin: float | None = None
    hardware: str | None = None


def told(places: Iterable[str]) -> CampaignSettings:
    """Of the first campaign among the places, or the only one inside one; a damaged record says nothing."""
    for record in (found for named in places if (found := _record(place(named))) is not None):
        try:
            found = json.loads(text.bounded(record))
        except (UsageError, ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            margin = json_fields.number(found.get("margin"))
            return CampaignSettings(
                baseline=json_fields.word(found.get("baseline")),
                margin=margin if margin is not None and 0 < margin < 1 else None,
                hardware=json_fields.word(found.get("hardware")) or None,
            )
    return CampaignSettings()


def _record(directory: Path) -> Path | None:
    if (directory / RECORD).is_file():
        return directory / RECORD
    inside = list(directory.glob(f"*/{RECORD}"))
    return inside[0] if len(inside) == 1 else None

"""Campaigns: what a campaign's record sets for the comparison of its runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.paths import place
from loadgen.study.importers import json_fields, text

RECORD = "campaign.json"


class CampaignSettings(msgspec.Struct, frozen=True):
    """A campaign's baseline, margin and hardware; empty or None if no campaign sets them."""

    baseline: str = ""
    margin: float | None = None
    hardware: str | None = None


def settings(places: Iterable[str]) -> CampaignSettings:
    """Of the first campaign among the places, or the only one inside one; a damaged record is ignored."""
    for record in (contents for given in places if (contents := _record(place(given))) is not None):
        try:
            contents = json.loads(text.bounded(record))
        except (UsageError, ValueError, RecursionError):
            continue
        if isinstance(contents, dict):
            margin = json_fields.number(contents.get("margin"))
            return CampaignSettings(
                baseline=json_fields.word(contents.get("baseline")),
                margin=margin if margin is not None and 0 < margin < 1 else None,
                hardware=json_fields.word(contents.get("hardware")) or None,
            )
    return CampaignSettings()


def _record(directory: Path) -> Path | None:
    if (directory / RECORD).is_file():
        return directory / RECORD
    inside = list(directory.glob(f"*/{RECORD}"))
    return inside[0] if len(inside) == 1 else None

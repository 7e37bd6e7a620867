"""Campaigns: what the file of a campaign says of how its runs are to be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec

from loadgen.errors import UsageError
from loadgen.others import documents, text
from loadgen.places import place

RECORD = "campaign.json"


class Told(msgspec.Struct, frozen=True):
    """Empty or None where no campaign says it."""

    baseline: str = ""
    margin: float | None = None
    hardware: str | None = None


def told(places: Iterable[str]) -> Told:
    """Of the first campaign among the places, or the only one inside one; a damaged record says nothing."""
    for record in (found for named in places if (found := _record(place(named))) is not None):
        try:
            found = json.loads(text.bounded(record))
        except (UsageError, ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            margin = documents.number(found.get("margin"))
            return Told(
                baseline=documents.word(found.get("baseline")),
                margin=margin if margin is not None and 0 < margin < 1 else None,
                hardware=documents.word(found.get("hardware")) or None,
            )
    return Told()


def _record(directory: Path) -> Path | None:
    if (directory / RECORD).is_file():
        return directory / RECORD
    inside = list(directory.glob(f"*/{RECORD}"))
    return inside[0] if len(inside) == 1 else None

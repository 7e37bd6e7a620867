"""Campaigns: what the file of a campaign says of how its runs are to be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from loadgen.analysis.importers import text
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
            return CampaignSettings(
                _word(found, "baseline") or "", _share(found.get("margin")), _word(found, "hardware")
            )
    return CampaignSettings()


def _record(directory: Path) -> Path | None:
    if (directory / RECORD).is_file():
        return directory / RECORD
    inside = list(directory.glob(f"*/{RECORD}"))
    return inside[0] if len(inside) == 1 else None


def _word(found: dict[str, Any], key: str) -> str | None:
    value = found.get(key)
    return value if isinstance(value, str) and value else None


def _share(value: Any) -> float | None:
    valid = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if valid and 0 < value < 1 else None

"""Trace times: instants as recordings write them, ISO dates or numbers, as nanoseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from loadgen.base.clock import SECOND_NS
from loadgen.base.text import quote_value

_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\d*\s*(Z|UTC|[+-]\d\d:?\d\d)?")
_YEARS = (1970, 2261)  # nanoseconds of them fit into 63 bits
_FIRST_NS = 631_152_000 * SECOND_NS  # 1990: a lower number is of another unit, or of a clock since boot


def parse_instant_ns(text: str) -> int:
    """Parse a date with time, UTC without a zone, to nanoseconds since 1970.

    Raises ValueError for a text that is none from 1970 to 2261.
    """
    parts = _INSTANT.fullmatch(text.strip())
    if parts is None:
        raise ValueError(f"{quote_value(text)} is not a date and time")
    zone = (parts[3] or "Z").replace("UTC", "Z")
    try:
        at = datetime.fromisoformat(parts[1] + zone)
    except ValueError as error:
        raise ValueError(f"{quote_value(text)} is no date: {error}") from None
    if not _YEARS[0] <= at.year <= _YEARS[1]:
        raise ValueError(f"{quote_value(text)} is not in the years {_YEARS[0]} to {_YEARS[1]}")
    whole_s = (at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    return int(whole_s) * SECOND_NS + int((parts[2] or "").ljust(9, "0"))


def check_epoch_ns(value: int) -> int:
    """Return nanoseconds since 1970 as they are; raises ValueError for those before 1990 or after 2261."""
    if not _FIRST_NS <= value < 2**63:
        raise ValueError(f"{quote_value(value)} is not a time in nanoseconds since 1970")
    return value

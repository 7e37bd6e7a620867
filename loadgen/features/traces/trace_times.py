"""Trace times: instants as recordings write them, dates or numbers, as nanoseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

from loadgen.base.clock import SECOND_NS
from loadgen.base.text import quote_value

_NAIVE_EPOCH = datetime(1970, 1, 1)
_EPOCH = _NAIVE_EPOCH.replace(tzinfo=UTC)
_MOST_S = 9_214_646_400  # the begin of 2262: nanoseconds until then fit into 63 bits
_US_LETTERS = len("1970-01-01T00:00:00.000000")
_BELOW_US = re.compile(r"[.,]\d{6}(\d{1,3})")  # of a fraction
_NGINX = "%d/%b/%Y:%H:%M:%S%z"
_FIRST_NS = 631_152_000 * SECOND_NS  # 1990: a lower number is of another unit, or of a clock since boot


def parse_instant_ns(text: str) -> int:
    """Parse a date with time, of ISO 8601 or as nginx writes it, to nanoseconds since 1970.

    One without a zone is UTC. Raises ValueError for a text that is none from 1970 to 2261.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = _parse_other(text)
    after = at - (_EPOCH if at.tzinfo else _NAIVE_EPOCH)
    whole_s = after.days * 86_400 + after.seconds
    if not 0 <= whole_s < _MOST_S or not (":" in text or "T" in text):
        raise _make_refusal(text)
    below = _BELOW_US.search(text) if len(text) > _US_LETTERS else None
    below_ns = int(below[1].ljust(3, "0")) if below else 0
    return whole_s * SECOND_NS + after.microseconds * 1000 + below_ns


@lru_cache(4096)  # many lines of a log are of one second
def _parse_other(text: str) -> datetime:
    """Parse a date as nginx writes it, or of ISO 8601 before a blank or UTC; raises ValueError."""
    plain = text.strip().removesuffix("UTC").rstrip().replace(" +", "+").replace(" -", "-")
    try:
        return datetime.fromisoformat(plain)
    except ValueError:
        try:
            return datetime.strptime(plain, _NGINX)
        except ValueError:
            raise _make_refusal(text) from None


def _make_refusal(text: str) -> ValueError:
    return ValueError(f"{quote_value(text)} is not a date and time from 1970 to 2261")


def check_epoch_ns(value: int) -> int:
    """Return nanoseconds since 1970 as they are; raises ValueError for those before 1990 or after 2261."""
    if not _FIRST_NS <= value < 2**63:
        raise ValueError(f"{quote_value(value)} is not a time in nanoseconds since 1970")
    return value

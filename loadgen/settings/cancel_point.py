"""Cancel point: which share of the requests the client gives up on purpose, and when, as people write it."""

from __future__ import annotations

import re

import msgspec

from loadgen.base import parsing
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.text import format_count

_LEAST_SHARE = 1e-12  # as small as one can be written
_TIME = re.compile(parsing.TIME, re.ASCII)
_TOKENS = re.compile(r"([0-9]{1,10})\s*tok", re.ASCII)
_LONGEST_NS = 86_400_000_000_000
_MOST_TOKENS = 1 << 31
_FORM = "write 2s, 500ms or 50tok"


class CancelPoint(msgspec.Struct, frozen=True):
    """When a request is given up: a time after it was sent, or once N messages with text have come."""

    after_ns: int = 0
    after_tokens: int = 0  # 0: the time decides

    def __str__(self) -> str:
        if self.after_tokens:
            return format_count(self.after_tokens, "token message")
        if self.after_ns < SECOND_NS // 10:
            return f"{self.after_ns / MS_NS:g} ms"
        return f"{self.after_ns / SECOND_NS:g} s"


def parse_rate(text: str) -> float:
    """The share that `10%` or `0.1` stands for, above 0 and up to 1; raises ValueError."""
    try:
        return parsing.parse_share(text, _LEAST_SHARE)
    except ValueError:  # what refuses a key shows its value already
        raise ValueError("no share of the requests: write 10% or 0.1, above 0 and up to 100%") from None


def parse_point(text: str) -> CancelPoint:
    """Parse `2s`, `1.5m` or `50tok`; raises ValueError."""
    written = text.strip()
    if (tokens := _TOKENS.fullmatch(written)) is not None:
        if not 1 <= int(tokens[1]) <= _MOST_TOKENS:
            raise ValueError(f"a request is cancelled after 1 to {_MOST_TOKENS} tokens")
        return CancelPoint(after_tokens=int(tokens[1]))
    if _TIME.fullmatch(written) is None:
        raise ValueError(f"neither a time nor a whole number of tokens: {_FORM}; units ms, s, m, h")
    after_ns = round(parsing.parse_seconds(written) * SECOND_NS)
    if not 0 < after_ns <= _LONGEST_NS:
        raise ValueError("a request is cancelled after more than 0 s, and within a day")
    return CancelPoint(after_ns=after_ns)

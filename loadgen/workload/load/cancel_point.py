"""Cancel point: which share of the requests the client gives up on purpose, and when, as people write it."""

from __future__ import annotations

import re

import msgspec

_RATE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(%?)")
_AFTER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|tok)")
_UNITS_NS = {"ms": 1_000_000, "s": 1_000_000_000}
_LONGEST_NS = 86_400_000_000_000
_MOST_TOKENS = 1 << 31


class CancelPoint(msgspec.Struct, frozen=True):
    """When a request is given up: a time after it was sent, or once N messages with text have come."""

    after_ns: int = 0
    after_tokens: int = 0  # 0: the time decides

    def __str__(self) -> str:
        if self.after_tokens:
            return f"{self.after_tokens} token messages"
        return f"{self.after_ns / 1e9:g} s"


def parse_rate(text: str) -> float:
    """The share that `10%` or `0.1` stands for, above 0 and up to 1; raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is no share of the requests: write 10% or 0.1, above 0 and up to 100%")
    return share


def parse_point(text: str) -> CancelPoint:
    """What `2s`, `500ms` or `50tok` stands for; raises ValueError."""
    match = _AFTER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is neither a time nor a number of tokens: write 2s, 500ms or 50tok")
    number, unit = float(match[1]), match[2]
    if unit == "tok":
        if not number.is_integer() or not 1 <= number <= _MOST_TOKENS:
            raise ValueError(f"{text!r}: a request is cancelled after a whole number of tokens, 1 or more")
        return CancelPoint(after_tokens=int(number))
    after_ns = round(number * _UNITS_NS[unit])
    if not 0 < after_ns <= _LONGEST_NS:
        raise ValueError(f"{text!r}: a request is cancelled after more than 0 s, and within a day")
    return CancelPoint(after_ns=after_ns)

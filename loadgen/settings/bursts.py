"""Bursts: requests that are due all at once, again and again, as `--bursts "50 every 10s"` has them."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.bounds import MOST_REQUESTS, YEAR_S
from loadgen.base.clock import SECOND_NS
from loadgen.base.parsing import parse_seconds

_BURSTS = re.compile(r"([0-9]{1,10})\s+every\s+(\S+(?:\s*(?:ms|s|m|h))?)", re.ASCII)
_LEAST_S = 0.001


class Bursts(msgspec.Struct, frozen=True):
    """As many requests at once at the start, and after every period again."""

    requests: int
    every_s: float

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second on average."""
        return self.requests / self.every_s

    def offsets_ns(self, n: int) -> Int64:
        """When each of the first n requests is due, int64[n]."""
        offsets_ns: Int64 = np.rint(np.arange(n) // self.requests * (self.every_s * SECOND_NS)).astype(
            np.int64
        )
        return offsets_ns


def parse(text: str) -> Bursts:
    """The bursts that a text writes; raises ValueError that says what to write."""
    match = _BURSTS.fullmatch(" ".join(text.split()))
    if match is None:
        raise ValueError("write it as `50 every 10s`")
    made = Bursts(int(match[1]), parse_seconds(match[2]))
    if not 1 <= made.requests <= MOST_REQUESTS:
        raise ValueError(f"a burst has 1 to {MOST_REQUESTS} requests")
    if not _LEAST_S <= made.every_s <= YEAR_S:
        raise ValueError("bursts are 1ms to a year apart")
    return made

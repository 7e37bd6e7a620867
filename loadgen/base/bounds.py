"""Bounds: the limits of numbers, and the types of flags that hold to them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from loadgen.base.text import quote_value

MOST_TOKENS = 20_000_000  # of a prompt or an answer
MOST_REQUESTS = 100_000_000
MOST_STREAMS = 1_000_000
MOST_TURNS = 10_000  # of one conversation that is made here
MOST_SECONDS = 1e9  # 31 years
YEAR_S = 31_536_000.0  # a year
MOST_GB_PER_S = 1e9  # of a memory's bandwidth
MOST_IDS = 10_000_000  # of a vocabulary
MOST_GPUS = 1_000_000  # that a server runs on
MOST_INT = 2**31 - 1  # of a sampling parameter
MOST_SEED = 2**63 - 1
_LONGEST_NUMBER = 40  # characters
_MOST, _LEAST = 1e15, 1e-15  # of any figure's magnitude: far beyond them nothing can be computed with it
N = TypeVar("N", int, float)


def read_figure(value: object) -> float | None:
    """Read a number that a figure can be: 0 or ±1e-15 to ±1e15; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if value == 0 or _LEAST <= abs(value) <= _MOST else None


class Bounded(msgspec.Struct, Generic[N], frozen=True):
    """An argparse type: a number from `least` to `most`; calling it parses, or raises ArgumentTypeError."""

    kind: Callable[[str], N]
    least: N
    most: N
    what: str
    span: str

    def __call__(self, text: str) -> N:
        try:
            value = self.kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{quote_value(text)} is not {self.what}") from None
        if not self.least <= value <= self.most:  # false for NaN too
            raise argparse.ArgumentTypeError(f"{quote_value(text)}: give {self.what} from {self.span}")
        return value


def integer_between(least: int, most: int) -> Bounded[int]:
    """Make an argparse type that parses an integer from `least` to `most`."""

    def read(text: str) -> int:
        return int(text) if len(text) <= _LONGEST_NUMBER else most + 1

    return Bounded(read, least, most, "a whole number", f"{least} to {most}")


def number_between(least: float, most: float) -> Bounded[float]:
    """Make an argparse type that parses a number from `least` to `most`; never NaN."""
    return Bounded(float, least, most, "a number", f"{least:g} to {most:.12g}")

"""Bounds: the limits of numbers, nesting and files of settings, checked before anything starts."""

from __future__ import annotations

import argparse
import math
import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
DEEPEST = 64  # tables and lists inside one another
_SHOWN = 40
_MOST, _LEAST = 1e15, 1e-15  # of any figure's magnitude: far beyond them nothing can be computed with it
NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"  # as a text of a schedule, or of a time, writes it
TIME = rf"{NUMBER}\s*(?:ms|s|m|h)"
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(rf"({NUMBER})\s*(ms|s|m|h)", re.ASCII)

_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(%?)", re.ASCII)

_REPR = reprlib.Repr()
T = TypeVar("T")
N = TypeVar("N", int, float)


def read_figure(value: object) -> float | None:
    """Read a number that a figure can be: 0, or 1e-15 to 1e15 of either sign; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if value == 0 or _LEAST <= abs(value) <= _MOST else None


@dataclass(frozen=True)
class Bounded(Generic[N]):
    """A flag's type: a number from `least` to `most`; calling it raises ArgumentTypeError."""

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
    """Make a flag's type: an integer from `least` to `most`."""

    def read(text: str) -> int:
        return int(text) if len(text) <= _SHOWN else most + 1

    return Bounded(read, least, most, "a whole number", f"{least} to {most}")


def number_between(least: float, most: float) -> Bounded[float]:
    """Make a flag's type: a number from `least` to `most`; not NaN, and infinite only if `most` is."""
    return Bounded(float, least, most, "a number", f"{least:g} to {most:.12g}")


def parse_with(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make a flag's type: the value that `parse` returns; its ValueError is the message."""

    def parse_flag(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_flag


def parse_seconds(text: str) -> float:
    """Parse a time such as `60s`, `2m`, `1.5h` or `500ms`; raises ValueError."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        example = f"{text.strip()}s" if _TIME.fullmatch(f"{text.strip()}s") else "60s"
        raise ValueError(f"{quote_value(text)} is not a time: write it as {example}; units ms, s, m, h")
    return float(match[1]) * _UNITS_S[match[2]]


def parse_share(text: str, least: float, most: float = 1.0) -> float:
    """Parse a share such as `5%` or `0.05`, from `least` to `most` (parts of 1); raises ValueError."""
    match = _SHARE.fullmatch(text.strip())
    part = float(match[1]) / (100 if match[2] else 1) if match else math.nan
    if not least <= part <= most:
        raise ValueError(
            f"{quote_value(text)} is no share from {100 * least:g}% to {100 * most:g}%: write 5% or 0.05"
        )
    return part


def refuse_blank(form: str) -> Callable[[str], str]:
    """Make a flag's type: a text that is not blank, unlike that of an unset shell variable."""

    def check_text(value: str) -> str:
        if not value.strip():
            raise argparse.ArgumentTypeError(f"is empty: write {form}, or leave the flag out")
        return value

    return check_text


def quote_value(value: Any) -> str:
    """Quote a value for a message, a long one by its beginning; never recurses far itself."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}…"
    text = _REPR.repr(value)
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}…"


def is_too_deep(value: Any) -> bool:
    """Whether tables and lists are nested more than 64 deep; does not recurse itself."""
    level = [value]
    for _ in range(DEEPEST + 1):
        nested = [part for part in level if isinstance(part, dict | list)]
        level = [inner for part in nested for inner in (part.values() if isinstance(part, dict) else part)]
        if not level:
            return False
    return True

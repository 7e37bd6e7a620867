"""Printed: a figure as it was printed, with what its last digit leaves open."""

from __future__ import annotations

import msgspec

from loadgen.study.importers.numbers import last_digit_of

COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens", "num_prompts")
_EXACT = 1e-9  # of its own, for figures that were summed in another order


class Interval(msgspec.Struct, frozen=True):
    """All values that a printed figure may stand for; for non-negative figures."""

    low: float
    high: float

    @classmethod
    def of(cls, value: float, *, count: bool = False) -> Interval:
        """The values that print like this one: one unit of its last digit either way, cut or rounded.

        Counts are taken as exact.
        """
        unit = 0.0 if count else last_digit_of(value)
        if not unit:
            return cls(value * (1 - _EXACT), value * (1 + _EXACT))
        return cls(max(0.0, value - unit), value + unit)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __mul__(self, other: Interval) -> Interval:
        return Interval(self.low * other.low, self.high * other.high)

    def meets(self, other: Interval) -> bool:
        """Whether one value is in both."""
        return self.low <= other.high and other.low <= self.high

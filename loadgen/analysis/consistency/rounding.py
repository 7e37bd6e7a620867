"""Printed: a figure as it was printed, with what its last digit leaves open."""

from __future__ import annotations

from decimal import Decimal

import msgspec

COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens", "num_prompts")
_WHOLE = 6  # decimals, above which a figure is taken as exact
_EXACT = 1e-9  # of its own, for figures that were summed in another order


class Interval(msgspec.Struct, frozen=True):
    """All values that a printed figure may stand for; for non-negative figures."""

    low: float
    high: float

    @classmethod
    def of(cls, value: float, *, count: bool = False) -> Interval:
        """The values that print like this one: one unit of its last decimal either way, cut or rounded.

        Trailing zeros are lost with the text, so 23.00 is taken as 23.0: wider, never narrower. Counts and
        figures of more than six decimals are taken as exact.
        """
        decimals = -int(Decimal(repr(value)).as_tuple().exponent)
        if count or decimals > _WHOLE:
            return cls(value * (1 - _EXACT), value * (1 + _EXACT))
        unit = 10.0 ** -max(decimals, 0)
        return cls(max(0.0, value - unit), value + unit)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __mul__(self, other: Interval) -> Interval:
        return Interval(self.low * other.low, self.high * other.high)

    def meets(self, other: Interval) -> bool:
        """Whether one value is in both."""
        return self.low <= other.high and other.low <= self.high

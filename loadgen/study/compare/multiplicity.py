"""Family: the rows of one figure judged together, so that many rows do not add up to false verdicts.

Over numpy arrays whose last axis is the rows.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.study.compare.estimate import CLOCK_ERROR, Estimate
from loadgen.study.compare.power import more_units

# Who reads "about N more runs" makes them and analyses again, and perhaps once more, since the spread of few
# runs was a guess: each analysis has a third of alpha (Bonferroni over three), so that it need not be given
# which one it is. The resulting error rates are simulated in docs/comparing-calibration.md.
LOOKS = 3


class Family(msgspec.Struct, frozen=True):
    """The verdicts on rows; NaN in `p` where a row has no test."""

    p: Float64  # of no difference, adjusted by Holm over the rows and by Bonferroni over the analyses
    p_equivalent: Float64  # of a difference beyond the margin, likewise
    alpha: float

    @property
    def equivalent(self) -> Bool:
        """Within the margin: the practical question comes first."""
        return np.asarray(self.p_equivalent <= self.alpha)

    @property
    def differs(self) -> Bool:
        """Faster or slower, and not shown to be within the margin."""
        return np.asarray((self.p <= self.alpha) & ~self.equivalent)

    @property
    def undecided(self) -> Bool:
        """Tested, and neither."""
        return np.asarray(~np.isnan(self.p) & ~self.differs & ~self.equivalent)

    @property
    def rows(self) -> Int64:
        """How many rows have a test; the last axis is kept, of length 1."""
        return np.asarray((~np.isnan(self.p)).sum(-1, keepdims=True))

    @property
    def level(self) -> Float64:
        """What an undecided row's own p must reach: alpha over the analyses and the rows still undecided."""
        left = self.rows - (self.p <= self.alpha).sum(-1, keepdims=True)
        return np.asarray(self.alpha / LOOKS / np.maximum(left, 1))


def family(estimated: Estimate, margin: float, alpha: float) -> Family:
    """Rows tested for a difference, and apart from that for equivalence within the margin."""
    p, p_equivalent = (LOOKS * step_down(p) for p in (estimated.p, estimated.p_equivalent(margin)))
    return Family(np.minimum(p, 1), np.minimum(p_equivalent, 1), alpha)


def step_down(p: Float64) -> Float64:
    """Holm's adjusted p over the last axis: p₍ᵢ₎ · (m − i + 1), never falling, at most 1; NaN stays NaN."""
    order = np.argsort(p, -1)  # NaN comes last
    tests = (~np.isnan(p)).sum(-1, keepdims=True)
    factors = np.maximum(tests - np.arange(p.shape[-1]), 1)
    climbing = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factors, -1)
    adjusted = np.empty_like(climbing)
    np.put_along_axis(adjusted, order, np.minimum(climbing, 1), -1)
    return adjusted


def more_runs(
    estimated: Estimate, units: Any, *, rows: int, margin: float, alpha: float, floor: Any = CLOCK_ERROR
) -> Float64:
    """How many more units a side settle a difference of the margin's size, whatever the other rows do.

    From spread and margin alone, never from the effect seen (Stein 1945): a number that follows the effect
    stops where luck was good. inf where it takes over 1000 units.
    """
    level = alpha / LOOKS / rows
    return more_units(
        estimated.error, estimated.freedom, units, math.log1p(margin), (level / 2, level), floor
    )

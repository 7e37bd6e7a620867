"""Power: what runs of this many and this spread can find, by the noncentral t distribution.

Everything is in standard errors of a log ratio, elementwise over numpy arrays; scipy is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loadgen.base.arrays import Bool, Float64

POWER = 0.8  # the share of campaigns that is to find what is there
MOST_UNITS = 1000  # of a side: beyond that the number needed is not computed


def power(distance: Any, freedom: Any, tail: Any) -> Float64:
    """How often a one-sided t test at level `tail` rejects where the truth is `distance` standard errors off.

    1 − F(t(1 − tail; freedom); freedom, distance), F of the noncentral t distribution. Beyond three times
    that t and 10 more, where it is over 0.99, scipy's F is NaN for some arguments: it is taken there.
    """
    from scipy import special

    bar = special.stdtrit(freedom, 1 - np.asarray(tail))
    return np.asarray(1 - special.nctdtr(freedom, np.minimum(distance, 3 * bar + 10), bar))


def separation(freedom: Any, tail: Any, wanted: float = POWER) -> Float64:
    """The distance in standard errors at which `power` is `wanted`; `freedom` is 1 or more."""
    from scipy import special

    return np.asarray(special.nctdtrinc(freedom, 1 - wanted, special.stdtrit(freedom, 1 - np.asarray(tail))))


def more_units(
    error: Any, freedom: Any, units: Any, limit: float, tails: tuple[float, float], floor: Any = 0.0
) -> Float64:
    """The least number of units to add on each side that settles a difference of size `limit` (log scale).

    Settled: were the truth ± limit, the difference would be found (at level tails[0] on each side); were
    there none, equivalence would be (both one-sided tests at tails[1]); each in 80 % of campaigns.
    Equivalence fails where either of its tests does, so each is given half of the 20 %. The spread seen so
    far is taken for the truth, and the effect seen so far plays no part. `floor` is a standard error that
    more units do not lessen. inf where it takes over 1000 units.
    """
    error, freedom, units = (np.asarray(array, float) for array in (error, freedom, units))

    def settled(more: Float64) -> Bool:
        at = np.maximum(error * np.sqrt(units / (units + more)), floor)
        degrees = freedom * (units + more - 1) / (units - 1)
        finds = power(limit / at, degrees, tails[0]) >= POWER
        settles_equal: Bool = power(limit / at, degrees, tails[1]) >= (1 + POWER) / 2
        return finds & settles_equal

    return _least(settled, np.maximum(MOST_UNITS - units, 0.0))


def _least(holds: Callable[[Float64], Bool], most: Float64) -> Float64:
    """The least whole number from 1 to `most` from which on `holds`; inf where it does not hold at `most`."""
    low, high = np.zeros(most.shape), most
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        right = holds(middle)
        low, high = np.where(right, low, middle), np.where(right, middle, high)
    return np.where((most >= 1) & holds(most), high, np.inf)

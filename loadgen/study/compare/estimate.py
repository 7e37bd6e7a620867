"""Estimate: the logarithm of a ratio row ÷ baseline, its standard error, and Student's t tests of both.

Over numpy arrays whose last axis is the units, so that `benchmarks/comparing.py` puts thousands of campaigns
through the very lines that judge one.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Float64

# The least standard error of a ratio: crystals and their discipline (NTP slews by up to 500 ppm) leave no two
# clocks, or one clock on two days, nearer than about 100 ppm.
CLOCK_ERROR = 1e-4


class Estimate(msgspec.Struct, frozen=True):
    """Natural logarithms of ratios; arrays of one shape."""

    log_ratio: Float64
    error: Float64  # its standard error
    freedom: Float64  # degrees of freedom of that

    @property
    def p(self) -> Float64:
        """Of no difference, two-sided: 2 · F(−|log ratio| / error), F of Student's t."""
        return 2 * _student(-np.abs(self.log_ratio) / self.error, self.freedom)

    def p_equivalent(self, margin: float) -> Float64:
        """The larger p of the two one-sided tests against 1 + margin and 1 / (1 + margin).

        It is at most a exactly where the interval at 1 − 2a lies between the two (Schuirmann 1987).
        """
        return _student((np.abs(self.log_ratio) - math.log1p(margin)) / self.error, self.freedom)

    def reach(self, alpha: float) -> Float64:
        """Half the width of the interval of the log ratio at 1 − alpha: t(1 − alpha / 2) · error."""
        from scipy import special

        return np.asarray(special.stdtrit(self.freedom, 1 - alpha / 2) * self.error)


def estimate(row: Float64, baseline: Float64, *, paired: bool, floor: Any = CLOCK_ERROR) -> Estimate:
    """The log ratio of positive figures over the last axis: of pairs, or of two samples by Welch.

    Paired: the mean of d = ln(row / baseline), its error sd(d) / √n, n − 1 degrees of freedom. Else the
    difference of the two mean logarithms, with Welch's error and degrees of freedom. `floor` is the least
    error that is credible.
    """
    logs, others = np.log(row), np.log(baseline)
    n, m = logs.shape[-1], others.shape[-1]
    centre = logs.mean(-1) - others.mean(-1)
    if paired:
        variance = np.asarray((logs - others).var(-1, ddof=1) / n)
        freedom = np.full(centre.shape, n - 1.0)
    else:
        own, other = logs.var(-1, ddof=1) / n, others.var(-1, ddof=1) / m
        variance = np.asarray(own + other)
        below = np.asarray(own**2 / (n - 1) + other**2 / (m - 1))
        freedom = np.full(centre.shape, min(n, m) - 1.0)  # of no spread at all: the floor decides
        np.divide(variance**2, below, out=freedom, where=below > 0)
    return Estimate(np.asarray(centre), np.maximum(np.sqrt(variance), floor), freedom)


def _student(t: Float64, freedom: Float64) -> Float64:
    from scipy import special

    return np.asarray(special.stdtr(freedom, t))

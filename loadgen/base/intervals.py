"""Intervals: Student's quantiles, without scipy, and the standard error of a ratio of two sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from loadgen.base.arrays import Float64, Int64

NORMAL_QUANTILE = 1.959963984540054  # 97.5 % of the normal distribution
LEAST_SPREAD = 1e-12  # of a ratio's size: below it is rounding
# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
# fmt: off
_T = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
    2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272,
)
# fmt: on


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t for `freedom` degrees of freedom, 1 or more.

    A table to 30, then Abramowitz and Stegun's expansion 26.7.5 with three terms, off by less than 1e-6.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = NORMAL_QUANTILE
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


class RatioOfSums:
    """Σ sums / Σ sizes over clusters, as a mean per token of answers, with its standard error.

    With ratio r and m clusters: √(Σ(sum − r·size)² · m / (m − 1)) / Σ sizes (Cochran, Sampling Techniques,
    3rd ed. 1977, 6.13), ∞ for a single cluster.
    """

    def __init__(
        self, sums: Sequence[float] | Float64 | Int64, sizes: Sequence[float] | Float64 | Int64
    ) -> None:
        """Compute the ratio from each cluster's sum and size, which is above 0."""
        self.sums, self.sizes = np.asarray(sums, dtype=float), np.asarray(sizes, dtype=float)
        self.clusters, self.total = len(self.sums), float(self.sizes.sum())
        self.mean = float(self.sums.sum()) / self.total
        self.residuals = self.sums - self.mean * self.sizes
        m, squares = self.clusters, float((self.residuals**2).sum())
        self.error = math.inf if m < 2 else math.sqrt(squares * m / (m - 1)) / self.total
        if self.error < LEAST_SPREAD * abs(self.mean):
            self.error = 0.0

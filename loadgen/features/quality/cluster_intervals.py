"""Cluster intervals: means over tokens that come in clusters (answers, segments), which are what is drawn.

Tokens of one answer are alike, so the answers are the sample, and a mean per token is a ratio of two sums
(Cochran, Sampling Techniques, 3rd ed. 1977, chapters 6 and 9). The interval of a mean that may be skewed is
the bootstrap-t over clusters (Efron, The Jackknife, the Bootstrap and Other Resampling Plans, 1982, 10.7):
each side's coverage is off by the order of 1/m for m clusters, that of Student's by 1/√m (Hall, Annals of
Statistics 16, 1988, 927-953).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from loadgen.base.arrays import Float64
from loadgen.base.intervals import LEAST_SPREAD, RatioOfSums, t_quantile
from loadgen.features.quality.quality_record import MeanInterval

_RESAMPLES = 2000
_SEED = 41  # of the bootstrap: equal data have equal intervals
_FEWEST, _MOST = 30, 1000  # clusters that are resampled: fewer hold too little, of more the mean is normal
_TAIL = 0.025


class ClusterMean(RatioOfSums):
    """The mean per token of values summed by cluster; a size is a number of tokens, or of bytes."""

    @classmethod
    def of(cls, clusters: Sequence[Float64]) -> ClusterMean:
        """Average the values of each token, an array a cluster."""
        return cls([float(values.sum()) for values in clusters], [len(values) for values in clusters])

    def find_interval(self) -> MeanInterval | None:
        """Find the 95 % interval: bootstrap-t, or Student's t for under 30 or over 1000 clusters.

        None for a single cluster; of clusters that do not vary both ends are the mean.
        """
        if self.clusters < 2:
            return None
        t = t_quantile(self.clusters - 1)
        below, above = -t, t
        if _FEWEST <= self.clusters <= _MOST and self.error:
            below, above = self._resample_t()
        return MeanInterval(
            mean=self.mean, low=self.mean - above * self.error, high=self.mean - below * self.error
        )

    def find_share_interval(self) -> MeanInterval | None:
        """Find the 95 % interval of a share by Wilson's score with the clusters' effective sample size.

        That size is p(1 − p) ÷ error², at most the tokens (Korn and Graubard, Survey Methodology 24, 1998),
        and z is Student's t; where all clusters are equal it is the tokens. None for a single cluster.
        """
        if self.clusters < 2:
            return None
        share = min(max(self.mean, 0.0), 1.0)
        spread = share * (1 - share)
        size = min(self.total, spread / self.error**2) if self.error and spread else self.total
        t = t_quantile(self.clusters - 1)
        centre = (share + t * t / (2 * size)) / (1 + t * t / size)
        half = t / (1 + t * t / size) * math.sqrt(spread / size + t * t / (4 * size * size))
        low = centre - half if share > 0 else 0.0  # but for rounding
        high = centre + half if share < 1 else 1.0
        return MeanInterval(mean=share, low=low, high=high)

    def score(self, expected: float) -> float:
        """Compute how many standard errors the mean is from `expected`, less what skewness explains.

        Hall's transformation of Student's t (Journal of the Royal Statistical Society B 54, 1992, 221-228).
        0.0 where the clusters do not vary and the mean is as expected, ±inf where it is not.
        """
        off = self.mean - expected
        if self.error == 0.0:
            return 0.0 if abs(off) <= LEAST_SPREAD + 1e-9 * abs(expected) else math.copysign(math.inf, off)
        t, m = off / self.error, self.clusters
        deviation = math.sqrt(float((self.residuals**2).mean()))
        skew = float((self.residuals**3).mean()) / deviation**3 / math.sqrt(m) if deviation else 0.0
        return t + skew * t * t / 3 + skew**2 * t**3 / 27 + skew / 6

    def _resample_t(self) -> tuple[float, float]:
        """Return the 2.5 and 97.5 % quantiles of Student's t over resampled clusters."""
        m = self.clusters
        weights = (
            np.random.default_rng(_SEED).multinomial(m, np.full(m, 1 / m), size=_RESAMPLES).astype(float)
        )
        totals = weights @ self.sizes
        off = (weights @ self.residuals) / totals  # of a resample's mean from the mean
        squares = (
            weights @ self.residuals**2
            - 2 * off * (weights @ (self.residuals * self.sizes))
            + off**2 * (weights @ self.sizes**2)
        )
        errors = np.sqrt(np.maximum(squares, 0.0) * m / (m - 1)) / totals
        errors = np.maximum(errors, LEAST_SPREAD * self.error)  # of one cluster, drawn m times
        low, high = np.quantile(off / errors, [_TAIL, 1 - _TAIL])
        return float(low), float(high)

"""Dependence: how many independent samples the samples of one run are worth.

Requests that wait in one queue are slow together: 500 of them tell as much of P90 as 20 that have nothing to
do with one another. How many they are worth follows from how the ranks of neighbours agree: the variance of
their mean is that of independent ones times 1 + 2 Σ r(k), summed over lags while pairs of them are positive,
none more than the one before (Geyer, Practical Markov chain Monte Carlo, 1992). A short run shows less
dependence than there is, since its own mean is taken off: the sum is corrected for that, and raised by a
standard error (Sokal, Monte Carlo methods in statistical mechanics, 1997). docs/metrics.md has what holds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Float64

_FEW = 7  # samples: no percentile of fewer has a bound, and their order says nothing
_MOST = 1 << 15  # means of successive samples that are compared
_Z99 = 2.5758293035489004  # a normal deviate beyond which, on either side, lies 1 %
_PARTS = 6  # of a run whose means are compared
_UNLIKELY = 3.02  # χ² of 5 ÷ 5: 1 in 100 runs of independent samples has parts that differ more
_UNSURE = 2.09  # (t of 5 degrees of freedom ÷ normal deviate)² at 99 %: what six parts may hide
_LAGS = 6  # times the sum of lags: further ones are noise
_ERRORS = 1.3  # standard errors that the sum is raised by


def count_independent(values: NDArray[Any]) -> int:
    """Count the independent samples that a run's samples, in order of sending, are worth; at most all.

    All of them, unless neighbours or parts of the run agree more than 1 in 100 runs of independent samples
    would. Values may be infinite, and equal ones are no order.
    """
    n = len(values)
    if n < _FEW:
        return n
    ranks, size = _rank(values), -(-n // _MOST)
    means = ranks[: n // size * size].reshape(-1, size).mean(1)
    variance = float(ranks.var())
    if not variance > 0:
        return n
    each = max(size * float(means.var()) / variance, 1.0)  # of a mean, × that of independent samples
    return max(math.floor(n / (each * _measure_factor(means)) + 1e-9), 1)


def _rank(values: NDArray[Any]) -> Float64:
    """Return the rank of each value, of equal ones the middle of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends: Float64 = np.cumsum(counts) - (counts - 1) / 2
    return ends[place]


def _measure_factor(values: Float64) -> float:
    """Measure how many times the variance of the mean is that of independent values; 1 where none is seen."""
    n, away = len(values), values - values.mean()
    spectrum = np.fft.rfft(away, 1 << (2 * n - 1).bit_length())
    products = np.fft.irfft(np.abs(spectrum) ** 2)[:n]
    if not products[0] > 0:
        return 1.0
    alike = products / products[0]  # with values 1, 2, … later
    parts = np.array([(len(part), part.sum()) for part in np.array_split(away, _PARTS)])
    between = float((parts[:, 1] ** 2 / parts[:, 0]).sum() / (products[0] / n) / (_PARTS - 1))
    lags = max(math.isqrt(n), 2)
    near, wide = (alike[1 : some + 1].sum() + some / n for some in (1, lags))
    if near * math.sqrt(n) < _Z99 and wide * math.sqrt(n / lags) < _Z99 and between < _UNLIKELY:
        return 1.0
    pairs = alike[: n // 6 * 2].reshape(-1, 2).sum(1)
    ended = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    sums = 2.0 * np.minimum.accumulate(pairs[:ended]).cumsum() - 1.0
    # Noise of far lags is left out: those beyond so many times the sum up to them.
    beyond = 2 * np.arange(ended) + 1 >= _LAGS * sums
    if beyond.any():
        ended = int(np.argmax(beyond)) + 1
    seen, last = (max(float(sums[ended - 1]), 1.0), 2 * ended - 1) if ended else (1.0, 0)
    window = 2 * last + 1
    factor = seen / (1 + (seen - window) / n) * (1 + _ERRORS * math.sqrt(2 * window / n))
    # What drifts has parts that differ more than neighbours do.
    return factor if between < _UNLIKELY * factor else _UNSURE * between

"""Resampling: permutation and bootstrap of a log ratio, shown beside the t interval and never deciding.

With few units neither can say anything: the signs of five pairs fall one way by chance in 2 of 2⁵ cases, so
that no five pairs, however clear, have a permutation p below 0.0625.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from loadgen.arrays import Float64

_DRAWS = 9999  # where every assignment is too many: more than 2**15 signs, or 20,000 divisions into two
_MOST_EXACT = {True: 2**15, False: 20_000}
_SEED = 0  # the same runs give the same figures


def least_p(row: int, baseline: int, *, paired: bool) -> float:
    """The least two-sided p that a permutation of so many units has: of one assignment and its mirror."""
    return min(1.0, 2 / (2**row if paired else math.comb(row + baseline, row)))


def beside(
    row: Sequence[float], baseline: Sequence[float], *, paired: bool, alpha: float
) -> Mapping[str, float]:
    """`permutation_p`, and `bootstrap_low` and `bootstrap_high` of the ratio at 1 − alpha.

    Empty where the least attainable p is not below alpha. That holds the bootstrap too: whenever all pairs
    lean one way its interval excludes 1, with three pairs as with thirty, so of fewer pairs than the signs
    need it would claim what the signs cannot bear. Values are positive and of some spread.
    """
    if least_p(len(row), len(baseline), paired=paired) >= alpha:
        return {}
    logs, others = np.log(np.asarray(row, float)), np.log(np.asarray(baseline, float))
    samples = (logs - others,) if paired else (logs, others)
    if not sum(float(sample.var()) for sample in samples) > 0:
        return {}
    low, high = bootstrap(samples, alpha)
    return {"permutation_p": permutation(samples), "bootstrap_low": low, "bootstrap_high": high}


def permutation(samples: tuple[Float64, ...]) -> float:
    """Two-sided p: signs of one sample flipped, or two samples' values dealt anew; of the mean (difference).

    Exact while the assignments are few; else (1 + at least as far) / (1 + 9999) of a fixed seed's draws.
    """
    from scipy import stats

    signs = len(samples) == 1
    size = sum(map(len, samples))
    every = 2**size if signs else math.comb(size, len(samples[0]))
    found = stats.permutation_test(
        samples,
        _mean if signs else _difference,
        permutation_type="samples" if signs else "independent",
        vectorized=True,
        n_resamples=every if every <= _MOST_EXACT[signs] else _DRAWS,
        random_state=np.random.default_rng(_SEED),
    )
    return float(found.pvalue)


def bootstrap(samples: tuple[Float64, ...], alpha: float) -> tuple[float, float]:
    """The bootstrap-t interval of the ratio (Efron and Tibshirani 1993, 12.5), at 1 − alpha.

    Each of 9999 resamples has its own t = (mean* − mean) / error*; their quantiles stand where Student's
    would. Resamples of one value over and over have no error and are left out.
    """
    draws = np.random.default_rng(_SEED)
    means, variances = zip(*(_resampled(sample, draws) for sample in samples), strict=True)
    centre, error = float(_centre([sample.mean(keepdims=True) for sample in samples])[0]), _error(samples)
    errors = np.sqrt(sum(variances))
    told = errors > 1e-9 * error
    t = (_centre(means)[told] - centre) / errors[told]
    low, high = np.quantile(t, (alpha / 2, 1 - alpha / 2))
    return math.exp(centre - high * error), math.exp(centre - low * error)


def _resampled(sample: Float64, draws: np.random.Generator) -> tuple[Float64, Float64]:
    drawn = sample[draws.integers(0, len(sample), (_DRAWS, len(sample)))]
    return drawn.mean(-1), drawn.var(-1, ddof=1) / len(sample)


def _centre(means: Sequence[Float64]) -> Float64:
    return np.asarray(means[0] if len(means) == 1 else means[0] - means[1])


def _error(samples: tuple[Float64, ...]) -> float:
    return math.sqrt(sum(float(sample.var(ddof=1)) / len(sample) for sample in samples))


def _mean(sample: Float64, axis: int) -> Float64:
    return np.asarray(sample.mean(axis))


def _difference(row: Float64, baseline: Float64, axis: int) -> Float64:
    return np.asarray(row.mean(axis) - baseline.mean(axis))

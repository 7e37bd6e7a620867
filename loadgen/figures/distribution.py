"""Distribution: one latency or speed over a run, of values that may have weights and come in pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import MS_NS
from loadgen.figures import percentiles as ranks
from loadgen.figures.percentiles import Pieces, find_upper_index


class Distribution(msgspec.Struct, frozen=True):
    """Statistics of one latency over a run, in milliseconds; without samples `n` is 0, the rest NaN.

    `std_ms` is the population's (ddof 0), percentiles are linear between closest ranks: vLLM's choices.
    """

    n: int
    mean_ms: float
    median_ms: float
    std_ms: float
    min_ms: float
    max_ms: float
    percentiles_ms: dict[float, float]
    # Upper bounds of the percentiles at 99 % confidence, of one value a request; None: too few of them.
    bounds_ms: dict[float, float | None] = {}

    @property
    def p90_ms(self) -> float:
        """The 90th percentile; this and the next two are NaN where they were not computed."""
        return self.percentiles_ms.get(90.0, math.nan)

    @property
    def p95_ms(self) -> float:
        """The 95th percentile."""
        return self.percentiles_ms.get(95.0, math.nan)

    @property
    def p99_ms(self) -> float:
        """The 99th percentile."""
        return self.percentiles_ms.get(99.0, math.nan)

    @classmethod
    def from_ns(cls, values_ns: NDArray[Any], percentiles: Sequence[float]) -> Distribution:
        """Compute the statistics of samples in nanoseconds, which are reordered in place."""
        if not len(values_ns):
            return cls._make_empty(percentiles)
        return cls._make(len(values_ns), _compute_statistics(values_ns, percentiles), percentiles)

    @classmethod
    def from_requests(cls, values_ns: NDArray[Any], percentiles: Sequence[float]) -> Distribution:
        """Compute the statistics of one sample (ns) per request, with upper bounds of the percentiles.

        `values_ns` is sorted in place.
        """
        values_ns.sort()
        places = {percentile: find_upper_index(len(values_ns), percentile) for percentile in percentiles}
        bounds_ms = {
            percentile: None if place is None else float(values_ns[place]) / MS_NS
            for percentile, place in places.items()
        }
        return replace(cls.from_ns(values_ns, percentiles), bounds_ms=bounds_ms)

    @classmethod
    def from_weighted(cls, values_ns: Float64, weights: Int64, percentiles: Sequence[float]) -> Distribution:
        """Compute the statistics of samples (ns) that each count as often as their weight, 0: not at all."""
        count = int(weights.sum())
        if not count:
            return cls._make_empty(percentiles)
        mean = float((values_ns * weights).sum()) / count
        std = math.sqrt(float(((values_ns - mean) ** 2 * weights).sum()) / count)
        some = values_ns[weights > 0]
        ranked = ranks.rank_weighted(values_ns, weights, (50, *percentiles))
        return cls._make(count, (mean, std, float(some.min()), float(some.max()), *ranked), percentiles)

    @classmethod
    def from_pieces(cls, pieces: Pieces, percentiles: Sequence[float]) -> Distribution:
        """Compute the statistics of all pieces together, read several times and never held at once."""
        count, total, low, high = 0, 0.0, math.inf, -math.inf
        for values_ns, weights in ranks.drop_uncounted(pieces()):
            count += len(values_ns) if weights is None else int(weights.sum())
            total += float((values_ns if weights is None else values_ns * weights).sum(dtype=np.float64))
            low, high = min(low, values_ns.min().item()), max(high, values_ns.max().item())
        if not count:
            return cls._make_empty(percentiles)
        mean, squares = total / count, 0.0
        for values_ns, weights in ranks.drop_uncounted(pieces()):
            apart = (values_ns - mean) ** 2
            squares += float((apart if weights is None else apart * weights).sum())
        ranked = ranks.rank_pieces(pieces, count, (low, high), (50, *percentiles))
        return cls._make(count, (mean, math.sqrt(squares / count), low, high, *ranked), percentiles)

    @classmethod
    def _make_empty(cls, percentiles: Sequence[float]) -> Distribution:
        return cls._make(0, [math.nan] * (5 + len(percentiles)), percentiles)

    @classmethod
    def _make(cls, count: int, figures_ns: Sequence[float], percentiles: Sequence[float]) -> Distribution:
        """Make a distribution of mean, std, min, max, median and the percentiles, given in nanoseconds."""
        mean, std, low, high, median, *ranked = (figure_ns / MS_NS for figure_ns in figures_ns)
        return cls(count, mean, median, std, low, high, dict(zip(percentiles, ranked, strict=True)))


class RateDistribution(msgspec.Struct, frozen=True):
    """Statistics of one speed over a run, in tokens per second; without values `n` is 0, the rest NaN.

    Its slow end is a low percentile: P1, not P99.
    """

    n: int
    mean_tok_s: float
    median_tok_s: float
    std_tok_s: float  # the population's, as of a Distribution
    min_tok_s: float
    max_tok_s: float
    percentiles_tok_s: dict[float, float]

    @classmethod
    def from_speeds(cls, values_tok_s: NDArray[Any], percentiles: Sequence[float]) -> RateDistribution:
        """Compute the statistics of speeds in tokens per second, which are reordered in place."""
        figures = [math.nan] * (5 + len(percentiles))
        if len(values_tok_s):
            figures = _compute_statistics(values_tok_s, percentiles)
        mean, std, low, high, median, *ranked = figures
        ranks_tok_s = dict(zip(percentiles, ranked, strict=True))
        return cls(len(values_tok_s), mean, median, std, low, high, ranks_tok_s)


def _compute_statistics(values: NDArray[Any], percentiles: Sequence[float]) -> list[float]:
    """Return mean, std, min, max, median and each percentile of values, which are reordered in place."""
    figures = [float(of()) for of in (values.mean, values.std, values.min, values.max)]
    return [*figures, *ranks.compute_percentiles(values, (50, *percentiles))]

"""Distribution: one latency over a run, of values that may have weights and come in pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.arrays import Float64, Int64
from loadgen.metrics import percentiles as ranks
from loadgen.metrics.percentiles import Pieces

_MS_NS = 1e6


class Distribution(msgspec.Struct, frozen=True):
    """One latency over a run, in milliseconds; if empty, `n` is 0 and the rest NaN.

    `std_ms` is the population's (ddof 0), percentiles are linear between closest ranks: vLLM's choices.
    """

    n: int
    mean_ms: float
    median_ms: float
    std_ms: float
    min_ms: float
    max_ms: float
    percentiles_ms: dict[float, float]

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
    def of(cls, values_ns: NDArray[Any], percentiles: Sequence[float]) -> Distribution:
        """The distribution of these nanoseconds, which are reordered in place."""
        if not len(values_ns):
            return cls._of_nothing(percentiles)
        moments = float(values_ns.mean()), float(values_ns.std())
        bounds = float(values_ns.min()), float(values_ns.max())
        ranked = ranks.percentiles(values_ns, (50, *percentiles))
        return cls._made(len(values_ns), moments, bounds, ranked, percentiles)

    @classmethod
    def weighted(cls, values_ns: Float64, weights: Int64, percentiles: Sequence[float]) -> Distribution:
        """That of nanoseconds which each count as often as their weight, 0 not at all."""
        count = int(weights.sum())
        if not count:
            return cls._of_nothing(percentiles)
        mean = float((values_ns * weights).sum()) / count
        std = math.sqrt(float(((values_ns - mean) ** 2 * weights).sum()) / count)
        some = values_ns[weights > 0]
        ranked = ranks.weighted(values_ns, weights, (50, *percentiles))
        return cls._made(count, (mean, std), (float(some.min()), float(some.max())), ranked, percentiles)

    @classmethod
    def of_pieces(cls, pieces: Pieces, percentiles: Sequence[float]) -> Distribution:
        """That of all pieces together, which are gone through several times and never held at once."""
        count, total, low, high = 0, 0.0, math.inf, -math.inf
        for values_ns, weights in ranks.counted(pieces()):
            count += len(values_ns) if weights is None else int(weights.sum())
            total += float((values_ns if weights is None else values_ns * weights).sum(dtype=np.float64))
            low, high = min(low, values_ns.min().item()), max(high, values_ns.max().item())
        if not count:
            return cls._of_nothing(percentiles)
        mean, squares = total / count, 0.0
        for values_ns, weights in ranks.counted(pieces()):
            apart = (values_ns - mean) ** 2
            squares += float((apart if weights is None else apart * weights).sum())
        ranked = ranks.of_pieces(pieces, count, (low, high), (50, *percentiles))
        moments = mean, math.sqrt(squares / count)
        return cls._made(count, moments, (float(low), float(high)), ranked, percentiles)

    @classmethod
    def _of_nothing(cls, percentiles: Sequence[float]) -> Distribution:
        nan = float("nan")
        return cls(0, nan, nan, nan, nan, nan, dict.fromkeys(percentiles, nan))

    @classmethod
    def _made(
        cls,
        count: int,
        moments_ns: tuple[float, float],
        bounds_ns: tuple[float, float],
        found_ns: Sequence[float],
        percentiles: Sequence[float],
    ) -> Distribution:
        middle, *at = found_ns
        return cls(
            n=count,
            mean_ms=moments_ns[0] / _MS_NS,
            median_ms=middle / _MS_NS,
            std_ms=moments_ns[1] / _MS_NS,
            min_ms=bounds_ns[0] / _MS_NS,
            max_ms=bounds_ns[1] / _MS_NS,
            percentiles_ms={p: rank / _MS_NS for p, rank in zip(percentiles, at, strict=True)},
        )

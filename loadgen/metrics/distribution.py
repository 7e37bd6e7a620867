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
        figures_ns = [float(of()) for of in (values_ns.mean, values_ns.std, values_ns.min, values_ns.max)]
        ranked = ranks.percentiles(values_ns, (50, *percentiles))
        return cls._made(len(values_ns), (*figures_ns, *ranked), percentiles)

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
        return cls._made(count, (mean, std, float(some.min()), float(some.max()), *ranked), percentiles)

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
        return cls._made(count, (mean, math.sqrt(squares / count), low, high, *ranked), percentiles)

    @classmethod
    def _of_nothing(cls, percentiles: Sequence[float]) -> Distribution:
        return cls._made(0, [math.nan] * (5 + len(percentiles)), percentiles)

    @classmethod
    def _made(cls, count: int, figures_ns: Sequence[float], percentiles: Sequence[float]) -> Distribution:
        """From mean, standard deviation, least, greatest, median and each percentile."""
        mean, std, low, high, median, *ranked = (figure_ns / _MS_NS for figure_ns in figures_ns)
        return cls(count, mean, median, std, low, high, dict(zip(percentiles, ranked, strict=True)))

"""Series: one quantity of one place over a run, in as few samples as keep its extremes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.host.sensor import Key, Sample

LEAST_SAMPLES = 30  # of fewer no course over time can be shown, and no peak
MOST_KEPT = 2000  # samples of a series
MOST_SERIES = 128


class SampledSeries(msgspec.Struct, frozen=True):
    """Samples of a quantity in order of time: CLOCK_MONOTONIC nanoseconds and values, both of one length.

    `quantity` is one of `sensor.Quantity`, or a gauge of the server; `where` is a GPU, a rail, a zone, or "".
    """

    quantity: str
    where: str
    at_ns: Int64
    values: Float64


def thinned(series: SampledSeries, most: int) -> SampledSeries:
    """At most `most` of its samples: the first, the last, and least and greatest of equal stretches."""
    n = len(series.values)
    if n <= most:
        return series
    edges = np.linspace(0, n, (most - 2) // 2 + 1).astype(np.int64)
    parts = [(begin, series.values[begin:end]) for begin, end in pairwise(edges.tolist())]
    extremes = [begin + int(at) for begin, part in parts for at in (part.argmin(), part.argmax())]
    kept = np.unique([0, *extremes, n - 1])
    return SampledSeries(series.quantity, series.where, series.at_ns[kept], series.values[kept])


def of_sensors(samples: Sequence[Sample]) -> list[SampledSeries]:
    """Every quantity that was read; of an energy counter the power between two of its readings."""
    taken: dict[Key, list[tuple[int, float]]] = {}
    for sample in samples:
        for key, value in sample.reading.values.items():
            taken.setdefault(key, []).append((sample.at_ns, value))
    series = []
    for (quantity, where), pairs in taken.items():
        at_ns = np.array([at for at, _ in pairs], np.int64)
        values = np.array([value for _, value in pairs], np.float64)
        series.append(
            _power(where, at_ns, values)
            if quantity == "energy_j"
            else SampledSeries(quantity, where, at_ns, values)
        )
    return series


def _power(where: str, at_ns: Int64, counter_j: Float64) -> SampledSeries:
    """Mean power since the sample before, where the counter did not fall."""
    spent_j, passed_s = np.diff(counter_j), np.diff(at_ns) / 1e9
    usable = (spent_j >= 0) & (passed_s > 0)
    return SampledSeries("power_w", where, at_ns[1:][usable], spent_j[usable] / passed_s[usable])

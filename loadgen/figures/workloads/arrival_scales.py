"""Arrival scales: how unevenly requests arrive, over windows from a millisecond to an hour."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import MS_NS, SECOND_NS

# Of windows; a name each, for tables and axes.
SCALES_NS = {
    "1 ms": MS_NS,
    "10 ms": 10 * MS_NS,
    "100 ms": 100 * MS_NS,
    "1 s": SECOND_NS,
    "10 s": 10 * SECOND_NS,
    "1 min": 60 * SECOND_NS,
    "10 min": 600 * SECOND_NS,
    "1 h": 3600 * SECOND_NS,
}
_FINEST_GRID_NS = MS_NS  # which is the unit of many traces
_OFF = 0.01  # of the step
_ENOUGH_INSTANTS = 16  # fewer may have a step in common by chance
_LEAST_WINDOWS = 30  # a Poisson process' index is then 1 ± 0.26 (one standard deviation)


class WindowDispersion(msgspec.Struct, frozen=True):
    """How much the number of arrivals in windows of one width varies."""

    window: str  # a key of SCALES_NS
    windows: int
    mean: float  # arrivals in a window
    index: float  # of dispersion: variance / mean; 1 of a Poisson process


class ArrivalFigures(msgspec.Struct, frozen=True):
    """How requests arrive; a Poisson process has a `gap_cv` of 1 and an index of 1 at all scales."""

    span_s: float  # first to last
    rate_per_s: float | None  # (requests − 1) / span; None where all come at once
    gap_cv: float | None  # standard deviation of the gaps / their mean
    grid_s: float  # the times are its multiples, rounded; 0: there is none over a millisecond
    instants: int  # different times
    scales: tuple[WindowDispersion, ...]  # those with 30 windows, not below the grid

    def find_index(self, window: str) -> float | None:
        """Return the index of dispersion at a scale, a key of SCALES_NS; None where it is not measured."""
        return next((scale.index for scale in self.scales if scale.window == window), None)


def measure_arrivals(times_ns: Int64) -> ArrivalFigures | None:
    """Measure arrivals at ascending times (ns), int64[requests]; None of fewer than two."""
    if len(times_ns) < 2:
        return None
    gaps_ns = np.diff(times_ns)
    span_ns = int(times_ns[-1] - times_ns[0])
    grid_ns = find_grid_ns(times_ns)
    mean_ns = float(gaps_ns.mean())
    return ArrivalFigures(
        span_s=span_ns / SECOND_NS,
        rate_per_s=len(gaps_ns) / span_ns * SECOND_NS if span_ns else None,
        gap_cv=float(gaps_ns.std()) / mean_ns if span_ns else None,
        grid_s=grid_ns / SECOND_NS,
        instants=int(np.count_nonzero(gaps_ns)) + 1,
        scales=tuple(
            _measure_window(times_ns - times_ns[0], name, width)
            for name, width in SCALES_NS.items()
            if width >= grid_ns and span_ns // width >= _LEAST_WINDOWS
        ),
    )


def _measure_window(after_ns: Int64, name: str, width_ns: int) -> WindowDispersion:
    """Measure the index of dispersion, s² / mean of the counts, over all whole windows from the first on.

    The work is that of the requests, not of the windows, most of which are empty at small scales.
    """
    windows = int(after_ns[-1]) // width_ns
    numbers = after_ns // width_ns
    numbers = numbers[: int(np.searchsorted(numbers, windows))]
    ends = np.concatenate((np.flatnonzero(np.diff(numbers)) + 1, [len(numbers)]))
    counts = np.diff(ends, prepend=0).astype(np.float64)
    mean = len(numbers) / windows
    variance = max(0.0, float((counts * counts).sum()) - windows * mean * mean) / (windows - 1)
    return WindowDispersion(name, windows, mean, variance / mean)


def count_arrivals(times_ns: Int64, bins: int) -> tuple[Float64, Float64]:
    """Return begins (s) of `bins` equal stretches of the span, and arrivals per second in each.

    Both are float64[bins]; ([], []) where all arrive at once.
    """
    after_ns = times_ns - times_ns[0]
    span_ns = int(after_ns[-1])
    if not span_ns:
        return np.zeros(0), np.zeros(0)
    counts = np.bincount(np.minimum(after_ns * (bins / span_ns), bins - 1).astype(np.int64), minlength=bins)
    width_s = span_ns / bins / SECOND_NS
    rates: Float64 = counts / width_s
    return np.arange(bins, dtype=np.float64) * width_s, rates


def find_grid_ns(at_ns: Int64) -> int:
    """Find the step, over a millisecond, of which ascending times are multiples; 0: none, or too few times.

    Each may be off by a hundredth of the step: Mooncake's steps of 3 s are off by up to 3 ms.
    """
    instants = at_ns[np.diff(at_ns, prepend=at_ns[:1] - 1) > 0]  # np.unique takes 14 s for 10⁷
    gaps = np.diff(instants)
    if len(instants) < _ENOUGH_INSTANTS:
        return 0
    after = instants - instants[0]
    step = float(after[-1]) / float(np.rint(gaps / gaps.min()).sum())
    off = np.abs(after - np.rint(after / step) * step)
    if off.max() > step * _OFF:
        return 0
    rounded = round(step / _FINEST_GRID_NS) * _FINEST_GRID_NS
    return rounded if rounded > _FINEST_GRID_NS else 0

"""Change points: where a series of runs changed its level, each with the interval that it lies in.

ruptures finds the best split of a series into k + 1 levels, but neither how many there are nor how sure the
place of one is. Both come from permutations, which assume no distribution: of the values between changes for
the number, and of those on either side of a supposed change for its interval. Where a stretch of the series
spreads more than the rest, signs are drawn in place of permutations, so that its width stays where it is (a
wild bootstrap: Liu, Annals of Statistics 16, 1988). What a run has of the one before is taken off first, by
the squares of differences over one run and over two, which a change of level hardly alters. A false change is
then found in a share alpha of the series without any. The series is one of logarithms, and what lies more
than three standard deviations from its level counts as three, so that a single slow run is no level.

Sources: Truong, Oudre and Vayatis, Signal Processing 167 (2020), of the split; Huber and Ronchetti, Robust
Statistics (2009), of the bound and of the deviation by the median; Worsley, Biometrika 73 (1986), of the set
of places at which a test does not refute the change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.errors import UsageError
from loadgen.base.text import describe_install

LEAST_RUNS = 8  # below, no permutation of a series is rare enough
MOST_RUNS = 500  # the newest are examined
_LEAST_LEVEL = 2  # runs on either side of a change: one slow run is none
_MOST_CHANGES = 20
_PERMUTATIONS = 499  # of signs
_INTERVAL_PERMUTATIONS = 199  # at each of its places
_FAR = 10  # places refuted in a row, beyond which no other is tried
_REACH = 3 * 1.4826  # median absolute deviations, three standard deviations of a normal distribution
_ADDED = 1.3  # standard errors by which a correlation of runs is raised
_SURE = 1.645  # of which 5 % of independent series have more
_MOST_ALIKE = 0.9
_EVEN = 1.0  # of the greatest deviation of a Brownian bridge, which 27 in 100 series of even width exceed
_SEED = 42  # the same series has the same changes each time
_LEAST_ERROR = 1e-12
Values = NDArray[np.float64]


class ChangePoint(msgspec.Struct, frozen=True):
    """A change of level: the first run after it, the interval in which that run lies, and the ratio."""

    at: int  # the position of the first run at the new level
    low: int  # the first position of the confidence set
    high: int  # its last
    ratio: float  # median after ÷ median before, each up to the next change
    p: float  # of this many changes where there is one fewer


class Changes(msgspec.Struct, frozen=True):
    """The changes of a series, the median of each level, and whether successive runs resemble each other."""

    points: tuple[ChangePoint, ...]
    levels: tuple[float, ...]
    begin: int = 0  # runs before this position were not examined
    resemble: bool = False


def find_changes(series: Sequence[float], alpha: float = 0.05) -> Changes:
    """Find where a series of values above 0 changed; a series without a change has one in a share alpha.

    Changes are added while one more is significant. Without 8 values there are none. Raises UsageError
    without ruptures.
    """
    begin = max(0, len(series) - MOST_RUNS)
    logs = np.log(np.asarray(series[begin:], np.float64))
    if len(logs) < LEAST_RUNS:
        return Changes((), (float(np.exp(np.median(logs))),) if len(logs) else (), begin)
    ends, ps, alike, draw = [len(logs)], list[float](), 0.0, np.random.default_rng(_SEED)
    while len(ps) < _MOST_CHANGES and _LEAST_LEVEL * (len(ends) + 1) <= len(logs):
        bounded = _bound_values(logs, ends)
        alike = _measure_likeness(bounded, len(ends))
        rest, rest_ends = bounded, ends
        if alike:  # without what each has of the one before, and so without the first
            rest, rest_ends = (bounded[1:] - alike * bounded[:-1]) / (1 - alike), [end - 1 for end in ends]
        p = _test_one_more(rest, rest_ends, draw)
        if p > alpha:
            break
        ps.append(p)
        ends = _split_best(bounded, len(ps))
    bounded = _bound_values(logs, ends)
    edges = [0, *ends]
    levels = [float(np.exp(np.median(logs[low:high]))) for low, high in pairwise(edges)]
    points = []
    for number, (low, at, high) in enumerate(zip(edges, ends, ends[1:], strict=False)):
        first, last = _find_interval(bounded[low:high], at - low, alpha, draw)
        ratio = levels[number + 1] / levels[number]
        points.append(ChangePoint(begin + at, begin + low + first, begin + low + last, ratio, max(ps)))
    surely = alike * math.sqrt(len(logs)) > _ADDED + _SURE
    return Changes(tuple(points), tuple(levels), begin, surely)


def _measure_likeness(values: Values, changes: int) -> float:
    """Measure the correlation of each run with the one before, raised by its error; 0 where none is seen.

    It is seen in deviations from the best split with that number of changes. Of an autoregression the squares
    of differences over two runs are 1 + that times those over one; those over a change of the split are left
    out.
    """
    error, ends = 1 / math.sqrt(len(values)), _split_best(values, changes)
    rest = values - _spread_levels(values, ends, np.mean)
    spread = float(rest @ rest)
    if spread <= _LEAST_ERROR or float(rest[1:] @ rest[:-1]) / spread <= 0:
        return 0.0

    level, averages = np.repeat(np.arange(len(ends)), np.diff([0, *ends])), list[float]()
    for apart in (1, 2):
        squares = (values[apart:] - values[:-apart])[level[apart:] == level[:-apart]] ** 2
        averages.append(float(squares.mean()) if len(squares) else 0.0)
    once, twice = averages
    return min(max(twice / once - 1, 0.0) + _ADDED * error, _MOST_ALIKE) if once > _LEAST_ERROR else 0.0


def _bound_values(logs: Values, ends: Sequence[int]) -> Values:
    """Return the logarithms within three standard deviations of the medians of the levels that end at `ends`.

    The standard deviation is that of a normal distribution with the median of the absolute deviations; where
    that is 0, the values stay.
    """
    level = _spread_levels(logs, ends, np.median)
    reach = _REACH * float(np.median(np.abs(logs - level)))
    return level + np.clip(logs - level, -reach, reach) if reach else logs


def _spread_levels(values: Values, ends: Sequence[int], middle: Callable[[Values], Any]) -> Values:
    """Return for each value the middle of its level; the levels end at `ends`."""
    parts = [(low, high) for low, high in zip([0, *ends], ends, strict=False)]
    return np.concatenate([np.full(high - low, middle(values[low:high])) for low, high in parts])


def _split_best(values: Values, changes: int) -> list[int]:
    """Return the ends of the levels of the least-squares split of a series with that number of changes."""
    if not changes:
        return [len(values)]
    try:
        import ruptures
    except ModuleNotFoundError:
        raise UsageError(f"change points need ruptures: {describe_install('history')}") from None
    search = ruptures.KernelCPD(kernel="linear", min_size=_LEAST_LEVEL)
    ends: list[int] = search.fit(values[:, None]).predict(n_bkps=changes)
    return ends


def _sum_squares(values: Values, ends: Sequence[int]) -> float:
    """Return the sum of squared deviations from the levels that end at `ends`, above 0."""
    edges = np.array([0, *ends])
    sums = np.diff(np.concatenate([[0.0], np.cumsum(values)])[edges])
    return max(float(values @ values - np.sum(sums**2 / np.diff(edges))), _LEAST_ERROR)


def _test_one_more(values: Values, ends: Sequence[int], draw: np.random.Generator) -> float:
    """Return the p value of one or two more changes than at `ends`.

    Deviations from the levels are permuted, or their signs drawn where their width changes. Two changes are
    tried too, since a level between two equal ones hardly shows as one change: the statistic is the smaller
    of both p values.
    """
    level, fewer = _spread_levels(values, ends, np.mean), len(ends) - 1
    rest = values - level
    more = [count for count in (1, 2) if _LEAST_LEVEL * (len(ends) + count) <= len(values)]

    def measure(series: Values) -> list[float]:
        base = _sum_squares(series, _split_best(series, fewer))
        return [_sum_squares(series, _split_best(series, fewer + count)) / base for count in more]

    signs = np.array([-1.0, 1.0])
    # Wider in one stretch: by the greatest deviation of the cumulative sum of the widths, which one series in
    # four of even width exceeds.
    widths = np.abs(values - _spread_levels(values, _split_best(values, fewer + 1), np.mean))
    spread, sums = float(widths.std()), np.cumsum(widths - widths.mean())
    is_wider = float(np.abs(sums).max()) > _EVEN * spread * math.sqrt(len(widths))
    if spread > _LEAST_ERROR and is_wider:
        drawn = (level + rest * draw.choice(signs, len(rest)) for _ in range(_PERMUTATIONS))
    else:
        drawn = (level + draw.permutation(rest) for _ in range(_PERMUTATIONS))
    every = np.array([measure(values), *map(measure, drawn)])
    ranks = [np.searchsorted(np.sort(column), column, side="right") for column in every.T]
    least = np.min(ranks, axis=0)
    return float(np.mean(least <= least[0]))


def _find_interval(values: Values, at: int, alpha: float, draw: np.random.Generator) -> tuple[int, int]:
    """Return the first and last place at which a test at level alpha does not refute the change.

    `values` are those of the two levels next to it. If a place is right, the values on either side are in any
    order as likely: their permutations show how much better than it another place may be.
    """
    count = len(values)
    places = np.arange(_LEAST_LEVEL, count - _LEAST_LEVEL + 1)
    own = _sum_squares_at(values[None], places)[0]
    kept = [at]
    for outward in (range(at, int(places[-1]) + 1), range(at - 1, _LEAST_LEVEL - 1, -1)):
        refuted = 0
        for place in outward:
            keys = draw.random((_INTERVAL_PERMUTATIONS, count))
            keys[:, place:] += 1.0  # each side among itself
            every = _sum_squares_at(values[np.argsort(keys, axis=1)], places)
            better = every[:, place - _LEAST_LEVEL] / every.min(axis=1)
            more = np.count_nonzero(better >= own[place - _LEAST_LEVEL] / own.min())
            if (1 + more) / (_INTERVAL_PERMUTATIONS + 1) > alpha:
                kept.append(place)
                refuted = 0
            elif (refuted := refuted + 1) == _FAR:
                break
    return min(kept), max(kept)


def _sum_squares_at(rows: Values, places: NDArray[Any]) -> Values:
    """Return the sum of squared deviations of each row (first axis) if split at each place (second axis)."""
    count, sums = rows.shape[1], np.cumsum(rows, axis=1)
    before, whole = sums[:, places - 1], sums[:, -1:]
    squares = np.sum(rows * rows, axis=1, keepdims=True)
    rest = squares - before**2 / places - (whole - before) ** 2 / (count - places)
    least: Values = np.maximum(rest, _LEAST_ERROR)
    return least

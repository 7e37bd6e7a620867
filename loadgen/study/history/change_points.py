"""Change points: where a series of runs changed its level, each with the interval that it lies in.

ruptures finds the best split of a series into k + 1 levels, but neither how many there are nor how sure the
place of one is. Both come from permutations, which assume no distribution: of the values between changes for
the number, and of those on either side of a supposed change for its interval. A false change is then found in
a share alpha of the series without any. The series is one of logarithms, and what lies more than three
standard deviations from its level counts as three, so that a single slow run is no level.

Sources: Truong, Oudre and Vayatis, Signal Processing 167 (2020), of the split; Huber and Ronchetti, Robust
Statistics (2009), of the bound and of the deviation by the median; Worsley, Biometrika 73 (1986), of the set
of places at which a test does not refute the change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
_PERMUTATIONS = 499
_INTERVAL_PERMUTATIONS = 199  # at each of its places
_FAR = 10  # places refuted in a row, beyond which no other is tried
_BLOCK = 3  # runs that are moved together where successive ones resemble each other
_REACH = 3 * 1.4826  # median absolute deviations, three standard deviations of a normal distribution
_RESEMBLE = 1.645  # standard errors of their correlation, of which 5 % of independent series have more
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
    ends, ps, resemble, draw = [len(logs)], list[float](), False, np.random.default_rng(_SEED)
    while len(ps) < _MOST_CHANGES and _LEAST_LEVEL * (len(ends) + 1) <= len(logs):
        bounded = _bound_values(logs, ends)
        resemble = _is_resembling(bounded, ends)
        p = _test_one_more(bounded, ends, resemble, draw)
        if p > alpha:
            break
        ps.append(p)
        ends = _split_best(bounded, len(ps))
    bounded = _bound_values(logs, ends)
    edges = [0, *ends]
    levels = [float(np.exp(np.median(logs[low:high]))) for low, high in zip(edges, ends, strict=False)]
    points = []
    for number, (low, at, high) in enumerate(zip(edges, ends, ends[1:], strict=False)):
        first, last = _find_interval(bounded[low:high], at - low, alpha, draw)
        ratio = levels[number + 1] / levels[number]
        points.append(ChangePoint(begin + at, begin + low + first, begin + low + last, ratio, max(ps)))
    return Changes(tuple(points), tuple(levels), begin, resemble)


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


def _is_resembling(values: Values, ends: Sequence[int]) -> bool:
    """Whether each deviation resembles the one before: their correlation is 1.645 standard errors above 0.

    Deviations are from the best split with two changes more than at `ends`, since changes that are not found
    yet make successive runs alike too.
    """
    changes = min(len(ends) + 1, len(values) // _LEAST_LEVEL - 1)
    rest = values - _spread_levels(values, _split_best(values, changes), np.mean)
    spread = float(rest @ rest)
    return spread > _LEAST_ERROR and float(rest[1:] @ rest[:-1]) / spread > _RESEMBLE / math.sqrt(len(rest))


def _test_one_more(values: Values, ends: Sequence[int], resemble: bool, draw: np.random.Generator) -> float:
    """Return the p value of one or two more changes than at `ends`.

    Deviations from the levels are permuted, in blocks of three if successive ones resemble each other. Two
    are tried too, since a level between two equal ones hardly shows as one change: the statistic is the
    smaller of both p values.
    """
    level, fewer = _spread_levels(values, ends, np.mean), len(ends) - 1
    rest = values - level
    block = _BLOCK if resemble else 1
    more = [count for count in (1, 2) if _LEAST_LEVEL * (len(ends) + count) <= len(values)]

    def measure(series: Values) -> list[float]:
        base = _sum_squares(series, _split_best(series, fewer))
        return [_sum_squares(series, _split_best(series, fewer + count)) / base for count in more]

    drawn = (level + rest[_permute(len(rest), block, draw)] for _ in range(_PERMUTATIONS))
    every = np.array([measure(values), *map(measure, drawn)])
    ranks = [np.searchsorted(np.sort(column), column, side="right") for column in every.T]
    least = np.min(ranks, axis=0)
    return float(np.mean(least <= least[0]))


def _permute(count: int, block: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Draw an order of that number of runs, in which blocks of successive ones stay together."""
    starts = np.arange(-int(draw.integers(block)), count, block)
    order = (draw.permutation(starts)[:, None] + np.arange(block)).ravel()
    return order[(order >= 0) & (order < count)]


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

"""Distribution: one latency or speed over a run: its mean, its percentiles, and their bounds.

Values may have weights, or come in pieces that are too many to be held at once; percentiles are numpy's.

Bounds rest on independent samples. Requests that wait in one queue are slow together: 500 of them tell as
much of P90 as 20 that have nothing to do with one another. How many they are worth follows from how the ranks
of neighbours agree: the variance of their mean is that of independent ones times 1 + 2 Σ r(k), summed over
lags while pairs of them are positive, none more than the one before (Geyer, Practical Markov chain Monte
Carlo, 1992). A short run shows less dependence than there is, since its own mean is taken off: the sum is
corrected for that, and raised by a standard error (Sokal, Monte Carlo methods in statistical mechanics,
1997). docs/metrics.md has what holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import MS_NS

# int64 or float64 numbers, and how often each counts; None: once.
Piece = tuple[NDArray[Any], Int64 | None]
Pieces = Callable[[], Iterable[Piece]]
_BIN_BITS = 16
_HELD = 1 << 20  # numbers that are sorted at once
_SIGN = np.uint64(1 << 63)
CONFIDENCE = 0.99  # of bounds
_PIECE = 4096  # terms of a tail that are summed at once
_FEW = 7  # samples: no percentile of fewer has a bound, and their order says nothing
_MOST_COMPARED = 1 << 15  # means of successive samples that are compared
_Z99 = 2.5758293035489004  # a normal deviate beyond which, on either side, lies 1 %
PARTS = 6  # of a run that are compared: long ones, that hardly depend on each other
UNLIKELY = 3.02  # χ² of 5 ÷ 5: 1 in 100 runs of independent samples has parts that differ more
UNSURE = 2.09  # (t of 5 degrees of freedom ÷ normal deviate)² at 99 %: what six parts may hide
_LAGS = 6  # times the sum of lags: further ones are noise
_ERRORS = 1.3  # standard errors that the sum is raised by


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
    independent: int | None = None  # samples that the n are worth, on which bounds rest; None: it has none

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

        `values_ns` is in order of sending, and is sorted in place.
        """
        independent = count_independent(values_ns)
        values_ns.sort()
        places = {rank: find_upper_place(len(values_ns), independent, rank) for rank in percentiles}
        bounds_ms = {
            percentile: None if place is None else float(values_ns[place]) / MS_NS
            for percentile, place in places.items()
        }
        made = cls.from_ns(values_ns, percentiles)
        return replace(made, bounds_ms=bounds_ms, independent=independent)

    @classmethod
    def from_weighted(cls, values_ns: Float64, weights: Int64, percentiles: Sequence[float]) -> Distribution:
        """Compute the statistics of samples (ns) that each count as often as their weight, 0: not at all."""
        count = int(weights.sum())
        if not count:
            return cls._make_empty(percentiles)
        mean = float((values_ns * weights).sum()) / count
        std = math.sqrt(float(((values_ns - mean) ** 2 * weights).sum()) / count)
        some = values_ns[weights > 0]
        ranked = rank_weighted(values_ns, weights, (50, *percentiles))
        return cls._make(count, (mean, std, float(some.min()), float(some.max()), *ranked), percentiles)

    @classmethod
    def from_pieces(cls, pieces: Pieces, percentiles: Sequence[float]) -> Distribution:
        """Compute the statistics of all pieces together, read several times and never held at once."""
        count, total, low, high = 0, 0.0, math.inf, -math.inf
        for values_ns, weights in drop_uncounted(pieces()):
            count += len(values_ns) if weights is None else int(weights.sum())
            total += float((values_ns if weights is None else values_ns * weights).sum(dtype=np.float64))
            low, high = min(low, values_ns.min().item()), max(high, values_ns.max().item())
        if not count:
            return cls._make_empty(percentiles)
        mean, squares = total / count, 0.0
        for values_ns, weights in drop_uncounted(pieces()):
            apart = (values_ns - mean) ** 2
            squares += float((apart if weights is None else apart * weights).sum())
        ranked = rank_pieces(pieces, count, (low, high), (50, *percentiles))
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
    return [*figures, *np.percentile(values, (50, *percentiles), overwrite_input=True).tolist()]


def rank_weighted(values: Float64, weights: Int64, wanted: Sequence[float]) -> list[float]:
    """Compute percentiles of `numpy.repeat(values, weights)` without making that array."""
    order = np.argsort(values)
    ends = np.cumsum(weights[order])
    last = int(ends[-1]) - 1
    places = _find_ranks(last, wanted)
    value = values[order[np.searchsorted(ends, places, side="right")]]
    at = dict(zip(places, value, strict=True))
    return [_interpolate(at, rank, last) for rank in _compute_ranks(last, wanted)]


def rank_pieces(
    pieces: Pieces, count: int, bounds: tuple[float, float], wanted: Sequence[float]
) -> list[float]:
    """Compute percentiles of values (with weights) that come in pieces and are never held at once.

    `count` is the sum of weights, `bounds` the least and the greatest value. Each pass narrows every rank
    down to one of 65536 ranges, until what lies in a range can be sorted: two passes where values are spread,
    at most five.
    """
    last = count - 1
    kind = next(iter(drop_uncounted(pieces())))[0].dtype
    low, high = _encode_sortable(np.array(bounds, kind)).tolist()
    wide, narrow = [_Range(low, high, 0, _find_ranks(last, wanted))], []
    while wide:
        numbers = [part for span in _narrow_ranges(pieces, wide) for part in span]
        wide = [span for span in numbers if span.numbers > _HELD and span.low < span.high]
        narrow += [span for span in numbers if span.numbers <= _HELD or span.low == span.high]
    at = _find_rank_values(pieces, narrow, kind)
    return [_interpolate(at, rank, last) for rank in _compute_ranks(last, wanted)]


def drop_uncounted(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces without values of weight 0, cut so that counts stay exact in floats; none empty."""
    for values, weights in pieces:
        for at in range(0, len(values), _HELD):
            some, often = values[at : at + _HELD], None if weights is None else weights[at : at + _HELD]
            if often is not None and not often.all():
                some, often = some[often > 0], often[often > 0]
            if len(some):
                yield some, often


def _compute_ranks(last: int, wanted: Sequence[float]) -> list[float]:
    """Compute the rank of each percentile, 0 to `last`, with its fraction."""
    return [last * (percentile / 100) for percentile in wanted]


def _find_ranks(last: int, wanted: Sequence[float]) -> list[int]:
    """List the ranks, 0 to `last`, between which the percentiles lie, ascending."""
    ranks = _compute_ranks(last, wanted)
    return sorted({at for rank in ranks for at in (int(rank), min(int(rank) + 1, last))})


def _interpolate(values: NDArray[Any] | Mapping[int, Any], rank: float, last: int) -> float:
    """Interpolate between the values at the whole ranks around `rank`, from 0 to `last`."""
    below = int(rank)
    share = rank - below
    low, high = values[below].item(), values[min(below + 1, last)].item()
    # Counting from the nearer of the two keeps the result between them.
    value = low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)
    return float(value)


class _Range(msgspec.Struct):
    """A range of sort keys from `low` to `high`, both included, and the wanted ranks that lie in it."""

    low: int
    high: int
    before: int  # how much lies below, by weight
    places: list[int]
    numbers: int = _HELD + 1

    @property
    def shift(self) -> int:
        """The number of low bits of a key that the bins of this range ignore."""
        return max(0, (self.high - self.low).bit_length() - _BIN_BITS)

    def inside(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return (keys >= np.uint64(self.low)) & (keys <= np.uint64(self.high))


def _narrow_ranges(pieces: Pieces, ranges: list[_Range]) -> Iterator[list[_Range]]:
    """Split each range into bins, by one pass over the pieces; yield those that hold wanted ranks."""
    bins = 1 << _BIN_BITS
    weight = np.zeros((len(ranges), bins), np.int64)
    numbers = np.zeros((len(ranges), bins), np.int64)
    for values, weights in drop_uncounted(pieces()):
        keys = _encode_sortable(values)
        for row, span in enumerate(ranges):
            inside = span.inside(keys)
            at = ((keys[inside] - np.uint64(span.low)) >> np.uint64(span.shift)).astype(np.int64)
            seen = np.bincount(at, minlength=bins)
            numbers[row] += seen
            # Floats are exact here: at most 2^20 numbers below 2^31 each.
            often = seen if weights is None else np.bincount(at, weights[inside], minlength=bins)
            weight[row] += often.astype(np.int64)
    for row, span in enumerate(ranges):
        ends = span.before + np.cumsum(weight[row])
        parts: dict[int, _Range] = {}
        for place, at in zip(span.places, np.searchsorted(ends, span.places, "right").tolist(), strict=True):
            low = span.low + (at << span.shift)
            high, before = min(low + (1 << span.shift) - 1, span.high), int(ends[at] - weight[row, at])
            part = _Range(low, high, before, [], int(numbers[row, at]))
            parts.setdefault(at, part).places.append(place)
        yield list(parts.values())


def _find_rank_values(pieces: Pieces, ranges: list[_Range], kind: np.dtype[Any]) -> dict[int, Any]:
    """Find the value at each wanted rank by sorting the values in each range, which fit into memory."""
    numbers: dict[int, Any] = {}
    held: list[list[Piece]] = [[] for _ in ranges]
    several = [row for row, span in enumerate(ranges) if span.low < span.high]
    for values, weights in drop_uncounted(pieces()) if several else ():
        keys = _encode_sortable(values)
        for row in several:
            inside = ranges[row].inside(keys)
            held[row].append((values[inside], None if weights is None else weights[inside]))
    for span, parts in zip(ranges, held, strict=True):
        if not parts:
            key = np.array([span.low], np.uint64)
            if kind == np.int64:
                number = (key ^ _SIGN).view(np.int64)[0]
            else:
                number = np.where(key & _SIGN, key ^ _SIGN, ~key).view(np.float64)[0]
            numbers |= dict.fromkeys(span.places, number)
            continue
        values = np.concatenate([values for values, _ in parts])
        order = np.argsort(values)
        often = [np.ones(len(piece), np.int64) if weights is None else weights for piece, weights in parts]
        ends = span.before + np.cumsum(np.concatenate(often)[order])
        at = np.searchsorted(ends, span.places, side="right")
        numbers |= dict(zip(span.places, values[order[at]], strict=True))
    return numbers


def _encode_sortable(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Map numbers to uint64 keys that sort in the same order."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    if values.dtype == np.int64:
        return bits ^ _SIGN
    return np.where(bits & _SIGN, ~bits, bits ^ _SIGN)


def find_least_passing(over: int, percentile: float) -> int:
    """Find the least n of samples within a limit that show a percentile to meet it, with `over` above it.

    459 with 0 over for P99 at 99 %, 44 for P90; with 1 over 661 for P99, 662 samples together. The percentile
    lies between 0 and 100, both excluded.
    """
    low, high = 0, 1
    while not _is_shown(over, over + high, percentile):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _is_shown(over, over + middle, percentile):
            high = middle
        else:
            low = middle
    return high


def count_allowed_over(n: int, percentile: float) -> int:
    """Count how many of n samples may exceed a limit that the percentile still meets; -1: n is too small.

    The largest k with P(X ≤ k) ≤ 1 − C for X binomial of n and 1 − p/100; C is above one half.
    """
    chance = 1 - percentile / 100
    if chance == 1:  # of a percentile so small that no float tells it from 0
        return n - 1
    if n * math.log1p(-chance) > math.log(1 - CONFIDENCE):
        return -1
    # A normal start, and exact steps from there.
    k = max(int(n * chance - 2.5 * math.sqrt(n * chance * (1 - chance))), 0)
    tail = _sum_tail(n, k, chance)
    while tail > 1 - CONFIDENCE:
        tail -= _compute_term(n, k, chance)
        k -= 1
    while (more := tail + _compute_term(n, k + 1, chance)) <= 1 - CONFIDENCE:
        tail, k = more, k + 1
    return k


def find_upper_index(n: int, percentile: float) -> int | None:
    """Find the index, among n ascending samples, of a percentile's upper bound; None: n is too small.

    n − k for k = `count_allowed_over`, as in LoadGen: the bound is itself counted among those over it, so
    that it would pass as a limit with < too. Of 10,000 it is 9923 for P99 at 99 %. Where none may be over
    (459 to 661 samples for P99) it is the greatest, which bounds the percentile at that confidence.
    """
    if not 0 < percentile < 100 or n < 1:
        return None
    allowed = count_allowed_over(n, percentile)
    return None if allowed < 0 else n - max(allowed, 1)


def find_upper_place(n: int, independent: int, percentile: float) -> int | None:
    """Find the index, among n ascending samples worth `independent` ones, of the upper bound; or None.

    It is that of the bound among the independent samples, scaled up to n.
    """
    index = find_upper_index(independent, percentile)
    return None if index is None else math.ceil(round((index + 1) / independent * n, 6)) - 1


def find_lower_place(n: int, independent: int, percentile: float) -> int | None:
    """Find the index, among n ascending samples worth `independent` ones, of the lower bound; or None."""
    place = find_upper_place(n, independent, 100 - percentile)
    return None if place is None else n - 1 - place


def _is_shown(over: int, n: int, percentile: float) -> bool:
    """Whether n samples with `over` of them above a limit show the percentile to meet it."""
    chance = 1 - percentile / 100
    # Above the mean the tail is one half at least, and its first terms may be too small for a float.
    return over < n * chance and _sum_tail(n, over, chance) <= 1 - CONFIDENCE


def _sum_tail(n: int, k: int, chance: float) -> float:
    """Compute P(X ≤ k) for X binomial of n and a chance between 0 and 1, with k below the mean."""
    term, total = _compute_term(n, k, chance), 0.0
    while k >= 0 and term > 0:
        below = np.arange(k, max(k - _PIECE, -1), -1, dtype=np.float64)
        # Each term follows from the one above it.
        terms = term * np.cumprod(np.r_[1.0, below * (1 - chance) / ((n - below + 1) * chance)])
        total += float(terms[:-1].sum())
        if terms[-1] < 1e-17 * total:
            break
        term, k = float(terms[-1]), k - len(below)
    return total


def _compute_term(n: int, k: int, chance: float) -> float:
    """Compute P(X = k) for X binomial of n and a chance between 0 and 1."""
    if not 0 <= k <= n:
        return 0.0
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(chance) + (n - k) * math.log1p(-chance))


def count_independent(values: NDArray[Any]) -> int:
    """Count the independent samples that a run's samples, in order of sending, are worth; at most all.

    All of them, unless neighbours or parts of the run agree more than 1 in 100 runs of independent samples
    would. Values may be infinite, and equal ones are no order.
    """
    n = len(values)
    if n < _FEW:
        return n
    ranks, size = rank_values(values), -(-n // _MOST_COMPARED)
    means = ranks[: n // size * size].reshape(-1, size).mean(1)
    variance = float(ranks.var())
    if not variance > 0:
        return n
    each = max(size * float(means.var()) / variance, 1.0)  # of a mean, × that of independent samples
    return max(math.floor(n / (each * _measure_factor(means)) + 1e-9), 1)


def rank_values(values: NDArray[Any]) -> Float64:
    """Return the rank of each value from 1, of equal ones the middle of theirs."""
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
    parts = np.array([(len(part), part.sum()) for part in np.array_split(away, PARTS)])
    between = float((parts[:, 1] ** 2 / parts[:, 0]).sum() / (products[0] / n) / (PARTS - 1))
    lags = max(math.isqrt(n), 2)
    near, wide = (alike[1 : some + 1].sum() + some / n for some in (1, lags))
    if near * math.sqrt(n) < _Z99 and wide * math.sqrt(n / lags) < _Z99 and between < UNLIKELY:
        return 1.0
    pairs = alike[: n // 6 * 2].reshape(-1, 2).sum(1)
    ended = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    sums = 2.0 * np.minimum.accumulate(pairs[:ended]).cumsum() - 1.0
    # Noise of far lags is left out: those beyond _LAGS times the sum up to them.
    beyond = 2 * np.arange(ended) + 1 >= _LAGS * sums
    if beyond.any():
        ended = int(np.argmax(beyond)) + 1
    seen, last = (max(float(sums[ended - 1]), 1.0), 2 * ended - 1) if ended else (1.0, 0)
    window = 2 * last + 1
    factor = seen / (1 + (seen - window) / n) * (1 + _ERRORS * math.sqrt(2 * window / n))
    # A drift makes parts of the run differ more than neighbours do.
    return factor if between < UNLIKELY * factor else UNSURE * between

"""Edge: the load at which the share of samples above a limit is the share that a percentile allows.

The logarithm of the share is taken as linear in the logarithm of the load, near the edge, and rising: the
tail of a queue's wait is exponential, at a rate that falls with the load, so that this holds up to a share
of 1, where a logit bends (of a median it would put the edge some percent too low). The speed of tokens
follows the number of requests that are decoded together, which is about normal: its share is an S-shaped
curve of the load, whose logit is taken as linear.

Samples of one run are not independent: behind one that waited long in a queue stand others that did. Their
counts therefore vary more than binomial ones by a factor, the dispersion, which is estimated from successive
parts of each run and from how runs differ from the line (quasi-likelihood with a logarithmic link: McCullagh
and Nelder, Generalized Linear Models, 2nd edition, chapters 6 and 9). The interval is that of the profile
likelihood: it needs no finite slope, so where the share jumps from 0 to 1 it reaches from one load to the
next. Far above the edge the line need not hold (a share may stay at a third): a run there shows that the
share is at least what it counted, and no more.

Some prompts may be beyond the limit at any load, as the longest of a data set: their share is a floor, and
the line is that of the others. It is fitted where the runs below the edge show one: with it they are likelier
by what chance alone gives in 5 of 100 searches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64
from loadgen.base.intervals import t_quantile

_NEAR = 6.0  # times the allowed share, and its inverse: of the runs whose fitted shares lie between
_FAR = 3.0  # times the allowed odds: a run beyond is at least as far above as it shows
_EACH_SIDE = 2  # runs that are used on each side of the edge, however far they are
_GROUPS = 6  # parts of a run whose counts are compared: long ones, so that they hardly depend on each other
_WINDOWS = 5
_SLOPES = (0.5, 5000.0)  # of log share by log load; beyond the latter nothing is between 0 and 1
_BISECTIONS = 26
_GRID = 161  # candidates for the edge
_TIE = 1e-6
_WIDER = 1.6  # of the deviance that is reached, since a search ends when its interval happens to be narrow
# Times more with a floor: runs have weights by six parts of each, and what bends the line passes for a floor.
_UNSURE = 2.5
_TINY = 1e-300
_LEAST = 1e-4  # of a fitted share, where it is compared with counts
_Z95 = 1.6448536269514722  # 95 % quantile of the normal distribution
_FLOORS = (0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.99)
_LIKELIER = 3.84  # deviance by which a floor is shown: χ² of 1 at 95 %
_MARGIN = math.log(4)  # beyond the lowest and the highest load


class EdgePoint(msgspec.Struct, frozen=True):
    """One run: how many samples there were of one latency, and how many of them were above its limit.

    `batches` are (samples, above) of successive parts of the run, of which the `counted` ones are used.
    """

    load: float
    batches: tuple[tuple[int, int], ...]
    dispersion: float | None = None  # see ObjectiveEvidence; None: the run has no shares of its own

    @property
    def groups(self) -> Float64:
        """float64[2, groups]: samples and those above, of at most 6 parts of the batches after the first."""
        kept = np.array(drop_first_part(self.batches), float).reshape(-1, 2)
        parts = np.array_split(kept, min(_GROUPS, len(kept)))
        return np.array([part.sum(0) for part in parts]).T


def drop_first_part(batches: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Drop the first part of a run, unless it is the only one: the queue is empty when a run begins."""
    return batches[1:] or batches


class EdgeFit(msgspec.Struct, frozen=True):
    """Where the share crosses what is allowed, as a load; NaN: not known on that side."""

    load: float
    low: float
    high: float
    slope: float  # of the share's logit at the edge, per logarithm of load
    dispersion: float  # variance of a count above the limit ÷ that of independent samples
    samples: float  # of the runs it is from

    @property
    def width(self) -> float:
        """The relative distance from the estimate to the farther end of its interval; NaN if unknown."""
        return max(self.load / self.low, self.high / self.load) - 1


class _Runs(msgspec.Struct, frozen=True):
    """The runs of a fit: float64[runs], and of each the counts of its parts."""

    x: Float64  # logarithm of the load
    n: Float64
    over: Float64
    groups: list[Float64]
    dispersions: Float64  # NaN of a run without shares of its own
    is_s_shaped: bool = False  # the share's logit is linear, else its logarithm

    def select(self, kept: Bool) -> _Runs:
        """Return the runs where `kept`, bool[runs], is true."""
        groups = [group for group, wanted in zip(self.groups, kept, strict=True) if wanted]
        columns = (self.x[kept], self.n[kept], self.over[kept], groups, self.dispersions[kept])
        return _Runs(*columns, self.is_s_shaped)

    def weigh(self) -> _Runs:
        """Return the runs with as many samples as theirs are worth, by each one's own dispersion."""
        worth = 1 / np.where(np.isnan(self.dispersions), 1.0, self.dispersions)
        groups = [group * each for group, each in zip(self.groups, worth, strict=True)]
        columns = (self.x, self.n * worth, self.over * worth, groups, self.dispersions * worth)
        return _Runs(*columns, self.is_s_shaped)

    def find_log_shares(self, line: Float64, allowed: float, floor: float = 0.0) -> Float64:
        """Return the log of each run's fitted share; `line` is the slope × log(load ÷ edge) of each.

        It is at most 0, or the run's own share where that is far above; `floor` is the share that is beyond
        the limit at any load.
        """
        left = (allowed - floor) / (1 - floor)
        if self.is_s_shaped:
            log_shares = -np.logaddexp(0.0, -line - math.log(left / (1 - left)))
        else:
            log_shares = math.log(left) + line
        if floor:
            log_shares = np.logaddexp(math.log(floor), math.log1p(-floor) + log_shares)
        over = self.over.clip(0.5, self.n - 0.5)
        far = over / (self.n - over) > _FAR * allowed / (1 - allowed)
        # The log of its own share if a run is far above, else 0. Of all samples exactly 1: half a sample less
        # would pull at the slope from however far away the run is.
        most = np.where(far, np.log(np.maximum(self.over, 0.5) / self.n), 0.0)
        capped: Float64 = np.minimum(log_shares, most)
        return capped


class _Profile(msgspec.Struct, frozen=True):
    """Candidates for the edge, and how badly the best line through each fits; float64[candidates].

    Of the line of best fit the slope is that of the share's logarithm, or of its logit if it is S-shaped.
    """

    x: Float64
    deviance: Float64
    best: float  # the load of best fit: the middle, where several candidates fit equally well
    slope: float
    floor: float


def fit_edge(points: Sequence[EdgePoint], allowed: float, is_s_shaped: bool = False) -> EdgeFit | None:
    """Fit the edge, with its 95 % interval, where a share of samples `allowed` is above the limit.

    `is_s_shaped`: the share's logit is linear in the logarithm of the load, else its logarithm is. Runs far
    from the edge are left out, those near it chosen again until they stay the same, at most 5 times. None
    unless some run is above the allowed share and some is not.
    """
    groups = [point.groups for point in points]
    n, over = (np.array([group[row].sum() for group in groups]) for row in (0, 1))
    own = np.array([math.nan if point.dispersion is None else point.dispersion for point in points])
    runs = _Runs(np.log([point.load for point in points]), n, over, groups, own, is_s_shaped)
    above = over > allowed * n
    if above.all() or not above.any():
        return None
    near = np.ones(len(points), bool)
    profile = _fit_profile(runs, allowed, _make_candidates(runs.x))
    for _ in range(_WINDOWS):
        closer = _mark_close(profile.slope * (runs.x - profile.best))
        if (closer == near).all():
            break
        near = closer
        profile = _fit_profile(runs.select(near), allowed, _make_candidates(runs.x[near]))
    found = _find_interval(runs.select(near), allowed, profile)
    return _find_interval_above_floor(runs.select(near | (runs.x <= profile.best)), allowed) or found


def _find_interval_above_floor(runs: _Runs, allowed: float) -> EdgeFit | None:
    """Fit the edge above a floor, a share beyond the limit at any load; None unless that is likelier."""
    runs, floors = runs.weigh(), tuple(allowed * share for share in _FLOORS)
    profile = _fit_profile(runs, allowed, _make_candidates(runs.x), floors)
    plain = _fit_profile(runs, allowed, profile.x)
    if plain.deviance.min() - profile.deviance.min() < _LIKELIER:
        return None
    return _find_interval(runs, allowed, profile, floors)


def _make_candidates(x: Float64) -> Float64:
    """Space candidates for the edge evenly, as log loads, to 4 times beyond the runs on each side."""
    return np.linspace(x.min() - _MARGIN, x.max() + _MARGIN, _GRID)


def _fit_profile(
    runs: _Runs, allowed: float, candidates: Float64, floors: Sequence[float] = (0.0,)
) -> _Profile:
    """Fit lines through each candidate, each with the floor that fits best, and find the best of all."""
    fits = [_fit_slopes(runs, allowed, candidates, floor) for floor in floors]
    slopes, deviances = (np.array(column) for column in zip(*fits, strict=True))
    best = deviances.argmin(0)[None]
    deviance, slope = (np.take_along_axis(each, best, 0)[0] for each in (deviances, slopes))
    ties = candidates[deviance <= deviance.min() + _TIE]
    middle = float(ties[0] + ties[-1]) / 2
    at = int(np.searchsorted(candidates, middle).clip(0, len(candidates) - 1))
    return _Profile(candidates, deviance, middle, float(slope[at]), floors[best[0, at]])


def _fit_slopes(runs: _Runs, allowed: float, candidates: Float64, floor: float) -> tuple[Float64, Float64]:
    """Compute the slope of best fit through each candidate, by bisection, and its deviance.

    The line is that of the log share (or its logit) by the log load, and is `allowed` at the candidate.
    """
    away = runs.x - candidates[:, None]
    low, high = (np.full(len(candidates), math.log(end)) for end in _SLOPES)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        share = np.exp(runs.find_log_shares(np.exp(middle)[:, None] * away, allowed, floor))
        moves = 1 - floor / share if floor else 1.0  # of the share, what the line moves
        steeper = ((runs.over - runs.n * share) * moves * away).sum(1) > 0
        low, high = np.where(steeper, middle, low), np.where(steeper, high, middle)
    slopes = np.exp((low + high) / 2)
    log_share = runs.find_log_shares(slopes[:, None] * away, allowed, floor)
    if runs.is_s_shaped:  # that of binomial counts, whose score is zero at that slope
        others = np.log(np.maximum(-np.expm1(log_share), _TINY))
        deviance = -2 * (runs.over * log_share + (runs.n - runs.over) * others).sum(1)
    else:
        deviance = 2 * (runs.n * np.exp(log_share) - runs.over * log_share).sum(1)
    return slopes, deviance


def _find_interval(
    runs: _Runs, allowed: float, coarse: _Profile, floors: Sequence[float] = (0.0,)
) -> EdgeFit:
    """Return the edge of best fit, and as its interval the candidates whose deviance is hardly larger.

    The coarse candidates in that interval are fitted again on a finer grid; an end at the last one is NaN.
    """
    dispersion, freedom = _estimate_dispersion(runs, allowed, coarse)
    bend = 1.0 if runs.is_s_shaped else 1 - allowed  # d logit = d log share / (1 − share)
    wider = _WIDER if len(floors) == 1 else _WIDER * _UNSURE
    reach = wider * dispersion * bend * t_quantile(freedom) ** 2
    within = np.flatnonzero(coarse.deviance <= coarse.deviance.min() + reach)
    first, last = max(within[0] - 1, 0), min(within[-1] + 1, len(coarse.x) - 1)
    fine = _fit_profile(runs, allowed, np.linspace(coarse.x[first], coarse.x[last], _GRID), floors)
    inside = np.flatnonzero(fine.deviance <= fine.deviance.min() + reach)
    low = math.exp(fine.x[inside[0]]) if within[0] > 0 else math.nan
    high = math.exp(fine.x[inside[-1]]) if within[-1] < len(coarse.x) - 1 else math.nan
    slope = fine.slope / bend * (1 - fine.floor / allowed)
    return EdgeFit(math.exp(fine.best), low, high, slope, dispersion, float(runs.n.sum()))


def _estimate_dispersion(runs: _Runs, allowed: float, profile: _Profile) -> tuple[float, int]:
    """Return the variance of counts ÷ that of independent samples, and its degrees of freedom.

    It is pooled over runs and their parts, and at least the runs' own mean dispersion and 1. Where runs
    differ more than their parts explain (another program took the machine for one), it is that over runs
    alone.
    """
    line = profile.slope * (runs.x - profile.best)
    share = np.exp(runs.find_log_shares(line, allowed, profile.floor)).clip(_LEAST, 1 - _LEAST)
    between = float(((runs.over - runs.n * share) ** 2 / (runs.n * share * (1 - share))).sum())
    between_freedom = len(share) - 2
    within, within_freedom = 0.0, 0
    for expected, (n, over) in zip(share, runs.groups, strict=True):
        own = over.sum() / n.sum()
        within += float(((over - n * own) ** 2 / (n * expected * (1 - expected))).sum())
        within_freedom += len(n) - 1
    # If hardly a sample is above the limit, counts show no spread; slow samples always do.
    slow = runs.dispersions[~np.isnan(runs.dispersions)]
    least = max(float(slow.mean()) if len(slow) else 1.0, 1.0)
    if between_freedom > 0 and within_freedom > 0:
        by_parts = max(within / within_freedom, least)
        # A ratio of variances above its 95 % quantile counts (Abramowitz and Stegun, 26.6.15).
        root = (between / between_freedom / by_parts) ** (1 / 3)
        above, below = 2 / (9 * between_freedom), 2 / (9 * within_freedom)
        if (1 - below) * root - (1 - above) > _Z95 * math.sqrt(below * root**2 + above):
            return between / between_freedom, between_freedom
    freedom = max(between_freedom + within_freedom, 1)
    return max((between + within) / freedom, least), freedom


def _mark_close(distance: Float64) -> Bool:
    """Return which runs are near the edge, by their line's distance from the allowed share: bool[runs].

    The nearest two on each side always are.
    """
    near: Bool = np.abs(distance) <= math.log(_NEAR)
    for side in (distance <= 0, distance > 0):
        order = np.argsort(np.where(side, np.abs(distance), np.inf))[:_EACH_SIDE]
        near[order] |= side[order]
    return near

"""Knee: the load at which a curve bends, by two straight lines on logarithmic scales, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64
from loadgen.base.intervals import t_quantile

_PARAMETERS = 4  # of two lines that meet: where they begin, two slopes, the bend
_FEWEST_LOADS = 4  # distinct loads: two on each line
_PLACES = 400  # that are tried for the bend
_DRAWS, _SEED = 999, 0  # of noise around one straight line
_LEVEL = 0.05  # of the test that there is a bend
_NOISELESS = 1e-12  # a rounding error, of the squares around one straight line


class Knee(msgspec.Struct, frozen=True):
    """The load at which a curve bends, and its 95 % interval; an end is None where no bound can be given.

    Beyond the second load from an end a single point is left, which any line meets.
    """

    load: float
    low: float | None
    high: float | None


def find_knee(loads: Sequence[float], values: Sequence[float], *, rises: bool) -> Knee | None:
    """Find the load at which a figure's curve bends: upwards if it `rises`, as a latency, else to flatter.

    Repeated loads are points of their own; points without a logarithm are left out. None with fewer than five
    points or four different loads, and where one straight line does as well: that is tested at 5 % against
    999 curves of one line with normal noise, since the bend's place was chosen to fit. The interval is that
    of the profile of squares by F(1, n - 4).
    """
    points = np.array([loads, values], np.float64)
    known: Bool = np.all(np.isfinite(points) & (points > 0), axis=0)
    x, y = np.log(points[:, known])
    distinct = np.unique(x)
    freedom = len(x) - _PARAMETERS
    if freedom < 1 or len(distinct) < _FEWEST_LOADS:
        return None
    places = np.linspace(distinct[1], distinct[-2], _PLACES)
    # A bend at each place adds this to a straight line: unit vectors, float64[places, points].
    added = _subtract_line(x, np.maximum(x - places[:, None], 0.0))
    bends = added / np.sqrt((added * added).sum(axis=1, keepdims=True)) * (1.0 if rises else -1.0)
    residual = _subtract_line(x, y)
    straight = float(residual @ residual)
    if straight <= _NOISELESS * float(y @ y):
        return None
    gains = _measure_gains(bends, residual)
    if _estimate_p_value(x, bends, float(gains.max()) / straight) > _LEVEL:
        return None
    left = np.maximum(straight - gains, _NOISELESS * straight)
    inside = np.flatnonzero(left <= left.min() * (1 + t_quantile(freedom) ** 2 / freedom))
    first, last = int(inside[0]), int(inside[-1])
    return Knee(
        load=float(np.exp(places[np.argmax(gains)])),
        low=float(np.exp(places[first])) if first > 0 else None,
        high=float(np.exp(places[last])) if last < _PLACES - 1 else None,
    )


def _subtract_line(x: Float64, y: Float64) -> Float64:
    """Return y, over its last axis, without its straight line of least squares by x."""
    centred = x - x.mean()
    rest = y - y.mean(axis=-1, keepdims=True)
    left: Float64 = rest - (rest @ centred)[..., None] * centred / (centred @ centred)
    return left


def _measure_gains(bends: Float64, residual: Float64) -> Float64:
    """Compute by how much a bend at each place reduces the residual's squares; 0 for a wrong-way bend."""
    gains: Float64 = np.maximum(residual @ bends.T, 0.0) ** 2
    return gains


def _estimate_p_value(x: Float64, bends: Float64, share: float) -> float:
    """Estimate how often noise around one line gains `share` of its squares by a bend: the p-value.

    The share depends on neither the line nor the noise's size, so the draws are those of any curve.
    """
    noise = np.random.default_rng(_SEED).standard_normal((_DRAWS, len(x)))
    residuals = _subtract_line(x, noise)
    shares = _measure_gains(bends, residuals).max(axis=1) / (residuals * residuals).sum(axis=1)
    return float(1 + np.count_nonzero(shares >= share)) / (_DRAWS + 1)

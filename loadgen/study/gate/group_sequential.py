"""Group sequential: the levels at which a t test decides that looks after each pair and spends alpha in turn.

Lan and DeMets (1983) spend alpha by a function of the share of the planned pairs that was made; the level of
each look follows by recursive numerical integration (Armitage, McPherson and Rowe 1969; Jennison and
Turnbull, Group Sequential Methods, 2000, chapters 7 and 19). Usually the p of t is taken for that of a normal
deviate (ch. 11); with looks from three pairs on that makes an error of up to 0.059 where 0.05 is asked for.
So the law of t itself is integrated (after Jennison and Turnbull, Biometrika 78, 1991). Where the true
difference is 0, u = Σd / √Σd² after n pairs is a Markov chain, because Σd² is independent of all u:

    u' = (u + y) / √(1 + y²)    √n y has Student's t distribution with n degrees of freedom
    t = u √((n − 1) / (n − u²))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loadgen.base.arrays import Float64
from loadgen.study.compare.statistics import compute_student

FIRST_LOOK = 3  # pairs: two leave t one degree of freedom, which decides nothing
SPENDING_POWER = 1.5  # docs/gate-calibration.md has the choice
_CELLS = 80  # of the grid: twice as many change no level of 30 looks by 2 %
_REACH = 6.0  # of the grid, in standard deviations
_CLOSE = 1e-7  # of a bar
_LEAST_SPENT = 1e-12  # a look with less never rejects
_GAUSS = 1 / math.sqrt(3)  # Legendre's two points, in half cells from the middle


def spend_alpha(alpha: float, shares: Any) -> Float64:
    """Compute the alpha spent by shares of the planned pairs: alpha · share^1.5 (Kim and DeMets 1987)."""
    return np.asarray(alpha * np.asarray(shares, float) ** SPENDING_POWER)


@functools.cache
def find_look_levels(alpha: float, max_pairs: int) -> tuple[float, ...]:
    """Find the one-sided p at which each look decides, from FIRST_LOOK pairs to `max_pairs`."""
    looks = range(FIRST_LOOK, max_pairs + 1)
    return find_levels(spend_alpha(alpha, np.array(looks) / max_pairs), looks)


def find_levels(spent: Sequence[float] | Float64, looks: Sequence[int]) -> tuple[float, ...]:
    """Find the one-sided p at which each look rejects, so that the error made by then is `spent`.

    `looks` are rising numbers of pairs, 2 or more; `spent` does not fall. Where the truth is not at the limit
    that is tested but within it, the error is less.
    """
    from scipy import special

    levels = [float(spent[0])]
    edges = _divide(min(-special.ndtri(spent[0]), _REACH))
    mass = np.diff(special.ndtr(edges))
    due = dict(zip(looks[1:], np.diff(spent).tolist(), strict=True))
    for pairs in range(looks[0] + 1, looks[-1] + 1):
        exceed = functools.partial(_compute_exceedance, *_place_mass(edges, mass, pairs - 1), pairs)
        bar = _find_bar(exceed, due.get(pairs, 0.0))
        if pairs in due:
            levels.append(float(special.ndtr(-bar)) if bar < _REACH else 0.0)
        edges = _divide(bar)
        mass = -np.diff(exceed(edges))
    return tuple(levels)


def _divide(bar: float) -> Float64:
    """Divide what lies below a look's bar into cells, by normal deviates of the same p as t's."""
    return np.linspace(-_REACH, bar, _CELLS + 1)


def _place_mass(edges: Float64, mass: Float64, pairs: int) -> tuple[Float64, Float64]:
    """Represent the mass of each cell by two points: their u after `pairs` pairs, and their weights.

    The density is taken for linear in a cell, with the slope between its neighbours.
    """
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    lean = np.gradient(mass) / 2 * _GAUSS
    points = np.concatenate([middle - half * _GAUSS, middle + half * _GAUSS])
    return _find_u(points, pairs), np.concatenate([mass / 2 - lean / 2, mass / 2 + lean / 2])


def _find_u(deviates: Any, pairs: int) -> Float64:
    """Find the u = Σd / √Σd² of `pairs` pairs whose t has the p of a normal deviate."""
    from scipy import special

    t = special.stdtrit(pairs - 1, special.ndtr(deviates))
    return np.asarray(t * np.sqrt(pairs / (pairs - 1 + t**2)))


def _compute_exceedance(before: Float64, weights: Float64, pairs: int, bars: Any) -> Float64:
    """Compute the chance that u after `pairs` pairs is above each bar, a normal deviate.

    `before` and `weights` are its law one pair earlier. With y = tan a, (u + y) / √(1 + y²) is
    √(1 + u²) sin(a + arctan u): it is above b where a + arctan u is above s = arcsin(b / √(1 + u²)) and below
    π − s, and below −π − s.
    """
    freedom = np.float64(pairs - 1)
    lean = np.arctan(before)
    sine = _find_u(bars, pairs)[..., None] / np.sqrt(1 + before**2)
    angle = np.arcsin(np.clip(sine, -1, 1))

    def compute_share(least: Float64) -> Float64:
        """Compute the share of pairs whose a is below that."""
        return compute_student(np.sqrt(freedom) * np.tan(np.clip(least, -math.pi / 2, math.pi / 2)), freedom)

    above = compute_share(math.pi - angle - lean) - compute_share(angle - lean)
    return np.asarray((above + compute_share(-math.pi - angle - lean)) @ weights)


def _find_bar(exceed: Callable[[Any], Float64], share: float) -> float:
    """Find the bar that `share` of the mass exceeds, by bisection; _REACH if that is next to nothing."""
    low, high = -_REACH, _REACH
    while share > _LEAST_SPENT and high - low > _CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if exceed(middle) > share else (low, middle)
    return high

"""Blocks: runs of two sides that were measured one side after the other, and what can be said of them.

A machine that slows by 0.5 % a run makes a side that was measured later slower, and no spread within a side
shows it. The order of the runs is known where they have times. Where it sets the sides apart, the figures are
fitted by the side and a trend over the order, and the error is that of residuals that follow one another
(Cochrane, Orcutt 1949, their correlation corrected as by Kendall 1954): docs/gate-calibration.md has how
often that is wrong. Sides that took turns are judged as ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Float64
from loadgen.study.run_summary import Reported

UNTIMED = "not all runs have a time: whether one side was measured before the other is not known"
ADVICE = "measure the sides in turn, as `loadgen gate FILE.toml` does"
_APART = 0.7  # of the distance that the mean places in the order have where one side is before the other
_LEAST = 2  # units that have a spread
_MOST_ALIKE = 0.95  # of neighbours' correlation


class UnitOrder(msgspec.Struct, frozen=True):
    """When the units of both sides were measured: their places in the order of all runs, from 0."""

    row: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def apart(self) -> float:
        """How far the sides are apart: 1 where all of one are before the other, above 0 if the row is later.

        0 where a side has one unit.
        """
        if min(len(self.row), len(self.baseline)) < _LEAST:
            return 0.0
        between = float(np.mean(self.row) - np.mean(self.baseline))
        return 2 * between / (len(self.row) + len(self.baseline))

    @property
    def in_blocks(self) -> bool:
        """Whether the sides did not take turns: one was measured before the other, or mostly so."""
        return abs(self.apart) >= _APART


def find_order(row: Sequence[Sequence[Reported]], baseline: Sequence[Sequence[Reported]]) -> UnitOrder | None:
    """Find the order of the units of two sides, each a list of its runs; None if a run has no time."""
    units = [(side, unit) for side, own in enumerate((row, baseline)) for unit in own]
    times = [[run.started.timestamp() for run in unit if run.started is not None] for _, unit in units]
    if any(len(time) < len(unit) for time, (_, unit) in zip(times, units, strict=True)):
        return None
    middles = [float(np.mean(time)) for time in times]
    places = {at: float(place) for place, at in enumerate(np.argsort(middles, kind="stable").tolist())}
    own, other = (tuple(places[at] for at, (of, _) in enumerate(units) if of == side) for side in (0, 1))
    return UnitOrder(own, other)


def fit_in_blocks(
    row: Sequence[float], baseline: Sequence[float], order: UnitOrder
) -> tuple[float, float, float]:
    """Fit the log ratio of two samples of positive figures and a trend over their order.

    Returns the log ratio, its standard error and the degrees of freedom of that; four figures or more.
    """
    places = np.array([*order.row, *order.baseline])
    first = np.argsort(places)
    logs = np.log([*row, *baseline])[first]
    side = np.repeat([1.0, 0.0], [len(row), len(baseline)])[first]
    terms = np.column_stack([np.ones(len(logs)), side, places[first] - places.mean()])
    squares = np.linalg.inv(terms.T @ terms)
    fitted = squares @ terms.T @ logs
    left, freedom = logs - terms @ fitted, len(logs) - 3.0
    variance = float((left**2).sum()) / freedom * squares[1, 1]
    return float(fitted[1]), math.sqrt(variance) * _widen(left, side), freedom


def _widen(left: Float64, side: Float64) -> float:
    """Compute by how many times the error is larger than that of independent residuals."""
    n, squares = len(left), float((left**2).sum())
    if not squares > 0:
        return 1.0
    together = side[1:] == side[:-1]
    alike = float((left[1:] * left[:-1])[together].sum()) / squares * n / max(n - 2, 1)
    alike = min(max(alike + (1.5 + 4 * alike) / n, 0.0), _MOST_ALIKE)
    return math.sqrt((1 + alike) / (1 - alike))


def describe_blocks(name: str, other: str, order: UnitOrder | None) -> str:
    """Write that the runs of a row and of `other` did not take turns; "" if they did."""
    if order is None or not order.in_blocks:
        return ""
    every = "all" if abs(order.apart) > 1 - 1e-9 else "most"
    when = "after" if order.apart > 0 else "before"
    return (
        f"{name}: {every} runs were measured {when} those of {other}, so a drift of the machine looks like a "
        f"difference: a trend over the order is taken off, and the interval is wider; {ADVICE}"
    )

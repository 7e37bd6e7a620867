"""Gate verdict: not slower, slower or undecided, by the t interval of the slowdown against one margin.

The slowdown is how many times as slow the new side is: base / new of a throughput, new / base of a latency.
Both errors are held to alpha whatever the truth: that of calling slower what is within the margin, over all
rows and looks, and that of calling not slower what is beyond it.

A gate that measures looks after each pair and spends alpha in turn. Lan and DeMets (1983) spend it by a
function of the share of the planned pairs that was made; the level of each look follows by recursive
numerical integration (Armitage, McPherson and Rowe 1969; Jennison and Turnbull, Group Sequential Methods,
2000, chapters 7 and 19). Usually the p of t is taken for that of a normal deviate (ch. 11); with looks from
three pairs on that makes an error of up to 0.059 where 0.05 is asked for. So the law of t itself is
integrated (after Jennison and Turnbull, Biometrika 78, 1991). Where the true difference is 0, u = Σd / √Σd²
after n pairs is a Markov chain, because Σd² is independent of all u:

    u' = (u + y) / √(1 + y²)    √n y has Student's t distribution with n degrees of freedom
    t = u √((n − 1) / (n − u²))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from pydantic import BaseModel, Field

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.errors import UsageError
from loadgen.study.compare import statistics
from loadgen.study.compare.statistics import LOOKS, POWER, Estimate, compute_student, invert_student

FIRST_LOOK = 3  # pairs: two leave t one degree of freedom, which decides nothing
MARGIN = 0.03  # of the slowdown: what is less is not worth a failed build
ALPHA = 0.05
MAX_PAIRS = 40  # docs/gate-calibration.md has the choice
EARLY = f"the first look is after {FIRST_LOOK} pairs"
IN_BLOCKS = f"one side was measured before the other: {statistics.ADVICE}"
FEW = f"fewer than {FIRST_LOOK} runs a side decide nothing"


class GateOutcome(StrEnum):
    """What a gate says; the words are printed as they are."""

    NOT_SLOWER = "not slower"  # by more than the margin
    SLOWER = "slower"
    UNDECIDED = "undecided"


_GRAVEST = (GateOutcome.SLOWER, GateOutcome.UNDECIDED, GateOutcome.NOT_SLOWER)


class GateMetric(BaseModel, extra="forbid", frozen=True):
    """One figure that a gate judges."""

    name: str  # as it was asked for
    key: str  # of the figure in a result
    higher_is_faster: bool
    margin: float = Field(gt=0, lt=1)  # how much slower is not worth a failed build; 0.03 is 3 %


class GateSeries(msgspec.Struct, frozen=True):
    """One metric under one load, a value a unit of each side; in the same order where paired.

    Raises ValueError where paired sides differ in length.
    """

    metric: GateMetric
    load: str
    new: tuple[float, ...]
    base: tuple[float, ...]
    paired: bool
    # Order of the units of given runs, new and base; None: one has no time, or they are paired.
    order: statistics.UnitOrder | None = None

    def __post_init__(self) -> None:
        if self.paired and len(self.new) != len(self.base):
            raise ValueError(f"{len(self.new)} values cannot be paired with {len(self.base)}")

    @property
    def sides(self) -> tuple[Float64, Float64]:
        """The sides whose ratio is the slowdown: base and new of a throughput, new and base of a latency."""
        new, base = np.array(self.new, float), np.array(self.base, float)
        return (base, new) if self.metric.higher_is_faster else (new, base)

    @property
    def in_blocks(self) -> bool:
        """Whether one side was measured before the other."""
        return self.order is not None and self.order.in_blocks

    @property
    def units(self) -> int:
        """The pairs, or the units of the smaller side."""
        return min(len(self.new), len(self.base))


class GatePlan(msgspec.Struct, frozen=True):
    """How a gate decides; raises UsageError where alpha or the number of pairs cannot be."""

    alpha: float = ALPHA
    max_pairs: int = MAX_PAIRS
    sequential: bool = False  # looks after each pair from FIRST_LOOK on; else the runs are given

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise UsageError(f"--alpha {self.alpha:g}: give a probability below 0.5, as 0.05")
        if self.max_pairs < FIRST_LOOK:
            raise UsageError(f"--max-pairs {self.max_pairs}: give at least {FIRST_LOOK}")


class GateRow(msgspec.Struct, frozen=True):
    """What is known of one series, at the look that decided it, else at the last one; NaN if not tested."""

    series: GateSeries
    ratio: float  # how many times as slow the new side is: above 1 is slower
    low: float  # above 1 + margin: slower
    high: float  # below 1 + margin: not slower
    level: float  # of the interval low to high, held over all looks
    outcome: GateOutcome
    p: float  # one-sided, of a slowdown within the margin, at this look
    needed: float  # the p at which this look calls it slower
    pairs: int  # or units of the smaller side, that were looked at
    more_pairs: int | None = None  # that would probably decide; None: decided, not testable, or over 1000
    most_pairs: int | None = None  # likewise, where the spread is wider than so few pairs could show
    why: str = ""  # there is no test, or it decides nothing


class GateVerdict(msgspec.Struct, frozen=True):
    """The outcome of a gate: slower if any row is, not slower if every row is so, else undecided."""

    outcome: GateOutcome
    rows: tuple[GateRow, ...]
    pairs: int  # of the row that has most
    more_pairs: int | None = None  # of the undecided row that needs most; None likewise
    most_pairs: int | None = None


class Looks(msgspec.Struct, frozen=True):
    """What a gate sees of its rows at each look; arrays end in (rows, looks), and may have more axes before.

    The p of a row without a test is NaN. `strict[j - 1]` is the p at which a row is slower while j rows are
    left of the family, `plain` that at which it is not slower.
    """

    slowdown: Estimate
    limit: Float64  # log(1 + margin), (rows, 1)
    strict: Float64  # (rows, looks)
    plain: Float64  # (looks,)

    @property
    def distance(self) -> Float64:
        """By how many standard errors the slowdown is above the margin."""
        return np.asarray((self.slowdown.log_ratio - self.limit) / self.slowdown.error)

    @property
    def p(self) -> Float64:
        """The one-sided p of a slowdown within the margin."""
        return compute_student(-self.distance, self.slowdown.freedom)

    def decide(self) -> tuple[Bool, Bool]:
        """Return whether each row is slower, or not slower, by each look: its first decision stays."""
        below = compute_student(self.distance, self.slowdown.freedom) <= self.plain
        not_slower = np.logical_or.accumulate(below, -1)
        slower = np.logical_or.accumulate((self.p <= self.strict[-1]) & ~not_slower, -1)
        return slower, not_slower & ~slower

    def find_end(self) -> Int64:
        """Find the index of the look that ends the gate: first with a slower row or none left; else last."""
        slower, not_slower = self.decide()
        ends = slower.any(-2) | not_slower.all(-2)
        return np.asarray(np.where(ends.any(-1), ends.argmax(-1), ends.shape[-1] - 1))


def judge_gate(series: Sequence[GateSeries], plan: GatePlan) -> GateVerdict:
    """Judge figures together: slower, not slower, or undecided with how many more pairs probably decide.

    A row is slower where its p passes at alpha divided by the rows (Bonferroni; Holm for those after the
    first): the chance that any row within its margin is called slower is alpha. It is not slower where the
    other one-sided test passes at alpha; the gate needs that of every row (intersection-union, Berger 1982).
    Given runs, three a side or more, are judged at a third of alpha, as by `compare`, since one adds runs and
    asks again; sequential ones after each pair from the third on, at the levels of `find_look_levels`. What
    pairs come after a decision changes nothing. A row that cannot be tested is undecided, with the reason.

    Raises ValueError without series, or of a sequential gate where a series is not paired or longer than the
    plan; UsageError without scipy.
    """
    if not series:
        raise ValueError("a gate needs a series")
    if plan.sequential and not all(one.paired and one.units <= plan.max_pairs for one in series):
        raise ValueError("a sequential gate needs pairs, at most as many as planned")
    early = [plan.sequential and one.units < FIRST_LOOK for one in series]
    reasons = [
        EARLY if is_early else statistics.explain_untested(one.new, one.base)
        for one, is_early in zip(series, early, strict=True)
    ]
    tested = [one for one, why in zip(series, reasons, strict=True) if not why]
    try:
        judged = iter(_judge_rows(tested, plan, len(series)) if tested else ())
    except ImportError as error:
        raise UsageError(statistics.NO_SCIPY) from error
    rows, nan = list[GateRow](), math.nan
    for one, is_early, why in zip(series, early, reasons, strict=True):
        more = FIRST_LOOK - one.units if is_early else None
        unknown = (nan, nan, nan, nan, GateOutcome.UNDECIDED, nan, nan, one.units, more, more, why)
        rows.append(GateRow(one, *unknown) if why else next(judged))
    outcome = next(one for one in _GRAVEST if any(row.outcome == one for row in rows))
    undecided = [row for row in rows if row.outcome == outcome == GateOutcome.UNDECIDED]
    ranges = [(row.more_pairs, row.most_pairs or 0) for row in undecided if row.more_pairs is not None]
    more_pairs, most_pairs = (
        map(max, zip(*ranges, strict=True)) if ranges and len(ranges) == len(undecided) else (None, None)
    )
    return GateVerdict(outcome, tuple(rows), max(row.pairs for row in rows), more_pairs, most_pairs)


def _judge_rows(series: Sequence[GateSeries], plan: GatePlan, family: int) -> list[GateRow]:
    """Judge the series that have a test, of a family of rows: a slower one where the gate ends.

    The family also has rows without a test, since one that has no figure yet may have it at a later look.
    """
    looks = (_look_in_turn if plan.sequential else _look_once)(series, plan, family)
    slower, not_slower = looks.decide()
    few = [one.units < FIRST_LOOK for one in series]  # of given runs: the others are not tested so early
    slower[few] = not_slower[few] = False
    end = int(looks.find_end())
    if slower[:, end].any():
        # Holm (1979) tests the j-th smallest p of m rows against the level of m - j + 1.
        p, strict = looks.p[:, end], looks.strict[:, end]
        order = np.argsort(p)
        passed = np.empty(len(p), bool)
        passed[order] = np.logical_and.accumulate(p[order] <= strict[::-1][: len(p)])
        slower[:, end] = passed & ~not_slower[:, end]
    rows = []
    for at, one in enumerate(series):
        look = min(end, one.units - FIRST_LOOK) if plan.sequential else end
        if slower[at, end]:
            outcome = GateOutcome.SLOWER
        elif not_slower[at, end]:
            outcome, look = GateOutcome.NOT_SLOWER, int(not_slower[at].argmax())
        else:
            outcome = GateOutcome.UNDECIDED
        rows.append(_make_row(one, looks, (at, look), outcome, plan))
    return rows


def _look_once(series: Sequence[GateSeries], plan: GatePlan, family: int) -> Looks:
    """Look at given runs, once, at a third of alpha; of sides in blocks apart from a trend over the runs."""
    estimates = list[Estimate]()
    for one in series:
        floor = statistics.find_least_error(one.new, one.base)
        if one.order is None or not one.order.in_blocks:
            found = statistics.estimate_ratio(*one.sides, paired=one.paired, floor=floor)
        else:
            found = statistics.estimate_in_blocks(one.new, one.base, one.order, floor)
            if one.metric.higher_is_faster:
                found = msgspec.structs.replace(found, log_ratio=-found.log_ratio)
        estimates.append(found)
    parts = zip(*((each.log_ratio, each.error, each.freedom) for each in estimates), strict=True)
    slowdown = Estimate(*(np.array(part)[:, None] for part in parts))
    level = plan.alpha / LOOKS
    limits = np.log1p([[one.metric.margin] for one in series])
    return Looks(slowdown, limits, level / np.arange(1.0, family + 1)[:, None], np.array([level]))


def _look_in_turn(series: Sequence[GateSeries], plan: GatePlan, family: int) -> Looks:
    """Look after each pair from the first look on; NaN after the pairs that a row has."""
    most = max(one.units for one in series)
    logs, floors = np.full((2, len(series), most), math.nan)
    for at, one in enumerate(series):
        slow, fast = one.sides
        logs[at, : one.units] = np.log(slow / fast)
        for pairs in range(FIRST_LOOK, one.units + 1):
            floors[at, pairs - 1] = statistics.find_least_error(one.new[:pairs], one.base[:pairs])
    strict = list_strict_levels(plan, family)[:, : most - FIRST_LOOK + 1]
    limits = np.log1p([[one.metric.margin] for one in series])
    return Looks(estimate_in_turn(logs, floors), limits, strict, strict[0])


def list_strict_levels(plan: GatePlan, rows: int) -> Float64:
    """List the p at which a row is slower at each look of a sequential gate, by how many rows are left."""
    return np.array([find_look_levels(plan.alpha / left, plan.max_pairs) for left in range(1, rows + 1)])


def estimate_in_turn(logs: Float64, floors: Float64 | float = statistics.CLOCK_ERROR) -> Estimate:
    """Estimate the mean of logarithms over the last axis, after FIRST_LOOK of them and each further one.

    `floors` is the least standard error that is credible, at each count.
    """
    count = np.arange(1.0, logs.shape[-1] + 1)
    near = logs - logs[..., :1]  # of small numbers the squares lose no digits
    mean = np.cumsum(near, -1) / count
    squares = np.cumsum(near**2, -1) - count * mean**2
    error = np.sqrt(np.maximum(squares, 0) / np.maximum(count - 1, 1) / count)
    looks = np.s_[..., FIRST_LOOK - 1 :]
    freedom = np.broadcast_to(count - 1, logs.shape)
    return Estimate((mean + logs[..., :1])[looks], np.maximum(error, floors)[looks], freedom[looks])


def _make_row(
    series: GateSeries, looks: Looks, place: tuple[int, int], outcome: GateOutcome, plan: GatePlan
) -> GateRow:
    """Make a row as of the look at `place`, (row, look), with the pairs that would probably decide it."""
    rows, look = len(looks.strict), place[1]
    seen = looks.slowdown
    centre, error, freedom = (float(part[place]) for part in (seen.log_ratio, seen.error, seen.freedom))
    strict, plain = float(looks.strict[-1, look]), float(looks.plain[look])
    reach = [float(-invert_student(tail, freedom) * error) for tail in (strict, plain)]
    pairs = look + FIRST_LOOK if plan.sequential else series.units
    more = most = None
    if outcome == GateOutcome.UNDECIDED and not series.in_blocks:
        later = max(statistics.MOST_UNITS - pairs, 0)
        levels = np.broadcast_to(plan.alpha / LOOKS / np.array([[rows], [1]]), (2, later))
        if plan.sequential:  # after the last planned pair that of the last look, as of a longer plan
            at = np.minimum(np.arange(pairs + 1, pairs + later + 1), plan.max_pairs) - FIRST_LOOK
            levels = list_strict_levels(plan, rows)[[-1, 0]][:, at]
        more = estimate_more_pairs(float(looks.distance[place]), freedom, pairs, levels)
        if more is not None:
            from scipy import special

            # The variance may be as many times what was seen, by the upper 80 % bound of χ²: few runs may
            # have missed the outliers that later ones will have.
            most = math.ceil(more * float(freedom / special.chdtri(freedom, POWER)))
    return GateRow(
        series,
        math.exp(centre),
        math.exp(centre - reach[0]),
        math.exp(centre + reach[1]),
        1 - plan.alpha - plan.alpha / rows,
        outcome,
        float(looks.p[place]),
        strict,
        pairs,
        more,
        most,
        FEW if pairs < FIRST_LOOK else IN_BLOCKS if series.in_blocks else "",
    )


def estimate_more_pairs(distance: float, freedom: float, units: int, levels: Float64) -> int | None:
    """Estimate the least number of units to add on each side after which 80 % of gates are decided.

    `distance` is that of the slowdown from the margin, in standard errors; `levels` are the p that decide,
    float64[slower and not, further units]. The truth is taken to lie about what was seen with that error: the
    predictive power of Spiegelhalter, Freedman and Blackburn (1986), of either decision. None where it takes
    over 1000 units in all, as of a slowdown next to the margin.
    """
    from scipy import special

    total = units + np.arange(1.0, levels.shape[1] + 1)
    bars = -invert_student(levels, freedom * (total - 1) / (units - 1)) * np.sqrt(units / total)
    ahead = np.array([[distance], [-distance]]) - bars
    chance = special.ndtr(ahead / np.sqrt(1 - units / total)).sum(0)
    decided = np.flatnonzero(chance >= POWER)
    return int(decided[0]) + 1 if len(decided) else None


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
    """Return the edges of cells up to a look's bar, by normal deviates of the same p as t's."""
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

"""Statistics: is a row faster than the baseline, by its units; the t interval of the log ratio decides.

A unit is a run, or a start of the server where it was started more than once; never a request, since the
requests of one run share all that the run had of luck.

A machine that slows by 0.5 % a run makes a side that was measured later slower, and no spread within a side
shows it. The order of the runs is known where they have times. Where it sets the sides apart, the figures are
fitted by the side and a trend over the order, and the error is that of residuals that follow one another
(Cochrane, Orcutt 1949, their correlation corrected as by Kendall 1954): docs/gate-calibration.md has how
often that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.text import describe_install
from loadgen.study.compare.model import Decision, Effect
from loadgen.study.run_summary import Reported, group_by

UNTIMED = "not all runs have a time: whether one side was measured before the other is not known"
ADVICE = "measure the sides in turn, as `loadgen gate FILE.toml` does"
_APART = 0.7  # of the distance that the mean places in the order have where one side is before the other
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


def _measure_widening(left: Float64, side: Float64) -> float:
    """Compute by how many times, 1 or more, alike neighbours among the residuals `left` enlarge the error."""
    n, squares = len(left), float((left**2).sum())
    if not squares > 0:
        return 1.0
    together = side[1:] == side[:-1]
    alike = float((left[1:] * left[:-1])[together].sum()) / squares * n / max(n - 2, 1)
    alike = min(max(alike + (1.5 + 4 * alike) / n, 0.0), _MOST_ALIKE)
    return math.sqrt((1 + alike) / (1 - alike))


KNOWN_ERROR = 1e6  # degrees of freedom, of an error that is taken as known, and not estimated from runs
NO_SCIPY = f"a verdict needs scipy: {describe_install('compare')}"
_NEARLY = "the interval excludes 1, but not after correction for other rows and repeated analyses"
_ALIKE = "the runs agree to within the precision of digits and clocks, which is used as their spread"


def average_starts(values: Sequence[Sequence[float]]) -> list[float]:
    """Average the runs of each start of the server to one unit: their geometric mean.

    What a start had of luck (memory layout, kernels that were tuned, heat) is in all of its runs: five runs
    of one start are one draw of it, not five. The geometric mean, since ratios are judged by logarithms. A
    start without runs is left out; one with a figure that has no logarithm is NaN.
    """
    return [compute_geometric_mean(runs) for runs in values if len(runs)]


def add_p_values(effect: Effect, estimated: Estimate, margin: float, alpha: float) -> Effect:
    """Return an effect with its estimate's interval, error and p values; without scipy with the reason."""
    try:
        reach = float(estimated.reach(alpha))
    except ImportError:
        return replace(effect, why=NO_SCIPY)
    centre = float(estimated.log_ratio)
    return replace(
        effect,
        low=math.exp(centre - reach),
        high=math.exp(centre + reach),
        p=float(estimated.p),
        p_equivalent=float(estimated.p_equivalent(margin)),
        error=float(estimated.error),
        freedom=float(estimated.freedom),
    )


def judge_rows(effects: Sequence[Effect], margin: float, alpha: float) -> list[Effect]:
    """Judge the rows of one figure together: each gets its adjusted p and its verdict.

    Equivalent where both one-sided tests pass, which is the practical question and comes first; else faster
    or slower where the test of a difference does; else undecided, with the least difference that is found in
    80 % of campaigns of this size, and about how many more units settle it. A figure by which nothing is
    faster has no verdict. Effects without a p stay as they are, and are not counted among the rows.
    """
    judged = list(effects)
    tested = [at for at, effect in enumerate(effects) if not math.isnan(effect.p)]
    if not tested:
        return judged
    tested_effects = [effects[at] for at in tested]
    columns = [
        (math.log(each.ratio), each.error, each.freedom, max(each.units, _LEAST), each.floor)
        for each in tested_effects
    ]
    log_ratio, error, freedom, count, floor = np.array(columns).T
    estimated = Estimate(log_ratio, error, freedom)
    rows = judge_family(estimated, margin, alpha)
    detectable = np.expm1(compute_separation(freedom, rows.level / 2) * error)
    more = estimate_more_runs(estimated, count, rows=len(tested), margin=margin, alpha=alpha, floor=floor)
    for column, (at, effect) in enumerate(zip(tested, tested_effects, strict=True)):
        judged[at] = _judge_row(effect, rows, column, float(detectable[column]), float(more[column]))
    return judged


def _judge_row(effect: Effect, rows: Family, at: int, detectable: float, more: float) -> Effect:
    """Return the effect with its verdict: faster, slower, equivalent, undecided, or none.

    `at` is its index in the family, whose adjusted p values decide. `detectable` and `more`, how many units a
    side settle it, are set in an undecided row only; more of inf is None. An effect whose error is known
    without runs keeps its `why`.
    """
    is_known = effect.freedom == KNOWN_ERROR
    judged = replace(
        effect,
        call=Decision.NONE,
        p_adjusted=float(rows.p[at]),
        p_equivalent_adjusted=float(rows.p_equivalent[at]),
        detectable=math.nan,
        more_runs=None,
        why=effect.why if is_known else _ALIKE if effect.error <= effect.floor else "",
    )
    if effect.higher_is_faster is None:
        return judged
    if rows.equivalent[at]:
        return replace(judged, call=Decision.EQUIVALENT)
    if rows.differs[at]:
        faster = (effect.ratio > 1) == effect.higher_is_faster
        return replace(judged, call=Decision.FASTER if faster else Decision.SLOWER)
    # More runs of sides that did not take turns tell no better what the machine did in between.
    needed = None if math.isinf(more) or effect.in_blocks or is_known else int(more)
    why = _NEARLY if effect.p <= rows.alpha and not is_known else judged.why
    return replace(judged, call=Decision.UNDECIDED, detectable=detectable, more_runs=needed, why=why)


def explain_untested(row: Sequence[float], baseline: Sequence[float]) -> str:
    """Explain why a row cannot be tested against the baseline; "" if it can."""
    if not (row and baseline):
        return "no run has this figure" if not (row or baseline) else "one side has no run with this figure"
    for value in (*row, *baseline):
        if not (math.isfinite(value) and value > 0):
            return f"a figure of {value:g} has no ratio"
    if min(len(row), len(baseline)) == 1:
        side = "a side" if len(row) == len(baseline) else "on one side"
        return f"one run {side} has no spread: a verdict needs repeats"
    return ""


def compute_geometric_mean(values: Sequence[float]) -> float:
    """Compute the geometric mean; NaN if a value has no logarithm or there are no values."""
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        return math.nan
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def find_least_error(row: Sequence[float], baseline: Sequence[float]) -> float:
    """Find the least credible standard error of the ratio: that of the clocks, or of the printed digits.

    Figures printed to a step (23.02: 0.01) have a rounding error of step / √12, the same in every run if
    the runs differ by less than the step, so that more runs do not average it out.
    """
    digits = (
        _find_last_digit(values) / math.sqrt(12) / compute_geometric_mean(values)
        for values in (row, baseline)
    )
    return max(CLOCK_ERROR, math.hypot(*digits))


def _find_last_digit(values: Sequence[float]) -> float:
    """Find the largest power of ten, at most 0.01, of which all values are multiples.

    Whether trailing zeros were printed cannot be known from a value.
    """
    exponents = (Decimal(repr(float(value))).normalize().as_tuple().exponent for value in values)
    return 10.0 ** min(-2, *(exponent for exponent in exponents if isinstance(exponent, int)))


POWER = 0.8  # the share of campaigns that is to find what is there
MOST_UNITS = 1000  # of a side: beyond that the number needed is not computed


def compute_power(distance: Any, freedom: Any, tail: Any) -> Float64:
    """Compute how often a one-sided t test at level `tail` rejects at `distance` standard errors.

    1 − F(t(1 − tail; freedom); freedom, distance), F of the noncentral t distribution. Beyond three times
    that t and 10 more, where it is over 0.99, scipy's F is NaN for some arguments: it is taken there.
    """
    from scipy import special

    bar = special.stdtrit(freedom, 1 - np.asarray(tail))
    return np.asarray(1 - special.nctdtr(freedom, np.minimum(distance, 3 * bar + 10), bar))


def compute_separation(freedom: Any, tail: Any, wanted: float = POWER) -> Float64:
    """Compute the distance in standard errors at which the power is `wanted`; `freedom` is 1 or more."""
    from scipy import special

    return np.asarray(special.nctdtrinc(freedom, 1 - wanted, special.stdtrit(freedom, 1 - np.asarray(tail))))


def estimate_more_units(
    error: Any, freedom: Any, units: Any, limit: float, tails: tuple[float, float], floor: Any = 0.0
) -> Float64:
    """Estimate the least number of units to add on each side that settles a difference `limit` (log scale).

    Settled: were the truth ± limit, the difference would be found (at level tails[0] on each side); were
    there none, equivalence would be (both one-sided tests at tails[1]); each in 80 % of campaigns.
    Equivalence fails where either of its tests does, so each is given half of the 20 %. The spread seen so
    far is taken for the truth, and the effect seen so far plays no part. `floor` is a standard error that
    more units do not lessen. inf where it takes over 1000 units.
    """
    error, freedom, units = (np.asarray(array, float) for array in (error, freedom, units))

    def is_settled(more: Float64) -> Bool:
        at = np.maximum(error * np.sqrt(units / (units + more)), floor)
        degrees = freedom * (units + more - 1) / (units - 1)
        finds = compute_power(limit / at, degrees, tails[0]) >= POWER
        settles_equal: Bool = compute_power(limit / at, degrees, tails[1]) >= (1 + POWER) / 2
        return finds & settles_equal

    return _find_least_number(is_settled, np.maximum(MOST_UNITS - units, 0.0))


def _find_least_number(holds: Callable[[Float64], Bool], most: Float64) -> Float64:
    """Find the least whole number from 1 to `most` at which `holds` is true, in each element; else inf.

    `holds` must be true from there on.
    """
    low, high = np.zeros(most.shape), most
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        right = holds(middle)
        low, high = np.where(right, low, middle), np.where(right, middle, high)
    return np.where((most >= 1) & holds(most), high, np.inf)


# The least standard error of a ratio: crystals and their discipline (NTP slews by up to 500 ppm) leave no two
# clocks, or one clock on two days, nearer than about 100 ppm.
CLOCK_ERROR = 1e-4


class Estimate(msgspec.Struct, frozen=True):
    """Natural logarithms of ratios; arrays of one shape."""

    log_ratio: Float64
    error: Float64  # its standard error
    freedom: Float64  # degrees of freedom of that

    @property
    def p(self) -> Float64:
        """The p of no difference, two-sided: 2 · F(−|log ratio| / error), F of Student's t."""
        return 2 * compute_student(-np.abs(self.log_ratio) / self.error, self.freedom)

    def p_equivalent(self, margin: float) -> Float64:
        """Compute the larger p of the two one-sided tests against 1 + margin and 1 / (1 + margin).

        It is at most a exactly where the interval at 1 − 2a lies between the two (Schuirmann 1987).
        """
        return compute_student((np.abs(self.log_ratio) - math.log1p(margin)) / self.error, self.freedom)

    def reach(self, alpha: float) -> Float64:
        """Compute half the width of the log ratio's interval at 1 − alpha: t(1 − alpha / 2) · error."""
        return np.asarray(-invert_student(alpha / 2, self.freedom) * self.error)


def estimate_ratio(row: Float64, baseline: Float64, *, paired: bool, floor: Any = CLOCK_ERROR) -> Estimate:
    """Estimate the log ratio of positive figures over the last axis: of pairs, or of two samples by Welch.

    Paired: the mean of d = ln(row / baseline), its error sd(d) / √n, n − 1 degrees of freedom. Else the
    difference of the two mean logarithms, with Welch's error and degrees of freedom. `floor` is the least
    error that is credible.
    """
    logs, others = np.log(row), np.log(baseline)
    n, m = logs.shape[-1], others.shape[-1]
    centre = logs.mean(-1) - others.mean(-1)
    if paired:
        variance = np.asarray((logs - others).var(-1, ddof=1) / n)
        freedom = np.full(centre.shape, n - 1.0)
    else:
        own, other = logs.var(-1, ddof=1) / n, others.var(-1, ddof=1) / m
        variance = np.asarray(own + other)
        below = np.asarray(own**2 / (n - 1) + other**2 / (m - 1))
        freedom = np.full(centre.shape, min(n, m) - 1.0)  # of no spread at all: the floor decides
        np.divide(variance**2, below, out=freedom, where=below > 0)
    return Estimate(np.asarray(centre), np.maximum(np.sqrt(variance), floor), freedom)


def estimate_in_blocks(
    row: Sequence[float], baseline: Sequence[float], order: UnitOrder, floor: float = CLOCK_ERROR
) -> Estimate:
    """Estimate the log ratio of sides that were measured one after the other, apart from a trend.

    The logarithms are fitted by the side and a trend over their order; it takes four figures or more.
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
    error = math.sqrt(variance) * _measure_widening(left, side)
    return Estimate(np.array(fitted[1]), np.array(max(error, floor)), np.array(freedom))


def compute_student(t: Any, freedom: Any) -> Float64:
    """Compute the probability of a value of at most `t` by Student's t distribution."""
    from scipy import special

    return np.asarray(special.stdtr(freedom, t))


def invert_student(p: Any, freedom: Any) -> Float64:
    """Return the value that Student's t distribution is below with probability `p`."""
    from scipy import special

    return np.asarray(special.stdtrit(freedom, p))


# A reader of "about N more runs" makes them and analyses again, and perhaps once more, since the spread of
# few runs was a guess: each analysis has a third of alpha (Bonferroni over three), so that it need not be
# given which one it is. The resulting error rates are simulated in docs/comparing-calibration.md.
LOOKS = 3


class Family(msgspec.Struct, frozen=True):
    """The verdicts on rows; NaN in `p` where a row has no test."""

    p: Float64  # of no difference, adjusted by Holm over the rows and by Bonferroni over the analyses
    p_equivalent: Float64  # of a difference beyond the margin, likewise
    alpha: float

    @property
    def equivalent(self) -> Bool:
        """The rows shown to be within the margin, which is decided first, bool[rows]."""
        return np.asarray(self.p_equivalent <= self.alpha)

    @property
    def differs(self) -> Bool:
        """The rows shown to be faster or slower, and not within the margin, bool[rows]."""
        return np.asarray((self.p <= self.alpha) & ~self.equivalent)

    @property
    def undecided(self) -> Bool:
        """The tested rows that are neither, bool[rows]."""
        return np.asarray(~np.isnan(self.p) & ~self.differs & ~self.equivalent)

    @property
    def rows(self) -> Int64:
        """How many rows have a test; the last axis is kept, of length 1."""
        return np.asarray((~np.isnan(self.p)).sum(-1, keepdims=True))

    @property
    def level(self) -> Float64:
        """The p that an undecided row must reach: alpha ÷ 3 analyses ÷ the rows whose p is above alpha."""
        left = self.rows - (self.p <= self.alpha).sum(-1, keepdims=True)
        return np.asarray(self.alpha / LOOKS / np.maximum(left, 1))


def judge_family(estimated: Estimate, margin: float, alpha: float) -> Family:
    """Test rows for a difference, and for equivalence within the margin, with each p adjusted.

    It is adjusted by Holm over the rows, then multiplied by the three analyses, to at most 1.
    """
    p, p_equivalent = (LOOKS * adjust_by_holm(p) for p in (estimated.p, estimated.p_equivalent(margin)))
    return Family(np.minimum(p, 1), np.minimum(p_equivalent, 1), alpha)


def adjust_by_holm(p: Float64) -> Float64:
    """Adjust p by Holm over the last axis: p₍ᵢ₎ · (m − i + 1), never falling, at most 1; NaN stays NaN."""
    order = np.argsort(p, -1)  # NaN comes last
    tests = (~np.isnan(p)).sum(-1, keepdims=True)
    factors = np.maximum(tests - np.arange(p.shape[-1]), 1)
    climbing = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factors, -1)
    adjusted = np.empty_like(climbing)
    np.put_along_axis(adjusted, order, np.minimum(climbing, 1), -1)
    return adjusted


def estimate_more_runs(
    estimated: Estimate, units: Any, *, rows: int, margin: float, alpha: float, floor: Any = CLOCK_ERROR
) -> Float64:
    """Estimate how many more units a side settle a difference of the margin's size, one of `rows` rows.

    From spread and margin alone, never from the effect seen (Stein 1945): a number that follows the effect
    stops where luck was good. inf where it takes over 1000 units.
    """
    level = alpha / LOOKS / rows
    return estimate_more_units(
        estimated.error, estimated.freedom, units, math.log1p(margin), (level / 2, level), floor
    )


ReadFigure = Callable[[Reported], float | None]  # a figure of a run
Pair = tuple[list[Reported], list[Reported]]  # of the row, of the baseline; mostly one run each
STARTS_UNREPORTED = "the runs do not record which start of the server they ran on"
ONE_START = "all runs were on one start of the server"
_LEAST = 2  # units that have a spread


class Units(msgspec.Struct, frozen=True):
    """One figure of both sides, a value a unit; in the same order where paired."""

    row: list[float]
    baseline: list[float]
    paired: bool
    left: int = 0  # runs that have no partner and are in no pair
    order: UnitOrder | None = None  # of units that are not paired; None: a run has no time

    def judge(self, higher_is_faster: bool | None, margin: float, alpha: float) -> Effect:
        """Judge the row against the baseline in this figure; `judge_rows` judges it with the other rows.

        Sides that did not take turns by `order` are judged apart from a trend. No verdict where a side has
        one unit, where a figure has no logarithm (zero, negative, NaN), or without scipy: see `why`.
        ValueError where paired values are not as many.
        """
        row, baseline, order = [*map(float, self.row)], [*map(float, self.baseline)], self.order
        if self.paired and len(row) != len(baseline):
            raise ValueError(f"{len(row)} values cannot be paired with {len(baseline)}")
        bare = Effect(
            Decision.NONE,
            compute_geometric_mean(row) / compute_geometric_mean(baseline),
            units=min(len(row), len(baseline)),
            paired=self.paired,
            higher_is_faster=higher_is_faster,
        )
        if why := explain_untested(row, baseline):
            return replace(bare, why=why)
        floor = find_least_error(row, baseline)
        bare = replace(bare, floor=floor)
        if order is not None and order.in_blocks:
            estimated = estimate_in_blocks(row, baseline, order, floor)
            bare = replace(bare, ratio=math.exp(float(estimated.log_ratio)), in_blocks=True)
        else:
            estimated = estimate_ratio(np.array(row), np.array(baseline), paired=self.paired, floor=floor)
        return judge_rows([add_p_values(bare, estimated, margin, alpha)], margin, alpha)[0]


def pair_units(row: Sequence[Reported], baseline: Sequence[Reported], figure: ReadFigure) -> Units:
    """Pair the units of two sides by the campaign's repeat, else by equal prompts, else not.

    Sides of which one was measured before the other are not paired: what changed in between is in each pair.
    It takes two pairs or more. Several runs of a pair's side are one unit, and so are pairs that share a
    start of a server, on either side, where that leaves at least two: the geometric mean.
    """
    having = [[run for run in side if figure(run) is not None] for side in (row, baseline)]
    order = find_order(*map(list_starts, having))
    in_blocks = order is not None and order.in_blocks
    keys: tuple[Callable[[Reported], Hashable], ...] = (
        lambda run: None if run.cell is None else (run.cell.campaign, run.cell.repeat),
        lambda run: run.plan_digest or None,
    )
    for key in () if in_blocks else keys:
        by_key, others_by_key = (group_by(side, key) for side in having)
        shared = (unit for unit in others_by_key if unit is not None and unit in by_key)
        pairs = [(by_key[unit], others_by_key[unit]) for unit in shared]
        if len(pairs) < _LEAST:
            continue
        merged = _merge_pairs(pairs)
        groups = merged if len(merged) >= _LEAST else pairs
        left = len(_read_values((*row, *baseline), figure)) - sum(
            len(side) for pair in pairs for side in pair
        )
        own, others = (
            average_starts([_read_values(unit[side], figure) for unit in groups]) for side in (0, 1)
        )
        return Units(own, others, True, left)
    return Units(list_units(row, figure), list_units(baseline, figure), False, order=order)


def list_units(runs: Sequence[Reported], figure: ReadFigure) -> list[float]:
    """List one side's units: starts of the server where there are several (geometric means), else runs."""
    having = [run for run in runs if figure(run) is not None]
    units = list_starts(having)
    if len(units) == len(having):
        return _read_values(having, figure)
    return average_starts([_read_values(unit, figure) for unit in units])


def list_starts(runs: Sequence[Reported]) -> list[list[Reported]]:
    """List the runs of each unit of a side: of a start of the server where there are several, else one."""
    starts = group_by(runs, _identify_start)
    if None in starts or len(starts) < _LEAST:
        return [[run] for run in runs]
    return list(starts.values())


def list_order_remarks(
    sides: Iterable[tuple[str, Sequence[Reported]]], other: str, baseline: Sequence[Reported]
) -> list[str]:
    """List remarks on named sides that took no turns with the runs of `other`, or are of unknown order."""
    remarks: dict[str, None] = {}
    for name, runs in sides:
        units = list_starts(runs), list_starts(baseline)
        if min(map(len, units)) < _LEAST:
            continue
        order = find_order(*units)
        if order is None:
            if any(run.cell is None for run in (*runs, *baseline)):  # a campaign's take turns
                remarks[UNTIMED] = None
        elif order.in_blocks:
            every = "all" if abs(order.apart) > 1 - 1e-9 else "most"
            when = f"{'after' if order.apart > 0 else 'before'} those of {other}"
            remarks[
                f"{name}: {every} runs were measured {when}, so a drift of the machine looks like a "
                f"difference: a trend over the order is taken off, and the interval is wider; {ADVICE}"
            ] = None
    return list(remarks)


def list_unit_remarks(sides: Iterable[Sequence[Reported]]) -> list[str]:
    """List remarks on sides whose units are runs, and not starts of the server; [] if there are none."""
    reasons: dict[str, None] = {}
    for runs in sides:
        starts = {_identify_start(run) for run in runs}
        if len(runs) >= _LEAST and (len(starts) < _LEAST or None in starts):
            reasons[STARTS_UNREPORTED if None in starts else ONE_START] = None
    return [f"{why}: variation between starts is not in the intervals" for why in reasons]


def _read_values(runs: Iterable[Reported], figure: ReadFigure) -> list[float]:
    return [value for run in runs if (value := figure(run)) is not None]


def _merge_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Merge pairs that share a start of a server, on either side, to one pair of all their runs."""
    groups: list[tuple[set[Hashable], Pair]] = []
    for pair in pairs:
        starts: set[Hashable] = {
            start for side in pair for run in side if (start := _identify_start(run)) is not None
        }
        tied = [group for group in groups if group[0] & starts]
        groups = [group for group in groups if not group[0] & starts]
        merged: Pair = ([], [])
        for _, other in [*tied, (starts, pair)]:
            for side in (0, 1):
                merged[side].extend(other[side])
        groups.append((starts.union(*(group[0] for group in tied)), merged))
    return [pair for _, pair in groups]


def _identify_start(run: Reported) -> Hashable:
    if run.cell is None or not run.cell.start:
        return None
    return run.cell.campaign, run.cell.arm, run.cell.start

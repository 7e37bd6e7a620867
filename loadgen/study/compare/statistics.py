"""Statistics: is a row faster than the baseline, by its units; the t interval of the log ratio decides.

A unit is a run, or a start of the server where it was started more than once; never a request, since the
requests of one run share all that the run had of luck.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from msgspec.structs import replace

from loadgen.study.compare.estimate import CLOCK_ERROR, Estimate, estimate
from loadgen.study.compare.model import Decision, Effect
from loadgen.study.compare.multiplicity import Family, family, more_runs
from loadgen.study.compare.power import separation

_NO_SCIPY = "a verdict needs scipy: in the clone, .venv/bin/pip install '.[compare]'"
_NEARLY = "the interval excludes 1, but not after correction for other rows and repeated analyses"
_ALIKE = "the runs agree to within the precision of digits and clocks, which is used as their spread"


def units(values: Sequence[Sequence[float]]) -> list[float]:
    """Runs, grouped by the start of the server they ran on, as one unit a start: their geometric mean.

    What a start had of luck (memory layout, kernels that were tuned, heat) is in all of its runs: five runs
    of one start are one draw of it, not five. The geometric mean, since ratios are judged by logarithms. A
    start without runs is left out; one with a figure that has no logarithm is NaN.
    """
    return [_geometric(runs) for runs in values if len(runs)]


def effect(
    row: Sequence[float],
    baseline: Sequence[float],
    *,
    paired: bool,
    higher_is_faster: bool | None,
    margin: float,
    alpha: float,
) -> Effect:
    """A row against the baseline in one figure, over their units; `holm` judges it with the other rows.

    Paired values stand in the same order. No verdict where a side has one unit, where a figure has no
    logarithm (zero, negative, NaN), or without scipy: see `why`. ValueError where paired values are not
    as many.
    """
    row, baseline = [float(value) for value in row], [float(value) for value in baseline]
    if paired and len(row) != len(baseline):
        raise ValueError(f"{len(row)} values cannot be paired with {len(baseline)}")
    ratio, fewest = _geometric(row) / _geometric(baseline), min(len(row), len(baseline))
    bare = Effect(Decision.NONE, ratio, units=fewest, paired=paired, higher_is_faster=higher_is_faster)
    if why := _refusal(row, baseline):
        return replace(bare, why=why)
    floor = _floor(row, baseline)
    estimated = estimate(np.array(row, float), np.array(baseline, float), paired=paired, floor=floor)
    try:
        reach = float(estimated.reach(alpha))
    except ImportError:
        return replace(bare, why=_NO_SCIPY)
    centre = float(estimated.log_ratio)
    tested = replace(
        bare,
        low=math.exp(centre - reach),
        high=math.exp(centre + reach),
        p=float(estimated.p),
        p_equivalent=float(estimated.p_equivalent(margin)),
        error=float(estimated.error),
        freedom=float(estimated.freedom),
        floor=floor,
    )
    return holm([tested], margin, alpha)[0]


def holm(effects: Sequence[Effect], margin: float, alpha: float) -> list[Effect]:
    """The rows of one figure judged together: each with its adjusted p and its verdict.

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
        (math.log(effect.ratio), effect.error, effect.freedom, effect.units, effect.floor)
        for effect in tested_effects
    ]
    log_ratio, error, freedom, count, floor = np.array(columns).T
    estimated = Estimate(log_ratio, error, freedom)
    rows = family(estimated, margin, alpha)
    detectable = np.expm1(separation(freedom, rows.level / 2) * error)
    more = more_runs(estimated, count, rows=len(tested), margin=margin, alpha=alpha, floor=floor)
    for column, (at, effect) in enumerate(zip(tested, tested_effects, strict=True)):
        judged[at] = _judged(effect, rows, column, float(detectable[column]), float(more[column]))
    return judged


def _judged(effect: Effect, rows: Family, at: int, detectable: float, more: float) -> Effect:
    """One row of the family; `detectable` and `more_runs` are set of an undecided row only."""
    judged = replace(
        effect,
        call=Decision.NONE,
        p_adjusted=float(rows.p[at]),
        p_equivalent_adjusted=float(rows.p_equivalent[at]),
        detectable=math.nan,
        more_runs=None,
        why=_ALIKE if effect.error <= effect.floor else "",
    )
    if effect.higher_is_faster is None:
        return judged
    if rows.equivalent[at]:
        return replace(judged, call=Decision.EQUIVALENT)
    if rows.differs[at]:
        faster = (effect.ratio > 1) == effect.higher_is_faster
        return replace(judged, call=Decision.FASTER if faster else Decision.SLOWER)
    needed = None if math.isinf(more) else int(more)
    why = _NEARLY if effect.p <= rows.alpha else judged.why
    return replace(judged, call=Decision.UNDECIDED, detectable=detectable, more_runs=needed, why=why)


def _refusal(row: Sequence[float], baseline: Sequence[float]) -> str:
    """Why there is nothing to test; empty where there is."""
    if not (row and baseline):
        return "no run has this figure" if not (row or baseline) else "one side has no run with this figure"
    for value in (*row, *baseline):
        if not (math.isfinite(value) and value > 0):
            return f"a figure of {value:g} has no ratio"
    if min(len(row), len(baseline)) == 1:
        side = "a side" if len(row) == len(baseline) else "on one side"
        return f"one run {side} has no spread: a verdict needs at least two runs"
    return ""


def _geometric(values: Sequence[float]) -> float:
    """The geometric mean; NaN if a value has no logarithm or there are no values."""
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        return math.nan
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _floor(row: Sequence[float], baseline: Sequence[float]) -> float:
    """The least credible standard error of the ratio: that of the clocks, or of the printed digits.

    Figures printed to a step (23.02: 0.01) have a rounding error of step / √12, the same in every run if
    the runs differ by less than the step, so that more runs do not average it out.
    """
    digits = (_step(values) / math.sqrt(12) / _geometric(values) for values in (row, baseline))
    return max(CLOCK_ERROR, math.hypot(*digits))


def _step(values: Sequence[float]) -> float:
    """The coarsest power of ten of which all values are multiples; 0.01 at most, which the field prints to.

    Whether trailing zeros were printed cannot be known from a value.
    """
    exponents = (Decimal(repr(float(value))).normalize().as_tuple().exponent for value in values)
    return 10.0 ** min(-2, *(exponent for exponent in exponents if isinstance(exponent, int)))

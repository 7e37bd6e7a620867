"""Limit power: what the machine drew near the limit, and how many users there are for each kilowatt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loadgen.study.limit_record import LimitEstimate, LimitRun
from loadgen.study.repeats import Mean

_NEAR = 1.25  # times the limit, or a part of it: power hardly changes between such loads
_KW = 1e3  # watts


def measure_efficiency(runs: Sequence[LimitRun], limit: LimitEstimate | None) -> dict[str, Any]:
    """Return the fields of a record that power gives: mean watts near the limit, and the limit per kW.

    Both are None without a limit, or where power was not measured near it.
    """
    if limit is None or (power_w := estimate_power(runs, limit)) is None:
        return {"power_w": None, "per_kw": None}
    return {"power_w": power_w, "per_kw": divide_by_power(limit, power_w)}


def estimate_power(runs: Sequence[LimitRun], limit: LimitEstimate) -> LimitEstimate | None:
    """Estimate the mean watts at a limit by the runs within 25 % of it, with Student's 95 % interval.

    The mean is geometric. Left out are runs that were disturbed or ended before their time; one run has no
    interval. None if none has power.
    """
    if limit.value is None:
        return None
    near = math.log(_NEAR)
    whole = (run for run in runs if not (run.disturbed or run.saturated or run.cut))
    watts = [
        run.power_w for run in whole if run.power_w and abs(math.log(run.load / limit.value)) <= near + 1e-9
    ]
    if not watts:
        return None
    log_w = Mean.average(list(map(math.log, watts)))
    if math.isnan(log_w.half):
        return LimitEstimate(value=watts[0], low=None, high=None)
    return LimitEstimate(value=math.exp(log_w.mean), low=math.exp(log_w.low), high=math.exp(log_w.high))


def divide_by_power(limit: LimitEstimate, power_w: LimitEstimate) -> LimitEstimate | None:
    """Divide a limit by kilowatts; an end of the interval has both distances, as squares on a log scale.

    The two errors are independent. An end that either does not know is None; None without a limit.
    """
    if limit.value is None or power_w.value is None:
        return None
    value = _KW * limit.value / power_w.value
    low = _measure_distance(limit.value, limit.low), _measure_distance(power_w.value, power_w.high)
    high = _measure_distance(limit.value, limit.high), _measure_distance(power_w.value, power_w.low)
    down, up = math.hypot(*low), math.hypot(*high)
    return LimitEstimate(
        value=value,
        low=None if math.isnan(down) else value * math.exp(-down),
        high=None if math.isnan(up) else value * math.exp(up),
    )


def _measure_distance(value: float, end: float | None) -> float:
    """Measure how far an end lies from a value, as a logarithm; NaN if it is not known."""
    return math.nan if not end else abs(math.log(end / value))

"""Forecast: how long the points that are left take: by their loads, the points that are done, or a preset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from loadgen.plan.profile import Profile
from loadgen.run.options import Options
from loadgen.study.series.sweep.grid import GridPoint
from loadgen.study.series.time_estimate import duration, simulated_s


class TimedPoint(msgspec.Struct, frozen=True):
    """A point that was measured, and how long it took."""

    point: GridPoint
    seconds: float


class Forecast(msgspec.Struct, frozen=True):
    """Seconds for the points whose time is known, and how many have none that is."""

    seconds: float
    unknown: int

    @property
    def words(self) -> str:
        """The time in words: about 3 min; at least 40 s where some is not known; "" where none is."""
        if round(self.seconds) < 1:
            return "" if self.unknown else "less than 1 s"
        return f"{'at least' if self.unknown else 'about'} {duration(self.seconds)}"


def forecast(
    left: Sequence[GridPoint], done: Sequence[TimedPoint], starts_s: Sequence[float], options: Options
) -> Forecast:
    """The time for the points that are left, those done being known, and how long starts of servers took.

    Before any is done, a preset among the options has it in its steps.
    """
    times = [_seconds(point, done, options) for point in left]
    served = {tuple(timed.point.serve.items()) for timed in done}
    starts = {tuple(point.serve.items()) for point in left} - served
    waiting = median(starts_s) * len(starts) if starts_s else 0.0
    return Forecast(waiting + sum(filter(None, times)), times.count(None))


def _seconds(point: GridPoint, done: Sequence[TimedPoint], options: Options) -> float | None:
    """What a point takes; None where neither its load, nor a point that is done, nor a preset shows it."""
    workload = point.workload
    if workload.duration is not None:
        return workload.duration
    begun = workload.num_sessions or workload.num_prompts
    if math.isfinite(workload.request_rate) and begun:
        return begun / workload.request_rate
    same = [timed.seconds for timed in done if _alike(timed.point, point)]
    if same:
        return median(same)
    nearest = min(done, key=lambda timed: _distance(timed.point.workload, workload), default=None)
    if nearest is None:
        return simulated_s(options, workload)
    # As long a request as there: the time goes with the requests of each slot.
    return nearest.seconds * _turns(workload) / _turns(nearest.point.workload)


def _alike(one: GridPoint, other: GridPoint) -> bool:
    return (one.settings, one.serve) == (other.settings, other.serve)


def _turns(workload: Profile) -> float:
    """How many requests, or sessions, follow one another in each of a closed loop's slots."""
    count = workload.num_sessions or workload.num_prompts or 1
    return count / min(workload.max_concurrency or count, count)


def _distance(one: Profile, other: Profile) -> float:
    """How far two workloads are from each other: ratios of load and lengths."""
    pairs = (
        (one.max_concurrency or 1, other.max_concurrency or 1),
        (one.input_len, other.input_len),
        (one.output_len, other.output_len),
    )
    return sum(abs(math.log(first / second)) for first, second in pairs)

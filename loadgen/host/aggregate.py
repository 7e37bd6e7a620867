"""Samples: the readings of the sensors over the measured window, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
from msgspec.structs import replace
from pydantic import BaseModel

from loadgen.base.arrays import Float64
from loadgen.figures.percentiles import median
from loadgen.host.sensor import Quantity, Sample

_LEAST_S = 1e-9
_ENDS = 0.05  # of the window, or two periods: power may be unknown for this long at most at either end of it


class MemoryUse(BaseModel, extra="forbid", frozen=True):
    """Memory over the window."""

    peak_bytes: int
    steady_bytes: int  # median of the window's second half
    how: str  # it was learned, in words


class SampleSpread(BaseModel, extra="forbid", frozen=True):
    """A quantity over the window, from its samples."""

    min: float
    mean: float
    max: float


class Energy(BaseModel, extra="forbid", frozen=True):
    """Energy over the window; idle power is from before the run."""

    joules: float
    mean_w: float
    idle_w: float | None = None
    source: str  # in words
    parts: dict[str, float] = {}  # J by GPU or rail; they sum up to `joules`
    under: dict[str, float] = {}  # J of rails and GPUs whose power is part of those


class Window(msgspec.Struct, frozen=True, dict=True):
    """Samples taken around and in a window; those outside serve only to reach its ends."""

    samples: Sequence[Sample]
    begin_ns: int
    end_ns: int
    period_s: float

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9

    @cached_property
    def inside(self) -> list[Sample]:
        """The samples in the window; of one shorter than the period, the sample next to it."""
        inside = [sample for sample in self.samples if self.begin_ns <= sample.at_ns <= self.end_ns]
        if inside or not self.samples:
            return inside
        return [min(self.samples, key=lambda s: max(self.begin_ns - s.at_ns, s.at_ns - self.end_ns))]

    def wheres(self, *quantities: Quantity) -> list[str]:
        """Where one of these quantities was read in the window, in order."""
        places = {where for s in self.inside for what, where in s.reading.values if what in quantities}
        return sorted(places, key=lambda where: (len(where), where))

    def series(self, quantity: Quantity, where: str) -> tuple[Float64, Float64]:
        """Seconds since the window's begin, and the values then, of all samples."""
        key = (quantity, where)
        pairs = [(s.at_ns, s.reading.values[key]) for s in self.samples if key in s.reading.values]
        at_s = np.array([(at_ns - self.begin_ns) / 1e9 for at_ns, _ in pairs], np.float64)
        return at_s, np.array([value for _, value in pairs], np.float64)

    def level(self, quantity: Quantity, wheres: Sequence[str], how: str) -> MemoryUse | None:
        """The sum over these places, of the samples in which they all are known."""
        keys = [(quantity, where) for where in wheres]
        samples = [s for s in self.inside if keys and all(key in s.reading.values for key in keys)]
        if not samples:
            return None
        sums = np.array([sum(s.reading.values[key] for key in keys) for s in samples])
        late = np.array([2 * s.at_ns >= self.begin_ns + self.end_ns for s in samples])
        second_half = sums[late] if late.any() else sums
        return MemoryUse(peak_bytes=int(sums.max()), steady_bytes=int(median(second_half)), how=how)

    def spreads(self, quantity: Quantity, left_out: Sequence[str] = ()) -> dict[str, SampleSpread]:
        """By place, from the samples in the window."""
        spreads = {}
        for where in self.wheres(quantity):
            if where not in left_out:
                key = (quantity, where)
                values = np.array([s.reading.values[key] for s in self.inside if key in s.reading.values])
                low, mean, high = float(values.min()), float(values.mean()), float(values.max())
                spreads[where] = SampleSpread(min=low, mean=mean, max=high)
        return spreads

    def held_back(self, left_out: Sequence[str] = ()) -> dict[str, float] | None:
        """The share of the window's samples with each reason; None where no sensor reports it."""
        reported = [s.reading.held_back for s in self.inside if s.reading.held_back is not None]
        if not reported:
            return None
        places = (pair for pairs in reported for pair in dict.fromkeys(pairs) if pair[0] not in left_out)
        reasons = Counter(f"{where}: {why}" for where, why in places)
        return {reason: n / len(reported) for reason, n in reasons.items()}

    def missing(self) -> tuple[str, ...]:
        """Each reason once, and in how many samples where not in all."""
        reasons = Counter(reason for s in self.inside for reason in dict.fromkeys(s.reading.missing))
        n = len(self.inside)
        return tuple(
            why if count == n else f"{why} ({count} of {n} samples)" for why, count in reasons.items()
        )


def joules(window: Window, where: str, quantities: Sequence[Quantity]) -> float | str:
    """Energy of one GPU or rail over the window by the first of these quantities there is; or why not.

    A counter is interpolated to the window's ends, power is integrated by the trapezoid rule over the
    times at which it was read. Where it was never read, the sensor has reported why.
    """
    for quantity in quantities:
        at_s, values = window.series(quantity, where)
        if not len(at_s):
            continue
        allowed_s = max(2 * window.period_s, _ENDS * window.duration_s)
        if at_s[0] > allowed_s or at_s[-1] < window.duration_s - allowed_s:
            seen_s = min(at_s[-1], window.duration_s) - max(at_s[0], 0.0)
            return f"energy of {where}: read for {max(seen_s, 0.0):.1f} of {window.duration_s:.1f} s"
        return _OF[quantity](at_s, values, window.duration_s, where)
    return ""


def _counted(at_s: Float64, counter_j: Float64, duration_s: float, where: str) -> float | str:
    """Rise of a counter from 0 s to the window's end; beyond the samples its last pace goes on."""
    if len(at_s) < 2:
        return f"energy of {where}: its counter was read only once"
    if (np.diff(counter_j) < 0).any():
        return f"energy of {where}: its counter went backwards"
    first_w, last_w = (np.diff(counter_j) / np.diff(at_s).clip(_LEAST_S))[[0, -1]]
    began_j = np.interp(0.0, at_s, counter_j) - max(at_s[0], 0.0) * first_w
    ended_j = np.interp(duration_s, at_s, counter_j) + max(duration_s - at_s[-1], 0.0) * last_w
    return float(ended_j - began_j)


def _integrated(at_s: Float64, power_w: Float64, duration_s: float, where: str) -> float:
    """∫ power over the window, power straight between samples and constant beyond them."""
    inner = at_s[(at_s > 0) & (at_s < duration_s)]
    times = np.concatenate(([0.0], inner, [duration_s]))
    power = np.interp(times, at_s, power_w)
    return float(((power[1:] + power[:-1]) / 2 * np.diff(times)).sum())


_OF: Mapping[Quantity, Callable[[Float64, Float64, float, str], float | str]] = {
    "energy_j": _counted,
    "power_w": _integrated,
    "board_w": _integrated,
    "rail_w": _integrated,
}
_GPU: tuple[Quantity, ...] = ("energy_j", "power_w")
Wanted = Mapping[str, Sequence[Quantity]]


def energy(
    window: Window, idle: Sequence[Sample], gpus: Sequence[str]
) -> tuple[Energy | None, tuple[str, ...]]:
    """Energy of the board where it has monitors, else of these GPUs; and what is missing of it.

    A total of which a part is missing is not given. A board's power includes its GPU's.
    """
    rails = window.wheres("board_w")
    of_gpus: Wanted = dict.fromkeys(gpus, _GPU)
    wanted: Wanted = dict.fromkeys(rails, ("board_w",)) or of_gpus
    within: Wanted = {**dict.fromkeys(window.wheres("rail_w"), ("rail_w",)), **of_gpus}
    parts, missing = _parts(window, wanted)
    if not parts or len(parts) < len(wanted) or window.duration_s <= 0:
        return None, missing
    total = sum(parts.values())
    spent = Energy(
        joules=total,
        mean_w=total / window.duration_s,
        source=_source(window, rails, gpus),
        parts=parts,
        under=_parts(window, within)[0] if rails else {},
    )
    if len(idle) > 1:
        before = replace(window, samples=idle, begin_ns=idle[0].at_ns, end_ns=idle[-1].at_ns)
        idle_parts, _ = _parts(before, wanted)
        if len(idle_parts) == len(wanted) and before.duration_s > 0:
            spent = spent.model_copy(update={"idle_w": sum(idle_parts.values()) / before.duration_s})
    return spent, ()


def _parts(window: Window, wanted: Wanted) -> tuple[dict[str, float], tuple[str, ...]]:
    results = {where: joules(window, where, quantities) for where, quantities in wanted.items()}
    energies_j = {where: energy_j for where, energy_j in results.items() if not isinstance(energy_j, str)}
    return energies_j, tuple(why for why in results.values() if isinstance(why, str) and why)


def _source(window: Window, rails: Sequence[str], gpus: Sequence[str]) -> str:
    sampled = f"sampled every {window.period_s:g} s"
    if rails:
        return f"rail{'s' if len(rails) > 1 else ''} {' + '.join(rails)}, {sampled}"
    counters = window.wheres("energy_j")
    if set(gpus) <= set(counters):
        return "NVML energy counter"
    return f"NVML power, {sampled}" if not counters else f"NVML energy counter, else power, {sampled}"

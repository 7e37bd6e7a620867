"""Processes: when requests are due under a rate that changes: by time, by request, or in bursts."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.plan.arrival import Arrival, ArrivalProcess
from loadgen.plan.profile import Profile
from loadgen.settings.bursts import Bursts
from loadgen.settings.load_schedule import LoadSchedule, RampEnds


class ScheduledArrival(msgspec.Struct, frozen=True):
    """A process of rate 1 whose time runs as fast as the schedule's rate.

    Request k is due when the integral of the rate reaches the process's k-th time, so a Poisson process stays
    one at every rate, and no gap is stretched. Those after the last stage are due at its end.
    """

    schedule: LoadSchedule
    burstiness: float

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """When each of the first n requests is due after the start, int64[n], never decreasing."""
        counts = _unit_times(self.burstiness, n, rng)
        return np.rint(self.schedule.offsets_s(counts) * SECOND_NS).astype(np.int64)


class RequestRamp(msgspec.Struct, frozen=True):
    """vLLM's ramp: the rate changes from request to request, by index and not by time.

    The gap before request i of `count` has the mean 1 / rate(i). The first request does not wait for one.
    """

    ends: RampEnds
    count: int
    burstiness: float

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """When each of the first n requests is due after the start, int64[n], never decreasing."""
        gaps = np.diff(_unit_times(self.burstiness, n, rng), prepend=0.0)
        gaps_s = gaps[1:] / self.ends.rates_per_s(self.count, n)[1:]
        flags = f"--ramp-up-start-rps {self.ends.begin:g} and --ramp-up-end-rps {self.ends.end:g}"
        offsets_s = np.concatenate([gaps[:1], np.cumsum(gaps_s)])
        return Arrival(self.ends.end, self.burstiness).nanoseconds(offsets_s, flags)


class WithBursts(msgspec.Struct, frozen=True):
    """Bursts, and the requests of another process between them; None: there are none."""

    base: ArrivalProcess | None
    bursts: Bursts

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """When each of the first n requests is due after the start, int64[n], never decreasing."""
        at_once = self.bursts.offsets_ns(n)
        if self.base is None:
            return at_once
        return np.sort(np.concatenate([at_once, self.base.offsets_ns(n, rng)]))[:n]


def process_of(profile: Profile, count: int) -> ArrivalProcess:
    """The process of a profile whose loop is not closed, of `count` requests at most; raises UsageError."""
    stages, ramp, burstiness = profile.stages, profile.ramp, profile.burstiness
    base: ArrivalProcess
    if stages is not None:
        base = ScheduledArrival(stages, burstiness)
    elif ramp is not None:
        base = RequestRamp(ramp, count, burstiness)
    else:
        base = Arrival(profile.request_rate, burstiness)
    if profile.periodic is None:
        return base
    alone = stages is None and ramp is None and math.isinf(profile.request_rate)
    return WithBursts(None if alone else base, profile.periodic)


def _unit_times(burstiness: float, n: int, rng: np.random.Generator) -> Float64:
    """The times of n requests at one request per second on average, float64[n], the first one 0."""
    gaps = Arrival(1.0, burstiness).gaps_s(max(n - 1, 0), rng)
    return np.concatenate([np.zeros(min(n, 1)), np.cumsum(gaps)])

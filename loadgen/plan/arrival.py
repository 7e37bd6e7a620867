"""Arrival: when each request is due, by a rate and its burstiness, or by a load that changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.parsing import LEAST_RATE_PER_S, MOST_RATE_PER_S
from loadgen.plan.profile import Profile
from loadgen.settings.load_schedule import Bursts, LoadSchedule, RampEnds

_LATEST_NS = 2**62  # 146 years: beyond it int64 sums with a clock reading could overflow


class ArrivalProcess(Protocol):
    """A process that says when requests are due."""

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """Draw when each of n requests is due after the start, int64[n] (ns), never decreasing."""


class Arrival(msgspec.Struct, frozen=True):
    """The arrival process of `--request-rate` and `--burstiness`.

    At a rate of infinity all are due at once. Else the gaps are independent with a mean of 1 / rate seconds:
    gamma with shape = burstiness, which is exponential (Poisson) at 1, in bursts below and more even above;
    constant at infinity. Raises UsageError where there is no such process.
    """

    rate_per_s: float
    burstiness: float = 1.0
    exact: bool = False  # n requests take n / rate seconds, whatever the gaps sum to

    def __post_init__(self) -> None:
        if not self.burstiness > 0:  # of NaN too
            raise UsageError(
                f"--burstiness {self.burstiness:g}: give a number above 0 "
                "(1: Poisson, below: bursts, above: more even, inf: constant)"
            )
        if not (LEAST_RATE_PER_S <= self.rate_per_s <= MOST_RATE_PER_S or self.rate_per_s == math.inf):
            raise UsageError(
                f"--request-rate {self.rate_per_s:g}: give from 1e-9 to 1e9 requests per second, or inf for "
                "all at once"
            )

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """Draw when each of n requests is due after the start, int64[n] (ns), never decreasing.

        Exact ones are those of `vllm bench serve`: each waits for its gap, the first one too, and all gaps
        are scaled by one factor so that the last request is due after n / rate. Others are as drawn, and the
        first is due at 0. Offsets are absolute: a late request does not delay the next.
        """
        rate = self.rate_per_s
        if rate == math.inf:
            return np.zeros(n, np.int64)
        if self.exact:
            sums = np.cumsum(msgspec.structs.replace(self, rate_per_s=1.0).draw_gaps_s(n, rng))
            spread = n > 0 and sums[-1] > 0  # not if every gap of tiny bursts is rounded to 0
            return self.round_to_ns(sums * (n / rate / sums[-1]) if spread else sums)
        if self.burstiness == math.inf:
            return self.round_to_ns(np.arange(n) / rate)  # each from its number: rounding does not add up
        gaps_s = self.draw_gaps_s(max(n - 1, 0), rng)
        return self.round_to_ns(np.concatenate([np.zeros(min(n, 1)), np.cumsum(gaps_s)]))

    def draw_gaps_s(self, n: int, rng: np.random.Generator) -> Float64:
        """Draw n gaps between requests at a finite rate, in seconds, float64[n]."""
        if self.burstiness == math.inf:
            return np.full(n, 1 / self.rate_per_s)
        if self.burstiness == 1:
            return rng.exponential(1 / self.rate_per_s, n)
        return rng.gamma(self.burstiness, 1 / self.rate_per_s / self.burstiness, n)

    def round_to_ns(self, offsets_s: Float64, flags: str = "") -> Int64:
        """Convert ascending offsets from seconds to int64 ns; raises UsageError beyond a century.

        `flags` are those that gave the rate, where it was not --request-rate.
        """
        offsets_ns = np.rint(offsets_s * SECOND_NS)
        if len(offsets_ns) and not offsets_ns[-1] < _LATEST_NS:
            raise UsageError(
                f"{flags or f'--request-rate {self.rate_per_s:g}'}: the last request would be due in more "
                "than a century; give a higher rate or fewer prompts"
            )
        return offsets_ns.astype(np.int64)


def draw_offsets_ns(
    duration_ns: int, most: int, process: ArrivalProcess, rng: Callable[[], np.random.Generator]
) -> Int64:
    """Draw the offsets of a process below a duration, int64[n] (ns), at most `most`.

    `rng` gives the same generator each time, so the offsets are the first of any longer schedule.
    """
    n, offsets_ns = 64, np.zeros(0, np.int64)
    while len(offsets_ns) < most and (not len(offsets_ns) or offsets_ns[-1] < duration_ns):
        offsets_ns = process.offsets_ns(min(n, most), rng())
        n *= 4
    return offsets_ns[: np.searchsorted(offsets_ns, duration_ns)]


class ScheduledArrival(msgspec.Struct, frozen=True):
    """Arrivals of a schedule: a process of rate 1 whose time runs as fast as the schedule's rate.

    Request k is due when the integral of the rate reaches the process's k-th time, so a Poisson process stays
    one at every rate, and no gap is stretched. Those after the last stage are due at its end.
    """

    schedule: LoadSchedule
    burstiness: float

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """Draw when each of n requests is due after the start, int64[n] (ns), never decreasing."""
        counts = _draw_unit_times(self.burstiness, n, rng)
        return np.rint(self.schedule.find_offsets_s(counts) * SECOND_NS).astype(np.int64)


class RequestRamp(msgspec.Struct, frozen=True):
    """Arrivals of vLLM's ramp, whose rate changes with the request's index rather than with time.

    The gap before request i of `count` has the mean 1 / rate(i). The first request does not wait for one.
    """

    ends: RampEnds
    count: int
    burstiness: float

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """Draw when each of n requests is due after the start, int64[n] (ns), never decreasing."""
        gaps = np.diff(_draw_unit_times(self.burstiness, n, rng), prepend=0.0)
        gaps_s = gaps[1:] / self.ends.compute_rates_per_s(self.count, n)[1:]
        flags = f"--ramp-up-start-rps {self.ends.begin:g} and --ramp-up-end-rps {self.ends.end:g}"
        offsets_s = np.concatenate([gaps[:1], np.cumsum(gaps_s)])
        return Arrival(self.ends.end, self.burstiness).round_to_ns(offsets_s, flags)


class WithBursts(msgspec.Struct, frozen=True):
    """Bursts, merged with another process's requests between them; None: bursts alone."""

    base: ArrivalProcess | None
    bursts: Bursts

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """Draw when each of n requests is due after the start, int64[n] (ns), never decreasing."""
        at_once = self.bursts.offsets_ns(n)
        if self.base is None:
            return at_once
        return np.sort(np.concatenate([at_once, self.base.offsets_ns(n, rng)]))[:n]


def make_process(profile: Profile, count: int) -> ArrivalProcess:
    """Make the arrival process of an open-loop profile: a schedule, a ramp over `count` requests, or a rate.

    Bursts are merged with it, and alone at a rate of inf. Raises UsageError for a rate or burstiness that
    cannot be drawn.
    """
    if not profile.shaped:
        return Arrival(profile.request_rate, profile.burstiness, profile.sent_at_exact_rate)
    stages, ramp, bursts, burstiness = profile.stages, profile.ramp, profile.periodic, profile.burstiness
    base: ArrivalProcess
    if stages is not None:
        base = ScheduledArrival(stages, burstiness)
    elif ramp is not None:
        base = RequestRamp(ramp, count, burstiness)
    else:
        base = Arrival(profile.request_rate, burstiness)
    if bursts is None:
        return base
    alone = stages is None and ramp is None and math.isinf(profile.request_rate)
    return WithBursts(None if alone else base, bursts)


def _draw_unit_times(burstiness: float, n: int, rng: np.random.Generator) -> Float64:
    """Draw when each of n requests is due at a mean rate of 1 per second, float64[n] (s), the first at 0."""
    gaps = Arrival(1.0, burstiness).draw_gaps_s(max(n - 1, 0), rng)
    return np.concatenate([np.zeros(min(n, 1)), np.cumsum(gaps)])

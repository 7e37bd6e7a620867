"""Arrival: when each request is due, as a process with a rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np

from loadgen.arrays import Float64, Int64
from loadgen.errors import UsageError

NS_PER_S = 1_000_000_000
_LEAST_RATE_PER_S = 1e-9  # one request in 31 years; far below, the arithmetic overflows
_LATEST_NS = 2**62  # 146 years: beyond it int64 sums with a clock reading could overflow


class Arrival(Protocol):
    """A process that says when requests are due.

    `offsets_ns` gives int64[n], nanoseconds after the start, never decreasing, the first one 0:
    the first gap is not waited, it would only be idle time in the duration. They are absolute, so a
    late request does not delay the next, and they are not stretched to end at n / rate (as
    `vllm bench serve` does): a stretched Poisson process is no longer one.
    """

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64: ...


class Immediate(msgspec.Struct, frozen=True):
    """Everything is due at once: a rate of infinity."""

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """All zeros, int64[n]."""
        return np.zeros(n, np.int64)


class Constant(msgspec.Struct, frozen=True):
    """One request every 1 / rate seconds."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """round(i / rate), int64[n]; each from i itself, so rounding does not add up."""
        return _nanoseconds(np.arange(n) / self.rate_per_s, self.rate_per_s)


class Poisson(msgspec.Struct, frozen=True):
    """Independent exponential gaps of mean 1 / rate seconds."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """The running sum of n − 1 exponential gaps, int64[n]."""
        return _summed(rng.exponential(1 / self.rate_per_s, max(n - 1, 0)), n, self.rate_per_s)


class Gamma(msgspec.Struct, frozen=True):
    """Independent gamma gaps, shape = burstiness, scale = 1 / (rate × burstiness), mean 1 / rate seconds.

    Burstiness 1 is Poisson; below 1 the requests come in bursts, above 1 more evenly.
    """

    rate_per_s: float
    burstiness: float

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)
        _check_burstiness(self.burstiness)

    def offsets_ns(self, n: int, rng: np.random.Generator) -> Int64:
        """The running sum of n − 1 gamma gaps, int64[n]."""
        scale = 1 / self.rate_per_s / self.burstiness
        return _summed(rng.gamma(self.burstiness, scale, max(n - 1, 0)), n, self.rate_per_s)


def arrival(rate_per_s: float, burstiness: float = 1.0) -> Arrival:
    """The process that `--request-rate` and `--burstiness` name; raises UsageError where there is none.

    Rate inf: Immediate, whatever the burstiness. Burstiness 1: Poisson; inf: Constant; else Gamma.
    """
    _check_burstiness(burstiness)
    if rate_per_s == math.inf:
        return Immediate()
    if burstiness == math.inf:
        return Constant(rate_per_s)
    return Poisson(rate_per_s) if burstiness == 1 else Gamma(rate_per_s, burstiness)


def within(duration_ns: int, most: int, process: Arrival, rng: Callable[[], np.random.Generator]) -> Int64:
    """The offsets of a process that are below a duration, int64[n], the first `most` of them.

    `rng` gives the same generator each time, so the offsets are the first of any longer schedule.
    """
    n, offsets_ns = 64, np.zeros(0, np.int64)
    while len(offsets_ns) < most and (not len(offsets_ns) or offsets_ns[-1] < duration_ns):
        offsets_ns = process.offsets_ns(min(n, most), rng())
        n *= 4
    return offsets_ns[: np.searchsorted(offsets_ns, duration_ns)]


def _summed(gaps_s: Float64, n: int, rate_per_s: float) -> Int64:
    return _nanoseconds(np.concatenate([np.zeros(min(n, 1)), np.cumsum(gaps_s)]), rate_per_s)


def _nanoseconds(offsets_s: Float64, rate_per_s: float) -> Int64:
    offsets_ns = np.rint(offsets_s * NS_PER_S)
    if len(offsets_ns) and not offsets_ns[-1] < _LATEST_NS:
        raise UsageError(
            f"--request-rate {rate_per_s:g}: the last request would be due in more than a century; "
            "give a higher rate or fewer prompts"
        )
    return offsets_ns.astype(np.int64)


def _check_rate(rate_per_s: float) -> None:
    if not _LEAST_RATE_PER_S <= rate_per_s < math.inf:  # false for NaN too
        raise UsageError(
            f"--request-rate {rate_per_s:g}: give requests per second above 0, or inf for all at once"
        )


def _check_burstiness(burstiness: float) -> None:
    if not burstiness > 0:
        raise UsageError(
            f"--burstiness {burstiness:g}: give a number above 0 "
            "(1: Poisson, below: bursts, above: more even, inf: constant)"
        )

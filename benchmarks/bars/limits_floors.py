"""Limits of floors: searches for the highest load at which users are fast enough, against a formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from benchmarks.bars.limits import (
    FOUND,
    MEANING,
    SEARCHES,
    WITHIN,
    Searched,
    judge_searches,
    list_cells,
    search_virtually,
    show_evidence,
)
from benchmarks.clients.adapters import Installed
from benchmarks.harness.page import Section, markdown
from loadgen.figures.objectives import Objective
from loadgen.study.limit_record import LimitEstimate
from loadgen.study.series.limit.search import Search, Trial
from loadgen.study.sweep_record import LoadAxis

Float64 = NDArray[np.float64]
_FIRST_SEED = 6_500_000  # nothing of the search was chosen by how it does with these
_OFF = 8.0  # the first rate is at most so many times too high or too low
_ALONE_TOK_S = 100.0  # of one user alone
_TOKENS = 200  # of an answer
_HALVINGS = 60
_P99 = 0.99


@dataclass(frozen=True)
class Shared:
    """A server that any number of users share; the more there are, the slower each.

    With n users each has 100 / (1 + n / `half`) tokens per second.
    """

    truth: float
    percentile: float  # of the floor: P10 asks it of 90 % of the requests
    half: float = 32.0

    def speed_tok_s(self, users: Float64 | float) -> Float64 | float:
        """Tokens per second of each of so many users."""
        return _ALONE_TOK_S / (1 + users / self.half)


@dataclass(frozen=True)
class Rate(Shared):
    """Poisson arrivals; a request's speed is that of the users it finds, each there for `stay_s` seconds.

    Their number has Poisson's distribution (M/D/∞, PASTA), and that of a request is like its neighbours'.
    """

    stay_s: float = 4.0
    axis: LoadAxis = "rate"

    @cached_property
    def users(self) -> int:
        """The most others that a request may find: at the load `truth` no more than allowed find more."""
        mean, allowed, share, n = self.truth * self.stay_s, self.percentile / 100, 1.0, -1
        while share > allowed:
            n += 1
            share -= math.exp(n * math.log(mean) - mean - math.lgamma(n + 1))
        return n

    @cached_property
    def true_load(self) -> float:
        """The rate at which exactly the allowed share of requests finds more users than that."""
        low, high = 0.0, 4 * self.truth
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            enough = _tail(middle * self.stay_s, self.users) < self.percentile / 100
            low, high = (middle, high) if enough else (low, middle)
        return (low + high) / 2

    @cached_property
    def objective(self) -> Objective:
        """The floor, between the speeds of `users` and of one more."""
        return Objective("tps_user", self.percentile, float(self.speed_tok_s(self.users + 0.5)))

    def run(self, load: float, duration_s: float, random: np.random.Generator) -> Trial:
        """A run from an empty server on."""
        count = max(round(load * duration_s), 1)
        at_s = np.cumsum(random.exponential(1 / load, count))
        found = np.arange(count) - np.searchsorted(at_s, at_s - self.stay_s)
        return _make_trial(self, load, duration_s, np.asarray(self.speed_tok_s(found.astype(float))))


@dataclass(frozen=True)
class Streams(Shared):
    """So many requests at a time; each one's speed varies, half of it as that of its neighbours does.

    Two requests are decoded together for as long as they overlap, so that the correlation's integral is one
    answer's time.
    """

    spread: float = 0.1  # standard deviation of the speed's logarithm
    axis: LoadAxis = "concurrency"

    @property
    def true_load(self) -> float:
        """The most streams of which enough are fast enough."""
        return self.truth

    @property
    def objective(self) -> Objective:
        """The floor, between the percentiles of the last number of streams that meets it and of the next."""
        slow = math.exp(self.spread * NormalDist().inv_cdf(self.percentile / 100))
        return Objective("tps_user", self.percentile, float(self.speed_tok_s(self.truth + 0.5)) * slow)

    def run(self, load: float, duration_s: float, random: np.random.Generator) -> Trial:
        """A run of a closed loop."""
        median = float(self.speed_tok_s(load))
        count = max(round(load * duration_s * median / _TOKENS), 1)
        kept = math.exp(-2 / load)
        shared, own = random.standard_normal((2, count))
        shared[1:] *= math.sqrt(1 - kept**2)
        for at in range(1, count):
            shared[at] += kept * shared[at - 1]
        return _make_trial(
            self, load, duration_s, median * np.exp(self.spread * (shared + own) / math.sqrt(2))
        )


Case = Rate | Streams
CASES: tuple[Case, ...] = (
    Rate(0.5, 10, stay_s=40.0),
    Rate(5, 25),
    Rate(40, 10),
    Rate(40, 50),
    Rate(100, 1, half=500.0),
    Streams(8, 10),
    Streams(60, 25),
    Streams(60, 1, spread=0.2),
    Streams(500, 10, half=400.0),
)


def floors(installed: Installed, repeats: int) -> Section:
    """A hundred seeded searches for each of several floors of the output speed, in virtual time; once."""
    found = [[searched(case, _FIRST_SEED + at) for at in range(SEARCHES)] for case in CASES]
    rows = [(*_describe(case), *list_cells(own)) for case, own in zip(CASES, found, strict=True)]
    lines = [
        MEANING,
        "More users mean fewer tokens per second for each.",
        "",
        *markdown(("load", "objective", "truth", *FOUND), rows),
    ]
    bar = judge_searches(f"limit within a floor of output speed, the worst of {len(CASES)} loads", found)
    return Section("The highest load within a floor of the output speed", [bar], lines)


def searched(case: Case, seed: int) -> Searched:
    """One search: from a random first rate, or from one request at a time."""
    random, truth = np.random.default_rng(seed), case.true_load
    start = truth * math.exp(random.uniform(-math.log(_OFF), math.log(_OFF))) if case.axis == "rate" else 1.0
    asked = Search(
        axis=case.axis,
        objectives=(case.objective,),
        start=start,
        lowest=start / 64 if case.axis == "rate" else 1.0,
        highest=start * 4096 if case.axis == "rate" else 65536.0,
        within=WITHIN,
        alone_s=_TOKENS / _ALONE_TOK_S,
    )
    search, ended = search_virtually(asked, lambda step: case.run(step.load, step.duration_s, random))
    found, runs = search.limit or LimitEstimate(value=None, low=None, high=None), len(search.trials)
    if found.value is None:
        return Searched(math.inf, False, runs, ended)
    covered = (found.low or 0.0) <= truth <= (math.inf if found.high is None else found.high)
    return Searched(found.value / truth, covered, runs, ended)


def _make_trial(case: Case, load: float, duration_s: float, speeds_tok_s: Float64) -> Trial:
    e2el_s = _TOKENS / speeds_tok_s
    return Trial(
        load=load,
        duration_s=duration_s,
        took_s=duration_s,
        objectives=(show_evidence(case.objective, speeds_tok_s),),
        p99_e2el_s=float(np.quantile(e2el_s, _P99)),
        requests_per_s=len(speeds_tok_s) / duration_s,
    )


def _tail(mean: float, n: int) -> float:
    """The probability that a Poisson variable is above n."""
    terms = (math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(n + 1))
    return 1 - math.fsum(terms)


def _describe(case: Case) -> tuple[str, ...]:
    return (
        f"{case.truth:g} {'requests/s' if case.axis == 'rate' else 'at a time'}",
        f"{case.objective.metric} p{case.percentile:g} > {case.objective.limit:.4g} tok/s",
        f"{case.true_load:.4g}",
    )

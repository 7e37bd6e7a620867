"""Limits: searches for the highest load within an objective, against the truth by a formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from benchmarks.clients.adapters import Installed
from benchmarks.harness.page import Bar, Section, markdown
from benchmarks.simulated.queue import compute_share_over, utilisation_at, waits_s
from loadgen.figures.distribution import count_independent, find_upper_place
from loadgen.figures.objectives import Objective, ObjectiveEvidence, choose_slow_rank, measure_dispersion
from loadgen.study.series.limit.search import NextRun, Search, Trial, compute_allowed_share

SEARCHES = 100  # of each case
_FIRST_SEED = 5_000_000  # nothing of the search was chosen by how it does with these
WITHIN = 0.05
_GOOD, _LEAST_COVERED = 95, 91  # of a hundred
MOST_RUNS = 12
WHAT = "close, covered, most runs"
FOUND = ("close", "covered", "worst", "mean runs", "most", "ended within 5 %")  # columns of `list_cells`
MEANING = f"Of {SEARCHES} searches: *close*, within 5 % of the truth; *covered*, by the 95 % interval."
_OFF = 8.0  # the first load is at most so many times too high or too low
_HOPELESS = 1.3  # times the capacity: a real run of it is ended early
_STOPPED_S = 30.0
_LONG_WAIT_S = 1e6
_BATCHES = 20


@dataclass(frozen=True)
class Case:
    """A server of one slot whose limit is known: its rate, the percentile, and the limit in services.

    `floor` is the share of requests that are over the limit at any load.
    """

    rate_per_s: float
    percentile: float
    services: float
    floor: float = 0.0

    @property
    def service_s(self) -> float:
        """Seconds of one request, so that the truth is the rate."""
        waiting = (1 - self.percentile / 100 - self.floor) / (1 - self.floor)
        return utilisation_at(waiting, self.services) / self.rate_per_s

    @property
    def objective(self) -> Objective:
        """That of the wait: TTFT less the first step."""
        return Objective("ttft", self.percentile, 1e3 * self.services * self.service_s)


@dataclass(frozen=True)
class Searched:
    """What one search came to, next to the truth."""

    ratio: float  # the limit found ÷ the truth
    covered: bool  # the truth lies in the interval
    runs: int
    ended: str

    @property
    def is_close(self) -> bool:
        """Whether the limit found is within 5 % of the truth."""
        return abs(math.log(self.ratio)) <= math.log1p(WITHIN) + 1e-9


CASES = (
    Case(0.05, 90, 3.0),
    Case(1, 99, 6.0),
    Case(10, 50, 2.0),
    Case(10, 95, 20.0),
    Case(50, 99, 12.0),
    Case(500, 90, 10.0),
)


def limits(installed: Installed, repeats: int) -> Section:
    """A hundred seeded searches at each of several rates, in virtual time; once."""
    found = [[searched(case, _FIRST_SEED + at) for at in range(SEARCHES)] for case in CASES]
    rows = [(*_describe(case), *list_cells(own)) for case, own in zip(CASES, found, strict=True)]
    lines = [
        MEANING,
        "One slot, constant service, Poisson arrivals: M/D/1 gives the truth.",
        "",
        *markdown(("requests/s", "objective", "utilisation", *FOUND), rows),
    ]
    bar = judge_searches(f"limit within an objective, the worst of {len(CASES)} loads", found)
    return Section("The highest load within an objective", [bar], lines)


def judge_searches(what: str, found: Sequence[Sequence[Searched]]) -> Bar:
    """The bar of the searches of several cases, each judged by its own hundred."""
    close = min(sum(each.is_close for each in own) for own in found)
    covered = min(sum(each.covered for each in own) for own in found)
    most = max(each.runs for own in found for each in own)
    met = close >= _GOOD and covered >= _LEAST_COVERED and most <= MOST_RUNS
    limit = f"≥ {_GOOD}, ≥ {_LEAST_COVERED}, ≤ {MOST_RUNS}"
    return Bar(f"{what}: {WHAT}", f"{close}, {covered}, {most}", limit, met)


def list_cells(found: Sequence[Searched]) -> tuple[str, ...]:
    """What a case's searches found, in the columns of FOUND."""
    worst = max(found, key=lambda each: abs(math.log(each.ratio))).ratio
    return (
        f"{sum(each.is_close for each in found)}",
        f"{sum(each.covered for each in found)}",
        f"{100 * (worst - 1):+.1f} %",
        f"{sum(each.runs for each in found) / len(found):.1f}",
        f"{max(each.runs for each in found)}",
        f"{sum(each.ended == 'within' for each in found)}",
    )


def searched(case: Case, seed: int) -> Searched:
    """One search from a random first load."""
    random = np.random.default_rng(seed)
    start = case.rate_per_s * math.exp(random.uniform(-math.log(_OFF), math.log(_OFF)))
    asked = Search(
        axis="rate",
        objectives=(case.objective,),
        start=start,
        lowest=start / 64,
        highest=start * 4096,
        within=WITHIN,
        alone_s=case.service_s,
    )
    found, ended = search_virtually(asked, lambda step: _trial(case, step.load, step.duration_s, random))
    edge, runs = found.edge, len(found.trials)
    if edge is None:
        return Searched(math.inf, False, runs, ended)
    # An end that is not known covers all on its side.
    covered = not edge.low > case.rate_per_s and not edge.high < case.rate_per_s
    return Searched(edge.load / case.rate_per_s, covered, runs, ended)


def search_virtually(search: Search, run: Callable[[NextRun], Trial]) -> tuple[Search, str]:
    """Make all runs of a search; return it with them, and why it ended."""
    while not isinstance(step := search.choose_next_run(), str):
        search = replace(search, trials=(*search.trials, run(step)))
    return search, step


def _trial(case: Case, load: float, duration_s: float, random: np.random.Generator) -> Trial:
    """A run of the queue."""
    if load * case.service_s > _HOPELESS:
        return Trial(load=load, duration_s=_STOPPED_S, took_s=_STOPPED_S, saturated=True)
    count = max(round(load * duration_s), 1)
    waits_ms = 1e3 * waits_s(np.cumsum(random.exponential(1 / load, count)), case.service_s)
    slowest_s = float(np.quantile(waits_ms, 0.99)) / 1e3 + case.service_s
    if case.floor:
        waits_ms[random.random(count) < case.floor] = 1e3 * _LONG_WAIT_S
    return Trial(
        load=load,
        duration_s=duration_s,
        took_s=duration_s,
        objectives=(show_evidence(case.objective, waits_ms),),
        p99_e2el_s=slowest_s,
        requests_per_s=load,
    )


def show_evidence(
    objective: Objective, values: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> ObjectiveEvidence:
    """What values in order of sending show of an objective, as `objectives.judge_objectives` of records."""
    sign = -1.0 if objective.is_floor else 1.0
    slowness = sign * values
    ordered, n = np.sort(slowness), len(slowness)
    independent = count_independent(slowness)
    slow_end = find_upper_place(n, independent, objective.tail)
    over = slowness > sign * objective.limit
    slow = slowness > ordered[math.ceil(choose_slow_rank(objective) * n) - 1]
    return ObjectiveEvidence(
        objective=objective,
        samples=n,
        over=int(over.sum()),
        value=float(np.quantile(values, objective.percentile / 100)),
        bound=None if slow_end is None else sign * float(ordered[slow_end]),
        batches=_batches(over),
        dispersion=measure_dispersion(_batches(slow)),
        independent=independent,
    )


def _batches(over: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[tuple[int, int], ...]:
    return tuple((len(part), int(part.sum())) for part in np.array_split(over, _BATCHES))


def _describe(case: Case) -> tuple[str, ...]:
    busy = case.rate_per_s * case.service_s
    assert abs(compute_share_over(busy, case.services) - compute_allowed_share(case.objective)) < 1e-6
    return (
        f"{case.rate_per_s:g}",
        f"P{case.percentile:g} of the wait below {case.services:g} services",
        f"{busy:.2f}",
    )

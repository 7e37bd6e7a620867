"""Searches on servers that are formulas, and each of their runs as it is stored.

`python tests/builders/made_searches.py` stores them again in tests/study/series/limit/searches.json: review
the diff, since runs are chosen, and limits found, to the digit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from msgspec.structs import astuple, replace

from loadgen.figures.objectives import Objective, ObjectiveEvidence
from loadgen.study.series.limit.search import NextRun, Search, Trial

Server = Callable[[NextRun], Trial]
STORED = Path(__file__).parents[1] / "study" / "series" / "limit" / "searches.json"
TPOT, TTFT, ITL = Objective("tpot", 99, 50), Objective("ttft", 90, 50), Objective("itl", 99, 50)
RATE = Search("rate", (TPOT,), start=1, lowest=1 / 64, highest=4096, alone_s=1)
STREAMS = Search("concurrency", (TPOT,), start=1, lowest=1, highest=1024, alone_s=1)
LIMITS = {RATE: (0.05, 1.3, 50, 500), STREAMS: (1, 2, 7, 48, 300)}


def trial(run: NextRun, value_ms: float, **changes: Any) -> Trial:
    """A run whose samples are all alike."""
    over = 1000 if value_ms > TPOT.limit else 0
    batches = ((100, over // 10),) * 10
    evidence = ObjectiveEvidence(TPOT, 1000, over, value_ms, value_ms, batches, fast_bound=value_ms)
    made = Trial(run.load, run.duration_s, run.duration_s, (evidence,), requests_per_s=run.load)
    return replace(made, **changes)


def serve(limit: float, **faults: Callable[[float], bool]) -> Server:
    """A server all of whose requests are late above a load; each fault is of the loads for which it holds."""
    return lambda run: trial(
        run,
        10.0 if run.load <= limit else 900.0,
        **{name: holds(run.load) for name, holds in faults.items()},
    )


def serve_two(run: NextRun) -> Trial:
    """TPOT is late above 40, TTFT above 20."""
    made, over = serve(40)(run), 1000 if run.load > 20 else 0
    value_ms = 900.0 if over else 9.0
    other = ObjectiveEvidence(TTFT, 1000, over, value_ms, value_ms, ((100, over // 10),) * 10)
    return replace(made, objectives=(*made.objectives, other))


def serve_cold(run: NextRun) -> Trial:
    """A server that is slow to begin with, at any load."""
    made = serve(100)(run)
    batches = ((100, 100), *made.objectives[0].batches[1:])
    evidence = replace(made.objectives[0], over=sum(over for _, over in batches), batches=batches)
    return replace(made, objectives=(evidence,))


def serve_disturbed() -> Server:
    """The second and the fifth run are disturbed, if they are at a new load."""
    loads: list[float] = []

    def measure(run: NextRun) -> Trial:
        loads.append(run.load)
        disturbed = len(loads) in (2, 5) and loads.count(run.load) == 1
        return serve(48, disturbed=lambda _: disturbed)(run)

    return measure


def serve_few(objective: Objective) -> Server:
    """A server that ends a quarter of the requests of a rate, at 10 ms; a response has a hundred gaps."""
    each = 100 if objective.metric == "itl" else 1

    def measure(run: NextRun) -> Trial:
        requests = round(run.duration_s * run.load / 4)
        shown = 10.0 if requests >= 459 else None
        evidence = ObjectiveEvidence(objective, each * requests, 0, 10.0, shown)
        rate = requests / run.duration_s
        return Trial(run.load, run.duration_s, run.duration_s, (evidence,), requests_per_s=rate)

    return measure


def serve_unsure(run: NextRun) -> Trial:
    """Nothing is above the limit, and above 2 at a time nothing is shown to be within it."""
    made = serve(math.inf)(run)
    bound_ms = 60.0 if run.load > 2 else 10.0
    return replace(made, objectives=(replace(made.objectives[0], bound=bound_ms),))


def serve_noisy(objective: Objective, spread: float, seed: int, floor: float = 0.0) -> Server:
    """Samples are lognormal; their median goes with the load, and drifts from run to run. The limit is 40.

    `floor` is the share of samples above the limit at any load.
    """
    sigma, random = 0.5, np.random.default_rng(seed)

    def measure(run: NextRun) -> Trial:
        count = max(10, int(run.duration_s * run.load))
        quantile = NormalDist().inv_cdf(objective.percentile / 100)  # it is at its limit there
        drift = random.normal(0, spread * 0.1)
        share = NormalDist().cdf(math.log(run.load / 40) / sigma - quantile + drift / sigma)
        share = floor + (1 - floor) * share
        counts = [(size, int(random.binomial(size, share))) for size in [count // 10] * 10]
        samples, over = sum(size for size, _ in counts), sum(over for _, over in counts)
        bound_ms = objective.limit * (0.99 if over < 0.005 * samples else 1.01)
        evidence = ObjectiveEvidence(
            objective, samples, over, bound_ms, bound_ms, tuple(counts), fast_bound=0.0, dispersion=1.2
        )
        took_s, p99_s = run.duration_s + 2, run.load / 30
        return Trial(run.load, run.duration_s, took_s, (evidence,), p99_e2el_s=p99_s, requests_per_s=run.load)

    return measure


def list_searches() -> dict[str, tuple[Search, Server]]:
    """List the searches that are stored, by name, each with a server that has served none."""
    made: dict[str, tuple[Search, Server]] = {
        f"{search.axis} {limit:g}": (search, serve(limit))
        for search, limits in LIMITS.items()
        for limit in limits
    }
    hopeless = {"disturbed": lambda load: 400 < load < 1600, "saturated": lambda load: load >= 1600}
    for search in (RATE, STREAMS):
        axis, high = search.axis, replace(search, start=1600, highest=4096)
        made |= {
            f"{axis}, nothing passes": (search, serve(0)),
            f"{axis}, everything passes": (search, serve(math.inf)),
            f"{axis}, client limited": (search, serve(math.inf, disturbed=lambda load: load > 10)),
            f"{axis}, client always": (search, serve(math.inf, disturbed=lambda _: True)),
            f"{axis}, invalid": (search, serve(math.inf, invalid=lambda load: load > 10)),
            f"{axis}, saturated": (search, serve(math.inf, saturated=lambda load: load > 10)),
            f"{axis}, client below the server": (high, serve(math.inf, **hopeless)),
            f"{axis}, disturbed twice": (search, serve_disturbed()),
            f"{axis}, noisy": (search, serve_noisy(TPOT, 0.3, 1)),
            f"{axis}, in a budget": (replace(search, budget_s=900), serve_noisy(TPOT, 0.3, 9)),
        }
    queued = replace(RATE, objectives=(TTFT,), within=0.02, least_run_s=5)
    return made | {
        "few requests": (replace(RATE, start=5, highest=80), serve_few(TPOT)),
        "few gaps": (replace(RATE, start=5, highest=80, objectives=(ITL,)), serve_few(ITL)),
        "few requests in a budget": (replace(RATE, start=5, budget_s=400), serve_few(TPOT)),
        "unsure": (replace(STREAMS, highest=4, most_runs=5), serve_unsure),
        "a small budget": (replace(RATE, start=100, budget_s=200), serve(33)),
        "two objectives": (replace(RATE, objectives=(TPOT, TTFT)), serve_two),
        "a cold server": (RATE, serve_cold),
        "a wide queue": (queued, serve_noisy(TTFT, 1.0, 3)),
        "a narrow queue": (queued, serve_noisy(TTFT, 0.05, 4)),
        "a queue with a floor": (replace(queued, within=0.1), serve_noisy(TTFT, 0.05, 5, floor=0.05)),
        "users with a floor": (STREAMS, serve_noisy(TPOT, 0.05, 6, floor=0.005)),
    }


def make_runs(search: Search, server: Server) -> tuple[Search, str]:
    """Make all runs of a search; return it with them, and why it ended."""
    while not isinstance(step := search.choose_next_run(), str):
        search = replace(search, trials=(*search.trials, server(step)))
    return search, step


def describe_search(search: Search, ended: str) -> dict[str, Any]:
    """What of a search is stored: its runs, why it ended, and what it found."""
    limit = [] if search.limit is None else [search.limit.value, search.limit.low, search.limit.high]
    return {
        "ended": ended,
        "runs": [[run.load, run.duration_s] for run in search.trials],
        "limit": list(map(_shorten, limit)),
        "edge": [] if search.edge is None else list(map(_shorten, astuple(search.edge))),
        "passing": search.highest_passing,
        "failing": search.lowest_failing,
        "binding": search.find_binding(),
        "needed_s": _shorten(search.estimate_needed_s()),
    }


def _shorten(value: float | None) -> float | None:
    """A number in six digits, on which all machines agree; None of NaN."""
    return None if value is None or math.isnan(value) else float(f"{value:.6g}")


def read_stored() -> dict[str, dict[str, Any]]:
    """Read what is stored of each search."""
    stored: dict[str, dict[str, Any]] = json.loads(STORED.read_text("utf-8"))
    return stored


def main() -> None:
    """Store all searches again."""
    made = {name: describe_search(*make_runs(*search)) for name, search in list_searches().items()}
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in made.items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()

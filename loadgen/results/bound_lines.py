"""Bound lines: what a run shows of its percentiles and of its objectives, at 99 % confidence."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from loadgen.metrics.confidence import least_passing
from loadgen.metrics.distribution import Distribution
from loadgen.metrics.metrics import Metrics
from loadgen.metrics.vllm_keys import percentile_name
from loadgen.results.run_directory import Result

_OF_GAPS = ("itl", "token_time")


def percentiles(metrics: Metrics, selected: Collection[str]) -> Iterator[str]:
    """Each percentile of these metrics with its upper bound, a line each; – where there is no bound."""
    shown = {key: of for key, of in metrics.selectable.items() if key in selected and of.n}
    ranks = dict.fromkeys(rank for of in shown.values() for rank in of.percentiles_ms)
    for rank in ranks:
        parts = [_percentile(key, of, rank) for key, of in shown.items()]
        needed = least_passing(0, rank) if 0 < rank < 100 else 0
        thin = any(of.n < needed for key, of in shown.items() if key not in _OF_GAPS)
        needs = f"; bounds: n ≥ {needed}" if thin else ""
        yield f"P{percentile_name(rank)} {', '.join(parts)}{needs}"


def all_percentiles(result: Result, options: object) -> Iterator[str]:
    """The same of a run, and why ITL has no bound."""
    metrics, selected = result.metrics, result.facts.block().selected
    yield from percentiles(metrics, selected)
    if gaps := [key.upper() for key in _OF_GAPS if key in selected and key in metrics.selectable]:
        yield f"{', '.join(gaps)}: no bound (–), since the gaps of one answer are alike"


def objectives(result: Result, options: object) -> Iterator[str]:
    """Each objective, whether the run shows that it is met, and by what; what goodput counts, if by these."""
    for evidence in result.objectives:
        bound = "–" if evidence.bound_ms is None else f"≤ {_number(evidence.bound_ms)} at 99 %"
        value = f"{_number(evidence.value_ms)} ms ({bound})" if evidence.samples else "no samples"
        above = f"{evidence.over} of {evidence.samples} above"
        yield f"{evidence.objective}: {evidence.standing}, {value}, {above}"
    limits_ms = result.facts.ask().goodput_slo_ms
    if limits_ms and not result.facts.profile.goodput:
        limits = ", ".join(f"{name} {limit_ms:g} ms" for name, limit_ms in limits_ms.items())
        yield f"goodput: of requests within {limits} (the limits of --slo)"


def _percentile(key: str, of: Distribution, rank: float) -> str:
    bound_ms = of.bounds_ms.get(rank)
    bound = "–" if bound_ms is None else f"≤ {bound_ms:.2f} at 99 %"
    return f"{key.upper()} {of.percentiles_ms[rank]:.2f} ms ({bound})"


def _number(value_ms: float) -> str:
    """A latency, which is infinite where a request that failed has its place."""
    return "∞" if math.isinf(value_ms) else f"{value_ms:.2f}"

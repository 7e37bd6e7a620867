"""Bound lines: what a run shows of its percentiles and of its objectives, at 99 % confidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from loadgen.base.text import format_count
from loadgen.figures.confidence import least_passing
from loadgen.figures.distribution import Distribution
from loadgen.figures.figure_table import SELECTABLE, percentile_name
from loadgen.report.run_directory import Result


def percentiles(result: Result, options: object) -> Iterator[str]:
    """Each percentile with its upper bound where it has one, a line each, and why ITL has none."""
    shown = _shown(result)
    for rank in dict.fromkeys(rank for of in shown.values() for rank in of.percentiles_ms):
        yield _percentiles(shown, rank)
    if gaps := [key.upper() for key in shown if _is_of_gaps(key)]:
        yield f"{', '.join(gaps)}: no bound, since the gaps of one answer are alike"


def highest(result: Result, options: object) -> Iterator[str]:
    """The highest percentile alone, without that of the gaps, which have no bound."""
    shown = {key: of for key, of in _shown(result).items() if not _is_of_gaps(key)}
    if ranks := [rank for of in shown.values() for rank in of.percentiles_ms]:
        yield _percentiles(shown, max(ranks))


def objectives(result: Result, options: object) -> Iterator[str]:
    """Each objective, whether it is met and by what; and, where goodput uses these limits, which."""
    for evidence in result.objectives:
        bound = "" if evidence.bound_ms is None else f" (≤ {_number(evidence.bound_ms)} at 99 %)"
        value = f"{_number(evidence.value_ms)} ms{bound}" if evidence.samples else "no samples"
        above = f"{evidence.over} of {evidence.samples} above"
        yield f"{evidence.objective}: {evidence.standing}, {value}, {above}"
    limits_ms = result.facts.ask().goodput_slo_ms
    if limits_ms and not result.facts.profile.goodput:
        limits = ", ".join(f"{name} {limit_ms:g} ms" for name, limit_ms in limits_ms.items())
        yield f"goodput: of requests within {limits} (the limits of --slo)"


def _is_of_gaps(key: str) -> bool:
    return SELECTABLE[key].of != "requests"


def _shown(result: Result) -> dict[str, Distribution]:
    """The latencies that the block has, and there are."""
    selected = result.measured(result.facts.block().selected)
    return {key: of for key, of in result.metrics.selectable.items() if key in selected and of.n}


def _percentiles(shown: Mapping[str, Distribution], rank: float) -> str:
    """One percentile of these latencies, with how many samples its bounds need where they are too few."""
    parts = [_percentile(key, of, rank) for key, of in shown.items()]
    needed = least_passing(0, rank) if 0 < rank < 100 else 0
    few = [of.n for key, of in shown.items() if not _is_of_gaps(key) and of.n < needed]
    needs = f"; {format_count(min(few), 'sample')}, a bound needs {needed}" if few else ""
    return f"P{percentile_name(rank)} {', '.join(parts)}{needs}"


def _percentile(key: str, of: Distribution, rank: float) -> str:
    bound_ms = of.bounds_ms.get(rank)
    bound = "" if bound_ms is None else f" (≤ {bound_ms:.2f} at 99 %)"
    return f"{key.upper()} {of.percentiles_ms[rank]:.2f} ms{bound}"


def _number(value_ms: float) -> str:
    """A latency, which is infinite where a request that failed has its place."""
    return "∞" if math.isinf(value_ms) else f"{value_ms:.2f}"

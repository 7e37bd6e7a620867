"""Repeats: one workload run several times; the run is the unit, and its figures have a spread.

Two runs that lie far apart have an interval of any size by Student's t, 12.7 times their standard error. Its
digits would look like a result: what bounds nothing is written in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from loadgen.base.intervals import t_quantile
from loadgen.base.passages import Passage
from loadgen.base.tables import make_table
from loadgen.figures.figure_table import percentile_name
from loadgen.figures.metrics import Metrics
from loadgen.figures.steady_state import Steady, Unsteady

STABLE_SHARE = 0.05  # of the mean: a figure is stable when its 95 % interval reaches no further
_MOST_RUNS = 1000  # beyond it the number of runs needed is not given
WIDE = 10.0  # times the estimate, or a part of it: an interval that reaches further bounds nothing
VAGUE = "±>100%"
VAGUE_LEGEND = f"{VAGUE}: the runs lie too far apart to bound their mean"


class Mean(msgspec.Struct, frozen=True):
    """A figure's mean over runs or starts of a server; `half`, of its 95 % interval, is NaN for one."""

    mean: float
    half: float = math.nan
    units: int = 1

    @classmethod
    def average(cls, values: Sequence[float]) -> Mean:
        """Compute the mean and half of Student's 95 % interval; raises ValueError without values."""
        n, mean = len(values), math.fsum(values) / len(values)
        return cls(mean) if n == 1 else cls(mean, _compute_half_width(float(np.std(values, ddof=1)), n), n)

    @property
    def low(self) -> float:
        """The lower end of the interval; NaN for a single unit."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end of the interval; NaN for a single unit."""
        return self.mean + self.half


class Spread(msgspec.Struct, frozen=True):
    """One figure over repeated runs: mean, standard deviation, and Student's 95 % interval of the mean."""

    name: str  # as in the JSON of a run
    label: str
    runs: int  # that have the figure
    mean: float
    std: float  # of the sample, ddof 1
    cv: float  # std / mean; 0 where nothing varies
    half_width: float  # t(97.5 %, runs - 1) · std / √runs
    stable: bool  # half_width ≤ 5 % of the mean
    runs_needed: int | None  # the least number of runs that is stable at this spread; None: over 1000

    @property
    def reach(self) -> float:
        """The interval's half width as a share of the mean; 0 where nothing varies."""
        return self.half_width / abs(self.mean) if self.half_width else 0.0


def measure_spreads(runs: Sequence[Metrics], steadies: Sequence[Steady | Unsteady] = ()) -> list[Spread]:
    """Compute the spread of each headline figure over those runs that have it, at least two."""
    values: dict[tuple[str, str], list[float]] = {}
    for name, label, value in chain(*map(_list_run_figures, runs), *map(_list_steady_figures, steadies)):
        if math.isfinite(value):
            values.setdefault((name, label), []).append(value)
    return [
        _measure_spread(name, label, figures) for (name, label), figures in values.items() if len(figures) > 1
    ]


def make_spread_passage(figures: Sequence[Spread]) -> Passage:
    """Make the passage of the spreads of at least one figure: the table, and which are not stable."""
    most, rows = max(spread.runs for spread in figures), []
    for spread in figures:
        label = spread.label + (f" (of {spread.runs})" if spread.runs < most else "")
        cv, half, reach = f"{100 * spread.cv:.1f}", f"{spread.half_width:.2f}", f"{100 * spread.reach:.1f}"
        if is_vague(spread.mean, spread.half_width):
            half, reach = "> mean", "> 100"  # digits without meaning would look like a result
        rows.append((label, f"{spread.mean:.2f}", f"{spread.std:.2f}", cv, half, reach))
    table = make_table(("figure", "mean", "std", "CV %", "±", "± %"), rows)
    remarks = ("± half of the mean's 95 % confidence interval", _describe_stability(figures))
    return Passage(f"{most} runs", table=table, remarks=remarks)


def encode_spreads(figures: Sequence[Spread]) -> dict[str, Any]:
    """Encode the spreads by figure as strict JSON, an interval as its two ends."""
    return {
        spread.name: {
            **{key: value for key, value in asdict(spread).items() if key not in ("name", "label")},
            "interval": [spread.mean - spread.half_width, spread.mean + spread.half_width],
        }
        for spread in figures
    }


def _list_run_figures(run: Metrics) -> Iterator[tuple[str, str, float]]:
    """Yield key, label and value of a run's throughputs and latencies; NaN of one without samples."""
    yield "request_throughput_per_s", "Request throughput (req/s)", run.request_throughput_per_s
    yield "output_throughput_per_s", "Output throughput (tok/s)", run.output_throughput_per_s
    yield "total_throughput_per_s", "Total throughput (tok/s)", run.total_throughput_per_s
    if run.goodput_per_s is not None:
        yield "goodput_per_s", "Goodput (req/s)", run.goodput_per_s
    for key, latency in {"ttft": run.ttft, "tpot": run.tpot, "itl": run.itl, "e2el": run.e2el}.items():
        yield f"mean_{key}_ms", f"Mean {key.upper()} (ms)", latency.mean_ms
        for percentile, value in latency.percentiles_ms.items() if key != "e2el" else ():
            rank = percentile_name(percentile)
            yield f"p{rank}_{key}_ms", f"P{rank} {key.upper()} (ms)", value


def _list_steady_figures(steady: Steady | Unsteady) -> Iterator[tuple[str, str, float]]:
    """Yield key, label and value of each figure of a steady state; nothing of an unsteady run."""
    if isinstance(steady, Steady):
        yield "steady_request_throughput_per_s", "Steady requests (req/s)", steady.request_throughput_per_s
        yield "steady_output_throughput_per_s", "Steady output (tok/s)", steady.output_throughput_per_s
        yield "steady_mean_ttft_ms", "Steady mean TTFT (ms)", steady.ttft.mean_ms
        yield "steady_mean_tpot_ms", "Steady mean TPOT (ms)", steady.tpot.mean_ms


def _measure_spread(name: str, label: str, values: Sequence[float]) -> Spread:
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
    most, half_width = STABLE_SHARE * abs(mean), _compute_half_width(std, len(values))
    needed = (runs for runs in range(2, _MOST_RUNS + 1) if _compute_half_width(std, runs) <= most)
    return Spread(
        name=name, label=label, runs=len(values), mean=mean, std=std, cv=std / abs(mean) if mean else 0.0,
        half_width=half_width, stable=half_width <= most, runs_needed=next(needed, None),
    )  # fmt: skip


def _compute_half_width(std: float, runs: int) -> float:
    return t_quantile(runs - 1) * std / math.sqrt(runs)


def _describe_stability(figures: Sequence[Spread]) -> str:
    """Write whether every figure is stable, or which are not, and how many runs each likely needs."""
    rule = f"95 % interval within ± {100 * STABLE_SHARE:.0f} % of the mean"
    unstable = [spread for spread in figures if not spread.stable]
    if not unstable:
        return f"stable: every figure ({rule})"
    needs = (f"about {s.runs_needed}" if s.runs_needed else f"over {_MOST_RUNS}" for s in unstable)
    names = (spread.label.partition(" (")[0] for spread in unstable)
    listed = "; ".join(f"{name}, {need} runs likely" for name, need in zip(names, needs, strict=True))
    return f"not yet stable ({rule}): {listed}"


def is_vague(mean: float, half: float) -> bool:
    """Whether the interval (half width `half`) of a mean of positive figures reaches zero."""
    return math.isfinite(half) and 0 < abs(mean) <= half


def is_bounded(estimate: float, low: float, high: float) -> bool:
    """Whether both ends of the interval of a ratio, or a load, lie within a factor of ten of the estimate."""
    return math.isfinite(low) and math.isfinite(high) and estimate / WIDE <= low <= high <= estimate * WIDE


def format_difference(share: float) -> str:
    """Write a relative difference as 79 %, or from 100 % on as 3.4 times; "" if over ten times."""
    percent = 100 * share
    if share < 1:
        return f"{percent:.{0 if percent >= 10 else 1}f} %"
    return f"{1 + share:.2g} times" if 1 + share <= WIDE else ""

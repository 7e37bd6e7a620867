"""Dependence: samples in order whose percentiles are known, and how often a bound of one run lies below them.

`python -m benchmarks.simulated.dependence [RUNS]` prints the table of benchmarks/README.md.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.figures.distribution import count_independent, find_upper_index, find_upper_place

Float64 = NDArray[np.float64]
RANKS = (50.0, 90.0, 99.0)
SIZES = (100, 500, 2000)
_SETTLED = 300  # samples that are drawn before those that count


@dataclass(frozen=True)
class Process:
    """Samples in order: `draw` of a generator and a number, and the percentile's truth as a value."""

    draw: Callable[[np.random.Generator, int], Float64]
    find_truth: Callable[[float], float]


def _queue(utilisation: float, settled: bool = True) -> Process:
    """Sojourns of M/M/1, in services: exponential, of mean 1 / (1 − utilisation)."""

    def draw(random: np.random.Generator, n: int) -> Float64:
        before = math.ceil(20 / (1 - utilisation) ** 2) if settled else 0
        gaps, services = random.exponential(1 / utilisation, n + before), random.exponential(1, n + before)
        work = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps[1:])])
        sojourns: Float64 = (work - np.minimum.accumulate(work) + services)[before:]
        return sojourns

    return Process(draw, lambda rank: -math.log(1 - rank / 100) / (1 - utilisation))


def _closed_loop(clients: int) -> Process:
    """Each client sends as its answer ends, at one server: a sojourn is the last `clients` services."""

    def draw(random: np.random.Generator, n: int) -> Float64:
        ends = np.cumsum(random.exponential(1, n + clients))
        sojourns: Float64 = ends[clients:] - ends[:-clients]
        return sojourns

    return _by_many(draw)


def _autoregressive(slope: float) -> Process:
    def draw(random: np.random.Generator, n: int) -> Float64:
        steps = random.standard_normal(n + _SETTLED) * math.sqrt(1 - slope**2)
        values = np.zeros(n + _SETTLED)
        for at in range(1, n + _SETTLED):
            values[at] = slope * values[at - 1] + steps[at]
        return values[_SETTLED:]

    return _by_many(draw)


def _by_many(draw: Callable[[np.random.Generator, int], Float64]) -> Process:
    """A process whose percentiles are those of very many samples."""
    many = np.sort(draw(np.random.default_rng(1), 400_000))
    return Process(draw, lambda rank: float(np.quantile(many, rank / 100)))


PROCESSES = {
    "M/M/1 at 0.5": _queue(0.5),
    "M/M/1 at 0.8": _queue(0.8),
    "M/M/1 at 0.8, from empty": _queue(0.8, settled=False),
    "M/M/1 at 0.9": _queue(0.9),
    "closed loop of 4": _closed_loop(4),
    "closed loop of 16": _closed_loop(16),
    "AR(0.5)": _autoregressive(0.5),
    "AR(0.9)": _autoregressive(0.9),
    "independent, exponential": _by_many(lambda random, n: random.exponential(1, n)),
    "independent, two modes": _by_many(
        lambda random, n: random.exponential(1, n) + 20.0 * (random.random(n) < 0.07)
    ),
}


def count_false_bounds(process: Process, n: int, runs: int, seed: int = 0) -> dict[float, tuple[int, int]]:
    """Count, of each percentile with enough samples, the runs with a bound, and those where it is too low."""
    random, counts = np.random.default_rng([seed, n]), dict[float, tuple[int, int]]()
    ranks = [rank for rank in RANKS if find_upper_index(n, rank) is not None]
    for _ in range(runs):
        values = process.draw(random, n)
        independent, ordered = count_independent(values), np.sort(values)
        for rank in ranks:
            place = find_upper_place(n, independent, rank)
            shown, false = counts.get(rank, (0, 0))
            low = place is not None and ordered[place] < process.find_truth(rank)
            counts[rank] = shown + (place is not None), false + low
    return counts


def main(runs: int) -> None:
    """Print a row of a Markdown table for each process and size."""
    for name, process in PROCESSES.items():
        for n in SIZES:
            counts = count_false_bounds(process, n, runs, zlib.crc32(name.encode()))
            cells = [_format(counts.get(rank), runs) for rank in RANKS]
            print(f"| {name} | {n:,} | {' | '.join(cells)} |", flush=True)


def _format(counts: tuple[int, int] | None, runs: int) -> str:
    if counts is None:
        return "–"
    shown, false = (100 * count / runs for count in counts)
    return f"{shown:.0f}, {false:.1f}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)

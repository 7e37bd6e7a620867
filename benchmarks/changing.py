"""How often a history's change is false, found, and within its interval: series drawn with and without one.

`.venv/bin/python benchmarks/changing.py [SERIES]` prints a row for each kind of noise, length and change: the
share of series in which a change was found, found within two runs, and inside its interval.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loadgen.study.history.change_points import find_changes

_SERIES = 400
_CLOSE = 2  # runs between a change and where it is found
_ALPHA = 0.05
Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]


def draw_resembling(draw: np.random.Generator, runs: int, like: float = 0.3) -> NDArray[np.float64]:
    """Draw normal noise of which each value has the correlation `like` with the one before."""
    noise = draw.normal(size=runs)
    for at in range(1, runs):
        noise[at] = like * noise[at - 1] + np.sqrt(1 - like**2) * noise[at]
    return noise


NOISES: dict[str, Noise] = {
    "normal": lambda draw, runs: draw.normal(size=runs),
    "Student's t, 2 degrees": lambda draw, runs: draw.standard_t(2, size=runs),
    "lognormal": lambda draw, runs: draw.lognormal(size=runs) / 2.16,
    "correlated, 0.3": draw_resembling,
    "correlated, 0.6": lambda draw, runs: draw_resembling(draw, runs, 0.6),
    "four times as wide from half on": lambda draw, runs: (
        draw.normal(size=runs) * np.where(np.arange(runs) < runs // 2, 0.25, 1.0)
    ),
}
# Runs, the first one after the change, and its size in standard deviations of a run.
CASES = ((10, 5, 4.0), (20, 10, 3.0), (20, 17, 5.0), (40, 20, 2.0), (40, 37, 5.0), (100, 50, 1.5))


def measure(noise: Noise, runs: int, at: int, size: float, count: int) -> tuple[float, float, float]:
    """Return the shares of series with a change found, found within two runs, and inside its interval.

    The last is of the series in which one was found; `size` 0 is no change.
    """
    found = close = inside = 0
    for seed in range(count):
        values = noise(np.random.default_rng(seed), runs) + size * (np.arange(runs) >= at)
        points = find_changes(np.exp(0.01 * values).tolist(), _ALPHA).points
        found += bool(points)
        near = min(points, key=lambda point: abs(point.at - at), default=None)
        if near is not None:
            close += abs(near.at - at) <= _CLOSE
            inside += near.low <= at <= near.high
    return found / count, close / count, inside / max(found, 1)


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else _SERIES
    print(f"{'noise':<32}{'runs':>5}{'at':>4}{'size':>6}{'found':>8}{'within 2':>10}{'interval':>10}")
    for name, noise in NOISES.items():
        cases = [(runs, 0, 0.0) for runs in (10, 20, 40, 100)] + [*CASES] * (name == "normal")
        for runs, at, size in cases:
            found, close, inside = measure(noise, runs, at, size, count)
            known = f"{close:10.3f}{inside:10.3f}" if size else ""
            print(f"{name:<32}{runs:5}{at or '':>4}{size or '':>6}{found:8.3f}{known}", flush=True)


if __name__ == "__main__":
    main()

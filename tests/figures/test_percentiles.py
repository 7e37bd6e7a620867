"""Percentiles equal numpy's, and cost no import that it would."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.figures.percentiles import median, percentiles

WANTED = (0, 0.1, 1, 25, 33.3, 50, 75, 90, 99, 99.9, 100)


@loop_over("n", [1, 2, 3, 7, 100, 1001])
@loop_over("kind", ["int64", "float64", "equal", "far apart"])
def test_percentiles_are_numpys_to_the_last_digit(n: int, kind: str) -> None:
    random = np.random.default_rng(n)
    values = {
        "int64": random.integers(0, 10**10, n),
        "float64": random.exponential(1e7, n),
        "equal": np.full(n, 3.1),
        "far apart": random.choice(np.array([0.0, 1e-9, 1e18]), n),
    }[kind]
    assert percentiles(values.copy(), WANTED) == np.percentile(values, WANTED).tolist()
    assert float(median(values)) == float(np.median(values))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_medians_are_along_the_last_axis(size: int) -> None:
    values = np.random.default_rng(size).exponential(1.0, (4, size))
    assert median(values).tolist() == np.median(values, axis=1).tolist()


@pytest.mark.whole
def test_a_run_does_not_pay_for_masked_arrays() -> None:
    code = (
        "import sys, numpy as np\n"
        "from loadgen.figures.distribution import Distribution\n"
        "from loadgen.figures.percentiles import median\n"
        "Distribution.of(np.arange(10), (99.0,)); median(np.arange(3)); sys.exit('numpy.ma' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0

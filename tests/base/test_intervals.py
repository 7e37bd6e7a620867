"""Student's t quantiles against the density and the printed tables, and ratios of sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.base.intervals import t_quantile


def below(t: float, freedom: int) -> float:
    """The probability that Student's t is below `t`, from its density by Simpson's rule."""
    x = np.linspace(0, t, 20_001)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    density = np.exp(scale - (freedom + 1) / 2 * np.log1p(x * x / freedom))
    weights = np.ones(len(x))
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return 0.5 + float((weights * density).sum()) * float(x[1]) / 3


@loop_over("freedom", [*range(1, 41), 60, 120, 999, 10**6])
def test_students_t_has_97_5_percent_below_its_quantile(freedom: int) -> None:
    assert below(t_quantile(freedom), freedom) == pytest.approx(0.975, abs=1e-7)

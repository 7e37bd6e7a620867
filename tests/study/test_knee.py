"""Knee: the bend of a curve over the load is found with its interval, and not where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from builders.required import require
from loadgen.base.arrays import Float64
from loadgen.study.load_table import find_knee

LOADS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512], np.float64)
BEND = 40.0


def throughput(noise: Float64 | float = 0.0, loads: Float64 = LOADS) -> list[float]:
    """In proportion to the load up to the bend, level after it."""
    curve: list[float] = (np.minimum(loads, BEND) * np.exp(noise)).tolist()
    return curve


def latency(noise: Float64 | float = 0.0) -> list[float]:
    """Level up to the bend, in proportion to the load after it."""
    curve: list[float] = (100 * np.maximum(LOADS / BEND, 1.0) * np.exp(noise)).tolist()
    return curve


@pytest.mark.parametrize(("values", "rises"), [(throughput(), False), (latency(), True)])
def test_a_curve_without_noise_bends_where_its_lines_meet(values: list[float], rises: bool) -> None:
    found = find_knee(LOADS.tolist(), values, rises=rises)
    assert found is not None
    assert found.load == pytest.approx(BEND, rel=0.01)
    assert found.low == pytest.approx(BEND, rel=0.02)
    assert found.high == pytest.approx(BEND, rel=0.02)


@pytest.mark.long
def test_the_interval_holds_the_bend_in_most_of_200_curves() -> None:
    random = np.random.default_rng(1)
    knees = [
        find_knee(LOADS.tolist(), throughput(random.normal(0, 0.1, len(LOADS))), rises=False)
        for _ in range(200)
    ]
    held = [(each.low or 0.0) <= BEND <= (each.high or 1e9) for each in knees if each is not None]
    assert len(held) == 200
    assert sum(held) >= 180  # 95 % of 200, less four standard errors of that


@pytest.mark.long
def test_noise_around_one_line_has_a_knee_in_few_of_200_curves() -> None:
    random = np.random.default_rng(1)
    curves = (LOADS * np.exp(random.normal(0, 0.1, len(LOADS))) for _ in range(200))
    found = [find_knee(LOADS.tolist(), curve.tolist(), rises=False) for curve in curves]
    assert sum(each is not None for each in found) <= 20  # 5 % of 200, and three standard errors of that


def test_a_bend_near_the_last_load_has_no_upper_end() -> None:
    loads = np.array([2, 4, 8, 16, 32, 48], np.float64)
    found = find_knee(loads.tolist(), throughput(0.01 * np.array([1, -1, 1, -1, 1, -1]), loads), rises=False)
    assert found is not None
    assert found.high is None
    assert require(found.low) > 16

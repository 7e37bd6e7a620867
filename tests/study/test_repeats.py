"""Repeats: the spread over runs by hand, when a figure is stable, Student's t; knees of curves of loads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from builders.loops import loop_over
from builders.required import require
from loadgen.base.arrays import Float64
from loadgen.base.intervals import t_quantile
from loadgen.figures.metrics import Metrics, compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.steady_state import Trim, Unsteady, find_steady_state
from loadgen.records.record import Record, Records
from loadgen.study import repeats
from loadgen.study.load_table import find_knee
from loadgen.study.repeats import Spread, measure_spreads

MS = 1_000_000
ASK = MetricOptions()


def records(ttft_ms: int, **more: Any) -> Records:
    """Ten requests one after another: a first token after `ttft_ms`, the second and last 100 ms later."""
    took_ms = ttft_ms + 100
    return Records.from_records(
        Record(
            index=i,
            slot=0,
            intended_ns=0,
            sent_ns=(1000 + i * took_ms) * MS,
            end_ns=(1000 + (i + 1) * took_ms) * MS,
            arrival_ns=np.array([1000 + i * took_ms + ttft_ms, 1000 + (i + 1) * took_ms], np.int64) * MS,
            tokens=np.ones(2, np.int64),
            input_tokens=8,
            output_tokens=2,
            **more,
        )
        for i in range(10)
    )


def run(ttft_ms: int, ask: MetricOptions = ASK, **more: Any) -> Metrics:
    return compute_metrics(records(ttft_ms, **more), ask)


def by_name(runs: Sequence[Metrics], *more: Any) -> dict[str, Spread]:
    return {spread.name: spread for spread in measure_spreads(runs, *more)}


def test_a_figures_spread_is_the_one_worked_out_by_hand() -> None:
    ttft = by_name([run(98), run(100), run(102)])["mean_ttft_ms"]
    assert (ttft.runs, ttft.mean, ttft.std, ttft.cv) == (3, 100.0, 2.0, 0.02)
    assert ttft.half_width == pytest.approx(4.302653 * 2 / math.sqrt(3))
    stored = json.loads(json.dumps(repeats.encode_spreads([ttft]), allow_nan=False))["mean_ttft_ms"]
    assert stored.pop("interval") == [100 - ttft.half_width, 100 + ttft.half_width]
    assert stored == {key: getattr(ttft, key) for key in Spread.__struct_fields__[2:]}
    assert ttft.reach == pytest.approx(0.0497, abs=1e-4)
    assert ttft.stable


def test_the_steady_part_is_repeated_beside_the_whole() -> None:
    windows = [find_steady_state(records(ttft_ms), 1, Trim(), MetricOptions()) for ttft_ms in (98, 100)]
    found = by_name([run(98), run(100)], windows)
    assert found["steady_output_throughput_per_s"].mean == found["output_throughput_per_s"].mean
    assert {"steady_request_throughput_per_s", "steady_mean_ttft_ms", "steady_mean_tpot_ms"} <= set(found)
    one = by_name([run(98), run(100)], [windows[0], Unsteady("why")])
    assert not any(name.startswith("steady") for name in one)


@loop_over(("share", "words"), [
    (0.0251, "2.5 %"), (0.79, "79 %"), (0.996, "100 %"), (1.0, "2 times"), (2.4, "3.4 times"),
    (9.0, "10 times"), (9.01, ""), (235453038.54, ""), (math.inf, ""), (math.nan, ""),
])  # fmt: skip
def test_a_difference_of_any_size_is_none(share: float, words: str) -> None:
    assert repeats.format_difference(share) == words


@loop_over(("mean", "half", "vague"), [
    (500.0, 2118.0, True), (500.0, 500.0, True), (500.0, 499.0, False), (500.0, math.nan, False),
    (0, 1, False),
])  # fmt: skip
def test_the_interval_of_a_mean_that_reaches_zero_is_vague(mean: float, half: float, vague: bool) -> None:
    assert repeats.is_vague(mean, half) is vague


@loop_over("freedom", [*range(1, 41), 60, 120, 999, 10**6])
def test_students_t_has_97_5_percent_below_its_quantile(freedom: int) -> None:
    assert stats.t.cdf(t_quantile(freedom), freedom) == pytest.approx(0.975, abs=1e-7)


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

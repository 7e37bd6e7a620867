"""Repeats: the spread over runs, by hand, when a figure is stable, and Student's t against its density."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from builders.loops import loop_over
from loadgen.base.intervals import t_quantile
from loadgen.figures.metrics import Metrics, compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.steady_state import Trim, Unsteady, find_steady_state
from loadgen.records.record import Record, Records
from loadgen.study import repeats
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

"""Series: what is drawn is what was measured, in few points whatever a run's size."""

from __future__ import annotations

import numpy as np
import pytest

from builders import made_runs
from builders.loops import loop_over
from loadgen.base.structs import replace
from loadgen.figures.distribution import Distribution
from loadgen.report.run_directory import Result
from loadgen.study.pages import run_charts
from loadgen.study.pages.panel import CurveStyle, Panel

MILLION = made_runs.run(requests=4000, tokens=250, concurrency=64)


def panels(run: Result) -> dict[str, Panel]:
    return {panel.key: panel for panel in run_charts.panels(run)}


def test_a_run_has_charts_of_distributions_time_and_gauges() -> None:
    assert list(panels(made_runs.run())) == [
        "ttft-distribution",
        "tpot-distribution",
        "itl-distribution",
        "e2el-distribution",
        "tokens-over-time",
        "concurrency-over-time",
        "ttft-over-time",
        "timeline",
        "server-requests",
        "server-kv-cache",
    ]


@loop_over("key", ["ttft", "itl", "e2el"])
@loop_over("failed", [0, 5])
def test_the_latencies_drawn_are_those_of_the_metrics(key: str, failed: int) -> None:
    run = made_runs.run(failed=failed)
    drawn = Distribution.of(run_charts.latency_ms(run, key) * 1e6, (99.0,))
    found: Distribution = getattr(run.metrics, key)
    assert drawn.n == found.n
    assert drawn.median_ms == pytest.approx(found.median_ms)
    assert drawn.mean_ms == pytest.approx(found.mean_ms)


def test_a_small_distribution_is_drawn_whole_and_ends_at_all_of_it() -> None:
    curve = run_charts.ecdf("", np.array([1.0, 2.0, 4.0, 8.0]))
    assert curve.x.tolist() == [1.0, 1.0, 2.0, 4.0, 8.0]
    assert curve.y.tolist() == [0.0, 25.0, 50.0, 75.0, 100.0]
    assert curve.form is CurveStyle.STEPS


def test_a_large_distribution_keeps_percentiles_in_few_points() -> None:
    values = np.sort(np.random.default_rng(1).gamma(2.0, 10.0, 1_000_000))
    curve = run_charts.ecdf("", values)
    assert len(curve.x) <= run_charts.MOST_RANKS
    assert (curve.x[-1], curve.y[-1]) == (values[-1], 100.0)
    for percentile in (50, 90, 99, 99.9):
        assert np.interp(percentile, curve.y, curve.x) == pytest.approx(
            np.percentile(values, percentile), rel=0.01
        )


def test_a_million_tokens_are_few_points() -> None:
    assert int(MILLION.records.tokens.sum()) == 1_000_000
    for panel in run_charts.panels(MILLION):
        assert all(len(curve.x) <= run_charts.MOST_POINTS for curve in panel.curves), panel.key
        assert sum(len(spans.at) for spans in panel.spans) <= 3 * run_charts.MOST_REQUESTS


def test_what_is_left_out_of_a_timeline_is_said() -> None:
    assert panels(MILLION)["timeline"].caption == (
        "Each line is a request. 286 of 4,000 are drawn, one in 14."
    )
    assert panels(made_runs.run())["timeline"].caption == "Each line is a request."


def test_no_token_is_lost_between_the_bins() -> None:
    for run in (made_runs.run(), MILLION):
        curve = panels(run)["tokens-over-time"].curves[0]
        assert float((np.diff(curve.x) * curve.y[:-1]).sum()) == pytest.approx(run.records.tokens.sum())


def test_binned_concurrency_has_the_mean_of_the_metrics() -> None:
    curve = panels(MILLION)["concurrency-over-time"].curves[0]
    lengths = np.diff(curve.x)
    area = float((lengths * curve.y[:-1]).sum())
    assert area / MILLION.metrics.duration_s == pytest.approx(MILLION.metrics.mean_concurrency, rel=1e-6)


def test_concurrency_of_a_small_run_is_exact() -> None:
    run = made_runs.run(requests=9, concurrency=3)
    curve = panels(run)["concurrency-over-time"].curves[0]
    assert curve.y.max() == run.metrics.peak_concurrency == 3
    assert curve.y[-1] == 0


def test_a_failed_request_stands_in_the_timeline_as_failed() -> None:
    spans = {one.name: len(one.at) for one in panels(made_runs.run(requests=10, failed=3))["timeline"].spans}
    assert spans == {"until its first token": 7, "until its last token": 7, "failed": 3}


def test_whole_answers_have_an_end_and_nothing_before_it() -> None:
    run = made_runs.run()
    asked = run.facts.profile.model_copy(update={"stream": False})
    whole = replace(run, facts=replace(run.facts, profile=asked))
    drawn = panels(whole)
    assert "e2el-distribution" in drawn
    assert not {"ttft-distribution", "itl-distribution", "ttft-over-time"} & set(drawn)
    assert [one.name for one in drawn["timeline"].spans] == ["until its answer"]


def test_a_run_without_a_success_is_drawn_as_what_it_was() -> None:
    drawn = panels(made_runs.run(requests=5, failed=5))
    assert "ttft-distribution" not in drawn
    assert [one.name for one in drawn["timeline"].spans] == ["failed"]


def test_a_server_that_says_nothing_has_no_curves() -> None:
    drawn = panels(made_runs.run(window=None))
    assert not {"server-requests", "server-kv-cache"} & set(drawn)


def test_the_steady_part_stands_out() -> None:
    run = made_runs.run()
    band = panels(run)["tokens-over-time"].band
    assert band is not None
    assert band[:2] == (run.steady.begin_s, run.steady.end_s)  # type: ignore[union-attr]


@loop_over(
    ("window_s", "step"), [(0.05, 0.001), (10.0, 0.1), (60.0, 0.5), (3600.0, 30), (10**6, 10**6 / 150)]
)
def test_time_is_cut_into_round_lengths(window_s: float, step: float) -> None:
    assert run_charts.step_s(window_s) == pytest.approx(step)

"""Charts: bars beside the roofline, sweeps of load and lengths of input, from whatever was reported."""

from __future__ import annotations

import math
from typing import Any

import pytest

from builders import made_runs
from loadgen.analysis.comparison.model import Decision
from loadgen.analysis.report import comparison_charts
from loadgen.analysis.run_summary import Load, Reported


def told(name: str, **figures: Any) -> Reported:
    load = figures.pop("load", Load(input_len=100.0, output_len=10.0))
    return Reported(name=name, figures=figures, load=load, source="a page", told_by="page")


def at(
    name: str, concurrency: int | None, throughput: float, ttft: float, tpot: float, **load: Any
) -> Reported:
    where = Load(input_len=100.0, output_len=10.0, max_concurrency=concurrency, **load)
    return told(name, load=where, output_throughput=throughput, mean_ttft_ms=ttft, mean_tpot_ms=tpot)


def test_each_figure_of_any_row_is_a_panel_with_the_roofline() -> None:
    run = made_runs.reported(made_runs.run())
    found = made_runs.comparison(
        made_runs.line("base", (run,), roofline=0.5),
        made_runs.line("other", (run,), Decision.SLOWER, roofline=0.25),
    )
    drawn = {panel.key: panel for panel in comparison_charts.comparison(found)}
    assert list(drawn) == [
        "bars-output_throughput", "bars-mean_ttft_ms", "bars-mean_tpot_ms", "bars-roofline",
    ]  # fmt: skip
    summary = found.lines[1].summaries["output_throughput"]
    bar = drawn["bars-output_throughput"].bars[1]
    assert (bar.name, bar.value, bar.low, bar.high) == ("other", summary.mean, summary.low, summary.high)
    assert bar.text == f"{summary.mean:,.2f} · 1.250× ▼"
    assert drawn["bars-mean_tpot_ms"].bars[0].best == found.lines[0].summaries["mean_tpot_ms"].mean * 0.5
    assert [bar.value for bar in drawn["bars-roofline"].bars] == [50.0, 25.0]


def test_a_row_without_its_figure_has_no_bar() -> None:
    run = made_runs.reported(made_runs.run())
    found = made_runs.comparison(
        made_runs.line("base", (run,)), made_runs.line("failed", (), failures=("died",))
    )
    assert [bar.name for bar in next(iter(comparison_charts.comparison(found))).bars] == ["base"]
    assert [curve.name for curve in comparison_charts.distributions(found)[0].curves] == ["base", ""]


def test_others_results_have_no_distributions() -> None:
    found = made_runs.comparison(made_runs.line("a", (told("a", output_throughput=3.0),)))
    assert comparison_charts.distributions(found) == []


def test_a_sweep_is_latency_over_throughput_from_the_lightest_load_on() -> None:
    runs = [at("m", 8, 400.0, 50.0, 20.0), at("m", 1, 90.0, 20.0, 10.0), at("m", 8, 420.0, 60.0, 20.0)]
    ttft, speed, throughput = comparison_charts.sweeps(runs)
    assert ttft.curves[0].x.tolist() == [90.0, 410.0]
    assert ttft.curves[0].y.tolist() == [20.0, 55.0]
    assert ttft.curves[0].labels == ("1", "8")
    assert speed.curves[0].y.tolist() == [100.0, 50.0]
    assert (throughput.title, throughput.x_label) == ("Throughput against concurrency", "concurrency")
    assert (throughput.curves[0].x.tolist(), throughput.curves[0].y.tolist()) == ([1.0, 8.0], [90.0, 410.0])
    assert not any(throughput.curves[0].hollow)


def test_a_point_that_is_beaten_in_both_is_empty() -> None:
    runs = [
        at("good", 1, 100.0, 10.0, 10.0), at("good", 8, 400.0, 40.0, 20.0),
        at("bad", 1, 90.0, 20.0, 10.0), at("bad", 8, 500.0, 90.0, 20.0),
    ]  # fmt: skip
    ttft = next(iter(comparison_charts.sweeps(runs)))
    assert {curve.name: curve.hollow for curve in ttft.curves} == {
        "good": (False, False),
        "bad": (True, False),
    }
    assert "better in both" in ttft.caption


def test_one_load_is_no_sweep() -> None:
    assert (
        list(comparison_charts.sweeps([at("m", 8, 400.0, 50.0, 20.0), at("m", 8, 410.0, 51.0, 20.0)])) == []
    )


def test_rates_are_named_as_rates() -> None:
    rates = [
        at("m", None, 9.0 * min(rate, 9.0), 20.0, 10.0, request_rate_per_s=rate)
        for rate in (2.5, 1.0, math.inf)
    ]
    assert next(iter(comparison_charts.sweeps(rates))).curves[0].labels == ("1/s", "2.5/s", "all")


def test_throughput_is_over_the_rate_where_that_limits_all() -> None:
    rates = [at("m", None, 9.0 * rate, 20.0, 10.0, request_rate_per_s=rate) for rate in (1.0, 2.5)]
    assert [panel.title for panel in comparison_charts.sweeps(rates)][2:] == [
        "Throughput against request rate"
    ]
    mixed = [*rates, at("m", 8, 400.0, 50.0, 20.0)]
    assert len(list(comparison_charts.sweeps(mixed))) == 2


def test_rows_that_are_no_repeats_are_curves_of_their_own() -> None:
    runs = [at("m", n, 100.0 * n + k, 10.0, 10.0) for n in (1, 2) for k in (0, 1)]
    named = {id(run): f"m ({place % 2})" for place, run in enumerate(runs)}
    ttft = next(iter(comparison_charts.sweeps(runs, lambda run: named[id(run)])))
    assert [(curve.name, curve.x.tolist()) for curve in ttft.curves] == [
        ("m (0)", [100.0, 200.0]),
        ("m (1)", [101.0, 201.0]),
    ]


def test_other_lengths_are_another_sweep() -> None:
    short = [at("m", n, 100.0 * n, 10.0, 10.0) for n in (1, 2)]
    long = [
        told("m", load=Load(input_len=4000.0, output_len=10.0, max_concurrency=n), output_throughput=5.0 * n,
             mean_ttft_ms=9.0, mean_tpot_ms=9.0)
        for n in (1, 2)
    ]  # fmt: skip
    assert [panel.key for panel in comparison_charts.sweeps([*short, *long])] == [
        "sweep-ttft-100-10", "sweep-speed-100-10", "sweep-throughput-100-10",
        "sweep-ttft-4000-10", "sweep-speed-4000-10", "sweep-throughput-4000-10",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 8, 9])
def test_ladders_are_speed_over_input_length_eight_to_a_panel(count: int) -> None:
    runs = [
        told(f"m{number}", load=Load(input_len=length), speed_tok_s=100.0 / length)
        for number in range(count)
        for length in (30720.0, 1.0)
    ]
    drawn = list(comparison_charts.ladders(runs))
    assert [len(panel.curves) for panel in drawn] == [8] * (count // 8) + [count % 8] * bool(count % 8)
    assert drawn[0].curves[0].x.tolist() == [1.0, 30720.0]


def test_one_length_is_no_ladder() -> None:
    assert list(comparison_charts.ladders([told("m", load=Load(input_len=1.0), speed_tok_s=3.0)])) == []

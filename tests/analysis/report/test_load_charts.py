"""Load charts: pictures of what was run under several loads, from anyone's figures."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from loadgen.analysis.report import load_charts
from loadgen.analysis.run_summary import Load, Reported


def told(name: str, **figures: Any) -> Reported:
    load = figures.pop("load", Load(input_len=100.0, output_len=10.0))
    return Reported(name=name, figures=figures, load=load, source="a page", told_by="page")


def at(
    name: str, concurrency: int | None, throughput: float, ttft: float, tpot: float, **load: Any
) -> Reported:
    where = Load(input_len=100.0, output_len=10.0, max_concurrency=concurrency, **load)
    return told(name, load=where, output_throughput=throughput, mean_ttft_ms=ttft, mean_tpot_ms=tpot)


def test_a_sweep_is_latency_over_throughput_from_the_lightest_load_on() -> None:
    runs = [at("m", 8, 400.0, 50.0, 20.0), at("m", 1, 90.0, 20.0, 10.0), at("m", 8, 420.0, 60.0, 20.0)]
    ttft, tpot, speed, throughput = load_charts.sweeps(runs)
    assert ttft.curves[0].x.tolist() == [90.0, 410.0]
    assert ttft.curves[0].y.tolist() == [20.0, 55.0]
    assert ttft.curves[0].labels == ("1", "8")
    assert tpot.curves[0].y.tolist() == [10.0, 20.0]
    assert speed.curves[0].y.tolist() == [100.0, 50.0]
    assert (throughput.title, throughput.x_label) == ("Throughput against concurrency", "concurrency")
    assert (throughput.curves[0].x.tolist(), throughput.curves[0].y.tolist()) == ([1.0, 8.0], [90.0, 410.0])
    assert not any(throughput.curves[0].hollow)


def test_one_load_is_no_sweep() -> None:
    assert list(load_charts.sweeps([at("m", 8, 400.0, 50.0, 20.0), at("m", 8, 410.0, 51.0, 20.0)])) == []


def test_rates_are_named_as_rates() -> None:
    rates = [
        at("m", None, 9.0 * min(rate, 9.0), 20.0, 10.0, request_rate_per_s=rate)
        for rate in (2.5, 1.0, math.inf)
    ]
    assert next(iter(load_charts.sweeps(rates))).curves[0].labels == ("1/s", "2.5/s", "all")


def test_throughput_is_over_the_rate_where_that_limits_all() -> None:
    rates = [at("m", None, 9.0 * rate, 20.0, 10.0, request_rate_per_s=rate) for rate in (1.0, 2.5)]
    assert [panel.title for panel in load_charts.sweeps(rates)][3:] == ["Throughput against request rate"]
    mixed = [*rates, at("m", 8, 400.0, 50.0, 20.0)]
    assert len(list(load_charts.sweeps(mixed))) == 3


def test_rows_that_are_no_repeats_are_curves_of_their_own() -> None:
    runs = [at("m", n, 100.0 * n + k, 10.0, 10.0) for n in (1, 2) for k in (0, 1)]
    named = {id(run): f"m ({place % 2})" for place, run in enumerate(runs)}
    ttft = next(iter(load_charts.sweeps(runs, lambda run: named[id(run)])))
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
    assert [panel.key for panel in load_charts.sweeps([*short, *long])] == [
        "sweep-ttft-100-10", "sweep-tpot-100-10", "sweep-speed-100-10", "sweep-throughput-100-10",
        "sweep-ttft-4000-10", "sweep-tpot-4000-10", "sweep-speed-4000-10", "sweep-throughput-4000-10",
    ]  # fmt: skip


def test_percentiles_are_drawn_where_every_point_has_them() -> None:
    runs = [
        replace(run, figures={**run.figures, "median_ttft_ms": 5.0 * n, "p99_ttft_ms": 9.0 * n})
        for n, run in ((n, at("m", n, 90.0 * n, 6.0 * n, 10.0)) for n in (1, 2))
    ]
    ttft = next(iter(load_charts.sweeps(runs)))
    assert [(curve.name, curve.y.tolist(), curve.labels) for curve in ttft.curves] == [
        ("m, P50", [5.0, 10.0], ()),
        ("m, P99", [9.0, 18.0], ("1", "2")),
    ]
    mixed = next(iter(load_charts.sweeps([*runs, at("m", 4, 300.0, 30.0, 12.0)])))
    assert [curve.name for curve in mixed.curves] == ["m"]


def test_goodput_and_latency_of_whole_requests_are_drawn_if_known() -> None:
    runs = [
        replace(run, figures={**run.figures, "request_goodput": 3.0, "mean_e2el_ms": 200.0})
        for run in (at("m", n, 90.0 * n, 6.0, 10.0) for n in (1, 2))
    ]
    assert [panel.title for panel in load_charts.sweeps(runs)] == [
        "TTFT against throughput", "TPOT against throughput", "E2EL against throughput",
        "Tokens/s per user against throughput", "Throughput against concurrency",
        "Goodput against concurrency",
    ]  # fmt: skip


def test_throughput_is_per_gpu_where_every_run_knows_how_many() -> None:
    runs = [at("m", n, 90.0 * n, 6.0, 10.0) for n in (1, 2)]
    known = [replace(run, figures={**run.figures, "output_throughput_per_gpu": 45.0}) for run in runs]
    whole, per_gpu, mixed = (list(load_charts.sweeps(each))[2] for each in (runs, known, [known[0], runs[1]]))
    assert per_gpu.title == "Tokens/s per user against tokens/s per GPU"
    assert per_gpu.curves[0].x.tolist() == [45.0, 45.0]
    assert (whole.title, mixed.title) == ("Tokens/s per user against throughput",) * 2
    assert "Of the whole server" in whole.caption


def test_invalid_points_are_hollow_and_no_part_of_a_mean() -> None:
    bad = replace(at("m", 2, 999.0, 6.0, 10.0), level="INVALID")
    lone = replace(at("m", 4, 200.0, 9.0, 10.0), level="INVALID")
    runs = [at("m", 1, 90.0, 5.0, 10.0), at("m", 2, 180.0, 6.0, 10.0), bad, lone]
    throughput = list(load_charts.sweeps(runs))[-1]
    assert throughput.curves[0].y.tolist() == [90.0, 180.0, 200.0]
    assert throughput.curves[0].hollow == (False, False, True)
    assert "The runs of a hollow point are INVALID." in throughput.caption


def test_points_that_were_ended_early_are_marked() -> None:
    runs = [replace(at("m", n, 90.0 * n, 6.0, 10.0), source=f"points/{n}") for n in (1, 2)]
    panel = next(iter(load_charts.sweeps(runs, saturated={"points/2"})))
    assert panel.curves[0].labels == ("1", "2, saturated")


def test_the_front_goes_through_points_that_no_other_beats_in_both() -> None:
    runs = [
        at("good", 1, 100.0, 10.0, 10.0), at("good", 8, 400.0, 40.0, 20.0),
        at("bad", 1, 90.0, 20.0, 12.5), at("bad", 8, 500.0, 90.0, 50.0),
    ]  # fmt: skip
    front = list(load_charts.sweeps(runs))[2].curves[-1]
    assert front.name == "best of all"
    assert (front.x.tolist(), front.y.tolist()) == ([100.0, 400.0, 500.0], [100.0, 50.0, 20.0])


def test_the_knee_is_a_band_with_its_figures_below() -> None:
    loads = (1, 2, 4, 8, 16, 32, 64, 128)
    runs = [at("m", n, 90.0 * min(n, 12) * (1 + 0.01 * (-1) ** k), 6.0, 10.0) for k, n in enumerate(loads)]
    throughput = list(load_charts.sweeps(runs))[-1]
    assert throughput.band is not None
    assert throughput.band[0] < 12 < throughput.band[1]
    assert throughput.x_log
    assert "The curve bends at 12" in throughput.caption
    assert list(load_charts.sweeps(runs[:4]))[-1].band is None

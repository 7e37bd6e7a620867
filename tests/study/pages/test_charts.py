"""Charts: what is drawn of a run, and of several loads, is what was measured, in few points."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from builders import made_attributions as made
from builders import made_runs
from builders.comparison_samples import told
from builders.loops import loop_over
from loadgen.base.passages import Curve, CurveStyle, Panel
from loadgen.base.structs import replace
from loadgen.features.attribution.attribution import PARTS
from loadgen.figures.distribution import Distribution
from loadgen.report import report
from loadgen.report.load_identity import Load
from loadgen.report.run_directory import Result
from loadgen.server.sample_file import KeptSamples, SampledSeries
from loadgen.study.load_table import Knee
from loadgen.study.pages import load_charts, pictures, run_charts
from loadgen.study.pages.colours import DARK, LIGHT, SHADES
from loadgen.study.pages.run_charts import plot_waits
from loadgen.study.run_summary import Reported

MILLION = made_runs.run(requests=4000, tokens=250, concurrency=64)


def panels(run: Result) -> dict[str, Panel]:
    return {panel.key: panel for panel in run_charts.plot_run(run)}


@loop_over("key", ["ttft", "itl", "e2el"])
@loop_over("failed", [0, 5])
def test_the_latencies_drawn_are_those_of_the_metrics(key: str, failed: int) -> None:
    run = made_runs.run(failed=failed)
    drawn = Distribution.from_ns(run_charts.select_latencies_ms(run, key) * 1e6, (99.0,))
    found: Distribution = getattr(run.metrics, key)
    assert drawn.n == found.n
    assert drawn.median_ms == pytest.approx(found.median_ms)
    assert drawn.mean_ms == pytest.approx(found.mean_ms)


@loop_over("run", [made_runs.run(requests=9, concurrency=3), made_runs.run(), MILLION])
def test_tokens_and_concurrency_over_time_are_those_of_the_metrics(run: Result) -> None:
    drawn = panels(run)
    tokens, held = (drawn[f"{key}-over-time"].curves[0] for key in ("tokens", "concurrency"))
    areas = [float((np.diff(curve.x) * curve.y[:-1]).sum()) for curve in (tokens, held)]
    assert areas[0] == pytest.approx(run.records.tokens.sum())
    assert areas[1] / run.metrics.duration_s == pytest.approx(run.metrics.mean_concurrency, rel=1e-6)
    if run is not MILLION:
        assert (held.y.max(), held.y[-1]) == (run.metrics.peak_concurrency, 0)


def test_a_small_distribution_is_drawn_whole_and_ends_at_all_of_it() -> None:
    curve = run_charts.make_ecdf("", np.array([1.0, 2.0, 4.0, 8.0]))
    assert curve.x.tolist() == [1.0, 1.0, 2.0, 4.0, 8.0]
    assert curve.y.tolist() == [0.0, 25.0, 50.0, 75.0, 100.0]
    assert curve.form is CurveStyle.STEPS


def test_a_large_distribution_keeps_percentiles_in_few_points() -> None:
    values = np.sort(np.random.default_rng(1).gamma(2.0, 10.0, 1_000_000))
    curve = run_charts.make_ecdf("", values)
    assert len(curve.x) <= run_charts.MOST_RANKS
    assert (curve.x[-1], curve.y[-1]) == (values[-1], 100.0)
    for percentile in (50, 90, 99, 99.9):
        assert np.interp(percentile, curve.y, curve.x) == pytest.approx(
            np.percentile(values, percentile), rel=0.01
        )


def test_a_million_tokens_are_few_points() -> None:
    assert int(MILLION.records.tokens.sum()) == 1_000_000
    for panel in run_charts.plot_run(MILLION):
        assert all(len(curve.x) <= run_charts.MOST_POINTS for curve in panel.curves), panel.key
        assert sum(len(spans.at) for spans in panel.spans) <= 3 * run_charts.MOST_REQUESTS


@loop_over(
    ("window_s", "step"), [(0.05, 0.001), (10.0, 0.1), (60.0, 0.5), (3600.0, 30), (10**6, 10**6 / 150)]
)
def test_time_is_cut_into_round_lengths(window_s: float, step: float) -> None:
    assert run_charts.choose_step_s(window_s) == pytest.approx(step)


RUN = made_runs.run(window=None)
BEGIN_NS, WINDOW_S = run_charts.find_window(RUN.records) or (0, 0.0)


def evenly(quantity: str, where: str, count: int, scale: float = 1.0) -> SampledSeries:
    """So many samples over the run, rising from 0."""
    at_ns = (BEGIN_NS + np.linspace(0, WINDOW_S, count) * 1e9).astype(np.int64)
    return SampledSeries(quantity, where, at_ns, np.arange(count, dtype=np.float64) * scale)


def sampled(*series: SampledSeries) -> Result:
    return replace(RUN, samples=KeptSamples(series))


@loop_over(
    ("count", "form"),
    [(1, None), (29, None), (30, CurveStyle.POINTS), (149, CurveStyle.POINTS), (150, CurveStyle.LINE)],
)
def test_few_samples_are_text_then_points_and_many_a_line(count: int, form: CurveStyle | None) -> None:
    run = sampled(evenly("running", "", count), evenly("power_w", "GPU 0", count))
    drawn = [curve for panel in run_charts.plot_samples(run) for curve in panel.curves]
    assert [(curve.form, len(curve.x)) for curve in drawn] == ([] if form is None else [(form, count)] * 2)
    samples = "1 sample" if count == 1 else f"{count} samples"
    words = f"Requests in the server, Power: {samples} in {WINDOW_S:.3g} s, no chart below 30"
    assert run_charts.list_rarely_sampled(run) == ([words] if form is None else [])
    assert {panel.x_end for panel in run_charts.plot_samples(run)} <= {WINDOW_S}


def test_a_line_is_lifted_where_samples_are_missing() -> None:
    whole = evenly("power_w", "", 300)
    held = np.flatnonzero((np.arange(300) < 100) | (np.arange(300) > 120))
    (panel,) = run_charts.plot_samples(
        sampled(SampledSeries("power_w", "", whole.at_ns[held], whole.values[held]))
    )
    x, y = panel.curves[0].x, panel.curves[0].y
    assert np.flatnonzero(np.isnan(x)).tolist() == np.flatnonzero(np.isnan(y)).tolist() == [100]


def test_each_sensor_has_its_chart_unit_and_place() -> None:
    rows = [("server_bytes", "GPU 0", 2**30), ("rss_bytes", "", 2**30), ("kv_cache_usage", "", 0.01)]
    rows += [("power_w", "GPU 0", 1), ("temperature_c", "GPU 0", 1), ("temperature_c", "GPU 1", 1)]
    rows.append(("sm_mhz", "GPU 0", 1))
    run = sampled(*(evenly(quantity, where, 40, scale) for quantity, where, scale in rows))
    drawn = {
        panel.key: (panel.y_label, [curve.name for curve in panel.curves], panel.curves[0].y.max())
        for panel in run_charts.plot_samples(run)
    }
    assert drawn == {
        "server-kv-cache": ("%", ["KV cache"], pytest.approx(39)),
        "memory": ("GiB", ["GPU 0, server", "host, RSS"], 39),
        "power": ("W", ["GPU 0"], 39),
        "temperature": ("°C", ["GPU 0", "GPU 1"], 39),
        "clocks": ("MHz", ["GPU 0, SM"], 39),
    }


def test_samples_are_drawn_within_the_run_in_few_points_and_colours() -> None:
    series = evenly("power_w", "", 300)
    moved = SampledSeries("power_w", "", series.at_ns - int(WINDOW_S * 0.5e9), series.values)
    (half,), (day,), (many,) = (
        run_charts.plot_samples(sampled(*each))
        for each in (
            [moved],
            [evenly("power_w", "", 2000)],
            [evenly("power_w", f"{at}", 40) for at in range(12)],
        )
    )
    assert half.curves[0].x.min() >= 0
    assert half.caption == "Sensors of this machine. 150 samples."
    assert len(day.curves[0].x) <= run_charts.MOST_SAMPLES
    assert day.curves[0].y.max() == 1999
    assert (len(many.curves), many.caption[-19:]) == (8, " 8 of 12 are drawn.")


BUSY = made.run(made.BUSY)


def test_bars_are_whole_waits_longest_first() -> None:
    tokens, gaps = plot_waits(BUSY)
    assert (tokens.key, gaps.key) == ("slowest-first-tokens", "longest-gaps")
    for panel, waits in ((tokens, made.BUSY.ttft), (gaps, made.BUSY.gaps)):
        longest_ms = np.sort(waits.whole_ns)[::-1][: run_charts.MOST_WAITS] / 1e6
        lengths = np.zeros(len(longest_ms))
        for spans in panel.spans:
            np.add.at(lengths, spans.at.astype(int) - 1, spans.end - spans.begin)
            assert bool((spans.end > spans.begin).all())
        assert np.allclose(lengths, longest_ms)
        assert panel.x_end == longest_ms[0]
        assert panel.numbers is not None
        assert len(panel.numbers.body) == len(longest_ms)
    assert [spans.name for spans in gaps.spans] == ["decode step", "others' prefill", "unknown"]
    assert tokens.numbers is not None
    cells = ("request 99", "512.10", "0.10", "0.20", "1.80", "440.00", "60.00", "10.00")
    assert tokens.numbers.body[0] == cells
    assert gaps.numbers is not None
    assert gaps.numbers.body[0][0] == "request 0, chunk 7"


def test_each_part_has_a_colour_of_its_own_in_both_themes() -> None:
    shades = [spans.tone for spans in next(plot_waits(BUSY)).spans]
    assert set(shades) <= set(SHADES.values())
    for theme in (LIGHT, DARK):
        assert len({theme[each] for each in SHADES.values()}) == len(PARTS)


def test_what_is_not_known_is_not_drawn() -> None:
    assert list(plot_waits(made.run(made.NOTHING_KNOWN))) == []
    lines = report.make_page_passage("Where the time goes", made.run(made.NOTHING_KNOWN)).lines
    assert "`loadgen explain` names what would show more of what is unknown" in lines
    assert list(plot_waits(made.run(made.SMOOTH))) == []


def at(
    model: str, concurrency: int | None, throughput: float, ttft: float, tpot: float, **load: Any
) -> Reported:
    where = Load(input_len=100.0, output_len=10.0, max_concurrency=concurrency, **load)
    return told(model, load=where, output_throughput=throughput, mean_ttft_ms=ttft, mean_tpot_ms=tpot)


def test_throughput_is_per_gpu_where_every_run_knows_how_many() -> None:
    runs = [at("m", n, 90.0 * n, 6.0, 10.0) for n in (1, 2)]
    known = [replace(run, figures={**run.figures, "output_throughput_per_gpu": 45.0}) for run in runs]
    whole, per_gpu, mixed = (
        list(load_charts.plot_loads(each))[2] for each in (runs, known, [known[0], runs[1]])
    )
    assert per_gpu.title == "Tokens/s per user against tokens/s per GPU"
    assert per_gpu.curves[0].x.tolist() == [45.0, 45.0]
    assert (whole.title, mixed.title) == ("Tokens/s per user against throughput",) * 2
    assert "Of the whole server" in whole.caption
    assert "vLLM's plot_pareto divides throughput by concurrency" in whole.caption


def test_counted_lengths_are_one_curve_to_a_token_or_two() -> None:
    runs = [
        replace(run, load=replace(run.load, input_len=length))
        for length, run in ((256.0, at("m", 1, 90.0, 5.0, 10.0)), (257.6, at("m", 4, 300.0, 9.0, 10.0)))
    ]
    assert next(iter(load_charts.plot_loads(runs))).key == "sweep-ttft-256-10"


@pytest.mark.parametrize(("runs", "labels"), [
    pytest.param(
        [at(f"m (--max-num-seqs={n})", 8, 100.0 * n, 9.0 / n, 10.0, name=f"max-num-seqs={n}")
         for n in (2, 4)],
        ("max-num-seqs=2", "max-num-seqs=4"), id="the server's settings",
    ),
    pytest.param(
        [at("m", 8, 100.0, 9.0, 10.0, asked_input_len=n, asked_output_len=10) for n in (512, 2048)],
        ("512 tokens in and 10 out", "2048 tokens in and 10 out"), id="lengths",
    ),
    pytest.param([at(name, 8, 100.0, 9.0, 10.0) for name in "ab"], ("a", "b"), id="models"),
])  # fmt: skip
def test_settings_under_one_load_are_a_labelled_point_each(
    runs: list[Reported], labels: tuple[str, ...]
) -> None:
    panels = list(load_charts.plot_settings(runs))
    assert [panel.title for panel in panels] == [
        "TTFT against throughput", "TPOT against throughput", "Tokens/s per user against throughput",
    ]  # fmt: skip
    assert {panel.curves[0].labels for panel in panels} == {labels}
    assert {panel.curves[0].form for panel in panels} == {CurveStyle.MARKS}
    assert panels[-1].curves[-1].name == "best of all"
    assert list(load_charts.plot_settings(runs[:1] * 2)) == []  # one setting is no picture


def test_the_knee_is_a_band_with_its_figures_below(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = (1, 2, 4, 8, 16, 32, 64, 128)
    runs = [at("m", n, 90.0 * min(n, 12) * (1 + 0.01 * (-1) ** k), 6.0, 10.0) for k, n in enumerate(loads)]
    throughput = list(load_charts.plot_loads(runs))[-1]
    assert throughput.band is not None
    assert throughput.band[0] < 12 < throughput.band[1]
    assert throughput.x_log
    assert list(load_charts.plot_loads(runs[:4]))[-1].band is None
    monkeypatch.setattr(load_charts, "find_knee", lambda *given, **named: Knee(5.5, None, None))
    unbound = list(load_charts.plot_loads(runs))[-1]  # no end of it is known
    assert (unbound.band, "bends" in unbound.caption) == (None, False)
    assert "The curve bends at 12" in throughput.caption


def test_the_front_goes_through_points_that_no_other_beats_in_both() -> None:
    speeds = (
        ("good", 1, 100.0, 10.0),
        ("good", 8, 400.0, 20.0),
        ("bad", 1, 90.0, 12.5),
        ("bad", 8, 500.0, 50.0),
    )
    front = list(load_charts.plot_loads([at(*one[:3], 9.0, one[3]) for one in speeds]))[2].curves[-1]
    assert (front.name, front.x.tolist()) == ("best of all", [100.0, 400.0, 500.0])
    assert front.y.tolist() == [100.0, 50.0, 20.0]


def several(*models: str) -> list[Reported]:
    return [
        made_runs.reported(made_runs.run(concurrency=n, seed=n + 10 * at, model=model), model)
        for at, model in enumerate(models)
        for n in (1, 2, 4)
    ]


def test_the_terminal_draws_the_pictures_of_load_first() -> None:
    reported = several("m", "n")
    loads = list(load_charts.plot_loads(reported))
    lines = pictures.render_plots(reported, 80, plain=True, loads=loads).splitlines()
    titles = [line.strip() for line in lines if " against " in line]
    assert [title.partition(":")[0] for title in titles] == [panel.title for panel in loads]
    assert any("* m, P50" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if re.search(r"\de\d", line)]  # round numbers
    assert lines.count("points, from the left: 1, 2, 4") == 4
    two = np.array([1.0, 9.0])
    apart = Panel("k", "t", "x", "y", (Curve("m", two, two, CurveStyle.MARKS, ("a", "b")),))
    drawn = pictures.render_plots((), 80, plain=True, loads=[apart])  # marks are not joined
    assert drawn.count("*") == 2
    assert drawn.endswith("points, from the left: a, b\n")

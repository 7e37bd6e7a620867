"""Run charts: what is drawn is what was measured, in few points whatever a run's size."""

from __future__ import annotations

import numpy as np
import pytest

from builders import made_attributions as made
from builders import made_runs
from builders.loops import loop_over
from loadgen.base.passages import CurveStyle, Panel
from loadgen.base.structs import replace
from loadgen.features.attribution.attribution import PARTS
from loadgen.figures.distribution import Distribution
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.server.sample_file import KeptSamples, SampledSeries
from loadgen.study.pages import run_charts
from loadgen.study.pages.colours import DARK, LIGHT, SHADES
from loadgen.study.pages.run_charts import plot_waits

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


@pytest.mark.parametrize(
    ("count", "form"), [(30, CurveStyle.POINTS), (149, CurveStyle.POINTS), (150, CurveStyle.LINE)]
)
def test_a_line_joins_only_what_no_eye_could_part(count: int, form: CurveStyle) -> None:
    (panel,) = run_charts.plot_samples(sampled(evenly("running", "", count)))
    assert [curve.form for curve in panel.curves] == [form]
    assert (panel.x_end, len(panel.curves[0].x)) == (WINDOW_S, count)


@pytest.mark.parametrize("count", [1, 7, 29])
def test_below_30_samples_there_is_a_line_of_text(count: int) -> None:
    run = sampled(evenly("running", "", count), evenly("power_w", "GPU 0", count))
    assert list(run_charts.plot_samples(run)) == []
    samples = "1 sample" if count == 1 else f"{count} samples"
    expected = f"Requests in the server, Power: {samples} in {WINDOW_S:.3g} s, no chart below 30"
    assert run_charts.list_rarely_sampled(run) == [expected]


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

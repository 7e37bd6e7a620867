"""Charts of samples: a point is a sample, a line is many of them, and few are no chart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import made_runs
from loadgen import __version__
from loadgen.host.sensor_summary import SampledSeries
from loadgen.report.run_directory import Result
from loadgen.report.sample_file import KeptSamples
from loadgen.server.server_counters import ServerSample, ServerWindow
from loadgen.study.importers.clients import loadgen_runs
from loadgen.study.pages import sample_charts
from loadgen.study.pages.panel import CurveStyle

RUN = made_runs.run(window=None)
BEGIN_NS, WINDOW_S = sample_charts.measured_window(RUN.records) or (0, 0.0)


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
    (panel,) = sample_charts.panels(sampled(evenly("running", "", count)))
    assert [curve.form for curve in panel.curves] == [form]
    assert (panel.x_end, len(panel.curves[0].x)) == (WINDOW_S, count)


@pytest.mark.parametrize("count", [1, 7, 29])
def test_below_30_samples_there_is_a_line_of_text(count: int) -> None:
    run = sampled(evenly("running", "", count), evenly("power_w", "GPU 0", count))
    assert list(sample_charts.panels(run)) == []
    samples = "1 sample" if count == 1 else f"{count} samples"
    expected = f"Requests in the server, Power: {samples} in {WINDOW_S:.3g} s, no chart below 30"
    assert sample_charts.remarks(run) == [expected]


def test_seven_samples_in_a_minute_are_no_ramp() -> None:
    samples = tuple(ServerSample(at_s=at / 4, running=4.0 * (at > 3)) for at in range(7))
    run = made_runs.run(window=ServerWindow(samples=samples))
    assert list(sample_charts.panels(run)) == []


def test_a_line_is_lifted_where_samples_are_missing() -> None:
    whole = evenly("power_w", "", 300)
    held = np.flatnonzero((np.arange(300) < 100) | (np.arange(300) > 120))
    (panel,) = sample_charts.panels(
        sampled(SampledSeries("power_w", "", whole.at_ns[held], whole.values[held]))
    )
    x, y = panel.curves[0].x, panel.curves[0].y
    assert np.flatnonzero(np.isnan(x)).tolist() == np.flatnonzero(np.isnan(y)).tolist() == [100]


def test_samples_from_before_and_after_the_run_are_left_out() -> None:
    series = evenly("power_w", "", 300)
    moved = SampledSeries("power_w", "", series.at_ns - int(WINDOW_S * 0.5e9), series.values)
    (panel,) = sample_charts.panels(sampled(moved))
    assert panel.curves[0].x.min() >= 0
    assert panel.caption == "Sensors of this machine. 150 samples."


def test_each_sensor_has_its_chart_unit_and_place() -> None:
    run = sampled(
        evenly("server_bytes", "GPU 0", 40, 2**30),
        evenly("rss_bytes", "", 40, 2**30),
        evenly("power_w", "GPU 0", 40),
        evenly("temperature_c", "GPU 0", 40),
        evenly("temperature_c", "GPU 1", 40),
        evenly("sm_mhz", "GPU 0", 40),
        evenly("kv_cache_usage", "", 40, 0.01),
    )
    drawn = {
        panel.key: (panel.y_label, [curve.name for curve in panel.curves], panel.curves[0].y.max())
        for panel in sample_charts.panels(run)
    }
    assert drawn == {
        "server-kv-cache": ("%", ["KV cache"], pytest.approx(39)),
        "memory": ("GiB", ["GPU 0, server", "host, RSS"], 39),
        "power": ("W", ["GPU 0"], 39),
        "temperature": ("°C", ["GPU 0", "GPU 1"], 39),
        "clocks": ("MHz", ["GPU 0, SM"], 39),
    }


def test_of_many_sensors_as_many_are_drawn_as_there_are_colours() -> None:
    (panel,) = sample_charts.panels(sampled(*(evenly("power_w", f"GPU {at}", 40) for at in range(12))))
    assert len(panel.curves) == 8
    assert panel.caption.endswith(" 8 of 12 are drawn.")


def test_a_day_of_samples_is_drawn_in_few_points() -> None:
    (panel,) = sample_charts.panels(sampled(evenly("power_w", "", 2000)))
    assert len(panel.curves[0].x) <= sample_charts.MOST_DRAWN
    assert panel.curves[0].y.max() == 1999


@pytest.mark.parametrize("version", [__version__, "another"], ids=["stored figures", "computed again"])
def test_a_run_that_is_read_back_has_its_samples(version: str, tmp_path: Path) -> None:
    made = made_runs.run(window=None, environment={"loadgen": version})
    directory = made_runs.keep(
        replace(made, samples=KeptSamples((evenly("power_w", "GPU 0", 40),))), tmp_path
    )
    run = loadgen_runs.read_run(directory).run
    assert run is not None
    assert [(panel.key, panel.caption) for panel in sample_charts.panels(run)] == [
        ("power", "Sensors of this machine. GPU 0: 40 samples, a point each.")
    ]


def test_damaged_samples_are_a_remark() -> None:
    run = replace(RUN, samples=KeptSamples(error="samples.npz cannot be read: no archive"))
    assert sample_charts.remarks(run) == ["samples.npz cannot be read: no archive"]

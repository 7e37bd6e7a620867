"""Load charts: pictures of what was run under several loads, from anyone's figures."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import told
from loadgen.base.passages import Curve, CurveStyle, Panel
from loadgen.report.load_identity import Load
from loadgen.study.knee import Knee
from loadgen.study.pages import load_charts, pictures
from loadgen.study.run_summary import Reported


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

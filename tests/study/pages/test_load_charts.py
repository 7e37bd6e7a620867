"""Load charts: pictures of what was run under several loads, from anyone's figures."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import told
from loadgen.base.passages import CurveStyle, find_passage
from loadgen.base.tables import Number
from loadgen.report.load_identity import Load
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.knee import Knee
from loadgen.study.pages import load_charts, pictures
from loadgen.study.pages.comparison_section import COMPARISON
from loadgen.study.pages.document import Document, compose_document, render_markdown, render_page
from loadgen.study.run_summary import Reported


def at(
    model: str, concurrency: int | None, throughput: float, ttft: float, tpot: float, **load: Any
) -> Reported:
    where = Load(input_len=100.0, output_len=10.0, max_concurrency=concurrency, **load)
    return told(model, load=where, output_throughput=throughput, mean_ttft_ms=ttft, mean_tpot_ms=tpot)


def test_a_sweep_is_latency_over_throughput_from_the_lightest_load_on() -> None:
    runs = [at("m", 8, 400.0, 50.0, 20.0), at("m", 1, 90.0, 20.0, 10.0), at("m", 8, 420.0, 60.0, 20.0)]
    ttft, tpot, speed, throughput = load_charts.plot_loads(runs)
    assert ttft.curves[0].x.tolist() == [90.0, 410.0]
    assert ttft.curves[0].y.tolist() == [20.0, 55.0]
    assert ttft.curves[0].labels == ("1", "8")
    assert tpot.curves[0].y.tolist() == [10.0, 20.0]
    assert speed.curves[0].y.tolist() == [100.0, 50.0]
    assert (throughput.title, throughput.x_label) == ("Throughput against concurrency", "concurrency")
    assert (throughput.curves[0].x.tolist(), throughput.curves[0].y.tolist()) == ([1.0, 8.0], [90.0, 410.0])
    assert not any(throughput.curves[0].hollow)
    assert list(load_charts.plot_loads(runs[::2])) == []  # one load


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


def saturated_sweep() -> list[Reported]:
    """Three concurrencies, the last ended early."""
    whole = [made_runs.run(concurrency=n, seed=n) for n in (1, 2)]
    return [made_runs.reported(run) for run in (*whole, made_runs.saturated(concurrency=64, seed=3))]


def test_a_saturated_point_is_hollow_and_on_no_line() -> None:
    runs = saturated_sweep()
    throughput = next(each for each in load_charts.plot_loads(runs) if each.title.startswith("Throughput"))
    line, apart = throughput.curves
    assert line.x.tolist() == [1.0, 2.0]
    assert (apart.form, apart.x.tolist(), apart.hollow, apart.of) == (CurveStyle.MARKS, [64.0], (True,), 0)
    assert apart.labels == ("64 saturated",)
    assert apart.y.tolist() == [runs[2].held["output_throughput"]]
    assert "A saturated point is hollow" in throughput.caption


def test_a_saturated_point_is_in_no_curve_of_latencies() -> None:
    *latencies, _ = load_charts.plot_loads(saturated_sweep())
    assert [panel.title for panel in latencies] == [
        "TTFT against throughput", "TPOT against throughput", "Tokens/s per user against throughput",
    ]  # fmt: skip
    assert all(len(curve.x) == 2 for panel in latencies for curve in panel.curves)
    # The pictures stand next to one another: what is true of several is read once.
    assert ["Saturated points are left out" in panel.caption for panel in latencies] == [True, False, False]
    assert ["labels are the concurrency." in panel.caption for panel in latencies] == [True, False, False]


def test_lengths_that_were_asked_for_are_never_one_curve() -> None:
    runs = [
        at("m", n, 100.0 * n, 10.0, 10.0, asked_input_len=length, asked_output_len=10)
        for length in (1000, 1024)
        for n in (1, 4)
    ]
    panels = [panel for panel in load_charts.plot_loads(runs) if panel.title == "TTFT against throughput"]
    assert [panel.key for panel in panels] == ["sweep-ttft-1000-10", "sweep-ttft-1024-10"]
    assert [panel.caption.partition(";")[0] for panel in panels] == [
        "1000 tokens in and 10 out", "1024 tokens in and 10 out",
    ]  # fmt: skip


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


def test_a_knee_of_which_no_end_is_known_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_charts, "find_knee", lambda *given, **named: Knee(5.5, None, None))
    throughput = list(load_charts.plot_loads([at("m", n, 90.0 * n, 6.0, 10.0) for n in (1, 2)]))[-1]
    assert "bends" not in throughput.caption
    assert throughput.band is None


def test_the_front_goes_through_points_that_no_other_beats_in_both() -> None:
    runs = [
        at("good", 1, 100.0, 10.0, 10.0), at("good", 8, 400.0, 40.0, 20.0),
        at("bad", 1, 90.0, 20.0, 12.5), at("bad", 8, 500.0, 90.0, 50.0),
    ]  # fmt: skip
    front = list(load_charts.plot_loads(runs))[2].curves[-1]
    assert front.name == "best of all"
    assert (front.x.tolist(), front.y.tolist()) == ([100.0, 400.0, 500.0], [100.0, 50.0, 20.0])


def test_the_knee_is_a_band_with_its_figures_below() -> None:
    loads = (1, 2, 4, 8, 16, 32, 64, 128)
    runs = [at("m", n, 90.0 * min(n, 12) * (1 + 0.01 * (-1) ** k), 6.0, 10.0) for k, n in enumerate(loads)]
    throughput = list(load_charts.plot_loads(runs))[-1]
    assert throughput.band is not None
    assert throughput.band[0] < 12 < throughput.band[1]
    assert throughput.x_log
    assert "The curve bends at 12" in throughput.caption
    assert list(load_charts.plot_loads(runs[:4]))[-1].band is None


def several(*models: str) -> list[Reported]:
    return [
        made_runs.reported(made_runs.run(concurrency=n, seed=n + 10 * at, model=model), model)
        for at, model in enumerate(models)
        for n in (1, 2, 4)
    ]


def made(reported: list[Reported]) -> Document:
    return compose_document(reported, compare_runs(reported, ComparisonOptions()))


def test_a_row_a_load_and_a_picture_of_load() -> None:
    found = made(several("m"))
    loads = find_passage(found.sections, "loads")
    assert loads.table is not None
    assert found.sections == (loads,)
    assert [row[:2] for row in loads.table.body] == [("m", "1"), ("m", "2"), ("m", "4")]
    entry = loads.table.body[0][[column.title for column in loads.table.columns].index("TTFT ms")]
    assert isinstance(entry, Number)
    run = next(account.reported for account in found.accounts if account.reported.load.max_concurrency == 1)
    assert entry.value == run.figure("mean_ttft_ms")
    assert [panel.title for panel in loads.panels] == [
        "TTFT against throughput", "TPOT against throughput", "Tokens/s per user against throughput",
        "Throughput against concurrency",
    ]  # fmt: skip
    assert not find_passage(made(several("m")[:1]).sections, "loads")
    page, text = render_page(found), render_markdown(found)
    assert page.count('<section id="loads">') == page.count('<a href="#loads">') == 1
    assert page.count("<h4>Throughput against concurrency</h4>") == 1
    assert '<section id="sweeps">' not in page
    assert "## made: 64 in / 16 out, 24 requests" in text
    assert text.count("| m | 4 | ") == 1


def test_several_models_are_a_curve_each_and_compared_a_load() -> None:
    found = made(several("m", "n"))
    loads = find_passage(found.sections, "loads")
    assert loads.table is not None
    assert [row[0] for row in loads.table.body] == ["m"] * 3 + ["n"] * 3
    assert [curve.name for curve in loads.panels[3].curves] == ["m", "n"]
    assert sum(each.style == COMPARISON for each in found.sections) == 3


def test_the_pictures_of_load_are_one_picture_under_the_models_name() -> None:
    section = find_passage(made(several("m")).sections, "loads")
    heading = load_charts.title_loads(section)
    assert heading == "m, made: 64 in / 16 out, 24 requests"
    root = ElementTree.fromstring(pictures.render_picture(section.panels, "svg", heading))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in (heading, *(panel.title for panel in section.panels)) if text not in texts] == []
    assert root.get("width") == "1020pt"


def test_the_terminal_draws_the_pictures_of_load_first() -> None:
    found, reported = made(several("m", "n")), several("m", "n")
    loads = find_passage(found.sections, "loads")
    assert loads.table is not None
    lines = pictures.render_plots(reported, 80, plain=True, loads=loads.panels).splitlines()
    titles = [line.strip() for line in lines if " against " in line]
    assert titles == [
        "TTFT against throughput: TTFT, ms over output tokens/s, all requests",
        "TPOT against throughput: mean TPOT, ms over output tokens/s, all requests",
        "Tokens/s per user against throughput",
        "Throughput against concurrency: output tokens/s, all requests over concurrency",
    ]
    assert any("* m, P50" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if re.search(r"\de\d", line)]  # round numbers
    assert lines.count("points, from the left: 1, 2, 4") == 4

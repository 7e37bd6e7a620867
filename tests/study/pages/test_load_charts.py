"""Load charts: pictures of what was run under several loads, from anyone's figures."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import told
from loadgen.base.passages import Curve, CurveStyle, Panel, find_passage
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


def test_marks_of_settings_are_not_joined_in_the_terminal() -> None:
    two = np.array([1.0, 9.0])
    apart = Panel("k", "t", "x", "y", (Curve("m", two, two, CurveStyle.MARKS, ("a", "b")),))
    drawn = pictures.render_plots((), 80, plain=True, loads=[apart])
    assert drawn.count("*") == 2
    assert drawn.endswith("points, from the left: a, b\n")

"""Load section: one table of every load and its pictures, in HTML and Markdown."""

from __future__ import annotations

import re

import numpy as np

from builders import made_runs
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.pages import html, load_section, markdown, terminal
from loadgen.study.pages.document import Document, document
from loadgen.study.pages.drawing import WIDTH, Text
from loadgen.study.pages.formatting import Number
from loadgen.study.pages.panel import Curve, CurveStyle, Panel
from loadgen.study.run_summary import Reported


def several(*models: str) -> list[Reported]:
    return [
        made_runs.reported(made_runs.run(concurrency=n, seed=n + 10 * at, model=model), model)
        for at, model in enumerate(models)
        for n in (1, 2, 4)
    ]


def made(reported: list[Reported]) -> Document:
    return document(reported, compare_runs(reported, ComparisonOptions()))


def test_a_row_a_load_and_a_picture_of_load() -> None:
    found = made(several("m"))
    assert found.loads is not None
    assert (found.compared, found.sweeps) == ((), ())
    assert [row[:2] for row in found.loads.figures.rows] == [("m", "1"), ("m", "2"), ("m", "4")]
    entry = found.loads.figures.rows[0][found.loads.figures.titles.index("TTFT ms")]
    assert isinstance(entry, Number)
    run = next(account.reported for account in found.accounts if account.reported.load.max_concurrency == 1)
    assert entry.value == run.figure("mean_ttft_ms")
    assert [panel.title for panel in found.loads.pictures] == [
        "TTFT against throughput",
        "TPOT against throughput",
        "Tokens/s per user against throughput",
        "Throughput against concurrency",
    ]


def test_several_models_are_a_curve_each_and_compared_a_load() -> None:
    found = made(several("m", "n"))
    assert found.loads is not None
    assert [row[0] for row in found.loads.figures.rows] == ["m"] * 3 + ["n"] * 3
    assert [curve.name for curve in found.loads.pictures[3].curves] == ["m", "n"]
    assert len(found.compared) == 3


def test_the_pictures_of_load_are_one_picture_under_the_models_name() -> None:
    section = made(several("m")).loads
    assert section is not None
    about, drawing = load_section.picture(section)
    assert about.title == "m, made: 64 in / 16 out, 24 requests"
    assert drawing.width == 3 * WIDTH
    texts = [shape for shape in drawing.shapes if isinstance(shape, Text)]
    assert [text.text for text in texts if text.bold] == [about.title, *(p.title for p in section.pictures)]
    assert max(text.x for text in texts) > 2 * WIDTH


def test_the_terminal_draws_the_pictures_of_load_first() -> None:
    found, reported = made(several("m", "n")), several("m", "n")
    assert found.loads is not None
    lines = terminal.plots(reported, 80, plain=True, loads=found.loads.pictures).splitlines()
    titles = [line.strip() for line in lines if " against " in line]
    assert titles == [
        "TTFT against throughput: TTFT, ms over output tokens/s, all requests",
        "TPOT against throughput: mean TPOT, ms over output tokens/s, all requests",
        "Tokens/s per user against throughput",
        "Throughput against concurrency: output tokens/s, all requests over concurrency",
    ]
    assert any("* m, P50" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_the_terminal_has_round_numbers_and_the_loads_of_the_points() -> None:
    found, reported = made(several("m", "n")), several("m", "n")
    assert found.loads is not None
    text = terminal.plots(reported, 80, plain=True, loads=found.loads.pictures)
    assert re.search(r"\de\d", text) is None
    assert text.count("points, from the left: 1, 2, 4\n") == 4


def test_marks_of_settings_are_not_joined_in_the_terminal() -> None:
    two = np.array([1.0, 9.0])
    apart = Panel("k", "t", "x", "y", (Curve("m", two, two, CurveStyle.MARKS, ("a", "b")),))
    drawn = terminal.plots((), 80, plain=True, loads=[apart])
    assert drawn.count("*") == 2
    assert drawn.endswith("points, from the left: a, b\n")


def test_one_run_has_no_table_of_loads() -> None:
    assert made(several("m")[:1]).loads is None


def test_page_and_markdown_hold_the_table_once() -> None:
    found = made(several("m"))
    page, text = html.render(found), markdown.render(found)
    assert page.count('<section id="loads">') == page.count('<a href="#loads">') == 1
    assert page.count("<h4>Throughput against concurrency</h4>") == 1
    assert '<section id="sweeps">' not in page
    assert "## made: 64 in / 16 out, 24 requests" in text
    assert text.count("| m | 4 | ") == 1

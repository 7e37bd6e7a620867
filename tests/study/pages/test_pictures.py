"""Pictures: every panel as a file, the same every time, and its numbers as the page's script reads them."""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from builders import made_runs
from loadgen.base.passages import Bar, Curve, CurveStyle, Panel, Spans
from loadgen.study.compare.model import Decision
from loadgen.study.pages import comparison_section, document, load_charts, pictures, run_charts
from loadgen.study.pages.document import compose_document, encode_panel, render_page
from loadgen.study.pages.pictures import render_picture

EVIL = '<script>alert(1)</script> $x^2$ & "q" --> ]]>'
SVG = "{http://www.w3.org/2000/svg}"


def read_texts(panel: Panel) -> list[str]:
    """The texts of the panel's SVG file."""
    root = ElementTree.fromstring(render_picture([panel], "svg"))
    assert not list(root.iter(f"{SVG}script"))
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def evil() -> Panel:
    points = np.array([1.0, 2.0, 3.0])
    curves = tuple(
        Curve(f"{EVIL} {number}", points, points * number, CurveStyle.JOINED, (EVIL, "b", "c"))
        for number in (1, 2)
    )
    return Panel(key="k", title=EVIL, x_label=EVIL, y_label=EVIL, curves=curves, caption=EVIL)


def every() -> list[Panel]:
    """Each kind of panel once."""
    rows = [made_runs.reported(made_runs.run(concurrency=at, seed=at), "m") for at in (1, 2, 4)]
    found = made_runs.comparison(
        made_runs.line("base", (rows[0],)), made_runs.line("other", (rows[1],), Decision.FASTER, roofline=0.4)
    )
    panels = [
        *run_charts.plot_run(made_runs.run(failed=2)),
        *load_charts.plot_loads(rows),
        *comparison_section.plot_comparison(found),
    ]
    kinds = {
        (tuple(curve.form for curve in each.curves), len(each.spans), each.x_log): each for each in panels
    }
    return list(kinds.values())


def test_every_panel_is_a_file_with_its_title() -> None:
    panels = every()
    for panel in panels:
        assert panel.title in read_texts(panel)
    for form, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        picture = render_picture(panels[:1], form)
        assert picture.startswith(begin)
        assert picture == render_picture(panels[:1], form)  # the same bytes
    root = ElementTree.fromstring(render_picture(panels[:4], "svg", "A heading"))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"A heading", *(panel.title for panel in panels[:4])} <= {*texts}
    assert root.get("width") == "1020pt"


def test_names_are_text_and_neither_markup_nor_mathematics() -> None:
    texts = read_texts(evil())
    assert EVIL in texts
    assert any("$x^2$" in text and text.endswith("2") for text in texts)


def test_a_long_name_keeps_its_end() -> None:
    name = "Organisation/A-Model-With-A-Very-Long-Name-" + "x" * 60 + "-GPTQ-Int4"
    line = np.array([1.0, 2.0])
    curves = (Curve(name, line, line), Curve("m", line, line))
    for panel in (Panel("k", "t", "", bars=(Bar(name, 1.0, "1.00"),)), Panel("k", "t", "x", curves=curves)):
        (shown,) = (text for text in read_texts(panel) if "…" in text)
        assert shown.endswith("-GPTQ-Int4")


@pytest.mark.parametrize(("points", "shown"), [
    pytest.param([(1, 1, "a"), (9, 9, "b")], 2, id="apart"),
    pytest.param([(1, 1, "client"), (1.05, 1, "slow"), (9, 9, "far")], 3, id="near"),
    pytest.param([(5, 5, f"saturated {n}") for n in range(30)], None, id="no room for all"),
])  # fmt: skip
def test_no_label_lies_on_another(
    monkeypatch: pytest.MonkeyPatch, points: list[tuple[float, float, str]], shown: int | None
) -> None:
    x, y, labels = zip(*points, strict=True)
    curve = Curve("m", np.array(x), np.array(y), CurveStyle.MARKS, labels)
    boxes: list[Bbox] = []
    place = pictures._place_labels

    def keep(axes: Axes) -> None:
        place(axes)
        boxes.extend(text.get_window_extent() for text in axes.texts if text.get_visible())

    monkeypatch.setattr(pictures, "_place_labels", keep)
    render_picture([Panel("k", "t", "x", "y", (curve,))], "png")
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert len(boxes) == shown or (shown is None and 0 < len(boxes) < len(points))


X = np.array([1.0, 10.0, 123456.789])


def test_a_panel_s_numbers_are_for_the_script() -> None:
    curve = Curve("c", X, np.array([1 / 3, np.nan, 1e-7]), CurveStyle.POINTS, ("P50",))
    spans = Spans(EVIL, "failed", X[:1], X[1:2], X[:1])
    panel = Panel(
        "k", "t", "ms", "%", (curve,), (spans,), x_log=True, band=(0.0, np.float64(1.0)), y_top=100.0
    )
    read = json.loads(encode_panel(panel))
    (drawn,), (stretch,) = read["curves"], read["spans"]
    assert (drawn["x"], drawn["y"], drawn["form"]) == ([1, 10, 123460], [0.33333, None, 1e-7], "points")
    assert (stretch["name"], stretch["begin"], stretch["end"], stretch["at"]) == (EVIL, [1], [10], [1])
    assert (read["band"], read["y_top"], read["x_log"]) == ([0, 1], 100, True)
    assert read["pens"] == [["s1", [], [20, 0, 0]]]


PAGES = Path(document.__file__).parent


def test_the_library_of_the_page_is_what_its_makers_published() -> None:
    """Both files of npm's uplot 1.6.32, and its licence, which every page has."""
    script = (PAGES / "uPlot.iife.min.js").read_bytes()
    assert b"uPlot (v1.6.32)" in script[:100]
    assert hashlib.sha256(script).hexdigest() == (
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    )
    assert hashlib.sha256((PAGES / "uPlot.min.css").read_bytes()).hexdigest() == (
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
    )
    page, licence = render_page(compose_document([])), (PAGES / "uPlot.LICENSE").read_text("utf-8")
    assert [line for line in licence.splitlines() if line not in page] == []

"""Drawing: SVG that is safe inside a page, the same every time, and pictures in files."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.loops import loop_over
from loadgen.study.compare.model import Decision
from loadgen.study.pages import comparison_charts, inline_svg, load_charts, run_charts
from loadgen.study.pages.drawing import linear_ticks, log_ticks
from loadgen.study.pages.panel import Bar, Curve, CurveStyle, Panel

plots = pytest.importorskip("loadgen.study.pages.plots", reason="needs matplotlib", exc_type=ImportError)

EVIL = '<script>alert(1)</script> $x^2$ & "q" --> ]]>'
SVG = "{http://www.w3.org/2000/svg}"


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
        made_runs.line("base", (rows[0],)),
        made_runs.line("other", (rows[1],), Decision.FASTER, roofline=0.4),
    )
    return [
        *run_charts.panels(made_runs.run(failed=2)),
        *load_charts.sweeps(rows),
        *comparison_charts.comparison(found),
    ]


@loop_over("panel", every())
def test_a_page_s_svg_reaches_nothing_outside_itself(panel: Panel) -> None:
    drawn = inline_svg.inline(panel, "here")
    root = ElementTree.fromstring(drawn)
    assert root.tag == "svg"
    assert {element.tag for element in root.iter()} <= {"svg", "title", "path", "text"}
    ids = re.findall(r'\bid="([^"]+)"', drawn)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("here-") for name in ids)
    pointed = set(re.findall(r"url\(#([^)]+)\)", drawn)) | set(re.findall(r'href="#([^"]+)"', drawn))
    assert pointed <= set(ids)
    assert not re.search(r'href="[^#]|url\([^#]|https?:', drawn)


@loop_over("panel", every())
def test_a_page_s_svg_has_the_page_s_colours_alone(panel: Panel) -> None:
    assert set(re.findall(r"#[0-9a-f]{6}\b", inline_svg.inline(panel, "here"))) == set()


@loop_over("panel", every())
def test_a_file_s_svg_has_real_colours(panel: Panel) -> None:
    text = inline_svg.standalone(panel)
    assert "var(" not in text
    assert "#ffffff" in text


def test_the_same_panel_gives_the_same_bytes(tmp_path: Path) -> None:
    panel = every()[0]
    assert inline_svg.inline(panel, "a") == inline_svg.inline(panel, "a")
    assert inline_svg.standalone(panel) == inline_svg.standalone(panel)
    first, second = tmp_path / "1.png", tmp_path / "2.png"
    plots.save_png(panel, first)
    plots.save_png(panel, second)
    assert first.read_bytes() == second.read_bytes()


def test_names_are_text_and_neither_markup_nor_mathematics() -> None:
    drawn = inline_svg.inline(evil(), "here")
    assert "<script" not in drawn
    root = ElementTree.fromstring(drawn)
    said = [element.text or "" for element in root.iter("text")]
    assert any("$x^2$" in text for text in said)
    assert (root.findtext("title") or "").startswith(EVIL)


def test_a_file_s_names_are_text_too() -> None:
    root = ElementTree.fromstring(inline_svg.standalone(evil()))
    assert not list(root.iter(f"{SVG}script"))
    assert any(element.text == EVIL for element in root.iter(f"{SVG}text"))


def test_letters_that_matplotlib_s_font_lacks_are_no_trouble(tmp_path: Path) -> None:
    panel = replace(evil(), title="模型", y_label="速度")
    assert "速度" in inline_svg.inline(panel, "here")
    plots.save_png(panel, tmp_path / "a.png")


def test_a_long_name_keeps_its_end() -> None:
    name = "Organisation/A-Model-With-A-Very-Long-Name-" + "x" * 60 + "-GPTQ-Int4"
    panel = Panel(key="k", title="t", x_label="", bars=(Bar(name, 1.0, "1.00"),))
    (shown,) = [
        text.text
        for text in ElementTree.fromstring(inline_svg.inline(panel, "a")).iter("text")
        if "…" in (text.text or "")
    ]
    assert shown is not None
    assert shown.endswith("-GPTQ-Int4")
    assert len(shown) <= 52


@pytest.mark.parametrize(
    "bars",
    [
        pytest.param((Bar("a", 0.0, "0"),), id="nothing"),
        pytest.param((Bar("a", 1.0, "1", -5.0, 7.0),), id="an interval below nothing"),
        pytest.param((Bar("a", 1.0, "1", best=3.0), Bar("b", 2.0, "2")), id="a best beyond the bar"),
    ],
)
def test_any_bar_can_be_drawn(bars: tuple[Bar, ...]) -> None:
    assert inline_svg.inline(Panel(key="k", title="t", x_label="", bars=bars), "a").startswith("<svg")


def test_a_single_point_can_be_drawn() -> None:
    one = np.array([3.0])
    for log in (False, True):
        panel = Panel("k", "t", "x", curves=(Curve("c", one, one, CurveStyle.JOINED),), x_log=log)
        assert inline_svg.inline(panel, "a").startswith("<svg")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 10.0, [0, 2, 4, 6, 8, 10]),
        (-0.1, 102.0, [0, 20, 40, 60, 80, 100]),
        (0.00031, 0.00049, [0.00035, 0.0004, 0.00045]),
        (3.0, 3.0000001, [3, 3.00000002, 3.00000004, 3.00000006, 3.00000008, 3.0000001]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, ticks: list[float]) -> None:
    assert linear_ticks(low, high, 6).tolist() == pytest.approx(ticks)


def test_between_two_requests_there_is_no_tick() -> None:
    assert linear_ticks(0.4, 3.6, 6, whole=True).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.0, 10.0, [1, 2, 5, 10]),
        (1.0, 100.0, [1, 3, 10, 30, 100]),
        (9.0, 9e4, [10, 100, 1000, 10000]),
        (6.0, 7.0, [6, 7]),
    ],
)
def test_a_logarithmic_axis_has_fewer_ticks_the_more_decades(
    low: float, high: float, ticks: list[float]
) -> None:
    assert log_ticks(low, high).tolist() == pytest.approx(ticks)


def test_a_value_stands_where_the_axis_has_it() -> None:
    """The tick of a value and a point of that value have one place."""
    points = np.array([0.0, 50.0, 100.0])
    panel = Panel("k", "t", "x", curves=(Curve("c", points, points),), x_end=100.0, y_top=100.0)
    root = ElementTree.fromstring(inline_svg.inline(panel, "a"))
    ticks = {text.text: text for text in root.iter("text") if text.get("data-part") == "x"}
    line = next(path for path in root.iter("path") if path.get("stroke") == "var(--s1)")
    steps = re.findall(r"[ml](\d*\.?\d*)", line.get("d") or "")
    begin, middle, end = itertools.accumulate(map(float, steps))
    placed = [float(ticks[name].get("x", "nan")) for name in ("0", "100")]
    assert placed == pytest.approx([begin, end], abs=0.11)
    assert middle == pytest.approx((begin + end) / 2, abs=0.11)

"""Picture files: SVG that is safe inside a page, the same every time, PNG, and the numbers for the script."""

from __future__ import annotations

import itertools
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.loops import loop_over
from loadgen.study.compare.model import Decision
from loadgen.study.pages import comparison_section, load_charts, run_charts
from loadgen.study.pages.drawing import choose_linear_ticks, choose_log_ticks, draw_panel
from loadgen.study.pages.page_parts import Bar, Curve, CurveStyle, Panel, Spans
from loadgen.study.pages.picture_files import render_inline_svg, render_png, render_svg, round_values

pytest.importorskip("matplotlib", reason="needs matplotlib")

EVIL = '<script>alert(1)</script> $x^2$ & "q" --> ]]>'
SVG = "{http://www.w3.org/2000/svg}"


def write_standalone(panel: Panel) -> str:
    """The panel as an SVG file has it."""
    return render_svg(draw_panel(panel, titled=True), panel)


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
    return [
        *run_charts.plot_run(made_runs.run(failed=2)),
        *load_charts.plot_loads(rows),
        *comparison_section.plot_comparison(found),
    ]


@loop_over("panel", every())
def test_a_page_s_svg_reaches_nothing_outside_itself(panel: Panel) -> None:
    drawn = render_inline_svg(panel, "here")
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
    assert set(re.findall(r"#[0-9a-f]{6}\b", render_inline_svg(panel, "here"))) == set()


@loop_over("panel", every())
def test_a_file_s_svg_has_real_colours(panel: Panel) -> None:
    text = write_standalone(panel)
    assert "var(" not in text
    assert "#ffffff" in text


def test_the_same_panel_gives_the_same_bytes() -> None:
    panel = every()[0]
    assert render_inline_svg(panel, "a") == render_inline_svg(panel, "a")
    assert write_standalone(panel) == write_standalone(panel)
    assert render_png(draw_panel(panel, titled=True)) == render_png(draw_panel(panel, titled=True))


def test_names_are_text_and_neither_markup_nor_mathematics() -> None:
    drawn = render_inline_svg(evil(), "here")
    assert "<script" not in drawn
    root = ElementTree.fromstring(drawn)
    said = [element.text or "" for element in root.iter("text")]
    assert any("$x^2$" in text for text in said)
    assert (root.findtext("title") or "").startswith(EVIL)


def test_a_file_s_names_are_text_too() -> None:
    root = ElementTree.fromstring(write_standalone(evil()))
    assert not list(root.iter(f"{SVG}script"))
    assert any(element.text == EVIL for element in root.iter(f"{SVG}text"))


def test_letters_that_matplotlib_s_font_lacks_are_no_trouble() -> None:
    panel = replace(evil(), title="模型", y_label="速度")
    assert "速度" in render_inline_svg(panel, "here")
    assert render_png(draw_panel(panel, titled=True)).startswith(b"\x89PNG")


def test_a_long_name_keeps_its_end() -> None:
    name = "Organisation/A-Model-With-A-Very-Long-Name-" + "x" * 60 + "-GPTQ-Int4"
    panel = Panel(key="k", title="t", x_label="", bars=(Bar(name, 1.0, "1.00"),))
    (shown,) = [
        text.text
        for text in ElementTree.fromstring(render_inline_svg(panel, "a")).iter("text")
        if "…" in (text.text or "")
    ]
    assert shown is not None
    assert shown.endswith("-GPTQ-Int4")
    assert len(shown) <= 52


@pytest.mark.parametrize("bars", [
    pytest.param((Bar("a", 0.0, "0"),), id="nothing"),
    pytest.param((Bar("a", 1.0, "1", -5.0, 7.0),), id="an interval below nothing"),
    pytest.param((Bar("a", 1.0, "1", best=3.0), Bar("b", 2.0, "2")), id="a best beyond the bar"),
])  # fmt: skip
def test_any_bar_can_be_drawn(bars: tuple[Bar, ...]) -> None:
    assert render_inline_svg(Panel(key="k", title="t", x_label="", bars=bars), "a").startswith("<svg")


def test_a_single_point_can_be_drawn() -> None:
    one = np.array([3.0])
    for log in (False, True):
        panel = Panel("k", "t", "x", curves=(Curve("c", one, one, CurveStyle.JOINED),), x_log=log)
        assert render_inline_svg(panel, "a").startswith("<svg")


@pytest.mark.parametrize(("low", "high", "ticks"), [
    (0.0, 10.0, [0, 2, 4, 6, 8, 10]),
    (-0.1, 102.0, [0, 20, 40, 60, 80, 100]),
    (0.00031, 0.00049, [0.00035, 0.0004, 0.00045]),
    (3.0, 3.0000001, [3, 3.00000002, 3.00000004, 3.00000006, 3.00000008, 3.0000001]),
])  # fmt: skip
def test_ticks_are_round_and_few(low: float, high: float, ticks: list[float]) -> None:
    assert choose_linear_ticks(low, high, 6).tolist() == pytest.approx(ticks)


def test_between_two_requests_there_is_no_tick() -> None:
    assert choose_linear_ticks(0.4, 3.6, 6, whole=True).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("low", "high", "ticks"), [
    (1.0, 10.0, [1, 2, 5, 10]), (1.0, 100.0, [1, 3, 10, 30, 100]), (9.0, 9e4, [10, 100, 1000, 10000]),
    (6.0, 7.0, [6, 7]),
])  # fmt: skip
def test_a_logarithmic_axis_has_fewer_ticks_the_more_decades(
    low: float, high: float, ticks: list[float]
) -> None:
    assert choose_log_ticks(low, high).tolist() == pytest.approx(ticks)


def test_a_value_stands_where_the_axis_has_it() -> None:
    """The tick of a value and a point of that value have one place."""
    points = np.array([0.0, 50.0, 100.0])
    panel = Panel("k", "t", "x", curves=(Curve("c", points, points),), x_end=100.0, y_top=100.0)
    root = ElementTree.fromstring(render_inline_svg(panel, "a"))
    ticks = {text.text: text for text in root.iter("text") if text.get("data-part") == "x"}
    line = next(path for path in root.iter("path") if path.get("stroke") == "var(--s1)")
    steps = re.findall(r"[ml](\d*\.?\d*)", line.get("d") or "")
    begin, middle, end = itertools.accumulate(map(float, steps))
    placed = [float(ticks[name].get("x", "nan")) for name in ("0", "100")]
    assert placed == pytest.approx([begin, end], abs=0.11)
    assert middle == pytest.approx((begin + end) / 2, abs=0.11)


X = np.array([1.0, 10.0, 123456.789])


def data(panel: Panel) -> tuple[dict[str, object], ElementTree.Element]:
    root = ElementTree.fromstring(render_inline_svg(panel, "a"))
    return json.loads(root.get("data-chart") or "{}"), root


def test_a_curve_s_numbers_are_in_its_picture() -> None:
    curve = Curve("c", X, np.array([0.5, np.nan, 2.0]), CurveStyle.POINTS, ("P50",))
    found, _ = data(Panel("k", "t", "ms", "%", curves=(curve,), x_log=True, band=(0.0, 1.0), y_top=100.0))
    axes = found.pop("axes")
    assert found == {
        "units": ["ms", "%"],
        "curves": [["c", "points", [1, 10, 123460], [0.5, None, 2], ["P50"]]],
        "band": [0, 1],
        "top": 100.0,
    }
    assert [axis[4] for axis in axes] == [1, 0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("x_log", "label"), [(True, "ms (log)"), (False, "ms")])
def test_an_axis_says_when_it_is_logarithmic(x_log: bool, label: str) -> None:
    _, root = data(Panel("k", "t", "ms", curves=(Curve("c", X, X),), x_log=x_log))
    assert [text.text for text in root.iter("text") if text.get("data-part") == "u"] == [label]


def test_a_logarithmic_y_axis_has_all_that_is_above_0() -> None:
    values = np.array([0.0, 0.1, 100.0])
    found, root = data(Panel("k", "t", "s", "ratio", curves=(Curve("c", X, values),), y_log=True))
    low, high, *_, log = found["axes"][1]  # type: ignore[index]
    assert (low, high, log) == (pytest.approx(-1.12), pytest.approx(2.12), 1)
    ticks = [text.text for text in root.iter("text") if text.get("data-part") == "y"]
    assert ticks == ["0.1", "1", "10", "100"]
    assert "ratio (log)" in [text.text for text in root.iter("text")]


def test_spans_are_their_rows() -> None:
    begin, end = np.array([0.0, 1.0]), np.array([1.0, 3.0])
    found, _ = data(Panel("k", "t", "s", spans=(Spans("failed", "failed", begin, end, begin + 1),)))
    assert found["spans"] == [["failed", [0, 1], [1, 3], [1, 2]]]


def test_bars_have_their_values_written_and_no_axes() -> None:
    _, root = data(Panel("k", "t", "", bars=(Bar("a", 1.0, "1"),)))
    assert root.get("data-chart") is None


def test_a_name_that_is_a_script_is_text_in_an_attribute() -> None:
    evil = '"><script>alert(1)</script>'
    found, root = data(Panel("k", "t", "s", curves=(Curve(evil, X, X), Curve("b", X, X))))
    assert found["curves"][0][0] == evil  # type: ignore[index]
    assert "script" not in {element.tag for element in root.iter()}


@loop_over(
    ("value", "short"), [(0.0, 0), (1 / 3, 0.33333), (123456.0, 123460), (1e-7, 1e-7), (float("nan"), None)]
)
def test_numbers_are_as_long_as_a_screen_can_show(value: float, short: float | None) -> None:
    assert round_values([value]) == [short]


def test_what_a_picture_is_made_of_is_marked_for_the_script() -> None:
    curves = (Curve("a", X, X, CurveStyle.JOINED), Curve("b", X, X))
    _, root = data(Panel("k", "t", "s", curves=curves, band=(0.0, 5.0)))
    parts = [element.get("data-part") or "" for element in root.iter("path")]
    assert "".join(parts) == "bgacmmmc"

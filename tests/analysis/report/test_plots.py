"""Plots: SVG that is safe inside a page, the same every time, and pictures in files."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_runs
from loadgen.analysis.comparison.model import Call
from loadgen.analysis.report import comparison_charts, run_charts
from loadgen.analysis.report.panel import Bar, Curve, CurveStyle, Panel
from loadgen.errors import UsageError

plots = pytest.importorskip("loadgen.analysis.report.plots", reason="needs matplotlib", exc_type=ImportError)
vector = pytest.importorskip("loadgen.analysis.report.inline_svg", exc_type=ImportError)

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
        made_runs.line("other", (rows[1],), Call.FASTER, roofline=0.4),
    )
    return [
        *run_charts.panels(made_runs.run(failed=2)),
        *comparison_charts.sweeps(rows),
        *comparison_charts.comparison(found),
    ]


@pytest.mark.parametrize("panel", every(), ids=lambda panel: panel.key)
def test_a_page_s_svg_reaches_nothing_outside_itself(panel: Panel) -> None:
    drawn = vector.inline(panel, "here")
    root = ElementTree.fromstring(drawn)
    assert root.tag == "svg"
    assert {element.tag for element in root.iter()} <= {
        "svg", "title", "defs", "g", "path", "text", "use", "clipPath", "rect", "tspan",
    }  # fmt: skip
    ids = re.findall(r'\bid="([^"]+)"', drawn)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("here-") for name in ids)
    pointed = set(re.findall(r"url\(#([^)]+)\)", drawn)) | set(re.findall(r'href="#([^"]+)"', drawn))
    assert pointed <= set(ids)
    assert not re.search(r'href="[^#]|url\([^#]|https?:', drawn)


@pytest.mark.parametrize("panel", every(), ids=lambda panel: panel.key)
def test_a_page_s_svg_has_the_page_s_colours_alone(panel: Panel) -> None:
    assert set(re.findall(r"#[0-9a-f]{6}\b", vector.inline(panel, "here"))) == set()


@pytest.mark.parametrize("panel", every(), ids=lambda panel: panel.key)
def test_a_file_s_svg_has_real_colours(panel: Panel, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    plots.save(panel, path)
    text = path.read_text("utf-8")
    assert "var(" not in text
    assert not re.search(r"#f[01][0-9a-f]{2}5e", text)
    assert "#ffffff" in text


def test_the_same_panel_gives_the_same_bytes(tmp_path: Path) -> None:
    panel = every()[0]
    assert vector.inline(panel, "a") == vector.inline(panel, "a")
    for form in ("svg", "png"):
        first, second = tmp_path / f"1.{form}", tmp_path / f"2.{form}"
        plots.save(panel, first)
        plots.save(panel, second)
        assert first.read_bytes() == second.read_bytes()


def test_names_are_text_and_neither_markup_nor_mathematics() -> None:
    drawn = vector.inline(evil(), "here")
    assert "<script" not in drawn
    root = ElementTree.fromstring(drawn)
    said = [element.text or "" for element in root.iter("text")]
    assert any("$x^2$" in text for text in said)
    assert (root.findtext("title") or "").startswith(EVIL)


def test_a_file_s_names_are_text_too(tmp_path: Path) -> None:
    plots.save(evil(), tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert not list(root.iter(f"{SVG}script"))
    assert any(element.text == EVIL for element in root.iter(f"{SVG}text"))


def test_letters_that_matplotlib_s_font_lacks_are_no_trouble(tmp_path: Path) -> None:
    panel = replace(evil(), title="模型", y_label="速度")
    assert "速度" in vector.inline(panel, "here")
    plots.save(panel, tmp_path / "a.png")


def test_a_long_name_keeps_its_end() -> None:
    name = "Organisation/A-Model-With-A-Very-Long-Name-" + "x" * 60 + "-GPTQ-Int4"
    panel = Panel(key="k", title="t", x_label="", bars=(Bar(name, 1.0, "1.00"),))
    (shown,) = [
        text.text
        for text in ElementTree.fromstring(vector.inline(panel, "a")).iter("text")
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
    assert vector.inline(Panel(key="k", title="t", x_label="", bars=bars), "a").startswith("<svg")


def test_a_single_point_can_be_drawn() -> None:
    one = np.array([3.0])
    for log in (False, True):
        panel = Panel("k", "t", "x", curves=(Curve("c", one, one, CurveStyle.JOINED),), x_log=log)
        assert vector.inline(panel, "a").startswith("<svg")


def test_where_nothing_can_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*none.* choose another directory"):
        plots.save(every()[0], tmp_path / "none" / "a.png")

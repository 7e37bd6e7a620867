"""Chart data: the numbers behind a picture, as the page's script reads them."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.study.pages import chart_data, inline_svg
from loadgen.study.pages.panel import Bar, Curve, CurveStyle, Panel, Spans, Tone

X = np.array([1.0, 10.0, 123456.789])


def data(panel: Panel) -> tuple[dict[str, object], ElementTree.Element]:
    root = ElementTree.fromstring(inline_svg.inline(panel, "a"))
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


def test_spans_are_their_rows() -> None:
    begin, end = np.array([0.0, 1.0]), np.array([1.0, 3.0])
    found, _ = data(Panel("k", "t", "s", spans=(Spans("failed", Tone.FAILED, begin, end, begin + 1),)))
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
    assert chart_data.rounded([value]) == [short]


def test_what_a_picture_is_made_of_is_marked_for_the_script() -> None:
    curves = (Curve("a", X, X, CurveStyle.JOINED), Curve("b", X, X))
    _, root = data(Panel("k", "t", "s", curves=curves, band=(0.0, 5.0)))
    parts = [element.get("data-part") or "" for element in root.iter("path")]
    assert "".join(parts) == "bgacmmmc"

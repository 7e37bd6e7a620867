"""Drawing: names are cut to their room, and no label lies on another or on a mark."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from loadgen.study.pages import drawing
from loadgen.study.pages.drawing import WIDTH, Box, Part, Text, draw_panel
from loadgen.study.pages.page_parts import Curve, CurveStyle, Panel

LONG = "Qwen3-0.6B-Instruct (--max-num-seqs=8, --enable-prefix-caching) (SIMULATED), P99"


def texts(panel: Panel) -> list[Text]:
    return [shape for shape in draw_panel(panel, titled=True).shapes if isinstance(shape, Text)]


def panel(*curves: Curve) -> Panel:
    return Panel("k", "t", "x", "y", curves)


def marks(*points: tuple[float, float, str]) -> Curve:
    x, y, labels = zip(*points, strict=True)
    return Curve("m", np.array(x), np.array(y), CurveStyle.MARKS, labels)


def box(text: Text) -> Box:
    long = drawing.measure_text(text.text, text.size)
    left = text.x if text.anchor == "start" else text.x - long
    return left, text.y - text.size, left + long, text.y


@pytest.mark.parametrize("name", ["m", LONG, "W" * 80])
def test_a_name_in_a_legend_stays_in_its_picture(name: str) -> None:
    line = np.array([1.0, 2.0])
    shown = texts(panel(Curve(name, line, line), Curve(f"{name} too", line, 2 * line)))
    assert max(box(text)[2] for text in shown) <= WIDTH


def test_a_name_that_has_room_is_whole() -> None:
    assert drawing.fit_name("Qwen3-8B (SIMULATED), P50", 300) == "Qwen3-8B (SIMULATED), P50"
    cut = drawing.fit_name(LONG, 200)
    assert "…" in cut
    assert cut.endswith("(SIMULATED), P99")


@pytest.mark.parametrize(("points", "shown"), [
    pytest.param([(1, 1, "a"), (9, 9, "b")], ["a", "b"], id="apart"),
    pytest.param([(1, 1, "client"), (1.05, 1, "slow"), (9, 9, "")], ["client", "slow", ""], id="near"),
    pytest.param([(5, 5, f"saturated {n}") for n in range(30)], None, id="no room for all"),
])  # fmt: skip
def test_no_label_lies_on_another(points: list[tuple[float, float, str]], shown: list[str] | None) -> None:
    labels = [text for text in texts(panel(marks(*points))) if text.part is Part.LABEL]
    assert len(labels) == len(points)  # one a point: the page's script counts them
    boxes = [box(text) for text in labels if text.text]
    for (left, top, right, bottom), (a, t, r, b) in combinations(boxes, 2):
        assert right <= a or r <= left or bottom <= t or b <= top
    assert shown is None or [text.text for text in labels] == shown


def test_a_curve_of_anothers_colour_is_not_in_the_legend() -> None:
    line = np.array([1.0, 2.0])
    whole = Curve("m", line, line, CurveStyle.JOINED)
    apart = Curve("m, saturated", line, line, CurveStyle.MARKS, of=0)
    assert "m, saturated" not in [text.text for text in texts(panel(whole, apart))]

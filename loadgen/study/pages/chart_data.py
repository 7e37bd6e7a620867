"""Chart data: what a picture on a page was drawn from, for the page's script: hover values and zoom."""

from __future__ import annotations

import json
from collections.abc import Sequence

from loadgen.study.pages.drawing import Axis
from loadgen.study.pages.panel import Floats, Panel

_DIGITS = 5  # more than a screen can show of any axis


def dumped(panel: Panel, axes: Sequence[Axis]) -> str:
    """A panel's numbers as JSON, with the axes x and y as [low, high, first pixel, last pixel, log or not].

    Curves are [name, form, x, y, labels], spans are [name, begin, end, at]; null where there is no value.
    """
    chart: dict[str, object] = {
        "axes": [[*rounded([axis.low, axis.high, axis.start, axis.end]), int(axis.log)] for axis in axes],
        "units": [panel.x_label, panel.y_label],
        "curves": [
            [curve.name, curve.form.value, rounded(curve.x), rounded(curve.y), list(curve.labels)]
            for curve in panel.curves
        ],
    }
    if panel.spans:
        chart["spans"] = [
            [spans.name, rounded(spans.begin), rounded(spans.end), rounded(spans.at)] for spans in panel.spans
        ]
    if panel.band is not None:
        chart["band"] = rounded(panel.band)
    if panel.y_top is not None:
        chart["top"] = panel.y_top  # the y axis stays as it is
    return json.dumps(chart, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def rounded(values: Floats | Sequence[float]) -> list[float | int | None]:
    """Each to as many digits as are shown, whole numbers without a point; None of NaN."""
    return [_short(float(value)) for value in values]


def _short(value: float) -> float | int | None:
    if value != value:
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() else short

"""Plots: a panel as a picture in a file, drawn by matplotlib."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadgen.base.files import ANYONES, write_output
from loadgen.study.pages.drawing import DOTS_OPACITY, Drawing, Polyline, Text, draw
from loadgen.study.pages.palette import LIGHT
from loadgen.study.pages.panel import Panel

_DOTS_PER_INCH = 144  # of 72 CSS pixels
_METADATA = {"Software": None}
_SETTINGS: Any = {"text.parse_math": False, "text.usetex": False, "font.family": ["DejaVu Sans"]}
_ALIGNED = {"start": "left", "middle": "center", "end": "right"}


def save_png(panel: Panel, path: Path) -> None:
    """Write the panel as a picture, on white and with its title; raises OSError."""
    save_drawing(draw(panel, titled=True), path)


def save_drawing(drawing: Drawing, path: Path) -> None:
    """Write a drawing as a picture, on white; raises OSError."""
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # they are drawn as boxes
        figure = Figure(figsize=(drawing.width / 72, drawing.height / 72), dpi=72, facecolor=LIGHT["paper"])
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        for shape in drawing.shapes:
            if isinstance(shape, Text):
                _text(axes, shape)
            else:
                _outline(axes, shape)
        save = partial(figure.savefig, format="png", dpi=_DOTS_PER_INCH, metadata=_METADATA)
        write_output(path, save, mode=ANYONES)


def _text(axes: Axes, text: Text) -> None:
    axes.text(
        text.x, text.y, text.text, color=LIGHT[text.colour], size=text.size, ha=_ALIGNED[text.anchor],
        va="baseline", weight="bold" if text.bold else "normal",
    )  # fmt: skip


def _outline(axes: Axes, outline: Polyline) -> None:
    x, y = outline.points.T
    if outline.fill:
        axes.fill(x, y, color=LIGHT[outline.fill], linewidth=0)
    if outline.dots:
        axes.plot(x, y, color=LIGHT[outline.stroke], linestyle="none", marker="o", alpha=DOTS_OPACITY,
                  markersize=outline.width, markeredgewidth=0)  # fmt: skip
    elif outline.stroke:
        dashes: dict[str, Any] = (
            {"dashes": tuple(np.array(outline.dash) / outline.width)} if outline.dash else {}
        )
        axes.plot(x, y, color=LIGHT[outline.stroke], linewidth=outline.width, solid_capstyle="butt",
                  dash_capstyle="butt", solid_joinstyle="round", **dashes)  # fmt: skip

"""Page parts: the values that every form of a report is written from: tables and coloured panels."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.tables import Passage, Table
from loadgen.features.attribution.parts import PARTS
from loadgen.study import repeats

Floats = NDArray[np.floating[Any]]
NAN = float("nan")
_WIDE = 16

# Colours that people with any colour vision tell apart (after Okabe and Ito 2008), each with a dash.
_LIGHT_SERIES = ("#0069b4", "#c84800", "#007a5a", "#a3457e", "#9a6700", "#2a8fbd", "#5b5b5b", "#7b3fb5")
_DARK_SERIES = ("#5cb2f0", "#ff9358", "#3ccfa0", "#ec9dca", "#ecc04c", "#8bd8ff", "#bdbdbd", "#c3a0f5")
_SERIES = tuple(f"s{number}" for number in range(1, len(_LIGHT_SERIES) + 1))
_DASHES: tuple[tuple[float, ...], ...] = (
    (), (5, 1.6), (1.4, 1.4), (6, 1.6, 1.4, 1.6), (9, 2), (3, 1, 1, 1, 1, 1), (2.5, 2.5), (7, 1, 1, 1),
)  # fmt: skip
_MARKS = ((20, 0, 0), (4, 0, 45), (3, 0, 0), (4, 0, 0), (3, 0, 180), (5, 1, 0), (4, 1, 45), (5, 0, 0))
SHADES = {part.key: f"part-{part.key}" for part in PARTS}  # of a wait: violet, greens, yellows, blues, grey
_LIGHT_SHADES = (
    "#7b3fb5", "#b792db", "#3d8f73", "#8fd0b4", "#0b6e4f", "#12a37a", "#5ec2b0", "#a3d9c0", "#d9a927",
    "#9a6700", "#0069b4", "#a9d0f2", "#0a3a66", "#4d5fd1", "#2484d6", "#b3bac2",
)  # fmt: skip
_DARK_SHADES = (
    "#c3a0f5", "#7d5fb0", "#2f9c7a", "#1d6b52", "#8be0bf", "#3ccfa0", "#4f9c82", "#226f57", "#8a6a1c",
    "#ecc04c", "#5cb2f0", "#2b5f8c", "#7fd3ea", "#8f9cff", "#4aa0e6", "#5a6570",
)  # fmt: skip
# A page's variables have the names of these roles; `band` is behind what stands out, `faint` labels axes.
LIGHT = {
    "paper": "#ffffff", "text": "#1d2329", "faint": "#59636e", "grid": "#e2e6ea", "band": "#eef3f8",
    "wait": "#b3bac2", "prefill": "#c84800", "decode": "#0069b4", "failed": "#c01048",
    **dict(zip(_SERIES, _LIGHT_SERIES, strict=True)),
    **dict(zip(SHADES.values(), _LIGHT_SHADES, strict=True)),
}  # fmt: skip
DARK = {
    "paper": "#15191e", "text": "#e4e8ec", "faint": "#9aa5b0", "grid": "#2b323a", "band": "#1d2732",
    "wait": "#5a6570", "prefill": "#ff9358", "decode": "#5cb2f0", "failed": "#ff6b93",
    **dict(zip(_SERIES, _DARK_SERIES, strict=True)), **dict(zip(SHADES.values(), _DARK_SHADES, strict=True)),
}  # fmt: skip


class Pen(NamedTuple):
    """How a curve is drawn: its colour's role, dash in widths of the line, and mark as matplotlib has it."""

    colour: str
    dash: tuple[float, ...]
    mark: tuple[int, int, float]  # corners, 1 if it is a star, degrees that it is turned


_PENS = tuple(map(Pen, _SERIES, _DASHES, _MARKS))


class CurveStyle(StrEnum):
    """How a curve's points are shown."""

    LINE = "line"
    STEPS = "steps"  # y[i] holds from x[i] to x[i + 1]
    POINTS = "points"
    JOINED = "joined"  # points on a line
    MARKS = "marks"  # points by themselves, as large as those on a line


class Curve(msgspec.Struct, frozen=True):
    """Points (x, y) under one name; `labels` stand next to them, `hollow` ones are drawn empty."""

    name: str
    x: Floats
    y: Floats
    form: CurveStyle = CurveStyle.LINE
    labels: tuple[str, ...] = ()
    hollow: tuple[bool, ...] = ()
    of: int | None = None  # the place of the curve whose colour and mark it has, without a name of its own


class Spans(msgspec.Struct, frozen=True):
    """Stretches [begin, end] at heights, all of one kind."""

    name: str
    tone: str  # role of a colour
    begin: Floats
    end: Floats
    at: Floats


class Bar(msgspec.Struct, frozen=True):
    """One bar, its 95 % interval and what would be the best; NaN where there is none."""

    name: str
    value: float
    text: str
    low: float = NAN
    high: float = NAN
    best: float = NAN

    @property
    def interval(self) -> str:
        """The interval as `LOW to HIGH`, in words if it contains 0; "" if there is none."""
        if self.low != self.low:
            return ""
        return repeats.UNBOUNDED if self.low <= 0 < self.high else f"{self.low:,.4g} to {self.high:,.4g}"


class Panel(msgspec.Struct, frozen=True):
    """One picture; `band` is a stretch of x that stands out, such as the steady part of a run."""

    key: str  # unique among those drawn together: its file's name
    title: str
    x_label: str
    y_label: str = ""
    curves: tuple[Curve, ...] = ()
    spans: tuple[Spans, ...] = ()
    bars: tuple[Bar, ...] = ()
    x_log: bool = False
    y_log: bool = False
    x_end: float | None = None  # None: as the numbers have it
    y_top: float | None = None
    y_low: float | None = None  # where the y axis begins; None: at 0
    band: tuple[float, float] | None = None
    caption: str = ""
    numbers: Table | None = None  # the same as a table, for readers who cannot see it

    @property
    def pens(self) -> tuple[Pen, ...]:
        """The pen of each curve; they repeat after eight."""
        places = (index if curve.of is None else curve.of for index, curve in enumerate(self.curves))
        return tuple(_PENS[place % len(_PENS)] for place in places)

    @property
    def reach(self) -> float:
        """What the bars' scale ends at: a little beyond the largest value, interval or best."""
        values = [value for bar in self.bars for value in (bar.value, bar.high, bar.best) if value == value]
        return max([*values, 1e-12]) * 1.02


def is_wide(loads: Floats) -> bool:
    """Whether the highest load is 16 times the lowest or more, so that their axis is logarithmic."""
    return float(loads.max()) >= _WIDE * float(loads.min())


class PageSection(Passage, frozen=True):
    """A passage of a report or of a run's account with what a page shows around its table.

    One that has nothing below its title is left out.
    """

    folded: bool = False  # closed until a reader opens it
    facts: tuple[tuple[str, str], ...] = ()
    doubts: tuple[dict[str, str], ...] = ()  # as a result's JSON has them; of other clients' the names alone
    panels: tuple[Panel, ...] = ()
    text: str = ""  # to be copied

    def __bool__(self) -> bool:
        below = (self.leads, self.facts, self.doubts, self.lines, self.panels, self.text, self.remarks)
        return any(below) or (self.table is not None and bool(self.table.body))


def illustrate(passage: Passage, panels: Iterable[Panel] = ()) -> PageSection:
    """Make the section of a page that has a passage and pictures of it."""
    fields = {name: getattr(passage, name) for name in Passage.__struct_fields__}
    return PageSection(**fields, panels=tuple(panels))


def find_section(sections: Iterable[PageSection], key: str) -> PageSection:
    """Return the first section with a key; an empty one where there is none."""
    return next((section for section in sections if section.key == key), PageSection(""))

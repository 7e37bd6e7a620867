"""Page parts: the values that every form of a report is written from: numbers, tables and panels to draw."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.study import repeats
from loadgen.study.tables import Table

Floats = NDArray[np.floating[Any]]
NAN = float("nan")
_WIDE = 16


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

    def list_corners(self) -> tuple[Floats, Floats]:
        """Return x and y of the points that lines go through: of a curve of steps both ends of each step."""
        if self.form is not CurveStyle.STEPS:
            return self.x, self.y
        return np.repeat(self.x, 2)[1:], np.repeat(self.y, 2)[:-1]


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


def is_wide(loads: Floats) -> bool:
    """Whether the highest load is 16 times the lowest or more, so that their axis is logarithmic."""
    return float(loads.max()) >= _WIDE * float(loads.min())


class PageSection(msgspec.Struct, frozen=True):
    """One part of a report or of a run's account: a title, and what stands below it in this order.

    Every form is written from these alone; one that has nothing below its title is left out.
    """

    title: str  # "": what stands in it has no heading
    key: str = ""  # of its anchor; "": it has none
    menu: str = ""  # its title in the contents; "": it is not there
    folded: bool = False  # closed until a reader opens it
    facts: tuple[tuple[str, str], ...] = ()
    doubts: tuple[dict[str, str], ...] = ()  # as a result's JSON has them; of other clients' the names alone
    lines: tuple[str, ...] = ()
    table: Table | None = None
    style: str = ""  # of the table: `words` has texts, `keys` names of fields, `loads` many columns
    panels: tuple[Panel, ...] = ()
    text: str = ""  # to be copied
    remarks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        below = (self.facts, self.doubts, self.lines, self.panels, self.text, self.remarks)
        return any(below) or (self.table is not None and bool(self.table.body))


def find_section(sections: Iterable[PageSection], key: str) -> PageSection:
    """Return the first section with a key; an empty one where there is none."""
    return next((section for section in sections if section.key == key), PageSection(""))

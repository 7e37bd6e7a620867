"""Load section: the table of runs under several loads, and its pictures."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.report import load_table
from loadgen.report.load_table import LoadRow
from loadgen.report.speed_tables import Table
from loadgen.study.compare.loads import SweptLoads
from loadgen.study.pages.drawing import WIDTH, Drawing, Polyline, Text, draw
from loadgen.study.pages.formatting import Entry, FigureTable, Number
from loadgen.study.pages.panel import Panel

_IN_A_ROW, _HEADING, _EDGE = 3, 28, 8


class LoadSection(msgspec.Struct, frozen=True):
    """One table of every load, as numbers and as text, with its pictures and notes."""

    title: str
    figures: FigureTable
    words: Table
    pictures: tuple[Panel, ...]
    notes: tuple[str, ...]


def load_section(found: SweptLoads, pictures: tuple[Panel, ...]) -> LoadSection | None:
    """The section; None where there is at most one load."""
    if not found.rows:
        return None
    words, narrow = (load_table.table(found.rows, narrow=narrow) for narrow in (False, True))
    keys = [column.key for column in words.columns]
    rows = tuple(
        tuple(_entry(row, key, cell) for key, cell in zip(keys, cells, strict=True))
        for row, cells in zip(found.rows, words.body, strict=True)
    )
    return LoadSection(
        load_table.title(found.rows) or load_table.UNNAMED,
        FigureTable(tuple(column.title for column in narrow.columns), rows),
        words,
        pictures,
        (*load_table.legend(found.rows), *load_table.dips(found.rows), *found.notes),
    )


def picture(section: LoadSection) -> tuple[Panel, Drawing]:
    """All pictures of load as one, three in a row; the panel has its title."""
    names = list(dict.fromkeys(str(row[0]) for row in section.figures.rows))
    heading = f"{names[0]}, {section.title}" if len(names) == 1 else section.title
    about = Panel("loads", heading, "", caption="; ".join(panel.title for panel in section.pictures))
    shapes: list[Polyline | Text] = [Text(_EDGE, 20, heading, "text", 14, bold=True)]
    top = float(_HEADING)
    for start in range(0, len(section.pictures), _IN_A_ROW):
        drawings = [draw(panel, titled=True) for panel in section.pictures[start : start + _IN_A_ROW]]
        for place, drawing in enumerate(drawings):
            shapes += (_moved(shape, place * drawing.width, top) for shape in drawing.shapes)
        top += max(drawing.height for drawing in drawings)
    return about, Drawing(top, tuple(shapes), WIDTH * min(_IN_A_ROW, len(section.pictures)))


def _moved(shape: Polyline | Text, right: float, down: float) -> Polyline | Text:
    if isinstance(shape, Text):
        return replace(shape, x=shape.x + right, y=shape.y + down)
    return replace(shape, points=shape.points + np.array([right, down]))


def _entry(row: LoadRow, key: str, cell: str) -> Entry:
    figure = row.figures.get(key)
    return cell if figure is None else Number("", figure.mean, cell)

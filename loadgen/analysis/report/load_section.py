"""Load section: the table of runs under several loads, and its pictures."""

from __future__ import annotations

import msgspec

from loadgen.analysis.comparison.loads import SweptLoads
from loadgen.analysis.report.formatting import Entry, FigureTable, Number
from loadgen.analysis.report.panel import Panel
from loadgen.results import load_table
from loadgen.results.load_table import LoadRow
from loadgen.results.speed_tables import Table


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
    words = load_table.table(found.rows, narrow=False)
    keys = [column.key for column in words.columns]
    rows = tuple(
        tuple(_entry(row, key, cell) for key, cell in zip(keys, cells, strict=True))
        for row, cells in zip(found.rows, words.body, strict=True)
    )
    return LoadSection(
        load_table.title(found.rows) or load_table.UNNAMED,
        FigureTable(tuple(column.title for column in words.columns), rows),
        words,
        pictures,
        (*load_table.legend(found.rows), *found.notes),
    )


def _entry(row: LoadRow, key: str, cell: str) -> Entry:
    figure = row.figures.get(key)
    return cell if figure is None else Number("", figure.mean, cell)

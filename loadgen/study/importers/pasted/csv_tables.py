"""CSV tables: a run a row: the figures of a block, published speeds, our ladders."""

from __future__ import annotations

import csv
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import pasted_tables, row_figures
from loadgen.study.importers.pasted.drawn_tables import Grid, Row
from loadgen.study.importers.pasted.pasted_tables import TableRows
from loadgen.study.importers.pasted.row_figures import SPEED, is_measured
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import OUTPUT

_LEAST_FIGURES = 3  # columns of figures that make a table one of blocks
_DELIMITERS = ",;\t"
_MOST_SAMPLED = 100
_LONGEST_HEADER, _MOST_COLUMNS = 1 << 16, 1000  # of a table, in characters and in titles
_LADDER = {"model", "input_length", SPEED}  # titles


def may_be_table(head: bytes) -> bool:
    """Whether a file may be a table of figures, by the first line of its bytes; of UTF-16 too."""
    line = head.replace(b"\0", b"").lstrip().partition(b"\n")[0].lower()
    figures = (b"tok", b"ttft", b"speed", b"throughput")
    names = (b"model", b"name", b"checkpoint")
    is_json = line[:1] in (b"{", b"[")
    return not is_json and any(name in line for name in names) and any(figure in line for figure in figures)


def is_own_table(text: str) -> bool:
    """Whether a table was written by `loadgen report`: its runs are read from their directories."""
    return {"told_by", "plan_digest"} <= set(_read_header(text)[0])


def is_table(text: str) -> bool:
    """Whether a text is a table with a column of models, and one of speeds or three of known figures."""
    titles, delimiter = _read_header(text)
    lines = text.lstrip("\n").split("\n", _MOST_SAMPLED + 1)[1 : _MOST_SAMPLED + 1]
    try:
        rows = [cells for cells in csv.reader(lines, delimiter=delimiter) if len(cells) == len(titles)]
    except csv.Error:
        rows = []
    keys = [column.key for column in row_figures.read_columns(titles, rows)]
    figures = [key for key in keys if is_measured(key) or key in pasted_tables.NUMERIC]
    return "model" in keys and (SPEED in keys or len(figures) >= _LEAST_FIGURES)


def _read_header(text: str) -> tuple[list[str], str]:
    """Return the titles of the first line and its delimiter, the most frequent; [] of a line too long."""
    first = text.lstrip("\n").partition("\n")[0].rstrip("\r")
    delimiter = max(_DELIMITERS, key=first.count)
    if len(first) > _LONGEST_HEADER or first.count(delimiter) >= _MOST_COLUMNS:
        return [], delimiter
    try:
        return next(csv.reader([first], delimiter=delimiter), []), delimiter
    except csv.Error:
        return [], delimiter


def read_csv_table(text: str, path: Path) -> TableRows:
    """Read a table's runs, and lines on the other rows; a ladder's file is read again. Raises UsageError."""
    titles, delimiter = _read_header(text)
    if {title.strip().lower() for title in titles} >= _LADDER:
        return _read_ladder(path)
    lines = json_fields.read_csv_rows(text, path, delimiter)
    next(lines)
    rows = list[Row]()
    for line, cells in lines:
        if len(cells) != len(titles):
            raise UsageError(f"{path}:{line} has a different number of cells than the table has columns")
        json_fields.check_results(path, len(rows) + 1)
        rows.append(Row(line, tuple(cells)))
    return pasted_tables.read_sheet(Grid(tuple(titles), tuple(rows), 1, len(rows) + 1), path)


def _read_ladder(path: Path) -> TableRows:
    """Read a ladder's rows from its file; one that equals a published row has that one's formula."""
    published = {replace(row, formula=OUTPUT): row for row in reversed(speed_rows.list_published())}
    speeds = [*enumerate((published.get(row, row) for row in speed_rows.read_speed_csv(path)), 2)]
    runs = [pasted_tables.read_ladder_row(row, f"{path}:{line}") for line, row in speeds if row.speed_tok_s]
    empty = (
        (line, [row.model, row.quantization, str(row.input_length), row.note])
        for line, row in speeds
        if not row.speed_tok_s
    )
    return runs, [*pasted_tables.list_rows_without_figures(path, empty, len(speeds))]

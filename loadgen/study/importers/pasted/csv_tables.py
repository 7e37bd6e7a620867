"""CSV tables: a run a row: the figures of a block, published speeds, our ladders."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import pasted_blocks, pasted_tables, row_figures, upright_grids
from loadgen.study.importers.pasted.drawn_tables import Grid, Row
from loadgen.study.importers.pasted.numbers import parse_whole
from loadgen.study.importers.pasted.pasted_tables import (
    SPEEDS,
    TABLE,
    UNKNOWN_FORMULA,
    TableRows,
    describe_statistics,
    name_machine,
)
from loadgen.study.importers.pasted.row_figures import SPEED, TableColumn
from loadgen.study.run_summary import Reported, join_quantization
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import OUTPUT

_LEAST_FIGURES = 3  # columns of figures that make a table one of blocks
_SPEEDS = ("tok_s", "tok/s", "tokens_per_s", "tokens/s", "tokens_per_second")
_NAMES = ("name", "model", "checkpoint", "model_id")
_DELIMITERS = ",;\t"
_MOST_SAMPLED = 100
_LONGEST_HEADER, _MOST_COLUMNS = 1 << 16, 1000  # of a table, in characters and in titles
Columns = Mapping[str, TableColumn]  # by their titles


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
    """Whether a text is a table of named rows with figures that are known here."""
    return _find_kind(_read_head(text)[0]) != ""


def _read_header(text: str) -> tuple[list[str], str]:
    first = text.lstrip("\n").partition("\n")[0].rstrip("\r")
    delimiter = max(_DELIMITERS, key=first.count)
    if len(first) > _LONGEST_HEADER or first.count(delimiter) >= _MOST_COLUMNS:
        return [], delimiter
    try:
        return next(csv.reader([first], delimiter=delimiter), []), delimiter
    except csv.Error:
        return [], delimiter


def _read_head(text: str) -> tuple[Columns, str]:
    header, delimiter = _read_header(text)
    lines = text.lstrip("\n").split("\n", _MOST_SAMPLED + 1)[1 : _MOST_SAMPLED + 1]
    try:
        rows = [cells for cells in csv.reader(lines, delimiter=delimiter) if len(cells) == len(header)]
    except csv.Error:
        rows = []
    return dict(zip(header, row_figures.read_columns(header, rows), strict=True)), delimiter


def _find_kind(known: Columns) -> str:
    names = {name.strip().lower() for name in known}
    if {"model", "input_length", SPEED} <= names:
        return SPEEDS
    if not names & set(_NAMES) and "model" not in {column.key for column in known.values()}:
        return ""
    if len(_select_figures(known)) >= _LEAST_FIGURES:
        return TABLE
    return SPEEDS if names & set(_SPEEDS) else ""


def _select_figures(known: Columns) -> dict[str, TableColumn]:
    """Select the columns of figures: a label of the block, a key itself, or a title that tables have."""
    selected, keys = dict[str, TableColumn](), pasted_blocks.list_keys() | {SPEED}
    for title, column in known.items():
        name = title.strip()
        is_key = name in keys or (name.endswith("_ms") and name.count("_") > 1)
        own = SPEED if name.lower() in _SPEEDS else name if is_key else pasted_blocks.find_key(name)
        if own is not None and (name.lower() in _SPEEDS or column.key in ("", own)):
            selected[title] = replace(column, key=own)
        elif row_figures.is_measured(column.key):
            selected[title] = column
    return selected


def read_csv_table(text: str, path: Path) -> TableRows:
    """Read a run for each row with figures; raises UsageError that names file and line."""
    known, delimiter = _read_head(text)
    if _find_kind(known) == SPEEDS and SPEED in known:
        return _read_ladder(path)
    rows = _read_rows(text, path, delimiter)
    grid = Grid(tuple(known), tuple(Row(line, tuple(own.values())) for line, own in rows), 1, len(rows) + 1)
    upright = upright_grids.gather_ranks(grid)
    left = [] if upright is None else describe_statistics(path, grid, upright)
    if upright is not None:
        columns = row_figures.read_columns(upright.titles, [row.cells for row in upright.rows])
        known = dict(zip(upright.titles, columns, strict=True))
        rows = [(row.line, dict(zip(known, row.cells, strict=True))) for row in upright.rows]
    figured = _select_figures(known)
    named = [title for title in known if title not in figured]
    facts, cells = [known[name] for name in named], [[own[name] for name in named] for _, own in rows]
    places, remarks = pasted_tables.find_unread(facts, named, cells)
    runs, empty_rows = list[Reported](), list[tuple[int, list[str]]]()
    for line, own in rows:
        if (run := _read_row(own, f"{path}:{line}", known, figured)) is None:
            empty_rows.append((line, [*own.values()]))
            continue
        unread = {named[at]: own[named[at]] for at in places} | dict(run.unread)
        runs.append(replace(run, remarks=(*run.remarks, *remarks), unread=unread))
    return runs, [*left, *pasted_tables.list_rows_without_figures(path, empty_rows, len(rows))]


def _read_ladder(path: Path) -> TableRows:
    published = {replace(row, formula=OUTPUT): row for row in reversed(speed_rows.list_published())}
    speeds = [*enumerate((published.get(row, row) for row in speed_rows.read_speed_csv(path)), 2)]
    runs = [pasted_tables.read_ladder_row(row, f"{path}:{line}") for line, row in speeds if row.speed_tok_s]
    empty = (
        (line, [row.model, row.quantization, str(row.input_length), row.note])
        for line, row in speeds
        if not row.speed_tok_s
    )
    return runs, [*pasted_tables.list_rows_without_figures(path, empty, len(speeds))]


def _read_rows(text: str, path: Path, delimiter: str) -> list[tuple[int, dict[str, str]]]:
    rows: list[tuple[int, dict[str, str]]] = []
    lines = json_fields.read_csv_rows(text, path, delimiter)
    _, header = next(lines)
    for line, cells in lines:
        if len(cells) != len(header):
            raise UsageError(f"{path}:{line} has a different number of cells than the table has columns")
        json_fields.check_results(path, len(rows) + 1)
        rows.append((line, dict(zip(header, cells, strict=True))))
    return rows


def _read_row(cells: Mapping[str, str], source: str, known: Columns, figured: Columns) -> Reported | None:
    plain = {name.strip().lower(): cell.strip() for name, cell in cells.items()}
    facts = {known[name].key: cell.strip() for name, cell in reversed([*cells.items()])} | plain
    facts = row_figures.complete_facts(facts)
    filled = [(column, cells[name].strip()) for name, column in figured.items() if cells[name].strip()]
    try:
        values, left = row_figures.read_cells(filled, strict=True)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    requests = plain.get("requests", facts.get("prompts", ""))
    asked = pasted_tables.read_requested_load({**facts, "prompts": requests}, "")
    limit = json_fields.read_count(values.get("max_concurrency", asked.max_concurrency))
    measured = row_figures.derive_figures(values, limit, facts, (asked.input_len, asked.output_len))
    figures, empty = json_fields.drop_unmeasured(measured)
    if not json_fields.has_figures(figures):
        return None
    name = next((plain[key] for key in _NAMES if plain.get(key)), "") or facts.get("model", "")
    load = replace(
        asked,
        name=json_fields.read_word(facts.get("load", "")),
        input_len=None,
        output_len=None,
        asked_output_len=json_fields.parse_count(plain.get("asked_output_len", "")) or asked.asked_output_len,
        max_concurrency=limit,
        request_rate_per_s=json_fields.read_rate(figures.get("request_rate", asked.request_rate_per_s)),
    )
    return Reported(
        name=join_quantization(json_fields.read_word(name) or "unnamed", facts.get("quantization", "")),
        figures=figures,
        load=load,
        source=source,
        told_by=SPEEDS if SPEED in figures else TABLE,
        engine=facts.get("engine", facts.get("backend", "")),
        machine=name_machine(
            facts.get("machine", facts.get("gpu", "")), parse_whole(facts.get("gpu_num", ""))
        ),
        remarks=(
            *left,
            *empty,
            *([UNKNOWN_FORMULA] if SPEED in figures else []),
            *row_figures.explain_figures(values, figures),
        ),
        unread=pasted_tables.read_uncounted(facts),
    )

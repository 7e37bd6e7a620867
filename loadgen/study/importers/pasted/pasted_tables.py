"""Pasted tables: rows of anyone's tables and sheets as runs, and the speed ladders of the Qwen pages."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.text import cut_end, list_first
from loadgen.report.load_identity import Load
from loadgen.study import labels
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import (
    headings,
    numbers,
    page_reader,
    pasted_blocks,
    pasted_pages,
    row_figures,
)
from loadgen.study.importers.pasted.numbers import parse_decimal, parse_mean, parse_whole
from loadgen.study.importers.pasted.page_reader import Grid, Row
from loadgen.study.importers.pasted.pasted_pages import Surroundings
from loadgen.study.importers.pasted.row_figures import (
    LENGTHS,
    RATE,
    SPEED,
    TableColumn,
    is_measured,
    read_columns,
)
from loadgen.study.importers.pasted.upright_grids import name_left_out, turn_upright
from loadgen.study.load_table import SIMULATED
from loadgen.study.run_summary import Reported, find_unnamed_preset, join_quantization
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import (
    FORMULAS,
    GENERATED,
    OUTPUT,
    UNIT_BYTES,
    UNKNOWN,
    SpeedRow,
    convert_speed,
)

TABLE, SPEEDS = "table", "speed table"
UNKNOWN_FORMULA = "lengths, batch size and formula of the speed are unknown"  # a remark
# Of files in a directory: what the header of a speed table has, in every form of the pages and of ours.
MARKS: tuple[bytes, ...] = (
    b"Speed (tokens/s)", b"Speed(tokens/s)", b" t/s |", b"t/s (total)",
)  # fmt: skip
_SHORT = 16  # tokens of a prompt, up to which all formulas of a speed agree
_GENERATED = re.compile(r"(\d{1,9}) tokens generated")
NUMERIC = (pasted_blocks.list_keys() | {"memory"}) - {"max_concurrency"}
_PLACES = {"model", "load", "max_concurrency", "input_length", "test", RATE, LENGTHS}
# What a row of one request at a time, as a ladder's, has no column of.
_SERVED = {"max_concurrency", "request_throughput", "output_throughput", "prompts", RATE}
_MOST_WRITTEN = 1e15
# Columns of these facts tell rows apart that are alike in all that is read from them.
_TELLING = ("", "note", "gpu_num", "test")
_PARTS = re.compile(r"(\d[\d,]{0,8})\s*(?:tok\w*)?\s*[/:x×,+→-]\s*>?\s*(\d[\d,]{0,8})")
# What reads the cell of a count, as a whole number, a mean, two lengths or a rate: None of what it is not.
_COUNTS: Mapping[str, Callable[[str], object]] = {
    "max_concurrency": parse_whole, "input_length": parse_mean, "output_length": parse_mean,
    LENGTHS: _PARTS.fullmatch, RATE: numbers.parse_rate,
}  # fmt: skip
_FIRST_NUMBER = re.compile(r"\d{1,12}(?:,\d{3})*(?:\.\d{1,9})?")
_APART = 1.25  # times: figures of two repeats lie closer together
_LEAST_FILLED = 2  # cells of a row; one alone is a heading between rows
_MOST_CELLS, _LONGEST_CELL = 4, 24
_MOST_NAMED = 8
_NOTHING: Mapping[str, str] = {}
_NOWHERE = Surroundings()


TableRows = tuple[list[Reported], list[str]]  # the runs of tables, and a line on each with rows left out


def read_tables(text: str, path: Path) -> TableRows:
    """Read every row of a page's tables that has figures; an unreadable cell is a remark.

    Raises UsageError of tables that are too large.
    """
    places, after = pasted_pages.find_results(text, path, Grid)
    lines = page_reader.split_lines(text)
    apart = pasted_pages.describe_surroundings([place for _, place in places], after)
    tables, left = list[tuple[Grid, Surroundings, dict[str, str]]](), list[str]()
    for (grid, place), own in zip(places, apart, strict=True):
        upright = turn_upright(grid)
        left += describe_statistics(path, grid, upright)
        above = tables[-1][1] if tables else None
        is_same = above is not None and (above.subject, above.heading) == (place.subject, place.heading)
        joined = _join_parts(tables[-1][0], upright) if is_same else None
        if joined is not None:
            tables[-1] = (joined, *tables[-1][1:])
        else:
            tables.append((upright, place, own))
    reported = list[Reported]()
    for at, (grid, place, own) in enumerate(tables):
        end = tables[at + 1][0].first - 1 if at + 1 < len(tables) else len(lines)
        below = "\n".join(lines[grid.last - 1 : end])
        runs, without = _Table(grid, path, place, below, own).read_rows()
        reported += runs
        left += without
    return reported, left


def read_sheet(grid: Grid, path: Path) -> TableRows:
    """Read every row of a sheet that has figures, and lines on the others."""
    upright = turn_upright(grid)
    is_block = any(pasted_blocks.find_key(title) == "max_concurrency" for title in grid.titles)
    runs, without = _Table(upright, path, is_block=is_block).read_rows()
    return runs, describe_statistics(path, grid, upright) + without


def _join_parts(above: Grid, below: Grid) -> Grid | None:
    """Join two tables of one run each, with other figures of it, as ais_bench's; None of any others."""
    if any(len(grid.rows) != 1 or grid.rows[0].cells[0] for grid in (above, below)):
        return None
    own, others = (
        {each.key for each in read_columns(grid.titles, [grid.rows[0].cells]) if is_measured(each.key)}
        for grid in (above, below)
    )
    if not (own and others) or own & others:
        return None
    cells = (*above.rows[0].cells, *below.rows[0].cells[1:])
    return Grid(
        (*above.titles, *below.titles[1:]), (replace(above.rows[0], cells=cells),), above.first, below.last
    )


def describe_statistics(path: Path, grid: Grid, upright: Grid) -> list[str]:
    """Write a line on the rows and columns that are statistics of a table's others; [] without any."""
    named = list_first(name_left_out(grid, upright), _MOST_NAMED)
    return [f"{path}: {named}: statistics of other runs, left out"] if named else []


def format_cell(value: object) -> str:
    """Write a value of a file as a cell that can be read in one way only; "" of a list, an object or null."""
    if isinstance(value, float):
        return f"{value:.9f}" if abs(value) < _MOST_WRITTEN else repr(value)
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""


class _Table:
    """One table of a page: what its columns hold, and what stands around it."""

    def __init__(
        self,
        grid: Grid,
        path: Path,
        place: Surroundings = _NOWHERE,
        notes: str = "",
        apart: Mapping[str, str] = _NOTHING,
        *,
        is_block: bool = False,
    ) -> None:
        self._numeric = NUMERIC | {"max_concurrency"} if is_block else NUMERIC
        self.grid, self.path, self.subject, self.engine = grid, path, place.subject, place.engine
        cells = [row.cells for row in grid.rows]
        self.columns = read_columns(grid.titles, cells)
        self.keys = {column.key for column in self.columns}
        # The columns of labels, and a remark on those of figures that are not read.
        self.label_columns, self.not_read = find_label_columns(self.columns, grid.titles, cells)
        is_above = not place.heading or place.heading in apart.values()
        self.labels = ({} if is_above else {"heading": place.heading}) | dict(apart)
        titled = ["".join(title.split()) for title in grid.titles]
        stated = [each for each in FORMULAS if each in titled] or [each for each in FORMULAS if each in notes]
        self.formula = stated[0] if len(stated) == 1 else ""
        generated = _GENERATED.search(notes)
        self.output_length = int(generated[1]) if generated else GENERATED

    def read_rows(self) -> TableRows:
        """Return the runs of rows with figures, and a line on the others; neither of any other table.

        A table of runs has a column of figures, and a place: a model, a load, a length or a label.
        """
        named = _PLACES & self.keys or self.subject.model or self.label_columns
        if not (named and any(map(is_measured, self.keys))):
            return [], []
        made = (self._make_run(row, facts) for row, facts in self._read_facts())
        runs = [run for run in made if run is not None]
        rows, read = self.grid.rows, {run.source for run in runs}
        empty = (row for row in rows if self._name_source(row) not in read and row.cells != self.grid.titles)
        each = ((row.line, row.cells) for row in empty)
        return runs, [*list_rows_without_figures(self.path, each, len(rows))]

    def _name_source(self, row: Row) -> str:
        return f"{self.path}:{row.line}" + (f" column {row.column}" if row.column else "")

    def _read_labels(self, row: Row, facts: Mapping[str, str]) -> dict[str, str]:
        named = {self.grid.titles[at] or "label": row.cells[at] for at in self.label_columns}
        # Counts that are not numbers, as 4k or 1k1k, tell a row from others.
        counts = ((key, facts.get(key, ""), read) for key, read in _COUNTS.items())
        uncounted = {key: cell for key, cell, read in counts if cell and read(cell) is None}
        return {**self.labels, **named, **uncounted}

    def _read_facts(self) -> Iterator[tuple[Row, dict[str, str]]]:
        """Yield each row with its cells by column's key; an empty cell of a model is that of a row above."""
        model = ""
        for row in self.grid.rows:
            facts: dict[str, str] = {}
            for column, cell in zip(self.columns, row.cells, strict=True):
                facts[column.key] = facts.get(column.key) or cell.strip()
            if "model" in facts:
                model = facts["model"] = facts["model"] or model
            yield row, row_figures.complete_facts(facts)

    def _read_figures(self, row: Row) -> tuple[dict[str, float], list[str]]:
        """Return a row's figures by key, and remarks on cells not read and on those of 0, left out."""
        cells = zip(self.columns, row.cells, strict=True)
        figured = [cell for cell in cells if is_measured(cell[0].key) or cell[0].key in self._numeric]
        values, remarks = row_figures.read_cells(figured)
        empty = [key for key, value in values.items() if json_fields.is_zero(value) and is_measured(key)]
        empty = [key for key in empty if not key.startswith("std_")]
        remarks += [f"{key} is 0: it was not measured" for key in empty]
        return {key: value for key, value in values.items() if key not in empty}, remarks

    def _name_row(self, facts: Mapping[str, str]) -> tuple[str, str, str]:
        """Return a row's name, the checkpoint in it, and the load, of its cells or of the heading above."""
        title = headings.parse_title(facts["model"]) if facts.get("model") else None
        if title is None:
            name, model, load = self.subject.name or self.path.stem, self.subject.model, self.subject.load
        else:
            name, model = title.name or facts["model"], title.model
            load = title.load or self.subject.load
        stored = "-".join(facts.get("quantization", "").strip("-").split())  # INT4 GPTQ
        return join_quantization(name, stored), model and join_quantization(model, stored), load

    def _make_run(self, row: Row, facts: Mapping[str, str]) -> Reported | None:
        """Make the run of a row; None if no latency, throughput or speed of it can be read."""
        values, remarks = self._read_figures(row)
        memory = self._count_bytes(values.pop("memory", None))
        if not any(map(is_measured, values)):
            return None
        if (rung := self._make_rung(facts)) is not None:
            del values[SPEED]
            run = read_ladder_row(rung, self._name_source(row))
            run = replace(run, figures={**row_figures.derive_figures(values, 1, facts), **run.figures})
        else:
            run = self._make_served_run(row, facts, values, remarks)
        return replace(
            run,
            memory_bytes=run.memory_bytes if memory is None else memory,
            remarks=(*run.remarks, *remarks, *self.not_read),
            unread=self._read_labels(row, facts),
        )

    def _make_served_run(
        self, row: Row, facts: Mapping[str, str], read: Mapping[str, float], remarks: list[str]
    ) -> Reported:
        """Make the run of a row that is no ladder's, of figures that were read; remarks are added."""
        name, model, load = self._name_row(facts)
        own = read_requested_load(facts, load)
        lengths = own.input_len, own.output_len
        values = row_figures.derive_figures(read, own.max_concurrency, facts, lengths)
        if row_figures.OF_ONE in values:
            remarks.append(row_figures.PER_USER)
        if "output_throughput" in read and "output_throughput" not in values:
            remarks.append("tok/s are of prompts and answers together, as requests/s and their lengths show")
        if SPEED in values:
            remarks.append(UNKNOWN_FORMULA)
        return Reported(
            name=name,
            model=model if model != name else "",
            figures=values,
            load=own,
            source=self._name_source(row),
            told_by=SPEEDS if SPEED in values else TABLE,
            engine=facts.get("engine", "") or self.engine,
            machine=name_machine(facts.get("machine", ""), parse_whole(facts.get("gpu_num", ""))),
            simulated=find_unnamed_preset(SIMULATED in facts.get("note", "")),
            remarks=tuple(filter(None, [facts.get("note")])),
        )

    def _make_rung(self, facts: Mapping[str, str]) -> SpeedRow | None:
        """Make a ladder's row of a row's facts, the published one that it equals to the digit; else None.

        It has a whole length, a speed above 0, and no column of what a load of several requests has.
        """
        if not {SPEED, "input_length"} <= self.keys or _SERVED & self.keys:
            return None
        length, speed = parse_whole(facts["input_length"]), parse_decimal(facts[SPEED])
        if length is None or not speed:
            return None
        name, _, _ = self._name_row({**facts, "quantization": ""})
        rung = SpeedRow(
            model=name,
            backend=facts.get("engine", "") or self.engine,
            gpu=facts.get("machine", ""),
            input_length=length,
            quantization=facts.get("quantization", ""),
            gpu_num=parse_whole(facts.get("gpu_num", "")),
            speed_tok_s=speed,
            note=facts.get("note", ""),
            formula=self.formula or (OUTPUT if length <= _SHORT else UNKNOWN),
            output_length=parse_whole(facts.get("output_length", "")) or self.output_length,
        )
        published = _read_published().get(_identify_row(rung))
        return rung if published is None else replace(published, note=rung.note)

    def _count_bytes(self, amount: float | None) -> int | None:
        unit = next((column.unit for column in self.columns if column.key == "memory"), "")
        unit = unit.upper().replace("I", "")
        return int(amount * UNIT_BYTES[unit]) if amount and unit in UNIT_BYTES else None


def _identify_row(row: SpeedRow) -> tuple[str, int, str, Decimal | None]:
    return row.model, row.input_length, row.quantization, row.speed_tok_s


@cache
def _read_published() -> dict[tuple[str, int, str, Decimal | None], SpeedRow]:
    return {_identify_row(row): row for row in reversed(speed_rows.list_published())}


def find_label_columns(
    columns: Sequence[TableColumn], titles: Sequence[str], cells: Sequence[Sequence[str]]
) -> tuple[list[int], tuple[str, ...]]:
    """Return the indices of the columns of labels, and one remark on those of numbers not read, if any.

    A column of figures that is not read is a label, too, where its values lie farther apart than repeats do,
    as is one of requests per second where no other says what the load was. Where another column numbers the
    rows as runs, it is one if its values stand several times: they were set.
    """
    named, left = list[int](), list[str]()
    numbered = any(labels.counts_runs(title, [row[at] for row in cells]) for at, title in enumerate(titles))
    loads = {column.key for column in columns} & {"max_concurrency", "load", "test", RATE}
    for at, (column, title) in enumerate(zip(columns, titles, strict=True)):
        own = [row[at] for row in cells]
        is_rate = column.key == "request_throughput" and not loads
        is_label, is_figure = labels.is_label(title, own), labels.is_figure(title, own)
        if not column.key and (is_figure or is_label):
            filled = [cell for cell in own if cell.strip()]
            if is_figure or 2 * sum(numbers.parse_cell(cell) is not None for cell in filled) >= len(filled):
                left.append(repr(title))
        if is_rate or (not column.key and is_figure):
            firsts = (_FIRST_NUMBER.search(cell) for cell in own)
            values = [float(match[0].replace(",", "")) for match in firsts if match is not None]
            lie_apart = len(values) > 1 and max(values) > _APART * min(values)
            if all(own.count(cell) > 1 for cell in own) if numbered else lie_apart:
                named.append(at)
        elif column.key in _TELLING and is_label:
            named.append(at)
    return named, (f"not read: {list_first(left, _MOST_NAMED)}",) if left else ()


def list_rows_without_figures(
    path: Path, rows: Iterable[tuple[int, Sequence[str]]], every: int
) -> Iterator[str]:
    """Yield one line, if any, on `rows` without figures that have two cells or more, of `every` in all."""
    named = []
    for line, cells in rows:
        filled = [cut_end(cell, _LONGEST_CELL) for cell in cells if cell.strip()]
        if len(filled) >= _LEAST_FILLED:
            named.append(f"line {line} ({', '.join(list(dict.fromkeys(filled))[:_MOST_CELLS])})")
    if named:
        yield (
            f"{path}: {len(named)} of {every} rows of a table have no figures: "
            f"{list_first(named, _MOST_NAMED)}"
        )


def read_requested_load(facts: Mapping[str, str], named: str) -> Load:
    """Read the load that a row asks for; `named` is the load of the heading above, or of the row's name.

    Without either it is named by its concurrency, rate or prompts.
    """
    limit, length = parse_whole(facts.get("max_concurrency", "")), parse_mean(facts.get("input_length", ""))
    prompts, answer = parse_whole(facts.get("prompts", "")), parse_mean(facts.get("output_length", ""))
    rate = numbers.parse_rate(facts.get(RATE, ""))
    if (parts := _PARTS.fullmatch(facts.get(LENGTHS, ""))) is not None:
        length, answer = parse_whole(parts[1]), parse_whole(parts[2])
    if limit is None:
        limit = headings.find_concurrency(facts.get("load", "") or named)
    counts = (("at a time", limit), ("requests/s", rate), ("prompts", prompts))
    facts_of_it = (f"{count:g} {noun}" for noun, count in counts if count)
    return Load(
        name=json_fields.read_word(facts.get("load", "") or named or next(facts_of_it, "")),
        requests=prompts,
        input_len=length,
        output_len=answer,
        asked_output_len=answer,
        max_concurrency=limit,
        request_rate_per_s=rate,
        asked_input_len=length,
    )


def name_machine(gpu: str, count: int | None) -> str:
    """Name a machine of several devices as runs do: 4 × H20-96GB; one by the device alone."""
    return gpu if (count or 1) == 1 else f"{count} × {gpu or 'GPU'}"


def read_ladder_row(row: SpeedRow, source: str) -> Reported:
    """Read a row of a speed ladder as a run; output throughput only where the speed's formula is known."""
    speed, memory = float(row.speed_tok_s or 0), row.gpu_memory
    figures = {SPEED: speed}
    if row.ttft_ms:
        figures["mean_ttft_ms"] = float(row.ttft_ms)
    if row.decode_tok_s:
        figures["mean_tpot_ms"] = numbers.compute_each_ms(float(row.decode_tok_s))
    if row.formula in FORMULAS:
        lengths = row.input_length, row.output_length
        figures["output_throughput"] = convert_speed(speed, row.formula, OUTPUT, *lengths)
    return Reported(
        name=join_quantization(row.model, row.quantization),
        figures=figures,
        load=Load(
            name=f"input {row.input_length}",
            input_len=row.input_length,
            output_len=row.output_length,
            asked_output_len=row.output_length,
            max_concurrency=1,
            asked_input_len=row.input_length,
        ),
        source=source,
        told_by=SPEEDS,
        engine=row.backend,
        machine=name_machine(row.gpu, row.gpu_num),
        memory_bytes=None if memory is None else int(memory.amount * UNIT_BYTES[memory.unit]),
        speed_formula=row.formula,
        simulated=find_unnamed_preset(SIMULATED in row.note),
        remarks=(f"speed is {row.formula}", *filter(None, [row.note])),
    )


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
    keys = [column.key for column in read_columns(titles, rows)]
    figures = [key for key in keys if is_measured(key) or key in NUMERIC]
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
    return read_sheet(Grid(tuple(titles), tuple(rows), 1, len(rows) + 1), path)


def _read_ladder(path: Path) -> TableRows:
    """Read a ladder's rows from its file; one that equals a published row has that one's formula."""
    published = {replace(row, formula=OUTPUT): row for row in reversed(speed_rows.list_published())}
    speeds = [*enumerate((published.get(row, row) for row in speed_rows.read_speed_csv(path)), 2)]
    runs = [read_ladder_row(row, f"{path}:{line}") for line, row in speeds if row.speed_tok_s]
    empty = (
        (line, [row.model, row.quantization, str(row.input_length), row.note])
        for line, row in speeds
        if not row.speed_tok_s
    )
    return runs, [*list_rows_without_figures(path, empty, len(speeds))]

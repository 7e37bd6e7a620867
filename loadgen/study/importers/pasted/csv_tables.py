"""CSV tables: a block a row, published speeds, our ladders; and the load and labels of any table's row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.text import cut_end, list_first
from loadgen.report import labels
from loadgen.report.load_identity import Load
from loadgen.report.load_table import SIMULATED
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import column_titles, headings, numbers, pasted_blocks
from loadgen.study.importers.pasted.column_titles import SPEED, TableColumn
from loadgen.study.run_summary import Reported, full_name, unnamed_preset
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import FORMULAS, OUTPUT, UNIT_BYTES, SpeedRow, convert_speed

TABLE, SPEEDS = "table", "speed table"
UNKNOWN_FORMULA = "lengths, batch size and formula of the speed are unknown"  # a remark
_LEAST_FIGURES = 3  # columns of figures that make a table one of blocks
_SPEEDS = ("tok_s", "tok/s", "tokens_per_s", "tokens/s", "tokens_per_second")
_NAMES = ("name", "model", "checkpoint", "model_id")
_DELIMITERS = ",;\t"
_MOST_SAMPLED, _MOST_NAMED = 100, 8
_LONGEST_HEADER, _MOST_COLUMNS = 1 << 16, 1000  # of a table, in characters and in titles


def may_be_table(head: bytes) -> bool:
    """Whether a file may be such a table, from its first line; of UTF-16 too."""
    line = head.replace(b"\0", b"").lstrip().partition(b"\n")[0].lower()
    figures = (b"tok", b"ttft", b"speed", b"throughput")
    names = (b"model", b"name", b"checkpoint")
    is_json = line[:1] in (b"{", b"[")
    return not is_json and any(name in line for name in names) and any(figure in line for figure in figures)


def is_own_table(text: str) -> bool:
    """Whether a table was written by `loadgen report`: its runs are read from their directories."""
    return {"told_by", "plan_digest"} <= set(_read_header(text)[0])


def is_table(text: str) -> bool:
    """Whether a text is a table that can be read."""
    header, delimiter = _read_header(text)
    return _table_kind(header, _known_columns(header, _sample(text, delimiter))) != ""


def _sample(text: str, delimiter: str) -> list[list[str]]:
    """The first rows, for the units of their cells."""
    lines = text.lstrip("\n").split("\n", _MOST_SAMPLED + 1)[1 : _MOST_SAMPLED + 1]
    try:
        return [cells for cells in csv.reader(lines, delimiter=delimiter) if cells]
    except csv.Error:
        return []


def _known_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, TableColumn]:
    """Read the column of each title."""
    whole = [row for row in rows if len(row) == len(header)]
    return dict(zip(header, column_titles.read_columns(header, whole), strict=True))


def read_csv_table(text: str, path: Path) -> TableRows:
    """Read a run for each row with figures; raises UsageError that names file and line."""
    header, delimiter = _read_header(text)
    known = _known_columns(header, _sample(text, delimiter))
    if _table_kind(header, known) == SPEEDS and SPEED in header:
        speeds = [*enumerate(map(_add_formula, speed_rows.read_speed_csv(path)), 2)]
        runs = [read_ladder_row(row, f"{path}:{line}") for line, row in speeds if row.speed_tok_s]
        empty = (
            (line, [row.model, row.quantization, str(row.input_length), row.note])
            for line, row in speeds
            if not row.speed_tok_s
        )
        return TableRows(runs, [*list_rows_without_figures(path, empty, len(speeds))])
    rows = _read_rows(text, path, delimiter)
    named = [name for name in known if _figure_key(name, known[name]) is None]
    facts, cells = [known[name] for name in named], [[own[name] for name in named] for _, own in rows]
    places = find_label_columns(facts, named, cells)
    own_labels, remarks = [named[at] for at in places], remark_unread(facts, named, cells, places)
    runs, empty_rows = list[Reported](), list[tuple[int, list[str]]]()
    for line, own in rows:
        if (run := _read_row(own, f"{path}:{line}", known)) is None:
            empty_rows.append((line, [*own.values()]))
            continue
        unread = {name: own[name] for name in own_labels} | dict(run.unread)
        runs.append(replace(run, remarks=(*run.remarks, *remarks), unread=unread))
    return TableRows(runs, [*list_rows_without_figures(path, empty_rows, len(rows))])


def _read_rows(text: str, path: Path, delimiter: str) -> list[tuple[int, dict[str, str]]]:
    """The line and the cells of each row; raises UsageError of one with more or fewer cells than columns.

    Also of more rows than are read.
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\n")), delimiter=delimiter)
    rows: list[tuple[int, dict[str, str]]] = []
    try:
        for cells in reader:
            if None in cells or None in cells.values():
                raise UsageError(
                    f"{path}:{reader.line_num} has a different number of cells than the table has columns"
                )
            json_fields.check_results(path, len(rows) + 1)
            rows.append((reader.line_num, {str(key): str(cell) for key, cell in cells.items()}))
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: not a valid table: {error}") from None
    return rows


def _read_header(text: str) -> tuple[list[str], str]:
    """The columns' names, none of a line that has too many, and the sign between them."""
    first = text.lstrip("\n").partition("\n")[0].rstrip("\r")
    delimiter = max(_DELIMITERS, key=first.count)
    if len(first) > _LONGEST_HEADER or first.count(delimiter) >= _MOST_COLUMNS:
        return [], delimiter
    try:
        return next(csv.reader([first], delimiter=delimiter), []), delimiter
    except csv.Error:
        return [], delimiter


def _table_kind(header: Sequence[str], known: Mapping[str, TableColumn]) -> str:
    names = {name.strip().lower() for name in header}
    if {"model", "input_length", SPEED} <= names:
        return SPEEDS
    if not names & set(_NAMES) and "model" not in {column.key for column in known.values()}:
        return ""
    if sum(_figure_key(name, known[name]) is not None for name in header) >= _LEAST_FIGURES:
        return TABLE
    return SPEEDS if names & set(_SPEEDS) else ""


def _figure_key(title: str, column: TableColumn) -> str | None:
    """The key of a column of figures: a label of the block, a key itself, or a title that tables have."""
    name = title.strip()
    is_key = (
        name in pasted_blocks.list_keys() or name == SPEED or (name.endswith("_ms") and name.count("_") > 1)
    )
    own = name if is_key else pasted_blocks.find_key(name)
    key = column.key
    if name.lower() in _SPEEDS:
        return SPEED
    return own if own is not None and key in ("", own) else key if column_titles.is_measured(key) else None


def _read_row(cells: Mapping[str, str], source: str, known: Mapping[str, TableColumn]) -> Reported | None:
    """A row of figures; None of one that has none. An empty cell is no figure."""
    plain = {name.strip().lower(): cell.strip() for name, cell in cells.items()}
    facts = {known[name].key: cell.strip() for name, cell in reversed([*cells.items()])} | plain
    facts = column_titles.complete_facts(facts)
    keys = {name: key for name in cells if (key := _figure_key(name, known[name])) is not None}
    figured = [(replace(known[name], key=key), cells[name].strip()) for name, key in keys.items()]
    try:
        values, left = column_titles.read_cells([each for each in figured if each[1]], strict=True)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
    asked = read_requested_load({**facts, "prompts": plain.get("requests", facts.get("prompts", ""))}, "")
    limit = json_fields.count(values.get("max_concurrency", asked.max_concurrency))
    measured = column_titles.derive_figures(values, limit, facts, (asked.input_len, asked.output_len))
    figures, empty = json_fields.drop_unmeasured(measured)
    if not json_fields.has_figures(figures):
        return None
    name = next((plain[key] for key in _NAMES if plain.get(key)), "") or facts.get("model", "")
    remarks = [
        *left,
        *empty,
        *([UNKNOWN_FORMULA] if SPEED in figures else []),
    ]
    return Reported(
        name=full_name(json_fields.word(name) or "unnamed", facts.get("quantization", "")),
        figures=figures,
        load=Load(
            name=json_fields.word(facts.get("load", "")),
            requests=asked.requests,
            asked_output_len=json_fields.parse_count(plain.get("asked_output_len", ""))
            or asked.asked_output_len,
            max_concurrency=limit,
            request_rate_per_s=json_fields.rate(figures.get("request_rate", asked.request_rate_per_s)),
            asked_input_len=asked.asked_input_len,
        ),
        source=source,
        told_by=SPEEDS if SPEED in figures else TABLE,
        engine=facts.get("engine", facts.get("backend", "")),
        machine=name_machine(
            facts.get("machine", facts.get("gpu", "")), parse_whole(facts.get("gpu_num", ""))
        ),
        remarks=tuple(remarks),
        unread=read_uncounted(facts),
    )


def _add_formula(row: SpeedRow) -> SpeedRow:
    """The row of a published page with its formula, which its file does not have; any other unchanged."""
    return next(
        (each for each in speed_rows.list_published() if replace(each, formula=row.formula) == row), row
    )


def name_machine(gpu: str, count: int | None) -> str:
    """Name a machine of several devices as runs do: 4 × H20-96GB."""
    return gpu if (count or 1) == 1 else f"{count} × {gpu or 'GPU'}"


def find_preset(note: str) -> str:
    """Find the preset of a row that its note marks as simulated, which names none; "" of a real one."""
    return unnamed_preset(SIMULATED in note)


def read_ladder_row(row: SpeedRow, source: str) -> Reported:
    """Read a row of a speed ladder as a run; output throughput only where the speed's formula is known."""
    speed, memory = float(row.speed_tok_s or 0), row.gpu_memory
    figures = {SPEED: speed}
    if row.ttft_ms:
        figures["mean_ttft_ms"] = float(row.ttft_ms)
    if row.decode_tok_s:
        figures["mean_tpot_ms"] = numbers.milliseconds_each(float(row.decode_tok_s))
    if row.formula in FORMULAS:
        lengths = row.input_length, row.output_length
        figures["output_throughput"] = convert_speed(speed, row.formula, OUTPUT, *lengths)
    return Reported(
        name=full_name(row.model, row.quantization),
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
        simulated=find_preset(row.note),
        remarks=(f"speed is {row.formula}", *filter(None, [row.note])),
    )


# Columns of these facts tell rows apart that are alike in all that is read from them.
_TELLING = ("", "note", "gpu_num", "test")
_COUNTS = ("max_concurrency", "input_length", "output_length", column_titles.LENGTHS, column_titles.RATE)
_PARTS = re.compile(r"(\d[\d,]{0,8})\s*(?:tok\w*)?\s*[/:x×,+→-]\s*>?\s*(\d[\d,]{0,8})")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_LEAST_FILLED = 2  # cells of a row; one alone is a heading between rows
_MOST_CELLS, _LONGEST_CELL = 4, 24


class TableRows(msgspec.Struct, frozen=True):
    """The runs of tables, and a line on each table that has rows without figures."""

    runs: list[Reported]
    left: list[str]


def find_label_columns(
    every: Sequence[TableColumn], named: Sequence[str], cells: Sequence[Sequence[str]]
) -> list[int]:
    """Find the columns of labels: they tell one row from another, and no figure is read from them."""
    return [
        at
        for at, (column, title) in enumerate(zip(every, named, strict=True))
        if column.key in _TELLING and labels.is_label(title, [row[at] for row in cells])
    ]


def remark_unread(
    every: Sequence[TableColumn], titles: Sequence[str], cells: Sequence[Sequence[str]], places: Sequence[int]
) -> tuple[str, ...]:
    """Return a remark on the columns of figures that are not read; `places` are those of labels."""
    left = [
        repr(title)
        for at, (column, title) in enumerate(zip(every, titles, strict=True))
        if not column.key and at not in places and labels.is_figure(title, [row[at] for row in cells])
    ]
    return (f"not read: {list_first(left, _MOST_NAMED)}",) if left else ()


def read_uncounted(facts: Mapping[str, str]) -> dict[str, str]:
    """Read the counts of a row that are not numbers, as 4k or 1k1k: they tell it from others all the same."""
    unread = ((key, facts.get(key, "")) for key in _COUNTS)
    return {key: cell for key, cell in unread if cell and not _is_read(key, cell)}


def _is_read(key: str, cell: str) -> bool:
    if key == column_titles.LENGTHS:
        return _PARTS.fullmatch(cell) is not None
    if key == column_titles.RATE:
        return column_titles.parse_rate(cell) is not None
    return (parse_whole(cell) if key == "max_concurrency" else parse_mean(cell)) is not None


def list_rows_without_figures(
    path: Path, rows: Iterable[tuple[int, Sequence[str]]], every: int
) -> Iterator[str]:
    """Yield a line that names the rows of a table that have none of its figures: out of memory, timed out."""
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
    """Read the load that a row asks for; `named` is the load of the heading above, or of the row's name."""
    limit, length = parse_whole(facts.get("max_concurrency", "")), parse_mean(facts.get("input_length", ""))
    prompts, answer = parse_whole(facts.get("prompts", "")), parse_mean(facts.get("output_length", ""))
    rate = column_titles.parse_rate(facts.get(column_titles.RATE, ""))
    if (parts := _PARTS.fullmatch(facts.get(column_titles.LENGTHS, ""))) is not None:
        length, answer = parse_whole(parts[1]), parse_whole(parts[2])
    if limit is None:
        limit = headings.find_concurrency(facts.get("load", "") or named)
    counts = (("at a time", limit), ("requests/s", rate), ("prompts", prompts))
    facts_of_it = (f"{count:g} {noun}" for noun, count in counts if count)
    return Load(
        name=json_fields.word(facts.get("load", "") or named or next(facts_of_it, "")),
        requests=prompts,
        input_len=length,
        output_len=answer,
        asked_output_len=answer,
        max_concurrency=limit,
        request_rate_per_s=rate,
        asked_input_len=length,
    )


def parse_whole(cell: str) -> int | None:
    """Parse a count; None of anything else."""
    return json_fields.parse_count(_THOUSANDS.sub("", cell.strip()))


def parse_mean(cell: str) -> int | None:
    """Parse a length in whole tokens, of a mean too; None of anything else."""
    count = parse_whole(cell)
    amount = parse_decimal(cell) if count is None else None
    return count if amount is None else round(amount)


def parse_decimal(cell: str) -> Decimal | None:
    """Parse a number above zero with the digits that it is written with; None of anything else."""
    text = _THOUSANDS.sub("", column_titles.number_text(cell))
    return Decimal(text) if re.fullmatch(r"\d{1,12}(?:\.\d{1,6})?", text) and float(text) > 0 else None

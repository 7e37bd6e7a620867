"""Tables: the rows of a page's tables as runs: speed ladders as the Qwen pages have them, and anyone's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache, cached_property
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.roofline import machines
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import (
    column_titles,
    csv_tables,
    grids,
    headings,
    pasted_blocks,
    pasted_pages,
    translation,
)
from loadgen.study.importers.pasted.column_titles import SPEED
from loadgen.study.importers.pasted.csv_tables import SPEEDS, TABLE, TableRows
from loadgen.study.importers.pasted.grids import Grid, Row
from loadgen.study.importers.pasted.headings import Kind, Outline, Subject
from loadgen.study.run_summary import Reported, full_name
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import FORMULAS, GENERATED, OUTPUT, UNIT_BYTES, UNKNOWN, SpeedRow

# Of files in a directory: what the header of a speed table has, in every form of the pages and of ours.
MARKS: tuple[bytes, ...] = (
    b"Speed (tokens/s)", b"Speed(tokens/s)", b"Input  Quantization", b" t/s |", b"t/s (total)",
)  # fmt: skip
_SHORT = 16  # tokens of a prompt, up to which all formulas of a speed agree
_QUOTES = re.compile(r"(?:\s{0,3}> ?)+")
_COMMENT = re.compile(r"^\s{0,8}(?:#+|//+|;+|%+|\*|>)\s{0,8}(?=\||\+-)")
_GENERATED = re.compile(r"(\d{1,9}) tokens generated")
_NUMERIC = (pasted_blocks.list_keys() | {"memory"}) - {"max_concurrency"}
_PLACES = {
    "model",
    "load",
    "max_concurrency",
    "input_length",
    "test",
    column_titles.RATE,
    column_titles.LENGTHS,
}
# What a row of one request at a time, as a ladder's, has no column of.
_SERVED = {"max_concurrency", "request_throughput", "output_throughput", "prompts", column_titles.RATE}
_MOST_WRITTEN = 1e15


def read_tables(text: str, path: Path) -> TableRows:
    """Read every row of a page's tables that has figures; an unreadable cell is a remark.

    Raises UsageError of tables that are too large.
    """
    lines = [
        _COMMENT.sub("", line, count=1) if "|" in line or "+-" in line else line
        for line in pasted_pages.split_lines(pasted_pages.strip_colours(text))
    ]
    try:
        found = grids.find_tables(
            [_QUOTES.sub("", line, count=1) if ">" in line[:4] else line for line in lines]
        )
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    above = _name_surroundings(lines, [grid.first for grid in found])
    reported, left = list[Reported](), list[str]()
    for at, (grid, (subject, heading, engine)) in enumerate(zip(found, above, strict=True)):
        end = found[at + 1].first - 1 if at + 1 < len(found) else len(lines)
        stands = _Surroundings(path, lines[grid.last - 1 : end], subject, heading, engine)
        table = _Table(turn_upright(grid), stands)
        runs = table.runs()
        reported += runs
        left += table.left({run.source for run in runs})
    return TableRows(reported, left)


def read_client_table(grid: Grid, client: str, source: str) -> list[Reported]:
    """Read the rows with figures of a client's file, whose keys are its tables' titles."""
    stands = _Surroundings(Path(source), (), Subject(), "", "")
    runs = _Table(turn_upright(grid), stands).runs()
    return [replace(run, told_by=client, source=source) for run in runs]


def format_cell(value: object) -> str:
    """Write a value of a file as a cell that can be read in one way only; "" of a list, an object or null."""
    if isinstance(value, float):
        return f"{value:.9f}" if abs(value) < _MOST_WRITTEN else repr(value)
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""


def _name_surroundings(lines: Sequence[str], firsts: Sequence[int]) -> Iterator[tuple[Subject, str, str]]:
    """Yield what the headings above each of these lines name, the nearest of them, and the engine in them."""
    numbers, texts = pasted_pages.split_pieces(lines)
    outline, page = Outline(), headings.read_lines(texts)
    line = next(page, None)
    for first in firsts:
        while line is not None and numbers[line.number - 1] < first:
            if line.kind in (Kind.HEADING, Kind.ITEM, Kind.LINE):
                outline.enter(line)
            line = next(page, None)
        named = (engine for name in outline.names for engine in ENGINES if engine.lower() in name.lower())
        yield outline.subject, next(iter(outline.names), ""), next(named, "")


class _Surroundings(msgspec.Struct, frozen=True):
    """The surroundings of a table: its headings, its engine, and the text above it."""

    path: Path
    below: Sequence[str]
    subject: Subject
    heading: str  # the nearest above
    engine: str  # in one of the headings


class _Table:
    """One table of a page: what its columns hold, and what stands around it."""

    def __init__(self, grid: Grid, stands: _Surroundings) -> None:
        self.grid, self.path, self.subject = column_titles.split_tests(grid), stands.path, stands.subject
        self.engine = stands.engine
        self._cells = [row.cells for row in self.grid.rows]
        self.columns = column_titles.read_columns(self.grid.titles, self._cells)
        self.labels = {"heading": stands.heading} if stands.heading else {}
        notes = "\n".join(stands.below)
        titled = ["".join(title.split()) for title in grid.titles]
        stated = [each for each in FORMULAS if each in titled] or [each for each in FORMULAS if each in notes]
        self.formula = stated[0] if len(stated) == 1 else ""
        generated = _GENERATED.search(notes)
        self.output_length = int(generated[1]) if generated else GENERATED

    @cached_property
    def keys(self) -> set[str]:
        """The keys of its columns."""
        return {column.key for column in self.columns}

    @cached_property
    def has_figures(self) -> bool:
        """Whether it has columns of figures, and something that says what they are of."""
        named = _PLACES & self.keys or self.subject.model or self.named
        return any(map(column_titles.is_measured, self.keys)) and bool(named)

    def runs(self) -> list[Reported]:
        """The rows with figures; none of a table of something else."""
        if not self.has_figures:
            return []
        rows = [*self._facts()]
        if not {SPEED, "input_length"} <= self.keys or _SERVED & self.keys:
            return [run for row, facts in rows if (run := self._run(row, facts)) is not None]
        rungs = [(row, facts, speed) for row, facts in rows if (speed := self._rung(facts)) is not None]
        climbed = {id(row) for row, _, _ in rungs}
        others = [each for each in rows if id(each[0]) not in climbed]  # below zero, of a length in words
        published = [_find_published(speed) for _, _, speed in rungs]
        known = 2 * sum(each is not None for each in published) > len(rungs)
        return [
            self._climbed(row, facts, replace(other, note=speed.note) if known and other else speed)
            for (row, facts, speed), other in zip(rungs, published, strict=True)
        ] + [run for row, facts in others if (run := self._run(row, facts)) is not None]

    def left(self, read: Collection[str]) -> Iterator[str]:
        """A line on the rows that have none of the table's figures; `read` are the sources of the others."""
        if self.has_figures:
            rows = self.grid.rows
            empty = (row for row in rows if self._source(row) not in read and row.cells != self.grid.titles)
            each = ((row.line, row.cells) for row in empty)
            yield from csv_tables.list_rows_without_figures(self.path, each, len(rows))

    def _source(self, row: Row) -> str:
        return f"{self.path}:{row.line}" + (f" column {row.column}" if row.column else "")

    @cached_property
    def named(self) -> list[int]:
        """The columns of labels: what tells one row from another and is no fact."""
        return csv_tables.find_label_columns(self.columns, self.grid.titles, self._cells)

    @cached_property
    def unread(self) -> tuple[str, ...]:
        """A remark on the columns of figures that are not read."""
        return csv_tables.remark_unread(self.columns, self.grid.titles, self._cells, self.named)

    def _told(self, row: Row, facts: Mapping[str, str]) -> dict[str, str]:
        """Collect the cells of a row that no figure or fact is read from."""
        named = {self.grid.titles[at] or "label": row.cells[at] for at in self.named}
        return {**self.labels, **named, **csv_tables.read_uncounted(facts)}

    def _facts(self) -> Iterator[tuple[Row, dict[str, str]]]:
        """Each row's cells by what they hold; an empty cell of a model is that of the row above."""
        model = ""
        for row in self.grid.rows:
            facts: dict[str, str] = {}
            for column, cell in zip(self.columns, row.cells, strict=True):
                facts.setdefault(column.key, cell.strip())
            if "model" in facts:
                model = facts["model"] = facts["model"] or model
            yield row, column_titles.complete_facts(facts)

    def _figures(self, row: Row) -> tuple[dict[str, float], list[str]]:
        cells = zip(self.columns, row.cells, strict=True)
        values, remarks = column_titles.read_cells([cell for cell in cells if _is_figure(cell[0].key)])
        empty = [
            key
            for key, value in values.items()
            if json_fields.is_zero(value) and column_titles.is_measured(key)
        ]
        remarks += [f"{key} is 0: it was not measured" for key in empty]
        return {key: value for key, value in values.items() if key not in empty}, remarks

    def _name_row(self, facts: Mapping[str, str]) -> tuple[str, str, str]:
        """A row's name, the checkpoint in it, and the load: of its cells, else of the heading above."""
        title = headings.parse_title(facts["model"]) if facts.get("model") else None
        if title is None:
            name, model, load = self.subject.name or self.path.stem, self.subject.model, self.subject.load
        else:
            name, model = title.name or facts["model"], title.model
            load = title.load or self.subject.load
        stored = "-".join(facts.get("quantization", "").strip("-").split())  # INT4 GPTQ
        return full_name(name, stored), model and full_name(model, stored), load

    def _run(self, row: Row, facts: Mapping[str, str]) -> Reported | None:
        """A row of anyone's table; None if it has no figures."""
        values, remarks = self._figures(row)
        memory = values.pop("memory", None)
        if not any(map(column_titles.is_measured, values)):
            return None
        name, model, load = self._name_row(facts)
        own = csv_tables.read_requested_load(facts, load)
        lengths = own.input_len, own.output_len
        values = column_titles.derive_figures(values, own.max_concurrency, facts, lengths)
        if SPEED in values:
            remarks.append(csv_tables.UNKNOWN_FORMULA)
        return Reported(
            name=name,
            model=model if model != name else "",
            figures=values,
            load=own,
            source=self._source(row),
            told_by=SPEEDS if SPEED in values else TABLE,
            engine=facts.get("engine", "") or self.engine,
            machine=csv_tables.name_machine(
                facts.get("machine", ""), csv_tables.parse_whole(facts.get("gpu_num", ""))
            ),
            memory_bytes=self._bytes(memory),
            simulated=csv_tables.find_preset(facts.get("note", "")),
            remarks=(*filter(None, [facts.get("note")]), *remarks, *self.unread),
            unread=self._told(row, facts),
        )

    def _rung(self, facts: Mapping[str, str]) -> SpeedRow | None:
        """A rung of a ladder; None of one that did not run."""
        length, speed = csv_tables.parse_whole(facts["input_length"]), csv_tables.parse_decimal(facts[SPEED])
        if length is None or not speed:
            return None
        name, _, _ = self._name_row({**facts, "quantization": ""})
        return SpeedRow(
            model=name,
            backend=facts.get("engine", "") or self.engine,
            gpu=facts.get("machine", ""),
            input_length=length,
            quantization=facts.get("quantization", ""),
            gpu_num=csv_tables.parse_whole(facts.get("gpu_num", "")),
            speed_tok_s=speed,
            note=facts.get("note", ""),
            formula=self.formula or (OUTPUT if length <= _SHORT else UNKNOWN),
            output_length=csv_tables.parse_whole(facts.get("output_length", "")) or self.output_length,
        )

    def _climbed(self, row: Row, facts: Mapping[str, str], speed: SpeedRow) -> Reported:
        """A rung as a run, with what else its row has."""
        values, remarks = self._figures(row)
        memory = self._bytes(values.pop("memory", None))
        values.pop(SPEED, None)
        run = csv_tables.read_ladder_row(speed, self._source(row))
        return replace(
            run,
            figures={**column_titles.derive_figures(values, 1, facts), **run.figures},
            memory_bytes=memory if memory is not None else run.memory_bytes,
            remarks=(*run.remarks, *remarks, *self.unread),
            unread=self._told(row, facts),
        )

    def _bytes(self, amount: float | None) -> int | None:
        unit = next((column.unit for column in self.columns if column.key == "memory"), "")
        unit = unit.upper().replace("I", "")
        return int(amount * UNIT_BYTES[unit]) if amount and unit in UNIT_BYTES else None


def _is_figure(key: str) -> bool:
    return column_titles.is_measured(key) or key in _NUMERIC


def _find_published(row: SpeedRow) -> SpeedRow | None:
    """The row of a published page that this one is, to the digit of its speed."""
    return _pages().get((row.model, row.input_length, row.quantization, row.speed_tok_s))


@cache
def _pages() -> dict[tuple[str, int, str, Decimal | None], SpeedRow]:
    rows = reversed(speed_rows.list_published())
    return {(row.model, row.input_length, row.quantization, row.speed_tok_s): row for row in rows}


_MOST_METRICS = 200
_NUMBERS = frozenset("0123456789 ")
_UNITS = frozenset({"unit", "units"})
_PLAIN = frozenset({"", "value", "values", "result", "results", "metric", "metrics", "measured"})
_CHANGE = re.compile(
    r"change|delta|diff\w*|improve\w*|speed-?up|gain|reduction|vs\.?|ratio|[Δ%×]|提升|加速|改善|変化",
    re.IGNORECASE,
)
_RELATIVE = re.compile(r"\s*[-+−]?\s*\d[\d.,]*\s*[%x×]\s*|\s*[-+−]\s*\d.*|\s*[-–—]?\s*", re.IGNORECASE)
_STATISTIC = re.compile(
    r"p ?(\d\d?(?:\.\d+)?)|(\d\d?(?:\.\d+)?) ?(?:%|th)|avg\.?|average|mean|median|min|max|std(?:dev)?"
)
# What genai-perf and aiperf call figures whose definition is that of another name, and counts, in lower case.
_NVIDIA = {
    "inter token latency": "TPOT", "inter chunk latency": "ITL", "request count": "Successful requests",
    "completed request count": "Successful requests", "error request count": "Failed requests",
    "input sequence length": "Input length", "output sequence length": "Output length",
    "benchmark duration (sec)": "Benchmark duration (s)",
}  # fmt: skip
_CORNERS = frozenset({"statistic", "metric"})
_COUNTED = re.compile(r" \((?:requests|count|tokens)\)")
ENGINES = ("Transformers", "vLLM", "SGLang", "TensorRT-LLM", "llama.cpp", "LMDeploy", "TGI", "Ollama", "MLX")


def turn_upright(grid: Grid) -> Grid:
    """Turn a table whose first column has the titles of figures; any other is unchanged.

    A column of units is read with the titles; one of differences between the others is left out.
    """
    if len(grid.titles) < 2 or not grid.rows:
        return grid
    grid = _join_heads(grid)
    if not grid.rows:
        return grid
    if (unfolded := _read_one_figure(grid)) is not None:
        return unfolded
    if len(grid.rows) <= _MOST_METRICS and (whole := _read_statistics(grid)) is not None:
        return whole
    table = [row.cells for row in grid.rows]
    measured = any(
        column_titles.is_measured(column.key) for column in column_titles.read_columns(grid.titles, table)
    )
    if measured or len(table) > _MOST_METRICS:
        return grid
    first = 2 if translation.translate_title(grid.titles[1]).lower().strip() in _UNITS else 1
    metrics = [f"{cells[0]} ({cells[1]})" if first == 2 and cells[1].strip() else cells[0] for cells in table]
    known = [
        column_titles.read_column(metric, cells[first:]).key
        for metric, cells in zip(metrics, table, strict=True)
    ]
    if not any(map(column_titles.is_measured, known)):
        return grid
    kept = [
        at
        for at in range(first, len(grid.titles))
        if not (_CHANGE.search(grid.titles[at]) and all(_RELATIVE.fullmatch(cells[at]) for cells in table))
    ]
    labels = [_name_column(grid.titles[at]) for at in kept]
    rows = (
        Row(grid.rows[0].line - 1, (label, *(cells[at] for cells in table)), at + 1)
        for at, label in zip(kept, labels, strict=True)
    )
    return Grid((_title(grid.titles[0], labels), *metrics), tuple(rows), grid.first, grid.last)


def _read_one_figure(grid: Grid) -> Grid | None:
    """A table of the figure that its corner names, of things down its side and across: a row for each cell.

    None of any other: both must be checkpoints, ways to store weights, machines or loads.
    """
    figure, *across = grid.titles
    down = [row.cells[0] for row in grid.rows]
    if not column_titles.is_measured(column_titles.read_column(figure).key) or not all(
        map(_is_thing, across)
    ):
        return None
    if not all(map(_is_thing, down)):
        return None
    if _NUMBERS.issuperset("".join((*down, *across))):  # of what they are, no one says
        return Grid(("", *across), grid.rows, grid.first, grid.last)
    titled = [_title("", labels) for labels in (down, across)]
    if titled[0] == titled[1]:
        titled = ["Row", "Column"]
    rows = (
        Row(row.line, (row.cells[0], title, cell), at)
        for row in grid.rows
        for at, (title, cell) in enumerate(zip(across, row.cells[1:], strict=True), 2)
    )
    return Grid((*titled, figure), tuple(rows), grid.first, grid.last)


def _is_thing(label: str) -> bool:
    """Whether a label is of a checkpoint, of how weights are stored, of a machine or of a load."""
    title = headings.parse_title(label)
    known = title.model or title.quantization or headings.find_concurrency(label) is not None
    return bool(known) or label.strip().isdecimal() or machines.recognise_machine(label) is not None


def _join_heads(grid: Grid) -> Grid:
    """A table whose first row goes on with its titles, as Mean and P99 below TTFT, with both in one."""
    first = grid.rows[0].cells
    below = [cell if cell != title else "" for title, cell in zip(grid.titles, first, strict=True)]
    filled = [cell for cell in below if cell]
    if len(filled) < 2 or not all(_rank(cell) for cell in filled):
        return grid
    named, above = list[str](), ""
    for title, cell in zip(grid.titles, below, strict=True):
        above = title or (above if cell else "")
        named.append(f"{cell} {above}".strip())
    return Grid(tuple(named), grid.rows[1:], grid.first, grid.last)


def _read_statistics(grid: Grid) -> Grid | None:
    """A table of one run's statistics, as clients print it, as one row; None of any other.

    Its columns are statistics and its rows metrics (genai-perf, aiperf), or the other way round (evalscope).
    """
    table = [row.cells for row in grid.rows]
    ranks, metrics = [_rank(title) for title in grid.titles[1:]], [cells[0] for cells in table]
    cells = [row[1:] for row in table]
    if not all(ranks):
        ranks, metrics = [_rank(metric) for metric in metrics], list(grid.titles[1:])
        cells = [tuple(row[at] for row in table) for at in range(1, len(grid.titles))]
    elif grid.titles[0].lower() in _CORNERS:
        metrics = [_name_by_definition(metric) for metric in metrics]
    measured = any(
        column_titles.is_measured(column_titles.read_column(f"{ranks[0]} {metric}").key) for metric in metrics
    )
    if not all(ranks) or not measured or len({*ranks}) < len(ranks):
        return None
    named, values = ["load"], [""]  # of which no such table says more
    for metric, row in zip(metrics, cells, strict=True):
        for rank, cell in zip(ranks, row, strict=True):
            titled = f"{rank} {metric}"
            if not column_titles.read_column(titled).key and rank == "mean":  # a rate has no rank
                titled = metric
            if column_titles.read_column(titled).key or rank == "mean":  # what is not known is named
                named.append(titled)
                values.append(cell)
    return Grid(tuple(named), (Row(grid.first, tuple(values)),), grid.first, grid.last)


def _name_by_definition(metric: str) -> str:
    """A metric of NVIDIA's clients under the name that its definition has here."""
    plain = _COUNTED.sub("", " ".join(metric.lower().split()))
    name, bracket, unit = plain.partition(" (")
    return _NVIDIA.get(plain, f"{_NVIDIA[name]}{bracket}{unit}" if name in _NVIDIA else metric)


def _rank(title: str) -> str:
    """A statistic as the titles of figures have it: p99, mean; "" of anything else."""
    match = _STATISTIC.fullmatch(translation.translate_title(title).lower().strip())
    if match is None:
        return ""
    if rank := match[1] or match[2]:
        return f"p{rank}"
    return {"avg": "mean", "avg.": "mean", "average": "mean", "stddev": "std"}.get(match[0], match[0])


def _name_column(title: str) -> str:
    """Name what a column is of; "" of one that is headed by a word for any figure."""
    return "" if translation.translate_title(title).lower().strip() in _PLAIN else title


def _title(corner: str, labels: Sequence[str]) -> str:
    """Title the columns by the table's corner, else by what their titles are."""
    parts = (part.strip() for part in re.split(r"[\\/|→]", corner))
    if named := next((part for part in parts if column_titles.read_column(part).key), ""):
        return named
    filled = [label for label in labels if label]
    kinds = (
        ("Model", lambda label: headings.parse_title(label).model != ""),
        ("Quantization", lambda label: headings.parse_title(label).quantization != ""),
        ("Engine", lambda label: any(label.lower().startswith(name.lower()) for name in ENGINES)),
        ("GPU", lambda label: machines.recognise_machine(label) is not None),
        ("Load", lambda label: headings.find_concurrency(label) is not None),
    )
    return next((title for title, holds in kinds if filled and all(map(holds, filled))), "Configuration")

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
from loadgen.base.layout import some
from loadgen.report import labels, speed_rows
from loadgen.report.speed_formulas import FORMULAS, OUTPUT, UNKNOWN
from loadgen.report.speed_rows import GENERATED, UNIT_BYTES, SpeedRow
from loadgen.study.importers import (
    blocks,
    columns,
    csv_tables,
    grids,
    headings,
    json_fields,
    llama_tests,
    pages,
    table_rows,
    titles,
    transposed,
)
from loadgen.study.importers.columns import SPEED
from loadgen.study.importers.csv_tables import SPEEDS, TABLE
from loadgen.study.importers.grids import Grid, Row
from loadgen.study.importers.headings import Kind, Outline, Subject
from loadgen.study.importers.table_rows import TableRows
from loadgen.study.run_summary import Reported, full_name

# Of files in a directory: what the header of a speed table has, in every form of the pages and of ours.
MARKS: tuple[bytes, ...] = (
    b"Speed (tokens/s)", b"Speed(tokens/s)", b"Input  Quantization", b" t/s |", b"t/s (total)",
)  # fmt: skip
_SHORT = 16  # tokens of a prompt, up to which all formulas of a speed agree
_QUOTES = re.compile(r"(?:\s{0,3}> ?)+")
_COMMENT = re.compile(r"^\s{0,8}(?:#+|//+|;+|%+|\*|>)\s{0,8}(?=\||\+-)")
_GENERATED = re.compile(r"(\d{1,9}) tokens generated")
_NUMERIC = (blocks.known_keys() | {"memory"}) - {"max_concurrency"}
_PLACES = {"model", "load", "max_concurrency", "input_length", "test", columns.RATE, columns.LENGTHS}
# What a row of one request at a time, as a ladder's, has no column of.
_SERVED = {"max_concurrency", "request_throughput", "output_throughput", "prompts", columns.RATE}
_MOST_NAMED = 8  # columns in a remark
_MOST_WRITTEN = 1e15


def read(text: str, path: Path) -> TableRows:
    """Every row of a page's tables that has figures, what cannot be read as a remark.

    Raises UsageError of tables that are too large.
    """
    lines = [
        _COMMENT.sub("", line, count=1) if "|" in line or "+-" in line else line
        for line in pages.split(pages.uncoloured(text))
    ]
    try:
        found = grids.found([_QUOTES.sub("", line, count=1) if ">" in line[:4] else line for line in lines])
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    above = _above(lines, [grid.first for grid in found])
    reported, left = list[Reported](), list[str]()
    for at, (grid, (subject, heading, engine)) in enumerate(zip(found, above, strict=True)):
        end = found[at + 1].first - 1 if at + 1 < len(found) else len(lines)
        stands = _Surroundings(path, lines[grid.last - 1 : end], subject, heading, engine)
        table = _Table(transposed.upright(grid), stands)
        runs = table.runs()
        reported += runs
        left += table.left({run.source for run in runs})
    return TableRows(reported, left)


def of_client(grid: Grid, client: str, source: str) -> list[Reported]:
    """The rows with figures of a client's file, whose keys are the titles of the tables that it prints."""
    stands = _Surroundings(Path(source), (), Subject(), "", "")
    runs = _Table(transposed.upright(grid), stands).runs()
    return [replace(run, told_by=client, source=source) for run in runs]


def written(value: object) -> str:
    """A value of a file as a cell that can be read in one way alone; "" of what has parts or is none."""
    if isinstance(value, float):
        return f"{value:.9f}" if abs(value) < _MOST_WRITTEN else repr(value)
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""


def _above(lines: Sequence[str], firsts: Sequence[int]) -> Iterator[tuple[Subject, str, str]]:
    """What the headings above each of these lines name, the nearest of them, and the engine in them."""
    numbers, texts = pages.pieces(lines)
    outline, page = Outline(), headings.lines(texts)
    line = next(page, None)
    for first in firsts:
        while line is not None and numbers[line.number - 1] < first:
            if line.kind in (Kind.HEADING, Kind.ITEM, Kind.LINE):
                outline.enter(line)
            line = next(page, None)
        named = (
            engine
            for name in outline.names
            for engine in transposed.ENGINES
            if engine.lower() in name.lower()
        )
        yield outline.subject, next(iter(outline.names), ""), next(named, "")


class _Surroundings(msgspec.Struct, frozen=True):
    """What stands around a table."""

    path: Path
    below: Sequence[str]
    subject: Subject
    heading: str  # the nearest above
    engine: str  # in one of the headings


class _Table:
    """One table of a page: what its columns hold, and what stands around it."""

    def __init__(self, grid: Grid, stands: _Surroundings) -> None:
        self.grid, self.path, self.subject = llama_tests.one_a_row(grid), stands.path, stands.subject
        self.engine = stands.engine
        self.columns = columns.columns(self.grid.titles, [row.cells for row in self.grid.rows])
        self.labels = {"heading": stands.heading} if stands.heading else {}
        notes = "\n".join(stands.below)
        titled = ["".join(title.split()) for title in grid.titles]
        stated = [each for each in FORMULAS if each in titled] or [each for each in FORMULAS if each in notes]
        self.formula = stated[0] if len(stated) == 1 else ""
        generated = _GENERATED.search(notes)
        self.output_length = int(generated[1]) if generated else GENERATED

    @cached_property
    def keys(self) -> set[str]:
        """What its columns hold."""
        return {column.key for column in self.columns}

    @cached_property
    def has_figures(self) -> bool:
        """Whether it has columns of figures, and something that says what they are of."""
        named = _PLACES & self.keys or self.subject.model or self.named
        return any(map(columns.is_measured, self.keys)) and bool(named)

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
        published = [_published(speed) for _, _, speed in rungs]
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
            yield from table_rows.without_figures(self.path, each, len(rows))

    def _source(self, row: Row) -> str:
        return f"{self.path}:{row.line}" + (f" column {row.column}" if row.column else "")

    @cached_property
    def named(self) -> list[int]:
        """The columns of labels: what tells one row from another and is no fact."""
        return table_rows.telling_columns(
            self.columns, self.grid.titles, [row.cells for row in self.grid.rows]
        )

    @cached_property
    def unread(self) -> tuple[str, ...]:
        """A remark on the columns of figures that are not read."""
        named, cells = self.named, [row.cells for row in self.grid.rows]
        titled = enumerate(zip(self.columns, self.grid.titles, strict=True))
        left = [
            f"{title!r}"
            for at, (column, title) in titled
            if not column.key and at not in named and labels.is_figure(title, [row[at] for row in cells])
        ]
        return (f"not read: {some(left, _MOST_NAMED)}",) if left else ()

    def _told(self, row: Row, facts: Mapping[str, str]) -> dict[str, str]:
        """What a row has that no figure or fact is read from."""
        named = {self.grid.titles[at] or "label": row.cells[at] for at in self.named}
        return {**self.labels, **named, **table_rows.uncounted(facts)}

    def _facts(self) -> Iterator[tuple[Row, dict[str, str]]]:
        """Each row's cells by what they hold; an empty cell of a model is that of the row above."""
        model = ""
        for row in self.grid.rows:
            facts: dict[str, str] = {}
            for column, cell in zip(self.columns, row.cells, strict=True):
                facts.setdefault(column.key, cell.strip())
            if "model" in facts:
                model = facts["model"] = facts["model"] or model
            yield row, columns.completed(facts)

    def _figures(self, row: Row) -> tuple[dict[str, float], list[str]]:
        cells = zip(self.columns, row.cells, strict=True)
        values, remarks = columns.figures([cell for cell in cells if _is_figure(cell[0].key)])
        empty = [
            key for key, value in values.items() if json_fields.is_zero(value) and columns.is_measured(key)
        ]
        remarks += [f"{key} is 0: it was not measured" for key in empty]
        return {key: value for key, value in values.items() if key not in empty}, remarks

    def _named(self, facts: Mapping[str, str]) -> tuple[str, str, str]:
        """A row's name, the checkpoint in it, and the load: of its cells, else of the heading above."""
        title = titles.parse(facts["model"]) if facts.get("model") else None
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
        if not any(map(columns.is_measured, values)):
            return None
        name, model, load = self._named(facts)
        own = table_rows.requested_load(facts, load)
        lengths = own.input_len, own.output_len
        values = columns.derived(values, own.max_concurrency, facts, lengths)
        if SPEED in values:
            remarks.append("lengths, batch size and formula of the speed are unknown")
        return Reported(
            name=name,
            model=model if model != name else "",
            figures=values,
            load=own,
            source=self._source(row),
            told_by=SPEEDS if SPEED in values else TABLE,
            engine=facts.get("engine", "") or self.engine,
            machine=csv_tables.machine(facts.get("machine", ""), table_rows.whole(facts.get("gpu_num", ""))),
            memory_bytes=self._bytes(memory),
            simulated=csv_tables.simulated(facts.get("note", "")),
            remarks=(*filter(None, [facts.get("note")]), *remarks, *self.unread),
            unread=self._told(row, facts),
        )

    def _rung(self, facts: Mapping[str, str]) -> SpeedRow | None:
        """A rung of a ladder; None of one that did not run."""
        length, speed = table_rows.whole(facts["input_length"]), table_rows.decimal(facts[SPEED])
        if length is None or not speed:
            return None
        name, _, _ = self._named({**facts, "quantization": ""})
        return SpeedRow(
            model=name,
            backend=facts.get("engine", "") or self.engine,
            gpu=facts.get("machine", ""),
            input_length=length,
            quantization=facts.get("quantization", ""),
            gpu_num=table_rows.whole(facts.get("gpu_num", "")),
            speed_tok_s=speed,
            note=facts.get("note", ""),
            formula=self.formula or (OUTPUT if length <= _SHORT else UNKNOWN),
            output_length=table_rows.whole(facts.get("output_length", "")) or self.output_length,
        )

    def _climbed(self, row: Row, facts: Mapping[str, str], speed: SpeedRow) -> Reported:
        """A rung as a run, with what else its row has."""
        values, remarks = self._figures(row)
        memory = self._bytes(values.pop("memory", None))
        values.pop(SPEED, None)
        run = csv_tables.rung(speed, self._source(row))
        return replace(
            run,
            figures={**columns.derived(values, 1, facts), **run.figures},
            memory_bytes=memory if memory is not None else run.memory_bytes,
            remarks=(*run.remarks, *remarks, *self.unread),
            unread=self._told(row, facts),
        )

    def _bytes(self, amount: float | None) -> int | None:
        unit = next((column.unit for column in self.columns if column.key == "memory"), "")
        unit = unit.upper().replace("I", "")
        return int(amount * UNIT_BYTES[unit]) if amount and unit in UNIT_BYTES else None


def _is_figure(key: str) -> bool:
    return columns.is_measured(key) or key in _NUMERIC


def _published(row: SpeedRow) -> SpeedRow | None:
    """The row of a published page that this one is, to the digit of its speed."""
    return _pages().get((row.model, row.input_length, row.quantization, row.speed_tok_s))


@cache
def _pages() -> dict[tuple[str, int, str, Decimal | None], SpeedRow]:
    rows = reversed(speed_rows.shipped())
    return {(row.model, row.input_length, row.quantization, row.speed_tok_s): row for row in rows}

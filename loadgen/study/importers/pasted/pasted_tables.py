"""Pasted tables: rows of anyone's tables and sheets as runs, and the speed ladders of the Qwen pages."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.parsing import read_figure
from loadgen.base.text import cut_end, list_first
from loadgen.features.roofline import machines
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
from loadgen.study.importers.pasted.numbers import parse_decimal, parse_mean, parse_whole, translate_title
from loadgen.study.importers.pasted.page_reader import Grid, Row
from loadgen.study.importers.pasted.pasted_pages import ENGINES, Surroundings
from loadgen.study.importers.pasted.row_figures import (
    FORMULA,
    LENGTHS,
    RATE,
    SPEED,
    is_measured,
    read_column,
    read_columns,
)
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
_NUMERIC = (pasted_blocks.list_keys() | {"memory"}) - {"max_concurrency"}
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
_WHERE = ("engine", "machine", "gpu_num")  # which rows without figures are not named by
_MOST_CELLS, _LONGEST_CELL, _MOST_NAMED = 4, 24, 8
_NOTHING: Mapping[str, str] = {}
_NOWHERE = Surroundings()


TableRows = tuple[list[Reported], list[str]]  # the runs of tables, and a line on each with rows left out


def read_tables(text: str, path: Path) -> TableRows:
    """Read every row of a page's tables that has figures; an unreadable cell is a remark.

    Raises UsageError of tables that are too large.
    """
    places, after = pasted_pages.find_results(text, path, Grid)
    apart = pasted_pages.describe_surroundings([place for _, place in places], after)
    tables, left = list[tuple[Grid, Surroundings, dict[str, str]]](), list[str]()
    for (grid, place), own in zip(places, apart, strict=True):
        upright, out = turn_upright(grid)
        left += [f"{path}: {each}" for each in out]
        above, over, _ = tables[-1] if tables else (upright, None, own)
        is_same = over is not None and (over.subject, over.heading) == (place.subject, place.heading)
        if is_same and (joined := _join_parts(above, upright)) is not None:
            tables[-1] = (joined, *tables[-1][1:])
        else:
            tables.append((upright, place, own))
    reported, lines = list[Reported](), page_reader.split_lines(text)
    ends = [*(grid.first - 1 for grid, _, _ in tables[1:]), len(lines)]
    for (grid, place, own), end in zip(tables, ends, strict=bool(tables)):
        runs, without = _Table(grid, path, place, "\n".join(lines[grid.last - 1 : end]), own).read_rows()
        reported += runs
        left += without
    return reported, left


def read_sheet(grid: Grid, path: Path) -> TableRows:
    """Read every row of a sheet that has figures, and lines on the others."""
    upright, out = turn_upright(grid)
    runs, without = _Table(upright, path).read_rows()
    return runs, [f"{path}: {each}" for each in out] + without


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
    row = replace(above.rows[0], cells=(*above.rows[0].cells, *below.rows[0].cells[1:]))
    return Grid((*above.titles, *below.titles[1:]), (row,), above.first, below.last)


def format_cell(value: object) -> str:
    """Write a value of a file as a cell that can be read in one way only; "" of a list, an object or null."""
    if isinstance(value, float):
        return f"{value:.9f}" if abs(value) < _MOST_WRITTEN else repr(value)
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""


_MOST_METRICS = 200
_UNITS = frozenset({"unit", "units"})
_PLAIN = frozenset({"", "value", "values", "result", "results", "metric", "metrics", "measured"})
_CHANGE = re.compile(
    r"change|delta|diff\w*|improve\w*|speed-?up|gain|reduction|vs\.?|ratio|[Δ%×]|提升|加速|改善|変化",
    re.IGNORECASE,
)
_RELATIVE = re.compile(r"\s*[-+−]?\s*\d[\d.,]*\s*[%x×]\s*|\s*[-+−]\s*\d.*|\s*[-–—]?\s*", re.IGNORECASE)
_STATISTIC = re.compile(
    r"(?P<rank>p ?(\d\d?(?:\.\d+)?)|(\d\d?(?:\.\d+)?) ?th)|(?P<n>n|counts?|samples)"
    r"|(?P<mean>avg\.?|average|mean)|(?P<median>median)"
    r"|(?P<min>min(?:imum)?)|(?P<max>max(?:imum)?)|(?P<std>std\.?(?: ?dev(?:iation)?)?)"
)
_SHARE = re.compile(r"(\d\d?(?:\.\d+)?) ?%")  # a percentile below a title that says so, else any share
_SHARED = re.compile(r"|\S*(?:percentiles?|quantiles?|ranks?|statistics?|stats?)", re.IGNORECASE)
_LEVELS = frozenset({"", "n", "min", "max"})  # no statistic, a count, or the name of a load
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")  # of a title in one: InputTokens
_CORNERS = frozenset({"statistic", "metric"})  # of NVIDIA's clients, whose inter-token latency is a TPOT
_NVIDIAS = re.compile(r"inter token latency", re.IGNORECASE)
# Of a column of labels: its title, and what all of them are.
_KINDS: Mapping[str, Callable[[str], object]] = {
    "Model": lambda label: headings.parse_title(label).model,
    "Quantization": lambda label: headings.parse_title(label).quantization,
    "Engine": lambda label: label.lower().startswith(tuple(engine.lower() for engine in ENGINES)),
    "Load": lambda label: headings.find_concurrency(label) is not None,
    "GPU": machines.recognise_machine,
}


def turn_upright(grid: Grid) -> tuple[Grid, list[str]]:
    """Return a table with a row a run, and a line, if any, on rows or columns of statistics of others.

    It is turned if its first column has figures' titles, and the statistics of a run are joined.
    """
    grid = _join_heads(grid) if len(grid.titles) > 1 and grid.rows else grid
    if len(grid.titles) < 2 or not 0 < len(grid.rows) <= _MOST_METRICS:
        return grid, []
    if is_measured(read_column(grid.titles[0]).key) and all(map(_is_thing, grid.titles[1:])):
        # One figure, named in its corner, over models or loads: it is not read.
        return replace(grid, titles=("", *grid.titles[1:])), []
    columns = read_columns(grid.titles, [row.cells for row in grid.rows])
    upright, out = _gather_ranks(grid if any(is_measured(each.key) for each in columns) else _turn(grid))
    named = [repr(grid.titles[row.column - 1]) if row.column else f"line {row.line}" for row in out]
    first = list_first(named, _MOST_NAMED)
    return upright, [f"{first}: statistics of other runs, left out"] if named else []


def _turn(grid: Grid) -> Grid:
    """Return a table whose first column has figures' titles with its columns as rows; any other unchanged.

    Of the columns those of a change and those that say the same of all are left out.
    """
    table = [row.cells for row in grid.rows]
    has_units = translate_title(grid.titles[1]).lower().strip() in _UNITS
    metrics = [f"{cells[0]} ({cells[1]})" if has_units and cells[1].strip() else cells[0] for cells in table]
    if grid.titles[0].lower() in _CORNERS and any(map(_find_rank, grid.titles)):
        metrics = [_NVIDIAS.sub("TPOT", " ".join(metric.split())) for metric in metrics]
    if not any(
        is_measured(read_column(each, cells[1:]).key) for each, cells in zip(metrics, table, strict=True)
    ):
        return grid
    rows, labels_read = list[Row](), list[str]()
    for at in range(2 if has_units else 1, len(grid.titles)):
        title, cells = grid.titles[at], [cells[at] for cells in table]
        is_one_word = len({*cells}) == 1 < len(cells) and not any(map(str.isdigit, cells[0]))
        if not is_one_word and not (_CHANGE.search(title) and all(map(_RELATIVE.fullmatch, cells))):
            # A column that is headed by a word for any figure has no name.
            labels_read.append("" if translate_title(title).lower().strip() in _PLAIN else title)
            rows.append(Row(grid.first, (labels_read[-1], *cells), at + 1))
    corner = (part.strip() for part in re.split(r"[\\/|→]", grid.titles[0]))
    filled = [*filter(None, labels_read)]
    kinds = (kind for kind, is_one in _KINDS.items() if filled and all(map(is_one, filled)))
    title = next((part for part in corner if read_column(part).key), None) or next(kinds, "Configuration")
    return Grid((title, *metrics), tuple(rows), grid.first, grid.last)


def _is_thing(label: str) -> bool:
    """Whether a column is headed by a model, its storage, a load, a count or a machine."""
    kinds = (is_one(label) for kind, is_one in _KINDS.items() if kind != "Engine")
    return label.strip().isdecimal() or any(kinds)


def _join_heads(grid: Grid) -> Grid:
    """Join the first row to the titles where it goes on with them, as Mean and P99 below TTFT."""
    first = grid.rows[0].cells
    below = [cell if cell != title else "" for title, cell in zip(grid.titles, first, strict=True)]
    filled = [cell for cell in below if cell]
    if len(filled) < 2 or not all(map(_find_rank, filled)):
        return grid
    named, above = list[str](), ""
    for title, cell in zip(grid.titles, below, strict=True):
        above = title or (above if cell else "")
        named.append(f"{cell} {above}".strip())
    return Grid(tuple(named), grid.rows[1:], grid.first, grid.last)


def _gather_ranks(grid: Grid) -> tuple[Grid, list[Row]]:
    """Return a table whose rows are statistics with one row for each run, and rows left out.

    One column names them (`Stat`, evalscope's `Percentile`). What stands before it is the run's, as are
    columns behind it that are no figures, where a statistic would stand twice. Where it names other rows too,
    as runs by their numbers, the statistics are of these, and are left out.
    """
    for at, title in enumerate(grid.titles):
        ranks = [_find_rank(row.cells[at], title) for row in grid.rows]
        if _LEVELS.issuperset(ranks):
            continue
        if not all(ranks):
            kept = tuple(row for row, rank in zip(grid.rows, ranks, strict=True) if not rank)
            return replace(grid, rows=kept), [row for row in grid.rows if row not in kept]
        columns = read_columns(grid.titles, [row.cells for row in grid.rows])
        figured = {n for n, each in enumerate(columns) if is_measured(each.key)}
        plain = [n for n in range(len(grid.titles)) if n != at and n not in figured]
        for own in ([*range(at)], plain) if figured else ():
            groups: dict[tuple[str, ...], dict[str, Row]] = {}
            for row, rank in zip(grid.rows, ranks, strict=True):
                groups.setdefault(tuple(row.cells[n] for n in own), {}).setdefault(rank, row)
            if sum(map(len, groups.values())) == len(grid.rows):
                return _join_ranks(grid, at, own, groups), []
    return grid, []


def _join_ranks(
    grid: Grid, at: int, own: Sequence[int], groups: Mapping[tuple[str, ...], Mapping[str, Row]]
) -> Grid:
    """Return a table with a row for each group of statistics, by their rank in column `at`.

    Of what is not known only the mean is kept. A rate of several ranks is of each request, and none of the
    run: it keeps a title that is not read.
    """
    ranks = [*dict.fromkeys(rank for by_rank in groups.values() for rank in by_rank if rank != "n")]
    columns = dict[str, tuple[int, str]]()  # by their titles: the column here, and the rank
    for n, title in enumerate(grid.titles):
        metric = _WORDS.sub(" ", title)
        cells = [by_rank[rank].cells[n] for by_rank in groups.values() for rank in ranks if rank in by_rank]
        filled = [cell for cell in cells if numbers.parse_cell(cell) is not None]
        for rank in ranks if n not in {*own, at} else ():
            titled = f"{rank} {metric}"
            if not read_column(titled, filled).key and rank == "mean":
                is_rate = is_measured(read_column(metric, filled).key) and len(filled) > len(groups)
                titled = f"{metric} of each request" if is_rate else metric
            elif not read_column(titled, filled).key:
                continue
            columns[titled] = n, rank
    rows = [
        Row(
            next(iter(by_rank.values())).line,
            (
                *(cells or ("",)),
                *(by_rank[rank].cells[n] if rank in by_rank else "" for n, rank in columns.values()),
            ),
        )
        for cells, by_rank in groups.items()
    ]
    return Grid((*([grid.titles[n] for n in own] or ["load"]), *columns), tuple(rows), grid.first, grid.last)


def _find_rank(title: str, column: str = "-") -> str:
    """Return a title's statistic as keys have it, as p99; "" of others. In a `column` of ranks 90% is p90."""
    plain = translate_title(title).lower().strip()
    share = _SHARE.fullmatch(plain)
    if share is not None and _SHARED.fullmatch(translate_title(column).strip()):
        return f"p{share[1]}"
    match = _STATISTIC.fullmatch(plain)
    if match is None:
        return ""
    return f"p{match[2] or match[3]}" if match["rank"] else str(match.lastgroup)


class _Table:
    """One table of a page: what its columns hold, and what stands around it."""

    def __init__(
        self,
        grid: Grid,
        path: Path,
        place: Surroundings = _NOWHERE,
        notes: str = "",
        apart: Mapping[str, str] = _NOTHING,
    ) -> None:
        self.grid, self.path, self.subject, self.engine = grid, path, place.subject, place.engine
        cells = [row.cells for row in grid.rows]
        self.columns = read_columns(grid.titles, cells)
        self.keys = {column.key for column in self.columns}
        is_limit = any(pasted_blocks.find_key(title) == "max_concurrency" for title in grid.titles)
        self.numeric = _NUMERIC | {"max_concurrency"} if is_limit and place is _NOWHERE else _NUMERIC
        self.label_columns, self.not_read = self._find_label_columns(cells)
        is_above = not place.heading or place.heading in apart.values()
        self.labels = ({} if is_above else {"heading": place.heading}) | dict(apart)
        titled = ["".join(title.split()) for title in grid.titles]
        stated = [each for each in FORMULAS if each in titled] or [each for each in FORMULAS if each in notes]
        self.formula = stated[0] if len(stated) == 1 else ""
        generated = _GENERATED.search(notes)
        self.output_length = int(generated[1]) if generated else GENERATED

    def _find_label_columns(self, cells: Sequence[Sequence[str]]) -> tuple[list[int], tuple[str, ...]]:
        """Return the indices of the columns of labels, and one remark on those of numbers not read, if any.

        A column of figures that is not read is a label, too, where its values lie farther apart than repeats
        do, as is one of requests per second where no other says what the load was. Where another column
        numbers the rows as runs, it is one if its values stand several times: they were set.
        """
        named, left = list[int](), list[str]()
        columns = [*zip(self.columns, self.grid.titles, zip(*cells, strict=True), strict=False)]
        numbered = any(labels.counts_runs(title, own) for _, title, own in columns)
        loads = self.keys & {"max_concurrency", "load", "test", RATE}
        for at, (column, title, own) in enumerate(columns):
            is_figure = labels.is_measured(title, own)
            is_label = is_figure is False
            if not column.key and is_figure is not None:
                filled = [cell for cell in own if cell.strip()]
                numeric = sum(numbers.parse_cell(cell) is not None for cell in filled)
                left += [repr(title)] if is_figure or 2 * numeric >= len(filled) else []
            if (not column.key and is_figure) or (column.key == "request_throughput" and not loads):
                firsts = (_FIRST_NUMBER.search(cell) for cell in own)
                values = [float(match[0].replace(",", "")) for match in firsts if match is not None]
                lie_apart = len(values) > 1 and max(values) > _APART * min(values)
                is_label = all(own.count(cell) > 1 for cell in own) if numbered else lie_apart
            else:
                is_label = is_label and column.key in _TELLING
            named += [at] if is_label else []
        return named, (f"not read: {list_first(left, _MOST_NAMED)}",) if left else ()

    def read_rows(self) -> TableRows:
        """Return the runs of rows with figures, and a line on the others; neither of any other table.

        A table of runs has a column of figures, and a place: a model, a load, a length or a label. An empty
        cell of a model is that of a row above.
        """
        named = _PLACES & self.keys or self.subject.model or self.label_columns
        if not (named and any(map(is_measured, self.keys))):
            return [], []
        runs, empty, model = list[Reported](), list[str](), ""
        for row in self.grid.rows:
            facts: dict[str, str] = {}
            for column, cell in zip(self.columns, row.cells, strict=True):
                facts[column.key] = facts.get(column.key) or cell.strip()
            if "model" in facts:
                model = facts["model"] = facts["model"] or model
            if (run := self._make_run(row, row_figures.complete_facts(facts))) is not None:
                runs.append(run)
                continue
            cells = zip(self.columns, row.cells, strict=True)
            telling = (cell for column, cell in cells if cell.strip() and column.key not in _WHERE)
            filled = [*dict.fromkeys(cut_end(cell, _LONGEST_CELL) for cell in telling)]
            # One cell alone is a heading between rows.
            if sum(1 for cell in row.cells if cell.strip()) > 1 and row.cells != self.grid.titles:
                empty.append(f"line {row.line} ({', '.join(filled[:_MOST_CELLS])})")
        of_all = f"{len(empty)} of {len(self.grid.rows)} rows of a table have no figures"
        return runs, [f"{self.path}: {of_all}: {list_first(empty, _MOST_NAMED)}"] if empty else []

    def _read_labels(self, row: Row, facts: Mapping[str, str]) -> dict[str, str]:
        named = {self.grid.titles[at] or "label": row.cells[at] for at in self.label_columns}
        # Counts that are not numbers, as 4k or 1k1k, tell a row from others.
        counts = ((key, facts.get(key, ""), read) for key, read in _COUNTS.items())
        uncounted = {key: cell for key, cell, read in counts if cell and read(cell) is None}
        return {**self.labels, **named, **uncounted}

    def _read_figures(self, row: Row) -> tuple[dict[str, float], list[str]]:
        """Return a row's figures by key, and remarks on cells not read and on those of 0, left out."""
        cells = zip(self.columns, row.cells, strict=True)
        figured = [cell for cell in cells if is_measured(cell[0].key) or cell[0].key in self.numeric]
        values, remarks = row_figures.read_cells(figured)
        empty = [key for key, value in values.items() if json_fields.is_zero(value) and is_measured(key)]
        empty = [key for key in empty if not key.startswith("std_")]
        remarks += [f"{key} is 0: it was not measured" for key in empty]
        return {key: value for key, value in values.items() if key not in empty}, remarks

    def _make_run(self, row: Row, facts: Mapping[str, str]) -> Reported | None:
        """Make the run of a row; None if no latency, throughput or speed of it can be read."""
        read, remarks = self._read_figures(row)
        memory = int(read_figure(read.pop("memory", None)) or 0) or None
        if not any(map(is_measured, read)):
            return None
        title = headings.parse_title(facts["model"]) if facts.get("model") else None
        name, model, named = self.subject.name or self.path.stem, self.subject.model, self.subject.load
        if title is not None:
            name, model, named = title.name or facts["model"], title.model, title.load or named
        stored = "-".join(facts.get("quantization", "").strip("-").split())  # INT4 GPTQ
        load, note = read_requested_load(facts, named), facts.get("note", "")
        published, formula = None, ""
        # A ladder's row: it has a whole length, and no column of what a load of several requests has.
        is_ladder = {SPEED, "input_length"} <= self.keys and not _SERVED & self.keys
        speed = parse_decimal(facts[SPEED]) if is_ladder and parse_whole(facts["input_length"]) else None
        if speed is not None:
            length, answer = int(load.input_len or 0), load.output_len or self.output_length
            published = _read_published().get((name, length, stored, speed))
            formula = facts.get(FORMULA, "") or (published.formula if published is not None else self.formula)
            formula = formula or (OUTPUT if length <= _SHORT else UNKNOWN)
            formula = formula if formula in FORMULAS else UNKNOWN
            load = replace(load, name=f"input {length}", output_len=answer, max_concurrency=1)
            load = replace(load, asked_output_len=int(answer))
            speeds = {SPEED: float(read.pop(SPEED))}
            if formula in FORMULAS:
                speeds["output_throughput"] = convert_speed(
                    speeds[SPEED], formula, OUTPUT, length, int(answer)
                )
            values = {**row_figures.derive_figures(read, 1, facts), **speeds}
            remarks = [f"speed is {formula}", *filter(None, [note]), *remarks]
        else:
            limit, lengths_read = load.max_concurrency, (load.input_len, load.output_len)
            values = row_figures.derive_figures(read, limit, facts, lengths_read)
            remarks = [*filter(None, [note]), *remarks, *row_figures.list_remarks(read, values)]
        model = model and join_quantization(model, stored)
        name = join_quantization(name, stored)
        gpu, engine = facts.get("machine", ""), facts.get("engine", "")
        count = parse_whole(facts.get("gpu_num", ""))
        if published is not None:
            gpu, engine, own = gpu or published.gpu, engine or published.backend, published.gpu_memory
            count = published.gpu_num if count is None else count
            memory = int(own.amount * UNIT_BYTES[own.unit]) if memory is None and own is not None else memory
        return Reported(
            name=name,
            model="" if speed is not None or model == name else model,
            figures=values,
            load=load,
            source=f"{self.path}:{row.line}" + (f" column {row.column}" if row.column else ""),
            told_by=SPEEDS if SPEED in values else TABLE,
            engine=engine or self.engine,
            machine=name_machine(gpu, count),
            memory_bytes=memory,
            speed_formula=formula,
            simulated=find_unnamed_preset(SIMULATED in note),
            remarks=(*remarks, *self.not_read),
            unread=self._read_labels(row, facts),
        )


@cache
def _read_published() -> dict[tuple[str, int, str, Decimal | None], SpeedRow]:
    return {
        (row.model, row.input_length, row.quantization, row.speed_tok_s): row
        for row in reversed(speed_rows.list_published())
    }


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


_LEAST_FIGURES = 3  # columns of figures that make a table one of blocks
_DELIMITERS = ",;\t"
_MOST_SAMPLED = 100
_LONGEST_HEADER, _MOST_COLUMNS = 1 << 16, 1000  # of a table, in characters and in titles


def may_be_table(head: bytes) -> bool:
    """Whether a file may be a table of figures, by the first line of its bytes; of UTF-16 too."""
    line = head.replace(b"\0", b"").lstrip().partition(b"\n")[0].lower()
    figures, names = (b"tok", b"ttft", b"speed", b"throughput"), (b"model", b"name", b"checkpoint")
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
    figures = [key for key in keys if is_measured(key) or key in _NUMERIC]
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
    """Read a table's runs, and lines on the other rows. Raises UsageError of a row of other columns."""
    titles, delimiter = _read_header(text)
    lines = json_fields.read_csv_rows(text, path, delimiter)
    next(lines)
    rows = list[Row]()
    for line, cells in lines:
        if len(cells) != len(titles):
            raise UsageError(f"{path}:{line} has a different number of cells than the table has columns")
        json_fields.check_results(path, len(rows) + 1)
        rows.append(Row(line, tuple(cells)))
    return read_sheet(Grid(tuple(titles), tuple(rows), 1, len(rows) + 1), path)

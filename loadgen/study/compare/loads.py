"""Loads: runs under several loads as rows of one table, and a session's turns as rows of another."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.base.table import Column, Table
from loadgen.base.text import clean_line
from loadgen.figures.part_figures import TurnFigures
from loadgen.report import load_table
from loadgen.report.load_table import SIMULATION, LoadRow
from loadgen.study.compare.model import ALONE, ComparedLoad, Line
from loadgen.study.compare.rows import INVALID
from loadgen.study.run_summary import Reported, grouped

_FEWEST = 2  # rows that make a table
_SWEEP = 3  # loads of one row that are shown next to one another although each is compared as well
_ALIKE, _NEAR = 0.01, 0.1  # of counted lengths: shown as one, and of one series


class LoadPoint(msgspec.Struct, frozen=True):
    """One row of a comparison as a row of a table of loads."""

    row: LoadRow
    line: Line
    comparison: ComparedLoad
    series: Hashable = None  # equal for loads of one model that differ in concurrency or rate


class SweptLoads(msgspec.Struct, frozen=True):
    """Comparisons as they are shown: `points` in one table, then each of `compared` in one of its own."""

    points: tuple[LoadPoint, ...]
    compared: tuple[ComparedLoad, ...]

    @property
    def rows(self) -> tuple[LoadRow, ...]:
        """The rows of the table of loads; empty where there is none."""
        return tuple(point.row for point in self.points)

    @property
    def notes(self) -> list[str]:
        """The notes below the table of loads: remarks, then marks with the rows they are of."""
        alone = [point for point in self.points if len(point.comparison.lines) == 1]
        remarks = dict.fromkeys(remark for point in alone for remark in point.comparison.remarks)
        notes = [remark for remark in remarks if remark not in (ALONE, SIMULATION)]
        marks = [(mark, point) for point in alone for mark in point.line.marks]
        for mark, of in grouped(marks, lambda pair: pair[0]).items():
            labels = [self._label(point.row) for _, point in of]
            notes.append(f"{'all' if len(of) == len(self.points) else '; '.join(labels)}: {mark}")
        return notes

    def _label(self, row: LoadRow) -> str:
        """Which row: its name, load and lengths where the rows differ in them, and how many at a time."""
        values = ([each.name, each.load, each.lengths] for each in self.rows)
        differ = [len(set(column)) > 1 for column in zip(*values, strict=True)]
        own = zip((row.name, row.load, row.lengths), differ, strict=True)
        return ", ".join([*(value for value, shown in own if shown and value), row.at])


def arrange_loads(comparisons: Sequence[ComparedLoad]) -> SweptLoads:
    """Arrange loads of one row, and rows that ran under several loads of the same lengths, in one table.

    What has rows to compare is compared as well. A single row alone is a comparison with nothing.
    """
    lone = {id(each) for each in comparisons if len(each.lines) == 1 and each.lines[0].runs}
    every = _points(comparisons)
    shown = set()
    for series, points in grouped(every, lambda point: point.series).items():
        loads = len({point.row.pressure for point in points})
        if loads >= _SWEEP or any(id(point.comparison) in lone for point in points):
            shown.add(series)
    points = [point for point in every if point.series in shown]
    if len(points) < _FEWEST:
        return SweptLoads((), tuple(comparisons))
    compared = (each for each in comparisons if id(each) not in lone)
    return SweptLoads(tuple(_sort_points(points)), tuple(compared))


def _points(comparisons: Sequence[ComparedLoad]) -> list[LoadPoint]:
    """Every row of every load that has runs."""
    lines = [(line, each) for each in comparisons for line in each.lines if line.runs]
    rows = [_row(line, each) for line, each in lines]
    asked = [_asked_lengths(line.runs[0]) for line, _ in lines]
    near, alike = _settle_lengths(rows, asked, _NEAR), _settle_lengths(rows, asked, _ALIKE)
    return [
        LoadPoint(row, line, each, (row.name, coarse.lengths, row.shape))
        for (line, each), coarse, row in zip(lines, near, alike, strict=True)
    ]


def _sort_points(points: Iterable[LoadPoint]) -> Iterator[LoadPoint]:
    """Model by model and length by length as they came, then from the lightest load on."""
    for series in grouped(points, lambda point: point.row.name).values():
        for same in grouped(series, lambda point: point.series).values():
            yield from sorted(same, key=lambda point: point.row.pressure)


def _row(line: Line, comparison: ComparedLoad) -> LoadRow:
    """Figures over the runs that are not INVALID, if there are any."""
    runs = [run for run in line.runs if run.level != INVALID] or line.runs
    load = comparison.load if len(comparison.lines) == 1 else runs[0].load
    saturated = any(run.saturated for run in runs)
    return LoadRow(
        name=line.name,
        # A rung's name is its length, which has a column of its own.
        load="" if load.input_len is not None and any(run.speed_formula for run in runs) else load.name,
        input_len=load.input_len if load.asked_input_len is None else load.asked_input_len,
        output_len=load.output_len if load.asked_output_len is None else load.asked_output_len,
        requests=load.requests,
        duration_s=load.duration_s,
        shape=load.shape,
        concurrency=load.max_concurrency,
        rate_per_s=load.request_rate_per_s,
        figures=load_table.means([_figures(run) for run in runs], saturated),
        runs=len(line.runs),
        verdict=load_table.gravest([run.level for run in line.runs]),
        saturated=saturated,
        simulated=line.simulated,
    )


def _figures(run: Reported) -> dict[str, float]:
    held = run.held
    return {figure.key: held[figure.key] for figure in load_table.FIGURES if figure.key in held}


def _asked_lengths(run: Reported) -> Collection[str]:
    """The lengths that were asked for: others were counted, and differ by a token or two."""
    asked = {"input_len": run.load.asked_input_len, "output_len": run.load.asked_output_len}
    return [key for key, length in asked.items() if length is not None]


def _settle_lengths(
    rows: Sequence[LoadRow], asked: Sequence[Collection[str]], tolerance: float
) -> Iterator[LoadRow]:
    """The rows, counted lengths that are within a share of an earlier row's as that row has them."""
    kept: dict[str, list[float]] = {"input_len": [], "output_len": []}
    for row, exact in zip(rows, asked, strict=True):
        lengths: dict[str, float] = {}
        for key, known in kept.items():
            length = getattr(row, key)
            if length is None or key in exact:
                continue
            near = (other for other in known if abs(length - other) <= tolerance * other)
            if (settled := next(near, None)) is None:
                known.append(length)
                settled = length
            lengths[key] = settled
        yield replace(row, **lengths)


TITLE = "TTFT and cached share by turn"
_NOTE = "mean TTFT in ms of a row's runs, and the share of prompt tokens that the server reports cached"
_NONE = ("-", "-")


def turn_table(comparison: ComparedLoad) -> Table | None:
    """Make a table of a row a turn, two columns a checkpoint; None if fewer than two rows have sessions."""
    found = [(line.shown_name, _cells_by_turn(line)) for line in comparison.lines]
    rows = [(name, turns) for name, turns in found if turns]
    if len(rows) < 2:
        return None
    names = dict.fromkeys(name for _, turns in rows for name in turns)
    order = sorted(names, key=lambda name: int(name.partition("–")[0]))
    columns = [Column("turn", "turn")]
    for at, (name, _) in enumerate(rows):
        columns += [Column(f"ttft_{at}", f"{clean_line(name)} TTFT"), Column(f"cached_{at}", "cached")]
    body = tuple((name, *(cell for _, turns in rows for cell in turns.get(name, _NONE))) for name in order)
    return Table(tuple(columns), body, notes=(_NOTE,))


def _cells_by_turn(line: Line) -> dict[str, tuple[str, str]]:
    """The two cells of each turn, over the runs of a row."""
    runs = [run.run.by_turn for run in line.runs if run.run is not None]
    names = dict.fromkeys(row.name for rows in runs for row in rows)
    return {name: _cells([row for rows in runs for row in rows if row.name == name]) for name in names}


def _cells(rows: Sequence[TurnFigures]) -> tuple[str, str]:
    ttft_ms = _mean(row.mean_ttft_ms for row in rows)
    looked_up = sum(row.cached_of for row in rows)
    cached = f"{100 * sum(row.cached_tokens for row in rows) / looked_up:.1f} %" if looked_up else "-"
    return "-" if ttft_ms is None else f"{ttft_ms:.1f}", cached


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None

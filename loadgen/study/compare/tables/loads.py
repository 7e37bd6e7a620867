"""Loads: runs under several loads as rows of one table, and a session's turns as rows of another."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.features.sessions.session_figures import divide_by_turn
from loadgen.study import load_table
from loadgen.study.compare.comparison import INVALID
from loadgen.study.compare.model import ALONE, ComparedLoad, Line
from loadgen.study.load_table import SIMULATION, LoadRow, settle_lengths
from loadgen.study.run_summary import group_by
from loadgen.study.tables import Table, make_table

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
        """The rows of the table of loads; empty if no loads share a table."""
        return tuple(point.row for point in self.points)

    @property
    def notes(self) -> list[str]:
        """The notes below the table of loads, of loads with one row: remarks, then marks with their rows."""
        alone = [point for point in self.points if len(point.comparison.lines) == 1]
        remarks = dict.fromkeys(remark for point in alone for remark in point.comparison.remarks)
        notes = [remark for remark in remarks if remark not in (ALONE, SIMULATION)]
        marks = [(mark, point) for point in alone for mark in point.line.marks]
        for mark, of in group_by(marks, lambda pair: pair[0]).items():
            labels = [self._name_row(point.row) for _, point in of]
            notes.append(f"{'all' if len(of) == len(self.points) else '; '.join(labels)}: {mark}")
        return notes

    def _name_row(self, row: LoadRow) -> str:
        """Name a row: its name, load and lengths where the rows differ in them, and how many at a time."""
        values = [(each.name, each.load.name, each.load.length_words) for each in self.rows]
        differ = [len(set(column)) > 1 for column in zip(*values, strict=True)]
        own = zip((row.name, row.load.name, row.load.length_words), differ, strict=True)
        return ", ".join([*(value for value, shown in own if shown and value), row.load.pressure_words])


def arrange_loads(comparisons: Sequence[ComparedLoad]) -> SweptLoads:
    """Arrange comparisons for display: loads of one row, and rows under three or more loads, share a table.

    Rows of the same name and lengths as a lone one join it. What has rows to compare is compared as well; a
    table takes two rows, else every load is a comparison of its own.
    """
    lone = {id(each) for each in comparisons if len(each.lines) == 1 and each.lines[0].runs}
    every = _make_points(comparisons)
    shown = set()
    for series, points in group_by(every, lambda point: point.series).items():
        loads = len({point.row.load.pressure for point in points})
        if loads >= _SWEEP or any(id(point.comparison) in lone for point in points):
            shown.add(series)
    points = [point for point in every if point.series in shown]
    if len(points) < _FEWEST:
        return SweptLoads((), tuple(comparisons))
    compared = (each for each in comparisons if id(each) not in lone)
    ordered = (  # model by model and length by length as they came, then from the lightest load on
        point
        for of_name in group_by(points, lambda point: point.row.name).values()
        for series in group_by(of_name, lambda point: point.series).values()
        for point in sorted(series, key=lambda point: point.row.load.pressure)
    )
    return SweptLoads(tuple(ordered), tuple(compared))


def _make_points(comparisons: Sequence[ComparedLoad]) -> list[LoadPoint]:
    """Make a point of every row with runs, its lengths settled with those of the other loads."""
    lines = [(line, each) for each in comparisons for line in each.lines if line.runs]
    rows = [_make_row(line, each) for line, each in lines]
    near, alike = (settle_lengths((row.load for row in rows), share) for share in (_NEAR, _ALIKE))
    return [
        LoadPoint(replace(row, load=load), line, each, (row.name, coarse.length_words, load.shape))
        for (line, each), row, coarse, load in zip(lines, rows, near, alike, strict=True)
    ]


def _make_row(line: Line, comparison: ComparedLoad) -> LoadRow:
    """Make a row with the means over the runs that are not INVALID, else over all."""
    runs = [run for run in line.runs if run.level != INVALID] or line.runs
    load = comparison.load if len(comparison.lines) == 1 else runs[0].load
    if load.input_len is not None and any(run.speed_formula for run in runs):
        load = replace(load, name="")  # a rung's name is its length, which has a column of its own
    held = [run.held for run in runs]
    figures = [{each.key: of[each.key] for each in load_table.FIGURES if each.key in of} for of in held]
    saturated = any(run.saturated for run in runs)
    return LoadRow(
        name=line.name,
        load=load,
        figures=load_table.compute_means(figures, saturated),
        runs=len(line.runs),
        verdict=load_table.find_gravest([run.level for run in line.runs]),
        saturated=saturated,
        simulated=line.simulated,
    )


TITLE = "TTFT and cached share by turn"
_NOTE = "mean TTFT in ms of a row's runs, and the share of prompt tokens that the server reports cached"
_NONE = ("-", "-")


def make_turn_table(comparison: ComparedLoad) -> Table | None:
    """Make a table of a row a turn, two columns a checkpoint; None if fewer than two rows have sessions."""
    found = [(line.shown_name, _format_turns(line)) for line in comparison.lines]
    rows = [(name, turns) for name, turns in found if turns]
    if len(rows) < 2:
        return None
    names = dict.fromkeys(name for _, turns in rows for name in turns)
    order = sorted(names, key=lambda name: int(name.partition("–")[0]))
    columns = [("turn", "turn")]
    for at, (name, _) in enumerate(rows):
        columns += [(f"ttft_{at}", f"{name} TTFT"), (f"cached_{at}", "cached")]
    body = ((name, *(cell for _, turns in rows for cell in turns.get(name, _NONE))) for name in order)
    return make_table(columns, body, notes=(_NOTE,))


def _format_turns(line: Line) -> dict[str, tuple[str, str]]:
    """Return by turn the mean TTFT in ms (over runs) and the cached share (over tokens) as texts, or {}."""
    turns = (row for run in line.runs if run.run is not None for row in run.run.derive(divide_by_turn))
    cells = {}
    for name, rows in group_by(turns, lambda row: row.name).items():
        known = [row.mean_ttft_ms for row in rows if row.mean_ttft_ms == row.mean_ttft_ms]
        ttft = f"{sum(known) / len(known):.1f}" if known else "-"
        counted = sum(row.cached_of for row in rows)
        cached = f"{100 * sum(row.cached_tokens for row in rows) / counted:.1f} %" if counted else "-"
        cells[name] = ttft, cached
    return cells

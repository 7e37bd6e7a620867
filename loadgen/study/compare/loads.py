"""Loads: runs under several loads as rows of one table, and a session's turns as rows of another."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.base.table import Table, make_table
from loadgen.features.sessions.session_figures import TurnFigures, divide_by_turn
from loadgen.report import load_table
from loadgen.report.load_identity import Lengths, Load, settle_lengths
from loadgen.report.load_table import SIMULATION, LoadRow
from loadgen.study.compare.model import ALONE, ComparedLoad, Line
from loadgen.study.compare.rows import INVALID
from loadgen.study.run_summary import Reported, group_by

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
        for mark, of in group_by(marks, lambda pair: pair[0]).items():
            labels = [self._label(point.row) for _, point in of]
            notes.append(f"{'all' if len(of) == len(self.points) else '; '.join(labels)}: {mark}")
        return notes

    def _label(self, row: LoadRow) -> str:
        """Name a row: its name, load and lengths where the rows differ in them, and how many at a time."""
        values = [(each.name, each.load.name, each.load.length_words) for each in self.rows]
        differ = [len(set(column)) > 1 for column in zip(*values, strict=True)]
        own = zip((row.name, row.load.name, row.load.length_words), differ, strict=True)
        return ", ".join([*(value for value, shown in own if shown and value), row.load.pressure_words])


def arrange_loads(comparisons: Sequence[ComparedLoad]) -> SweptLoads:
    """Arrange loads of one row, and rows that ran under several loads of the same lengths, in one table.

    What has rows to compare is compared as well. A single row alone is a comparison with nothing.
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
    return SweptLoads(tuple(_sort_points(points)), tuple(compared))


def _make_points(comparisons: Sequence[ComparedLoad]) -> list[LoadPoint]:
    """Make a point of every row of every load that has runs."""
    lines = [(line, each) for each in comparisons for line in each.lines if line.runs]
    loads = [_find_load(line, each) for line, each in lines]
    near, alike = (settle_lengths(loads, share) for share in (_NEAR, _ALIKE))
    points = []
    for (line, comparison), load, coarse, fine in zip(lines, loads, near, alike, strict=True):
        row = _make_row(line, _set_lengths(load, fine))
        _, lengths, shape = _set_lengths(load, coarse).series
        points.append(LoadPoint(row, line, comparison, (row.name, lengths, shape)))
    return points


def _set_lengths(load: Load, lengths: Lengths) -> Load:
    return replace(load, input_len=lengths[0], output_len=lengths[1])


def _sort_points(points: Iterable[LoadPoint]) -> Iterator[LoadPoint]:
    """Model by model and length by length as they came, then from the lightest load on."""
    for series in group_by(points, lambda point: point.row.name).values():
        for same in group_by(series, lambda point: point.series).values():
            yield from sorted(same, key=lambda point: point.row.load.pressure)


def _find_load(line: Line, comparison: ComparedLoad) -> Load:
    """Find the load of a row; a rung's name is left out, since its length has a column of its own."""
    runs = _select_runs(line)
    load = comparison.load if len(comparison.lines) == 1 else runs[0].load
    is_rung = load.input_len is not None and any(run.speed_formula for run in runs)
    return replace(load, name="") if is_rung else load


def _select_runs(line: Line) -> Sequence[Reported]:
    """Select the runs of a row that are not INVALID, if there are any; else all."""
    return [run for run in line.runs if run.level != INVALID] or line.runs


def _make_row(line: Line, load: Load) -> LoadRow:
    runs = _select_runs(line)
    saturated = any(run.saturated for run in runs)
    return LoadRow(
        name=line.name,
        load=load,
        figures=load_table.compute_means([_read_figures(run) for run in runs], saturated),
        runs=len(line.runs),
        verdict=load_table.find_gravest([run.level for run in line.runs]),
        saturated=saturated,
        simulated=line.simulated,
    )


def _read_figures(run: Reported) -> dict[str, float]:
    held = run.held
    return {figure.key: held[figure.key] for figure in load_table.FIGURES if figure.key in held}


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
    """Write the two cells of each turn, over the runs of a row."""
    runs = [run.run.part(divide_by_turn) for run in line.runs if run.run is not None]
    names = dict.fromkeys(row.name for rows in runs for row in rows)
    return {name: _format_turn([row for rows in runs for row in rows if row.name == name]) for name in names}


def _format_turn(rows: Sequence[TurnFigures]) -> tuple[str, str]:
    ttft_ms = _compute_mean(row.mean_ttft_ms for row in rows)
    looked_up = sum(row.cached_of for row in rows)
    cached = f"{100 * sum(row.cached_tokens for row in rows) / looked_up:.1f} %" if looked_up else "-"
    return "-" if ttft_ms is None else f"{ttft_ms:.1f}", cached


def _compute_mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None

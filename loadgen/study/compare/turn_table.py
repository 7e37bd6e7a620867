"""Turn table: TTFT and cached share of each turn of sessions, the compared rows side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadgen.base.printable import printable
from loadgen.figures.part_figures import TurnFigures
from loadgen.report.speed_tables import Column, Table
from loadgen.study.compare.model import ComparedLoad, Line

TITLE = "TTFT and cached share by turn"
_NOTE = "mean TTFT in ms of a row's runs, and the share of prompt tokens that the server reports cached"
_NONE = ("-", "-")


def turn_table(comparison: ComparedLoad) -> Table | None:
    """A row a turn, two columns a checkpoint; None where fewer than two rows have sessions."""
    found = [(line.shown_name, _by_turn(line)) for line in comparison.lines]
    rows = [(name, turns) for name, turns in found if turns]
    if len(rows) < 2:
        return None
    names = dict.fromkeys(name for _, turns in rows for name in turns)
    order = sorted(names, key=lambda name: int(name.partition("–")[0]))
    columns = [Column("turn", "turn")]
    for at, (name, _) in enumerate(rows):
        columns += [Column(f"ttft_{at}", f"{printable(name)} TTFT"), Column(f"cached_{at}", "cached")]
    body = tuple((name, *(cell for _, turns in rows for cell in turns.get(name, _NONE))) for name in order)
    return Table(tuple(columns), body, notes=(_NOTE,))


def _by_turn(line: Line) -> dict[str, tuple[str, str]]:
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

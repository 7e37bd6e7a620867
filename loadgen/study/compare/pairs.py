"""Pairs: the runs of a row paired with the baseline's, as the units of the statistics."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import msgspec

from loadgen.study.compare import statistics
from loadgen.study.run_summary import Reported, grouped

Tell = Callable[[Reported], float | None]  # a figure of a run
Pair = tuple[list[Reported], list[Reported]]  # of the row, of the baseline; mostly one run each
STARTS_UNREPORTED = "the runs do not record which start of the server they ran on"
ONE_START = "all runs were on one start of the server"
_LEAST = 2  # units that have a spread


class Units(msgspec.Struct, frozen=True):
    """One figure of both sides, a value a unit; in the same order where paired."""

    row: list[float]
    baseline: list[float]
    paired: bool
    left: int = 0  # runs that have no partner and are in no pair


def units(row: Sequence[Reported], baseline: Sequence[Reported], figure: Tell) -> Units:
    """The units of two sides: paired by the campaign's repeat, else by equal prompts, else not.

    Pairs that share a start of a server, on either side, are one unit, where that leaves at least two.
    """
    for key in (_repeat, _plan):
        sides = ((run for run in side if figure(run) is not None) for side in (row, baseline))
        by_key, others_by_key = (grouped(side, key) for side in sides)
        shared = (unit for unit in others_by_key if unit is not None and unit in by_key)
        pairs = [(by_key[unit], others_by_key[unit]) for unit in shared]
        if len(pairs) < _LEAST:
            continue
        merged = _merged(pairs)
        groups = merged if len(merged) >= _LEAST else pairs
        left = len(_values((*row, *baseline), figure)) - sum(len(side) for pair in pairs for side in pair)
        own, others = (statistics.units([_values(unit[side], figure) for unit in groups]) for side in (0, 1))
        return Units(own, others, True, left)
    return Units(alone(row, figure), alone(baseline, figure), False)


def alone(runs: Sequence[Reported], figure: Tell) -> list[float]:
    """One side's units: where there are several, starts of the server, geometric means of runs; else runs."""
    starts = grouped((run for run in runs if figure(run) is not None), _start)
    if None in starts or len(starts) < _LEAST:
        return _values(runs, figure)
    return statistics.units([_values(of_start, figure) for of_start in starts.values()])


def remark(runs: Sequence[Reported]) -> str:
    """Why runs are the units of a side, and not starts of the server; "" where starts are, and of one run."""
    starts = {_start(run) for run in runs}
    if len(runs) < _LEAST or (len(starts) >= _LEAST and None not in starts):
        return ""
    return STARTS_UNREPORTED if None in starts else ONE_START


def _values(runs: Iterable[Reported], figure: Tell) -> list[float]:
    return [value for run in runs if (value := figure(run)) is not None]


def _merged(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs that are tied by a start which they share, as one."""
    groups: list[tuple[set[Hashable], Pair]] = []
    for pair in pairs:
        starts: set[Hashable] = {start for side in pair for run in side if (start := _start(run)) is not None}
        tied = [group for group in groups if group[0] & starts]
        groups = [group for group in groups if not group[0] & starts]
        merged: Pair = ([], [])
        for _, other in [*tied, (starts, pair)]:
            for side in (0, 1):
                merged[side].extend(other[side])
        groups.append((starts.union(*(group[0] for group in tied)), merged))
    return [pair for _, pair in groups]


def _repeat(run: Reported) -> Hashable:
    return None if run.cell is None else (run.cell.campaign, run.cell.repeat)


def _plan(run: Reported) -> Hashable:
    return run.plan_digest or None


def _start(run: Reported) -> Hashable:
    if run.cell is None or not run.cell.start:
        return None
    return run.cell.campaign, run.cell.arm, run.cell.start

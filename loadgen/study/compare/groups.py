"""Groups: reported runs sorted by load, and under each load by row: what is compared with what."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import product
from pathlib import PurePath
from typing import Any

import msgspec

from loadgen.study.compare import distinctions
from loadgen.study.run_summary import Load, Reported, grouped, plain_load

_KNOWN_ALIKE = 2  # facts that both sides report, for loads without a name to be the same


class Group(msgspec.Struct, frozen=True):
    """The runs under one load, by row."""

    load: Load
    rows: dict[str, tuple[Reported, ...]]


def drop_repeated(reported: Iterable[Reported]) -> tuple[list[Reported], list[Reported]]:
    """Part runs in each once, in order, and the repeated: same times and plan, or equal figures.

    Of a run that is there twice, the one that was named itself is used, else the first.
    """
    runs = list(reported)
    used: dict[object, Reported] = {}
    for run in sorted(runs, key=lambda run: run.place not in (run.source, run.file)):
        used.setdefault(_identity(run), run)
    kept = set(map(id, used.values()))
    return [run for run in runs if id(run) in kept], [run for run in runs if id(run) not in kept]


def sort_as_measured(reported: Sequence[Reported]) -> list[Reported]:
    """Sort runs of campaigns as they were measured, which is the order of their file; others stay."""
    of_campaigns = [(run.started, at) for at, run in enumerate(reported) if run.cell and run.started]
    measured = iter(sorted(of_campaigns))
    return [reported[next(measured)[1]] if run.cell and run.started else run for run in reported]


def group_runs(reported: Sequence[Reported], names: Sequence[str], *, one_load: bool = False) -> list[Group]:
    """Group runs by load and row, in order of appearance; with `one_load` all runs are under one.

    `names` are the rows' of the runs, as `name_rows` gives them.
    """
    by_load = []
    loads: list[Sequence[int]] = [range(len(reported))] if one_load else _split_repeats(reported, names)
    for members in loads:
        rows = grouped(members, lambda at: names[at])
        load = _join_facts([reported[at].load for at in members])
        by_load.append(Group(load, {name: tuple(reported[at] for at in row) for name, row in rows.items()}))
    return by_load


def name_rows(reported: Sequence[Reported], *, by_server: bool = False) -> list[str]:
    """Name the row of each run: its checkpoint, of a campaign's `by_server` with the server it was on.

    Runs of one name that differ in server, client, machine, request or label, in the place that they were
    named as, or in what their sources have and is not read, are rows of their own, with the words in which
    they differ: then that is what is compared.
    """
    plain = [_plain_name(run, by_server) for run in reported]
    names = list(plain)
    for name, places in grouped(range(len(plain)), lambda at: plain[at]).items():
        rows = distinctions.name_rows(name, [reported[at] for at in places], _group_repeats)
        for at, row in zip(places, rows, strict=True):
            names[at] = row
    return names


def _plain_name(run: Reported, by_server: bool) -> str:
    if run.cell is not None:
        return run.cell.arm if by_server else run.cell.checkpoint
    return run.name or PurePath(run.source).stem or "unnamed"


def _identity(run: Reported) -> object:
    if run.started is not None and run.plan_digest:  # of ours: its directory and its result file are one run
        return run.started, run.plan_digest, run.figure("duration")
    figures = sorted((key, str(value)) for key, value in run.figures.items())
    apart = run.engine, run.machine, tuple(sorted(run.unread.items()))
    return run.name, run.told_by, run.load, apart, tuple(figures)


def _group_by_load(reported: Sequence[Reported]) -> list[list[int]]:
    """Places of the runs under each load: named ones by name, then the others where their facts agree."""
    loads = [run.load for run in reported]
    by_key = grouped(range(len(reported)), lambda at: _key(reported[at]))
    kept: list[list[int]] = []
    for members in sorted(by_key.values(), key=lambda members: not loads[members[0]].name):
        own = loads[members[0]]
        alike = (
            group
            for group in kept
            if not own.name
            and distinctions.is_same_load(reported[members[0]], reported[group[0]], _KNOWN_ALIKE)
        )
        if (joined := next(alike, None)) is None:
            kept.append(members)
        else:
            joined += members
    return sorted((sorted(members) for members in kept), key=lambda members: members[0])


def _group_repeats(reported: Sequence[Reported]) -> list[list[int]]:
    """Places of the runs of one name that are under one load, whatever that is called."""
    return [kept for members in _group_by_load(reported) for kept in _split_by_load(reported, members)]


def _split_by_load(reported: Sequence[Reported], members: Iterable[int]) -> list[list[int]]:
    """Places of runs, parted by what they report of their loads."""
    kept: list[list[int]] = []
    for at in members:
        alike = (own for own in kept if distinctions.is_same_load(reported[at], reported[own[0]]))
        if (own := next(alike, None)) is None:
            kept.append([at])
        else:
            own.append(at)
    return kept


def _split_repeats(reported: Sequence[Reported], names: Sequence[str]) -> list[Sequence[int]]:
    """Places of the runs under each load: several of one name by themselves where a row was run under them.

    A profile keeps its name whatever flags are laid over it. Where no row has two, the load stays one: its
    rows are refused by what differs, which says more than two tables of a row each.
    """
    loads: list[Sequence[int]] = []
    for members in _group_by_load(reported):
        rows = grouped(members, lambda at: names[at]).values()
        if all(distinctions.is_same_load(reported[at], reported[row[0]]) for row in rows for at in row):
            loads.append(members)
            continue
        loads += _split_by_load(reported, members)
    return loads


def _key(run: Reported) -> Hashable:
    """Every fact of a load, or its name; of a ladder with the length of the rung."""
    if not run.load.name:
        return run.load
    climbs = run.facts is not None and run.facts.profile.ladder is not None
    return plain_load(run.load.name), run.load.input_len if climbs else None


def _join_facts(loads: Sequence[Load]) -> Load:
    """The facts of the load, each from the first run that reports it."""
    keys = (
        "name", "requests", "input_len", "output_len", "asked_input_len", "asked_output_len",
        "max_concurrency", "request_rate_per_s", "duration_s", "shape",
    )  # fmt: skip
    facts: dict[str, Any] = {}
    for key, load in product(keys, loads):
        if (value := getattr(load, key)) not in (None, ""):
            facts.setdefault(key, value)
    return Load(**facts)

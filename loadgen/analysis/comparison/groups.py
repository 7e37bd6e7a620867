"""Groups: reported runs sorted by load, and under each load by row: what is compared with what."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import product
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from loadgen.analysis.run_summary import Load, Reported

_LENGTH_TOLERANCE = 0.01
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
_KNOWN_ALIKE = 2  # facts that both sides report, for loads without a name to be the same


class Group(msgspec.Struct, frozen=True):
    """The runs under one load, by row."""

    load: Load
    rows: dict[str, tuple[Reported, ...]]


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by a key, in order of appearance."""
    items_by_key: dict[Key, list[Item]] = {}
    for item in items:
        items_by_key.setdefault(key(item), []).append(item)
    return items_by_key


def distinct(reported: Iterable[Reported]) -> tuple[list[Reported], list[Reported]]:
    """Each run once, in order; then the repeated: same times and plan; of other clients, equal figures."""
    first: dict[object, Reported] = {}
    repeated = [run for run in reported if first.setdefault(_identity(run), run) is not run]
    return list(first.values()), repeated


def in_order(reported: Sequence[Reported]) -> list[Reported]:
    """Runs of campaigns as they were measured, which is the order of their file; others where they were."""
    of_campaigns = [(run.started, at) for at, run in enumerate(reported) if run.cell and run.started]
    measured = iter(sorted(of_campaigns))
    return [reported[next(measured)[1]] if run.cell and run.started else run for run in reported]


def groups(reported: Sequence[Reported], names: Sequence[str], *, one_load: bool = False) -> list[Group]:
    """The loads in order of appearance, the rows under each likewise; with `one_load` all runs are under one.

    `names` are the rows' of the runs, as `row_names` gives them.
    """
    by_load = []
    loads: list[Sequence[int]] = [range(len(reported))] if one_load else [*_by_load(reported)]
    for members in loads:
        rows = grouped(members, lambda at: names[at])
        load = _described([reported[at].load for at in members])
        by_load.append(Group(load, {name: tuple(reported[at] for at in row) for name, row in rows.items()}))
    return by_load


def row_names(reported: Sequence[Reported], *, by_server: bool = False) -> list[str]:
    """The row of each run: its checkpoint, of a campaign's `by_server` with the server it was on.

    Runs of one name that differ in client, machine, power mode, engine, simulated timing or label are rows
    of their own: then that is what is compared.
    """
    plain = [_plain(run, by_server) for run in reported]
    several = {}
    for name, places in grouped(range(len(plain)), lambda at: plain[at]).items():
        values = ((apart, {apart(reported[at]) for at in places}) for apart in _APART)
        several[name] = [apart for apart, different in values if len(different - {""}) > 1]
    words = ([apart(run) for apart in several[name]] for name, run in zip(plain, reported, strict=True))
    added = (", ".join(filter(None, own)) for own in words)
    return [f"{name} ({own})" if own else name for name, own in zip(plain, added, strict=True)]


def _plain(run: Reported, by_server: bool) -> str:
    if run.cell is not None:
        return run.cell.arm if by_server else run.cell.checkpoint
    return run.name or PurePath(run.source).stem or "unnamed"


def _label(run: Reported) -> str:
    return "" if run.run is None or run.cell is not None else run.run.facts.label or ""


# What distinguishes rows of one name, if more than one value of it is reported.
_APART: tuple[Callable[[Reported], str], ...] = (
    lambda run: run.told_by,
    lambda run: run.machine,
    lambda run: run.power_mode,
    lambda run: run.engine,
    lambda run: run.simulated,
    _label,
)


def _identity(run: Reported) -> object:
    if run.run is not None:
        facts = run.run.facts
        return facts.started, facts.finished, facts.plan_digest, facts.server.url
    figures = sorted((key, str(value)) for key, value in run.figures.items())
    return run.name, run.told_by, run.load, tuple(figures)


def _by_load(reported: Sequence[Reported]) -> list[list[int]]:
    """Places of the runs under each load: named ones by name, then the others where their facts agree."""
    loads = [run.load for run in reported]
    by_key = grouped(range(len(reported)), lambda at: _key(reported[at]))
    kept: list[list[int]] = []
    for members in sorted(by_key.values(), key=lambda members: not loads[members[0]].name):
        own = loads[members[0]]
        alike = (group for group in kept if not own.name and _alike(loads[group[0]], own))
        if (joined := next(alike, None)) is None:
            kept.append(members)
        else:
            joined += members
    return sorted((sorted(members) for members in kept), key=lambda members: members[0])


def _key(run: Reported) -> Hashable:
    """Every fact of a load, or its name; of a ladder with the length of the rung."""
    if not run.load.name:
        return run.load
    climbs = run.run is not None and run.run.facts.profile.ladder is not None
    return plain(run.load.name), run.load.input_len if climbs else None


def plain(load: str) -> str:
    """A load's name as pages and profiles spell it: high, high-load and High load are one."""
    return re.sub(r"[\s_-]*load$", "", load.lower()) or load


def _alike(own_load: Load, other: Load) -> bool:
    """Nothing that both report differs, prompt lengths by 1 % at most, and they share enough facts."""
    equal = 0
    for key in ("requests", "asked_output_len", "max_concurrency", "request_rate_per_s", "input_len"):
        own, their = getattr(own_load, key), getattr(other, key)
        if own is None or their is None:
            continue
        tolerance = _LENGTH_TOLERANCE if key == "input_len" else 0.0
        if own != their and not (math.isfinite(their) and abs(own - their) <= tolerance * their):
            return False
        equal += 1
    return equal >= _KNOWN_ALIKE


def _described(loads: Sequence[Load]) -> Load:
    """The facts of the load, each from the first run that reports it."""
    keys = ("name", "requests", "input_len", "output_len", "asked_output_len", "max_concurrency")
    facts: dict[str, Any] = {}
    for key, load in product((*keys, "request_rate_per_s"), loads):
        if (value := getattr(load, key)) not in (None, ""):
            facts.setdefault(key, value)
    return Load(**facts)

"""Run groups: reported runs sorted by load, and under each load by row: what is compared with what.

Runs are repeats, whose figures have one mean, only where server, client, load and request are the same, where
they were named as one place, and where nothing else that their sources have differs. What a run does not
report distinguishes it from none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import PurePath
from typing import Any

import msgspec

from loadgen.base.tables import cut_middle
from loadgen.report.load_identity import Load
from loadgen.settings.setting import Makes
from loadgen.study import labels
from loadgen.study.compare.comparability import (
    LENGTH_TOLERANCE,
    collect_profile_values,
    collect_server_settings,
    describe_traits,
    format_value,
)
from loadgen.study.run_summary import OURS, Reported, group_by, strip_load

_KNOWN_ALIKE = 2  # facts that both sides report, for loads without a name to be the same
_ARGUMENTS = "arguments"  # of the server: their dashes show what they are
_NOT_GIVEN: tuple[Any, ...] = (None, "", (), {})
_SHOWN = 32  # characters of a name, in the narrowest of tables and pictures
_PLACE = "place"
_OF_THE_PLAN = ("repeated prompts", "number of servers")  # they are marked, and make no row
_MOST_LABELS = 3  # in a name, unless more are needed to tell runs apart
_BY_DEFAULT = ("shape", "made of")  # are equal where neither has anything unusual, which says little
# The places of runs that are under one load, for each load of theirs.
ByLoad = Callable[[Sequence[Reported]], Sequence[Sequence[int]]]


class Group(msgspec.Struct, frozen=True):
    """The runs under one load, by row."""

    load: Load
    rows: dict[str, tuple[Reported, ...]]


def drop_repeated(reported: Iterable[Reported]) -> tuple[list[Reported], list[Reported]]:
    """Return runs, each once, and those given again, both in order: same times and plan, or equal figures.

    Of a run that is there twice, the one that was named itself is used, else the first.
    """
    runs = list(reported)
    used: dict[object, Reported] = {}
    for run in sorted(runs, key=lambda run: run.place not in (run.source, run.file)):
        used.setdefault(_identify_run(run), run)
    kept = set(map(id, used.values()))
    return [run for run in runs if id(run) in kept], [run for run in runs if id(run) not in kept]


def sort_as_measured(reported: Sequence[Reported]) -> list[Reported]:
    """Sort runs of campaigns by their start, over the positions of these runs; other runs keep theirs."""
    of_campaigns = [(run.started, at) for at, run in enumerate(reported) if run.cell and run.started]
    measured = iter(sorted(of_campaigns))
    return [reported[next(measured)[1]] if run.cell and run.started else run for run in reported]


def group_runs(reported: Sequence[Reported], names: Sequence[str], *, one_load: bool = False) -> list[Group]:
    """Group runs by load and row, in order of appearance; with `one_load` all runs are under one.

    `names` are the rows' of the runs, as `name_rows` returns them.
    """
    by_load = []
    loads: list[Sequence[int]] = [range(len(reported))] if one_load else _split_repeats(reported, names)
    for members in loads:
        rows = group_by(members, lambda at: names[at])
        load = join_loads([reported[at] for at in members])
        by_load.append(Group(load, {name: tuple(reported[at] for at in row) for name, row in rows.items()}))
    return by_load


def name_rows(reported: Sequence[Reported], *, by_server: bool = False) -> list[str]:
    """Name the row of each run: its checkpoint, of a campaign's `by_server` with the server it was on.

    Runs of one name that differ in server, client, machine, request or label, in the place that they were
    named as, or in what their sources have and is not read, are rows of their own, with the words in which
    they differ: then that is what is compared.
    """
    plain = [find_plain_name(run, by_server) for run in reported]
    return distinguish_names(
        plain,
        reported,
        lambda runs: [kept for members in _group_by_load(runs) for kept in _split_by_load(runs, members)],
    )


def distinguish_names(names: Sequence[str], runs: Sequence[Reported | None], by_load: ByLoad) -> list[str]:
    """Return names with the words in which the runs of a name differ, where they are no repeats.

    A name stays as it is where one of its runs is None. `by_load` lists which runs are under one load.
    """
    named = list(names)
    for name, places in group_by(range(len(names)), lambda at: names[at]).items():
        of_name = [run for at in places if (run := runs[at]) is not None]
        if len(of_name) == len(places):
            for at, row in zip(places, distinguish_rows(name, of_name, by_load), strict=True):
                named[at] = row
    return named


def find_plain_name(run: Reported, by_server: bool) -> str:
    """Return a run's own name: of a campaign's its checkpoint's, with that of its server if `by_server`.

    A run of no campaign has its own name, else that of its file without the ending, else `unnamed`.
    """
    if run.cell is not None:
        return run.cell.arm if by_server else run.cell.checkpoint
    return run.name or PurePath(run.source).stem or "unnamed"


def _identify_run(run: Reported) -> object:
    """Make a key that two reports of one run share: start, plan and duration of ours, else all figures."""
    if run.started is not None and run.plan_digest:  # of ours: its directory and its result file are one run
        return run.started, run.plan_digest, run.figure("duration")
    figures = sorted((key, str(value)) for key, value in run.figures.items())
    apart = run.engine, run.machine, tuple(sorted(run.unread.items()))
    return run.name, run.told_by, run.load, apart, tuple(figures)


def _group_by_load(reported: Sequence[Reported]) -> list[list[int]]:
    """List the indices of the runs under each load: named ones by name, others where their facts agree."""
    loads = [run.load for run in reported]
    by_key: dict[Hashable, list[int]] = {}
    for at, run in enumerate(reported):  # by name, with the prompt length in a ladder; unnamed, by every fact
        climbs = run.facts is not None and run.facts.profile.ladder is not None
        named = strip_load(run.load.name), run.load.input_len if climbs else None
        by_key.setdefault(named if run.load.name else run.load, []).append(at)
    kept: list[list[int]] = []
    for members in sorted(by_key.values(), key=lambda members: not loads[members[0]].name):
        if loads[members[0]].name:
            kept.append(members)
        else:
            _join_alike(reported, members, kept, _KNOWN_ALIKE)
    return sorted((sorted(members) for members in kept), key=lambda members: members[0])


def _split_by_load(reported: Sequence[Reported], members: Iterable[int]) -> list[list[int]]:
    kept: list[list[int]] = []
    for at in members:
        _join_alike(reported, [at], kept)
    return kept


def _join_alike(
    reported: Sequence[Reported], members: list[int], kept: list[list[int]], least: int = 0
) -> None:
    """Append the indices `members` to the first group of `kept` under their load, else as another group.

    The first run of each decides: both must share `least` known facts of the load.
    """
    for group in kept:
        if is_same_load(reported[members[0]], reported[group[0]], least):
            group += members
            return
    kept.append(members)


def _split_repeats(reported: Sequence[Reported], names: Sequence[str]) -> list[Sequence[int]]:
    """List the indices of the runs of each load; split it where one row has runs that differ in their load.

    A load goes by its profile's name, which stays whatever flags are laid over it. Where no row has two, the
    load stays one: its rows are refused by what differs, which says more than two tables of a row each.
    """
    loads: list[Sequence[int]] = []
    for members in _group_by_load(reported):
        rows = group_by(members, lambda at: names[at]).values()
        if all(is_same_load(reported[at], reported[row[0]]) for row in rows for at in row):
            loads.append(members)
            continue
        loads += _split_by_load(reported, members)
    return loads


def join_loads(runs: Sequence[Reported]) -> Load:
    """Make the load of the first run, with what it does not report of it from runs under the same load.

    It is without seed, timed, settings. No other run's load is mixed in: no run had that.
    """
    loads = [run.load for run in runs if is_same_load(run, runs[0])]
    keys = (
        "name", "requests", "input_len", "output_len", "asked_input_len", "asked_output_len",
        "max_concurrency", "request_rate_per_s", "duration_s", "shape",
    )  # fmt: skip
    facts: dict[str, Any] = {}
    for key, load in product(keys, loads):
        value = getattr(load, key)
        if value not in (None, "") or (value == "" and load.settings is not None):  # of ours: nothing unusual
            facts.setdefault(key, value)
    return Load(**facts)


def describe_distinctions(run: Reported) -> dict[str, str]:
    """Describe in words by subject what tells a run from others of its name, apart from its load."""
    words = {name: word for name, word in describe_traits(run).items() if name not in _OF_THE_PLAN}
    if "prompts" in words:
        words["prompts"] = f"prompts as {words['prompts']}"
    for key, value in _collect_settings(run).items():
        words[key] = format_value(value) if key == _ARGUMENTS else f"{key} {format_value(value)}"
    return words


def _collect_settings(run: Reported) -> dict[str, Any]:
    return collect_server_settings(run) | collect_profile_values(run, Makes.REQUEST)


def distinguish_rows(plain: str, runs: Sequence[Reported], by_load: ByLoad) -> list[str]:
    """Name the row of each run of one name: the name, and the words in which these runs differ.

    A key that a run was not given is not named. Where long names would look alike once they are cut, only
    the keys are named that are needed to tell the runs apart. Runs of one load that differ in no such words
    are separated by the place that each was named as, then by labels of their sources.
    """
    words = [describe_distinctions(run) for run in runs]
    keys = dict.fromkeys(key for own in words for key in own)
    apart = [key for key in keys if len({own[key] for own in words if own.get(key)}) > 1]
    absent = [{key for key, value in _collect_settings(run).items() if value in _NOT_GIVEN} for run in runs]
    given = [
        {key: own[key] for key in apart if own.get(key) and key not in none}
        for own, none in zip(words, absent, strict=True)
    ]
    for add_words in (_add_places, _add_labels):
        apart += add_words(runs, given, by_load)
    every = [_name_row(plain, own, apart) for own in given]
    if len({cut_middle(name, _SHOWN) for name in every}) == len(set(every)):
        return every
    telling = _select_keys(given, apart)
    return [_name_row(plain, own, telling) for own in given]


def name_places(places: Iterable[str]) -> dict[str, str]:
    """Name each place by the fewest last parts of its path that are unique, less an end that all share."""
    parts = {place: PurePath(place).parts for place in dict.fromkeys(places)}
    longest = max(map(len, parts.values()), default=0)
    lengths = range(1, longest + 1)
    apart = next((n for n in lengths if len({own[-n:] for own in parts.values()}) == len(parts)), longest)
    ends = {place: own[-apart:] for place, own in parts.items()}
    while len(ends) > 1 and min(map(len, ends.values())) > 1 and len({own[-1] for own in ends.values()}) == 1:
        ends = {place: own[:-1] for place, own in ends.items()}
    return {place: str(PurePath(*own)) if own else place for place, own in ends.items()}


def _group_alike(words: Sequence[Mapping[str, str]]) -> list[list[int]]:
    return [*group_by(range(len(words)), lambda at: tuple(words[at].items())).values()]


def _add_places(runs: Sequence[Reported], words: list[dict[str, str]], by_load: ByLoad) -> Iterator[str]:
    """Add to `words` the places of runs that would be repeats but are of two places; yield its key if so."""
    if len({run.place for run in runs} - {""}) < 2:
        return
    shown = name_places(run.place for run in runs if run.place)
    is_added = False
    for members in _group_alike(words):
        own = [runs[at] for at in members]
        if any(len({own[at].place for at in load} - {""}) > 1 for load in by_load(own)):
            is_added = True
            for at in members:
                words[at] |= {_PLACE: shown[runs[at].place]} if runs[at].place else {}
    if is_added:
        yield _PLACE


def _add_labels(runs: Sequence[Reported], words: list[dict[str, str]], by_load: ByLoad) -> Iterator[str]:
    """Add to `words` the labels that differ among runs that would be repeats; yield the keys added.

    At most three labels are added, unless more are needed to tell the runs apart.
    """
    added: dict[str, None] = {}
    for members in _group_alike(words):
        own = [runs[at] for at in members]
        keys = list(dict.fromkeys(key for run in own for key in run.unread))
        if not keys:
            continue
        loads = [[own[at].unread for at in load] for load in by_load(own)]
        differ = [
            key for key in keys if any(len({unread.get(key, "") for unread in load}) > 1 for load in loads)
        ]
        telling = _select_keys([run.unread for run in own], differ)
        shown = [*telling, *(key for key in differ if key not in telling)][: max(_MOST_LABELS, len(telling))]
        for key in filter(shown.__contains__, differ):
            named = labels.format_label_values(key, (run.unread.get(key, "") for run in own))
            for at, text in zip(members, named, strict=True):
                words[at] |= {f"label {key}": text} if text else {}
            added[f"label {key}"] = None
    yield from added


def _name_row(plain: str, words: Mapping[str, str], keys: Sequence[str]) -> str:
    added = ", ".join(words[key] for key in keys if key in words)
    return f"{plain} ({added})" if added else plain


def _select_keys(words: Sequence[Mapping[str, str]], keys: Sequence[str]) -> list[str]:
    """Select each key whose words split the runs into more kinds than the keys before it do."""
    telling: list[str] = []
    kinds = 1
    for key in keys:
        more = len({tuple(own.get(kept) for kept in (*telling, key)) for own in words})
        if more > kinds:
            telling.append(key)
            kinds = more
    return telling


def is_same_load(run: Reported, other: Reported, least: int = 0) -> bool:
    """Whether no fact that both runs report of their loads differs, and they share at least `least`.

    Lengths of prompts are the requested ones, since those that were drawn have another mean in every run;
    counted ones, to 1 %, where a side reports no other. An equal shape or equal settings are no shared fact.
    """
    own, their = _list_load_facts(run), _list_load_facts(other)
    keys = [key for key in own if own[key] is not None and their[key] is not None]
    if any(own[key] != their[key] for key in keys):
        return False
    shared = len([key for key in keys if key not in _BY_DEFAULT])
    counted = run.load.input_len, other.load.input_len
    if "input" not in keys and counted[0] is not None and counted[1] is not None:
        if not abs(counted[0] - counted[1]) <= LENGTH_TOLERANCE * counted[1]:
            return False
        shared += 1
    return shared >= least


def _list_load_facts(run: Reported) -> dict[str, Any]:
    ours = run.told_by == OURS
    return run.load.list_facts(limited=ours or "max_concurrency" in run.figures, shaped=ours)

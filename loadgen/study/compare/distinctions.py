"""Distinctions: what makes two runs of one name no repeats of one another, in words.

Runs are repeats, whose figures have one mean, only where server, client, load and request are the same, where
they were named as one place, and where nothing else that their sources have differs. What a run does not
report distinguishes it from none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from loadgen.base.layout import cut_middle
from loadgen.report import data_identity, labels
from loadgen.study.compare import comparability
from loadgen.study.compare.comparability import format_value
from loadgen.study.run_summary import OURS, Reported
from loadgen.verdict.run_facts import Facts

LENGTH_TOLERANCE = 0.01
_NO_LIMIT, _BY_COUNT = "no limit", "until the last request"
_ARGUMENTS = "arguments"  # of the server: their dashes show what they are
_NOT_GIVEN: tuple[Any, ...] = (None, "", (), {})
_SHOWN = 32  # characters of a name, in the narrowest of tables and pictures
_PLACE = "place"
_MOST_LABELS = 3  # in a name, unless more are needed to tell runs apart
_BY_DEFAULT = ("shape", "made of")  # are equal where neither has anything unusual, which says little
_DRAWN = "as drawn"  # of a file or a distribution, which `shape` names


def describe_distinctions(run: Reported) -> dict[str, str]:
    """Describe what else than the load tells a run from another of its name: words by their subject."""
    words = {
        "client": run.told_by,
        "machine": run.machine,
        "power mode": run.power_mode,
        "engine": run.engine,
        "simulated": run.simulated,
    }
    return words | ({} if run.facts is None else dict(_describe_run(run, run.facts)))


def _describe_run(run: Reported, facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the distinctions that only our own runs report."""
    if facts.cell is None:
        yield "label", facts.label or ""
        if facts.launched is None and not facts.server.simulated:
            yield "server", urlsplit(facts.server.url).netloc  # one that is started here has any free port
    yield "transport", "httpx" if facts.client.transport == "httpx" else "ring or wire"
    yield "stream", "streamed" if facts.profile.stream else "not streamed"
    yield "prompts", f"prompts as {facts.prompt_format}"
    yield "warm-up", "warmed up" if facts.warmups else "not warmed up"
    for key, value in _collect_settings(run).items():
        yield key, format_value(value) if key == _ARGUMENTS else f"{key} {format_value(value)}"


def _collect_settings(run: Reported) -> dict[str, Any]:
    """Collect the server's settings, and the keys of the profile that make the request."""
    return {**dict(comparability.server_settings(run)), **comparability.request_keys(run)}


# The places of runs that are under one load, for each load of theirs.
ByLoad = Callable[[Sequence[Reported]], Sequence[Sequence[int]]]


def name_rows(plain: str, runs: Sequence[Reported], by_load: ByLoad) -> list[str]:
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


def place_names(places: Iterable[str]) -> dict[str, str]:
    """Name each place by the last parts of its path, without the parts that all end with."""
    parts = {place: PurePath(place).parts for place in dict.fromkeys(places)}
    longest = max(map(len, parts.values()), default=0)
    lengths = range(1, longest + 1)
    apart = next((n for n in lengths if len({own[-n:] for own in parts.values()}) == len(parts)), longest)
    ends = {place: own[-apart:] for place, own in parts.items()}
    while len(ends) > 1 and min(map(len, ends.values())) > 1 and len({own[-1] for own in ends.values()}) == 1:
        ends = {place: own[:-1] for place, own in ends.items()}
    return {place: str(PurePath(*own)) if own else place for place, own in ends.items()}


def _group_alike(words: Sequence[Mapping[str, str]]) -> list[list[int]]:
    """The places of runs whose words are the same."""
    found: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for at, own in enumerate(words):
        found.setdefault(tuple(own.items()), []).append(at)
    return list(found.values())


def _add_places(runs: Sequence[Reported], words: list[dict[str, str]], by_load: ByLoad) -> Iterator[str]:
    """Add to the words of runs that would be repeats the place of each, where several were named."""
    if len({run.place for run in runs} - {""}) < 2:
        return
    shown = place_names(run.place for run in runs if run.place)
    told = False
    for members in _group_alike(words):
        own = [runs[at] for at in members]
        if any(len({own[at].place for at in load} - {""}) > 1 for load in by_load(own)):
            told = True
            for at in members:
                words[at] |= {_PLACE: shown[runs[at].place]} if runs[at].place else {}
    if told:
        yield _PLACE


def _add_labels(runs: Sequence[Reported], words: list[dict[str, str]], by_load: ByLoad) -> Iterator[str]:
    """Add to the words of runs that would be repeats the labels of their sources, where these differ."""
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
            named = labels.named(key, (run.unread.get(key, "") for run in own))
            for at, text in zip(members, named, strict=True):
                words[at] |= {f"label {key}": text} if text else {}
            added[f"label {key}"] = None
    yield from added


def _name_row(plain: str, words: Mapping[str, str], keys: Sequence[str]) -> str:
    added = ", ".join(words[key] for key in keys if key in words)
    return f"{plain} ({added})" if added else plain


def _select_keys(words: Sequence[Mapping[str, str]], keys: Sequence[str]) -> list[str]:
    """Select the keys by which a run differs from one that no earlier key tells it from."""
    telling: list[str] = []
    kinds = 1
    for key in keys:
        more = len({tuple(own.get(kept) for kept in (*telling, key)) for own in words})
        if more > kinds:
            telling.append(key)
            kinds = more
    return telling


def is_same_load(run: Reported, other: Reported, least: int = 0) -> bool:
    """Whether nothing that both report of their loads differs, and they share `least` facts.

    Lengths of prompts are the requested ones, since those that were drawn have another mean in every run;
    counted ones, to 1 %, where a side reports no other.
    """
    own, their = _load_facts(run), _load_facts(other)
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


def _load_facts(run: Reported) -> dict[str, Any]:
    """Collect the facts of a load that was asked for; None for an unknown one."""
    load, limited = run.load, run.told_by == OURS or "max_concurrency" in run.figures
    drawn = _DRAWN if run.load.shape and run.facts is not None else None
    unlimited = _NO_LIMIT if limited else None
    return {
        "requests": load.requests if load.duration_s is None else None,  # a faster server gets more of them
        "input": drawn if load.asked_input_len is None else load.asked_input_len,
        "output": drawn if load.asked_output_len is None else load.asked_output_len,
        "concurrency": unlimited if load.max_concurrency is None else load.max_concurrency,
        "rate": None if load.timed else load.request_rate_per_s,
        "duration": _BY_COUNT if load.duration_s is None and run.facts is not None else load.duration_s,
        "shape": load.shape if run.told_by == OURS else None,
        "made of": None if run.facts is None else data_identity.keys(run.facts),
    }

"""Distinctions: what makes two runs of one name no repeats of one another, in words.

Runs are repeats, whose figures have one mean, only where server, client, load and request are the same. What
a run does not report distinguishes it from none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from loadgen.analysis.comparison import comparability
from loadgen.analysis.comparison.comparability import word
from loadgen.analysis.run_summary import OURS, Reported
from loadgen.protocol.layout import middle_cut
from loadgen.validity.run_facts import Facts

LENGTH_TOLERANCE = 0.01
_NO_LIMIT = "no limit"
_ARGUMENTS = "arguments"  # of the server: their dashes show what they are
_NOT_GIVEN: tuple[Any, ...] = (None, "", (), {})
_SHOWN = 32  # characters of a name, in the narrowest of tables and pictures
_DRAWN = "as drawn"  # of a file or a distribution, which `shape` names


def of(run: Reported) -> dict[str, str]:
    """Everything but the load by which a run differs from another of its name: words by what they are of."""
    words = {
        "client": run.told_by,
        "machine": run.machine,
        "power mode": run.power_mode,
        "engine": run.engine,
        "simulated": run.simulated,
    }
    return words | (dict(_ours(run, run.run.facts)) if run.run is not None else {})


def _ours(run: Reported, facts: Facts) -> Iterator[tuple[str, str]]:
    """What only our own runs report."""
    if facts.cell is None:
        yield "label", facts.label or ""
        if facts.launched is None and not facts.server.simulated:
            yield "server", urlsplit(facts.server.url).netloc  # one that is started here has any free port
    yield "transport", "httpx" if facts.client.transport == "httpx" else "ring or wire"
    yield "stream", "streamed" if facts.profile.stream else "not streamed"
    yield "prompts", f"prompts as {facts.prompt_format}"
    yield "warm-up", "warmed up" if facts.warmups else "not warmed up"
    for key, value in _settings(run).items():
        yield key, word(value) if key == _ARGUMENTS else f"{key} {word(value)}"


def _settings(run: Reported) -> dict[str, Any]:
    """What the server was given or reports, and the keys of the profile that make the request."""
    return {**dict(comparability.server_settings(run)), **comparability.request_keys(run)}


def names(plain: str, runs: Sequence[Reported]) -> list[str]:
    """The row of each run of one name: the name, and the words in which these runs differ.

    A key that a run was not given is not named. Where long names would look alike once they are cut, only
    the keys are named that are needed to tell the runs apart.
    """
    words = [of(run) for run in runs]
    keys = dict.fromkeys(key for own in words for key in own)
    apart = [key for key in keys if len({own[key] for own in words if own.get(key)}) > 1]
    absent = [{key for key, value in _settings(run).items() if value in _NOT_GIVEN} for run in runs]
    given = [
        {key: own[key] for key in apart if own.get(key) and key not in none}
        for own, none in zip(words, absent, strict=True)
    ]
    every = [_named(plain, own, apart) for own in given]
    if len({middle_cut(name, _SHOWN) for name in every}) == len(set(every)):
        return every
    telling = _telling(given, apart)
    return [_named(plain, own, telling) for own in given]


def _named(plain: str, words: Mapping[str, str], keys: Sequence[str]) -> str:
    added = ", ".join(words[key] for key in keys if key in words)
    return f"{plain} ({added})" if added else plain


def _telling(words: Sequence[Mapping[str, str]], keys: Sequence[str]) -> list[str]:
    """Of these keys those by which a run differs from one that it did not differ from by those before."""
    telling: list[str] = []
    kinds = 1
    for key in keys:
        more = len({tuple(own.get(kept) for kept in (*telling, key)) for own in words})
        if more > kinds:
            telling.append(key)
            kinds = more
    return telling


def same_load(run: Reported, other: Reported, least: int = 0) -> bool:
    """Whether nothing that both report of their loads differs, and they share `least` facts.

    Lengths of prompts are the requested ones, since those that were drawn have another mean in every run;
    counted ones, to 1 %, where a side reports no other.
    """
    own, their = _load(run), _load(other)
    keys = [key for key in own if own[key] is not None and their[key] is not None]
    if any(own[key] != their[key] for key in keys):
        return False
    shared = len(keys) - ("shape" in keys)
    counted = run.load.input_len, other.load.input_len
    if "input" not in keys and counted[0] is not None and counted[1] is not None:
        if not abs(counted[0] - counted[1]) <= LENGTH_TOLERANCE * counted[1]:
            return False
        shared += 1
    return shared >= least


def _load(run: Reported) -> dict[str, str | float | None]:
    """What was asked for; None if it is unknown."""
    load, limited = run.load, run.told_by == OURS or "max_concurrency" in run.figures
    drawn = _DRAWN if run.load.shape and run.run is not None else None
    unlimited = _NO_LIMIT if limited else None
    return {
        "requests": load.requests if load.duration_s is None else None,  # a faster server gets more of them
        "input": drawn if load.asked_input_len is None else load.asked_input_len,
        "output": drawn if load.asked_output_len is None else load.asked_output_len,
        "concurrency": unlimited if load.max_concurrency is None else load.max_concurrency,
        "rate": None if load.timed else load.request_rate_per_s,
        "shape": load.shape if run.told_by == OURS else None,
    }

"""Merge facts: how each fact of several shards becomes one of the whole run: a rule for each `Join`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.text import list_first
from loadgen.facts.calibration import Calibration, Error
from loadgen.facts.run_facts import Client, Facts, Join, ShardFacts, list_annotations
from loadgen.transport.sending.job import join_digests

_MOST_NAMED = 4  # different values of one fact that are listed
_PATHS = {"dataset_path", "trace", "prompt_corpus"}  # each machine's own; the plan's digest holds the content
Rule = Callable[["NamedValues"], Any]


class ShardRun(msgspec.Struct, frozen=True):
    """The facts of one shard, and the place they were read from, for messages."""

    place: str
    facts: Facts
    shard: ShardFacts
    requests: int  # that it has records of

    @property
    def name(self) -> str:
        """The shard's name in messages."""
        return f"shard {self.shard.name}"


def count_planned(facts: Facts) -> int | None:
    """Return how many requests the plan has; None if only --duration limits it."""
    profile = facts.profile
    return facts.requests if profile.duration is None or profile.open_loop else None


class NamedValues(msgspec.Struct, frozen=True):
    """One fact of every shard, in order."""

    values: tuple[Any, ...]
    runs: tuple[ShardRun, ...]


def join_facts(runs: Sequence[ShardRun]) -> dict[str, Any]:
    """Join the facts of shards by their rules, without those that the merge itself decides.

    A note is added if they reached the server by different addresses.
    """
    facts = _join_fields(list_annotations(Facts, Join), [run.facts for run in runs], runs)
    if facts["ceiling"] is not None:
        facts["no_ceiling"] = ""
    facts["notes"] = (*facts["notes"], *_list_addresses(runs))
    return facts


def _join_fields(
    joins: Mapping[str, Join], holders: Sequence[Any], runs: Sequence[ShardRun]
) -> dict[str, Any]:
    """Join each field of several holders (Facts or Client), one per shard, by its rule."""
    every = tuple(runs)
    return {
        name: RULES[join](NamedValues(tuple(getattr(holder, name) for holder in holders), every))
        for name, join in joins.items()
        if join is not Join.DECIDED
    }


def join_lines(shards: NamedValues) -> tuple[str, ...]:
    """Join lines, each once: one that all shards have unchanged, another after the names of its shards."""
    by_line: dict[str, list[str]] = {}
    for run, lines in zip(shards.runs, shards.values, strict=True):
        for line in dict.fromkeys(lines):
            by_line.setdefault(line, []).append(run.name)
    whole = len(shards.runs)
    return tuple(
        line if len(names) == whole else f"{list_first(names, _MOST_NAMED)}: {line}"
        for line, names in by_line.items()
    )


def _join_words(shards: NamedValues) -> str:
    """Join a line that shards have or lack: unchanged if all have it, else each with its shard."""
    lines = join_lines(NamedValues(tuple((value,) if value else () for value in shards.values), shards.runs))
    return "; ".join(lines)


def _join_by_name(shards: NamedValues) -> dict[str, str]:
    """Join tables of texts: of each name the different values of all shards."""
    names = dict.fromkeys(name for values in shards.values for name in values)
    return {name: _list_different([values.get(name, "") for values in shards.values]) for name in names}


def _choose_counters(shards: NamedValues) -> Any:
    """Return the first shard's counters without an error, else the first there are; None without any."""
    known = [value for value in shards.values if value is not None]
    return next((value for value in known if not value.error), known[0] if known else None)


def _select_sending(shards: NamedValues) -> NamedValues:
    """Return the values of shards that sent something, else of the first: others affect no figure."""
    pairs = zip(shards.values, shards.runs, strict=True)
    some = [(value, run) for value, run in pairs if run.requests] or [(shards.values[0], shards.runs[0])]
    return NamedValues(tuple(value for value, _ in some), tuple(run for _, run in some))


def join_clients(shards: NamedValues) -> Client:
    """Join the capturing processes' reports: work is summed, of each fault the worst counts."""
    joined = _join_fields(list_annotations(Client, Join), shards.values, shards.runs)
    clients: Sequence[Client] = shards.values
    busiest_s = clients[0].busiest_cpu_s if len(clients) == 1 else max(client.busiest_s for client in clients)
    return Client(**{**joined, "busiest_cpu_s": busiest_s})


def join_self_tests(shards: NamedValues) -> Calibration | None:
    """Join self-tests: that of the least able client, with the worst errors of all.

    None where one has none, or they used different transports. What several workers can do together is in
    proportion to their number: see Calibration.
    """
    values = _select_sending(shards).values
    measured: list[Calibration] = [value for value in values if value is not None]
    if len(measured) < len(values) or len({each.transport for each in measured}) > 1:
        return None
    least = min(measured, key=lambda each: each.capacity_of(1))
    errors: dict[str, list[Error]] = {
        name: [getattr(each, name) for each in measured] for name in ("ttft", "gap", "e2e")
    }
    worst = {name: max(several, key=lambda error: error.p99_us) for name, several in errors.items()}
    return least.model_copy(update=worst)


RULES: dict[Join, Rule] = {
    Join.FIRST: lambda shards: shards.values[0],
    Join.PRESENT: lambda shards: next(filter(None, shards.values), shards.values[0]),
    Join.COMMON: lambda shards: shards.values[0] if _are_alike(shards.values) else None,
    Join.DIFFERENT: lambda shards: _list_different(_select_sending(shards).values),
    Join.LINES: join_lines,
    Join.WORDS: _join_words,
    Join.VALUES: lambda shards: tuple(dict.fromkeys(value for values in shards.values for value in values)),
    Join.SUM: lambda shards: sum(shards.values),
    Join.LEAST: lambda shards: min(shards.values),
    Join.MOST: lambda shards: max(shards.values),
    Join.FARTHEST: lambda shards: max(shards.values, key=abs),
    Join.ANY: lambda shards: any(shards.values),
    Join.DIGEST: lambda shards: join_digests(shards.values),
    Join.PLACES: lambda shards: tuple(sorted(place for values in shards.values for place in values)),
    Join.BY_NAME: _join_by_name,
    Join.COUNTERS: _choose_counters,
    Join.CLIENT: join_clients,
    Join.SELF_TEST: join_self_tests,
}

# What all shards must have alike, in the order in which it is compared: what explains others comes first.
ALIKE: dict[str, Callable[[ShardRun], Any]] = {
    "loadgen version": lambda run: run.shard.version,
    "format": lambda run: run.facts.format,
    "number of shards": lambda run: run.shard.of,
    "profile": lambda run: run.facts.profile.model_dump(mode="json", exclude=_PATHS),
    "seed": lambda run: run.facts.seed,
    "repeat": lambda run: run.facts.repeat,
    "attempt": lambda run: run.facts.attempt,
    "engine": lambda run: f"{run.facts.server.engine} {run.facts.server.version}".strip(),
    "model": lambda run: run.facts.server.model,
    "timing of the embedded engine": lambda run: run.facts.server.simulated,
    "base URLs": lambda run: ", ".join(run.facts.targets),
    "fields left out for the server": lambda run: "; ".join(map(str, run.facts.adapted)),
    "ignore_eos": lambda run: "not sent" if run.facts.ignore_eos_refused else "sent",
    "plan digest": lambda run: run.facts.plan_digest,
    "planned requests": lambda run: count_planned(run.facts),
}


def check_alike(runs: Sequence[ShardRun]) -> None:
    """Raise UsageError that names the first two shards of different runs, and what differs."""
    for run in runs[1:]:
        for what, value_of in ALIKE.items():
            one, other = value_of(runs[0]), value_of(run)
            if one != other:
                raise UsageError(
                    f"{runs[0].place} and {run.place} differ in {_describe_difference(what, one, other)}: "
                    "merge the shards of one command, run by the same loadgen"
                )


def _list_addresses(runs: Sequence[ShardRun]) -> Iterator[str]:
    """Yield a line if shards reached the server by different addresses."""
    by_url: dict[str, list[str]] = {}
    for run in runs:
        by_url.setdefault(run.facts.server.url, []).append(run.name)
    if len(by_url) > 1 and not runs[0].facts.targets:
        yield "requests went to " + ", ".join(
            f"{url} ({list_first(names, _MOST_NAMED)})" for url, names in by_url.items()
        )


def _describe_difference(what: str, one: Any, other: Any) -> str:
    """Return what differs with both values; of tables the keys that do."""
    if isinstance(one, dict):
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        return f"{what}: " + ", ".join(f"{key} {one.get(key)} and {other.get(key)}" for key in keys)
    return f"{what}: {one} and {other}"


def _are_alike(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def _list_different(values: Sequence[str]) -> str:
    """Return the first four different values that are not "", and how many more there are."""
    every = [value for value in dict.fromkeys(values) if value]
    more = len(every) - _MOST_NAMED
    return "; ".join(every[:_MOST_NAMED]) + f" and {more} more" * (more > 0)

"""Merge facts: how each fact of several shards becomes one of the whole run, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.verdict.calibration import Calibration, Error
from loadgen.verdict.run_facts import Facts
from loadgen.verdict.run_metadata import Client
from loadgen.verdict.shard_facts import ShardFacts

_MOST_NAMED = 4  # different values of one fact that are listed
_PATHS = {"dataset_path", "trace", "prompt_corpus"}  # each machine's own; the plan's digest holds the content
Join = Callable[["NamedValues"], Any]


class ShardRun(msgspec.Struct, frozen=True):
    """The facts of one shard, and where they were read, as messages name it."""

    place: str
    facts: Facts
    shard: ShardFacts
    requests: int  # that it has records of

    @property
    def name(self) -> str:
        """As messages have it."""
        return f"shard {self.shard.name}"


def total(facts: Facts) -> int | None:
    """How many requests the plan has; None where only the time for sending decides."""
    profile = facts.profile
    return facts.requests if profile.duration is None or profile.open_loop else None


class NamedValues(msgspec.Struct, frozen=True):
    """One fact of every shard, in their order."""

    values: tuple[Any, ...]
    runs: tuple[ShardRun, ...]


def first(of: NamedValues) -> Any:
    """That of the first shard: they are alike, or it alone is asked."""
    return of.values[0]


def first_known(of: NamedValues) -> Any:
    """That of the first shard that has one."""
    return next((value for value in of.values if value), of.values[0])


def common(of: NamedValues) -> Any:
    """What all have; None where they differ."""
    return of.values[0] if _alike(of.values) else None


def united(of: NamedValues) -> tuple[str, ...]:
    """Lines in all shards as they are, the others with the shard that has them; each once, in order."""
    by_line: dict[str, list[str]] = {}
    for run, lines in zip(of.runs, of.values, strict=True):
        for line in dict.fromkeys(lines):
            by_line.setdefault(line, []).append(run.name)
    whole = len(of.runs)
    return tuple(
        line if len(names) == whole else f"{_named(names)}: {line}" for line, names in by_line.items()
    )


def in_words(of: NamedValues) -> str:
    """A line that a shard has or lacks: that of all of them, else each with its shard."""
    lines = united(NamedValues(tuple((value,) if value else () for value in of.values), of.runs))
    return "; ".join(lines)


def listed(of: NamedValues) -> tuple[str, ...]:
    """Every value of any shard, once."""
    return tuple(dict.fromkeys(value for values in of.values for value in values))


def bodies_digest(of: NamedValues) -> str:
    """The fingerprint of the bodies of all shards: each is a sum, of as many bits as its digits have."""
    known = [value for value in of.values if value]
    if not known:
        return ""
    return f"{sum(int(value, 16) for value in known) % 16 ** len(known[0]):0{len(known[0])}x}"


def turn_places(of: NamedValues) -> tuple[tuple[int, str], ...]:
    """Where sessions ended early in any shard, by plan index."""
    return tuple(sorted(place for values in of.values for place in values))


def environment(of: NamedValues) -> dict[str, str]:
    """By name what all machines have, or the different ones."""
    names = dict.fromkeys(name for values in of.values for name in values)
    return {name: _different([values.get(name, "") for values in of.values]) for name in names}


def window(of: NamedValues) -> Any:
    """The server's counters of the first shard that could read them: they count every shard's requests."""
    known = [value for value in of.values if value is not None]
    return next((value for value in known if not value.error), known[0] if known else None)


def busy(of: NamedValues) -> NamedValues:
    """Those of the shards that sent something: how the others would have is of no figure."""
    pairs = zip(of.values, of.runs, strict=True)
    some = [(value, run) for value, run in pairs if run.requests] or [(of.values[0], of.runs[0])]
    return NamedValues(tuple(value for value, _ in some), tuple(run for _, run in some))


def client(of: NamedValues) -> Client:
    """What all capturing processes report together: their work summed, of each fault the worst."""
    return Client(
        **{
            name: join(NamedValues(tuple(getattr(each, name) for each in of.values), of.runs))
            for name, join in JOINS_OF_CLIENT.items()
        },
        busiest_cpu_s=_busiest(of.values),
    )


def busiest_s(of: Client) -> float:
    """The CPU time of the capturing process that used most."""
    return of.busiest_cpu_s or of.cpu_s


def _busiest(clients: Sequence[Client]) -> float:
    """As Client has it: 0 where there is one process."""
    return clients[0].busiest_cpu_s if len(clients) == 1 else max(map(busiest_s, clients))


def calibration(of: NamedValues) -> Calibration | None:
    """The self-test of the least able client, with the worst errors of all.

    None where one has none, or they used different transports. What several workers can do together is in
    proportion to their number: see Calibration.
    """
    values = busy(of).values
    measured: list[Calibration] = [value for value in values if value is not None]
    if len(measured) < len(values) or len({each.transport for each in measured}) > 1:
        return None
    least = min(measured, key=lambda each: each.capacity_of(1))
    worst = {name: _worst([getattr(each, name) for each in measured]) for name in ("ttft", "gap", "e2e")}
    return least.model_copy(update=worst)


def _worst(errors: Sequence[Error]) -> Error:
    return max(errors, key=lambda error: error.p99_us)


def _sum(of: NamedValues) -> Any:
    return sum(of.values)


def _max(of: NamedValues) -> Any:
    return max(of.values)


def _any(of: NamedValues) -> bool:
    return any(of.values)


def _different_of(of: NamedValues) -> str:
    return _different(busy(of).values)


_SUMMED = (
    "cpu_s", "late_bodies", "segments", "dropped_segments", "fallen_back", "held_segments", "workers",
    "reconnects",
)  # fmt: skip
JOINS_OF_CLIENT: dict[str, Join] = {
    **dict.fromkeys(("transport", "why", "why_workers", "cpus"), _different_of),
    **dict.fromkeys(_SUMMED, _sum),
    **dict.fromkeys(("wall_s", "backlog_bytes", "stopped_s"), _max),
    "clock_step_ms": lambda of: max(of.values, key=abs),
}

# Every field of Facts but those that the merge itself decides.
JOINS: dict[str, Join] = {
    **dict.fromkeys(
        (
            "format", "command", "profile", "seed", "seed_chosen", "repeat", "attempt", "runs",
            "plan_digest", "prompt_format", "ids_source", "data", "server", "ignore_eos_refused", "adapted",
            "repeated_prompts", "targets", "cell", "session_turns",
        ),
        first,
    ),
    **dict.fromkeys(
        (
            "tokenizer", "text_tokenizer", "launched", "checkpoint", "as_run", "sensed", "cpu_use",
            "cache_reset",
            "fingerprint", "ceiling", "no_ceiling",
        ),
        first_known,
    ),
    **dict.fromkeys(("notes", "unknown", "throttled"), united),
    **dict.fromkeys(("cut_short", "stop_rule", "journal_error", "traced"), in_words),
    **dict.fromkeys(("warmups", "warmup_failures", "reasoned", "hidden_reasoning", "unfinished"), _sum),
    **dict.fromkeys(("finished", "signal", "gpus"), _max),
    **dict.fromkeys(("interrupted", "under_way", "saturated"), _any),
    **dict.fromkeys(("label", "request_id_prefix"), common),
    "started": lambda of: min(of.values),
    "metadata": listed,
    "bodies_digest": bodies_digest,
    "turn_places": turn_places,
    "environment": environment,
    "client": client,
    "window": window,
    "calibration": calibration,
}  # fmt: skip
DECIDED = ("requests", "recovered", "shard", "shards", "lost")  # by the merge

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
    "planned requests": lambda run: total(run.facts),
}


def check_alike(runs: Sequence[ShardRun]) -> None:
    """Raises UsageError that names the first two shards that are of different runs, and what differs."""
    for run in runs[1:]:
        for what, value_of in ALIKE.items():
            one, other = value_of(runs[0]), value_of(run)
            if one != other:
                raise UsageError(
                    f"{runs[0].place} and {run.place} differ in {_difference(what, one, other)}: merge the "
                    "shards of one command, run by the same loadgen"
                )


def joined(runs: Sequence[ShardRun]) -> dict[str, Any]:
    """The facts of the whole run, by field, but those in DECIDED."""
    every = tuple(runs)
    facts: dict[str, Any] = {
        name: join(NamedValues(tuple(getattr(run.facts, name) for run in every), every))
        for name, join in JOINS.items()
    }
    if facts["ceiling"] is not None:
        facts["no_ceiling"] = ""
    facts["notes"] = (*facts["notes"], *_addresses(every))
    return facts


def _addresses(runs: Sequence[ShardRun]) -> Iterator[str]:
    """That shards reached the server by different addresses."""
    by_url: dict[str, list[str]] = {}
    for run in runs:
        by_url.setdefault(run.facts.server.url, []).append(run.name)
    if len(by_url) > 1 and not runs[0].facts.targets:
        yield "requests went to " + ", ".join(f"{url} ({_named(names)})" for url, names in by_url.items())


def _difference(what: str, one: Any, other: Any) -> str:
    if isinstance(one, dict):
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        return f"{what}: " + ", ".join(f"{key} {one.get(key)} and {other.get(key)}" for key in keys)
    return f"{what}: {one} and {other}"


def _alike(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def _different(values: Sequence[str]) -> str:
    every = [value for value in dict.fromkeys(values) if value]
    more = len(every) - _MOST_NAMED
    return "; ".join(every[:_MOST_NAMED]) + f" and {more} more" * (more > 0)


def _named(names: Sequence[str]) -> str:
    """Shards in words, not all of many."""
    if len(names) <= _MOST_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"

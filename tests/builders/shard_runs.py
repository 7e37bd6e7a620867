"""Shard runs: a run divided into those that as many shards of its plan would have left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loadgen import __version__
from loadgen.base.arrays import Int64
from loadgen.base.structs import replace
from loadgen.facts.run_facts import ClockReading, ShardFacts
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import Result
from loadgen.server.sample_file import NO_SAMPLES

HERE = ClockReading(boot="here", offset_ns=10**18, error_ns=1000)
_FIRST_ALONE = ("window", "sensed", "fingerprint", "as_run", "launched", "checkpoint")
_SUMMED = ("warmups", "warmup_failures", "reasoned", "hidden_reasoning", "unfinished")
_CLIENT_SUMMED = ("reconnects", "late_bodies", "segments", "dropped_segments", "fallen_back", "held_segments")


def shard(number: int, of: int, **changes: Any) -> ShardFacts:
    """The facts of one shard, on this machine."""
    return ShardFacts(
        **{"number": number, "of": of, "version": __version__, "before": HERE, "after": HERE, **changes}
    )


def elsewhere(number: int, of: int, ahead_ns: int, **changes: Any) -> ShardFacts:
    """The facts of a shard whose CLOCK_MONOTONIC is ahead of this machine's by so much."""
    reading = replace(HERE, boot=f"there {number}", offset_ns=HERE.offset_ns - ahead_ns, **changes)
    return shard(number, of, before=reading, after=reading)


def selected(records: Records, which: Int64) -> Records:
    """The records at these positions."""
    rows = []
    for at in which.tolist():
        begin, end = records.start[at], records.start[at + 1]
        scalars: dict[str, Any] = {name: int(column[at]) for name, column in records.columns.items()}
        rows.append(
            Record(
                **{**scalars, "usage": bool(scalars["usage"]), "exact_tokens": bool(scalars["exact_tokens"])},
                arrival_ns=records.arrival_ns[begin:end],
                tokens=records.tokens[begin:end],
                failure=records.failures[at],
                finish_reason=records.finish_reasons[at],
                text=records.texts[at],
            )
        )
    return Records.from_records(rows)


def part(run: Result, number: int, of: int, **changes: Any) -> Result:
    """What shard `number` of so many would have left of a run; the first one samples the server."""
    facts, mine = run.facts, np.flatnonzero(run.records.index % of == number)
    fields: dict[str, Any] = {"shard": shard(number, of)}
    if (rows := run.sessions) is not None:
        own = sum(facts.session_turns[number::of])
        mine = np.flatnonzero(rows.session % of == number)
        fields = {"shard": shard(number, of, sessions=True, requests=own)}
    worked: dict[str, Any] = {
        "cpu_s": facts.client.cpu_s / of,
        **dict.fromkeys(_CLIENT_SUMMED if number else (), 0),
    }
    fields["client"] = replace(facts.client, **worked)
    if number:
        fields |= {**dict.fromkeys(_FIRST_ALONE), "cache_reset": ""}
        fields |= dict.fromkeys(_SUMMED, 0)
    if facts.profile.duration is not None and facts.profile.held_concurrency is not None:
        fields["requests"] = max(len(mine), 1)
    changed = replace(facts, **{**fields, **changes})
    return Result(changed, selected(run.records, mine), run.samples if number == 0 else NO_SAMPLES)


def by_workers(run: Result, workers: int) -> Result:
    """The run as one with so many capturing processes has it."""
    busiest_s = run.facts.client.cpu_s / workers if workers > 1 else 0.0
    client = replace(run.facts.client, workers=workers, busiest_cpu_s=busiest_s)
    return Result(replace(run.facts, client=client), run.records, run.samples)


def divided(run: Result, of: int) -> list[Result]:
    """What every shard would have left."""
    return [part(run, number, of) for number in range(of)]


def named(
    results: Sequence[Result], name: Callable[[int], str] = "runs/{}".format
) -> list[tuple[str, Result]]:
    """Results with the places that they would have been read from."""
    return [(name(number), result) for number, result in enumerate(results)]

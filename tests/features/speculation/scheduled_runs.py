"""Runs of the embedded engine's scheduler alone: no client, and no wait."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import msgspec
import numpy as np

from builders import made_runs
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import Result
from loadgen.server.engine_config import EngineConfig
from loadgen_servers.engine import cli
from loadgen_servers.engine.scheduler import Scheduler, Sequence, draw_steps

_PROMPT_TOKENS = 64
NGRAM = EngineConfig(speculative="ngram, 3 tokens")


class Load(msgspec.Struct, frozen=True):
    """Requests in a closed loop, or at a rate with Poisson arrivals, whose answers differ in length."""

    requests: int
    concurrency: int = 0
    rate_per_s: float = 0.0
    output_tokens: int = 128
    spread: float = 0.5  # of the responses' lengths, a share of them


def make_scheduler(acceptance: str) -> Scheduler:
    """The scheduler of an H20 whose drafts are accepted with these chances."""
    flags = ["--preset", "h20/qwen3-4b-bf16", "--acceptance", acceptance]
    return cli.engine_of(cli.parser().parse_args(flags))(cast(Any, None)).scheduler


def run(scheduler: Scheduler, load: Load, seed: int) -> Result:
    """A run of the load as the client would record it, whose server is known to draft."""
    scheduler = Scheduler(scheduler.limits, scheduler.timing)
    random, now, sent = Random(seed), 0, 0
    within = round(load.output_tokens * (1 - load.spread)), round(load.output_tokens * (1 + load.spread))
    lengths = [random.randint(*within) for _ in range(load.requests)]
    due = [0] * load.concurrency
    while load.rate_per_s and len(due) < load.requests:
        due.append((due[-1] if due else 0) + round(1e9 * random.expovariate(load.rate_per_s)))
    arrivals: list[list[int]] = [[] for _ in lengths]
    produced: list[list[int]] = [[0] for _ in lengths]
    while True:
        while sent < len(due) and due[sent] <= now:
            steps = draw_steps(b"%d %d" % (seed, sent), lengths[sent], scheduler.limits.acceptance)
            sequence = Sequence(_PROMPT_TOKENS, lengths[sent], _PROMPT_TOKENS + lengths[sent], due[sent])
            sequence.owner, sequence.steps = sent, steps
            scheduler.add(sequence)
            sent += 1
        step = scheduler.begin(now)
        if step is None and sent == len(due):
            break
        if step is None:
            now = due[sent]
            continue
        now = step.end_ns
        ended = scheduler.end(step, now)
        for sequence in {*ended.decoded, *ended.first, *ended.finished}:
            assert isinstance(sequence.owner, int)
            arrivals[sequence.owner].append(now)
            produced[sequence.owner].append(sequence.produced(ended.number))
        if load.concurrency:
            due += [now] * min(len(ended.finished), load.requests - len(due))
    return _record(due, arrivals, produced)


def _record(due: list[int], arrivals: list[list[int]], produced: list[list[int]]) -> Result:
    records = [
        Record(
            i, 0, due[i], due[i], arrival_ns[-1], arrival_ns=np.array(arrival_ns), tokens=np.diff(tokens),
            input_tokens=_PROMPT_TOKENS, output_tokens=tokens[-1], planned_output=tokens[-1], usage=True,
        )
        for i, (arrival_ns, tokens) in enumerate(zip(arrivals, produced, strict=True))
    ]  # fmt: skip
    made = made_runs.run(requests=len(due), as_run=NGRAM, window=None)
    return Result(made.facts, Records.from_records(records))

"""Runs that nobody measured, for what is made of runs: every figure follows from a seed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.base.errors import Broken
from loadgen.facts.run_facts import Cell, Client, Facts, Server
from loadgen.figures.metrics import list_figures
from loadgen.plan import profile
from loadgen.records.record import Record, Records
from loadgen.report import run_directory, run_writer
from loadgen.report.load_identity import identify_load
from loadgen.report.run_directory import Result
from loadgen.server.server_counters import ServerSample, ServerWindow
from loadgen.study.compare.model import ComparedFigure, ComparedLoad, Decision, Effect, Line
from loadgen.study.repeats import Mean
from loadgen.study.run_summary import Reported
from loadgen.transport.failure import Failure, FailureKind

MS = 1_000_000
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FIGURES = (
    ComparedFigure("output_throughput", "tok/s", True),
    ComparedFigure("mean_ttft_ms", "TTFT ms", False),
    ComparedFigure("mean_tpot_ms", "TPOT ms", False),
    ComparedFigure("memory_bytes", "memory GiB", None),
)


def answers(requests: int, tokens: int, concurrency: int, speed: float, seed: int) -> list[Record]:
    """What a closed loop gets: a first token after four gaps, gaps of 20 ms ÷ `speed` on average."""
    draw = np.random.default_rng(seed)
    free_ns = np.full(concurrency, 10**12, np.int64)
    records = []
    for index in range(requests):
        slot = int(free_ns.argmin())
        sent_ns = int(free_ns[slot])
        gaps = draw.gamma(40, 0.5 / speed, tokens) * MS
        gaps[0] *= 4
        arrival_ns = sent_ns + np.cumsum(gaps).astype(np.int64)
        free_ns[slot] = arrival_ns[-1] + MS // 10
        records.append(
            Record(
                index, slot, sent_ns - MS // 10, sent_ns, int(arrival_ns[-1]), arrival_ns=arrival_ns,
                tokens=np.ones(tokens, np.int64), first_byte_ns=int(arrival_ns[0]), planned_input=64,
                planned_output=tokens, input_tokens=64, output_tokens=tokens, usage=True, reads=tokens + 1,
                visible_ns=int(arrival_ns[0]),
            )
        )  # fmt: skip
    return records


def run(
    requests: int = 24,
    tokens: int = 16,
    concurrency: int = 4,
    speed: float = 1.0,
    seed: int = 0,
    failed: int = 0,
    model: str = "org/m",
    kind: FailureKind = FailureKind.TRUNCATED,
    **facts: Any,
) -> Result:
    """A closed loop of so many requests; the last `failed` of them are failures of that kind."""
    records = answers(requests, tokens, concurrency, speed, seed)
    for record in records[requests - failed :]:
        record.failure = Failure(kind, "cut")
    keys = {"name": "made", "input_len": 64, "output_len": tokens, "num_prompts": requests}
    given: dict[str, Any] = {
        "started": WHEN + timedelta(seconds=seed),
        "finished": WHEN + timedelta(seconds=seed + 60),
        "command": [
            "/somewhere/loadgen",
            "bench",
            "--profile",
            "made",
            "--max-concurrency",
            str(concurrency),
        ],
        "profile": profile.build({**keys, "max_concurrency": concurrency}),
        "seed": 7,
        "seed_chosen": False,
        "plan_digest": "abc",
        "prompt_format": "ids",
        "server": Server(url="http://h/v1/completions", engine="vLLM", version="1", model=model),
        "client": Client(
            transport="wire", cpu_s=1.0, wall_s=2.0, clock_step_ms=0.0, late_bodies=0, backlog_bytes=0
        ),
        "environment": {"python": "3", "cpu": "a processor"},
        "requests": requests,
        "window": ServerWindow(
            names="vllm",
            samples=tuple(
                ServerSample(at_s=0.04 * turn, running=3.0, waiting=1.0, kv_cache_usage=0.01 * turn)
                for turn in range(40)
            ),
        ),
        **facts,
    }
    return Result(Facts(**given), Records.from_records(records))


def reported(of: Result, name: str = "", **changes: Any) -> Reported:
    """The run as one of ours."""
    facts, metrics = of.facts, of.metrics
    told: dict[str, Any] = {
        "name": name or facts.server.model,
        "figures": list_figures(metrics, facts.block()),
        "load": identify_load(facts, 64.0, float(facts.profile.output_len)),
        "source": "runs/made",
        "engine": "vLLM 1",
        "machine": "a processor",
        "started": facts.started,
        "simulated": of.facts.server.simulated,
        "level": of.verdict.level.value,
        "saturated": of.facts.saturated,
        "doubts": tuple(one.rule.code for one in of.verdict.grave),
        "cell": facts.cell,
        "run": of,
        **changes,
    }
    return Reported(**told)


def cell(checkpoint: str, repeat: int) -> Cell:
    """One of a campaign."""
    return Cell(
        campaign="the campaign", checkpoint=checkpoint, server="vllm", profile="made", repeat=repeat,
        start=f"{checkpoint}-{repeat}",
    )  # fmt: skip


def line(name: str, runs: tuple[Reported, ...], call: Decision | None = None, **changes: Any) -> Line:
    """A row whose every effect is the same call; None: the baseline."""
    known = [figure for figure in FIGURES if runs and runs[0].figure(figure.key)]
    summaries = {}
    for figure in known:
        values = np.array([one.figure(figure.key) for one in runs], np.float64)
        half = float(values.std() + 0.01 * values.mean())
        mean = float(values.mean())
        summaries[figure.key] = Mean(mean, half, len(runs))
    effects = {}
    for figure in known if call is not None else ():
        effects[figure.key] = Effect(
            call or Decision.NONE, 1.25, 1.2, 1.3, p=0.001, p_adjusted=0.002, p_equivalent=0.9,
            units=len(runs), paired=True, detectable=0.02,
            more_runs=7 if call is Decision.UNDECIDED else None,
        )  # fmt: skip
    return Line(name, runs, summaries, effects, **changes)


def comparison(*lines: Line) -> ComparedLoad:
    """The lines under their load, the first the baseline."""
    load = lines[0].runs[0].load
    return ComparedLoad(load, lines[0].name, FIGURES, "output_throughput", lines, 0.02, 0.05, ("a remark",))


def keep(run: Result, directory: Path, report: str = "report\n") -> Path:
    """Write a run's directory as the command does."""
    broken: list[Broken] = []
    assert run_writer.save(run, directory, {run_directory.REPORT: report}, broken) == []
    assert broken == []
    return directory


def saturated(concurrency: int = 4, cut_off: int = 8, seed: int = 0, model: str = "org/m") -> Result:
    """A run that was ended early as saturated: the last `cut_off` requests were under way."""
    return run(
        concurrency=concurrency, failed=cut_off, seed=seed, model=model, kind=FailureKind.CANCELLED,
        saturated=True, stop_rule="--stop-when-saturated: TTFT rose",
    )  # fmt: skip

"""Reported: a run of ours in the shape in which everybody's are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over_named, read_tables
from loadgen.facts.run_facts import Cell, MemoryUse, SensorSummary, Server
from loadgen.server.checkpoint import Checkpoint
from loadgen.study.run_summary import summarise_run
from report.test_run_directory import WHEN, made

TABLES = read_tables("run_summary")

HERE = Path("runs/r")


def server(**changes: Any) -> Server:
    told = {
        "url": "http://127.0.0.1:8000/v1/completions", "engine": "vLLM", "version": "0.32", "model": "qwen3",
    }  # fmt: skip
    return Server(**{**told, **changes})


def test_a_run_that_was_not_streamed_has_its_end_to_end_latency() -> None:
    known = summarise_run(HERE, made(keys={"stream": False, "goodput": ()}))
    assert known.figure("mean_e2el_ms") == 100.0
    assert known.figure("mean_ttft_ms") is None


def test_a_run_tells_load_verdict_and_where_it_is_from() -> None:
    run = made()
    known = summarise_run(HERE, run)
    assert (known.load.name, known.load.requests, known.load.input_len, known.load.output_len) == (
        "p", 3, 10, 5,
    )  # fmt: skip
    assert (known.load.asked_input_len, known.load.asked_output_len, known.load.seed) == (10, 5, 7)
    assert (known.load.max_concurrency, known.load.request_rate_per_s) == (2, math.inf)
    assert (known.source, known.told_by, known.engine) == ("runs/r", "loadgen", "vLLM 1")
    assert (known.plan_digest, known.started, known.run) == ("abc", WHEN, run)
    assert known.level == run.verdict.level.value
    assert known.doubts == tuple(one.rule.code for one in run.verdict.grave)


def checkpoint(quantization: str = "", path: str = "/m/x") -> Checkpoint:
    return Checkpoint(path=path, config_digest="d", quantization=quantization, weight_bytes=7)


@loop_over_named(("changes", "name"), TABLES["names"])
def test_a_checkpoint_is_called_by_what_tells_it_from_others(changes: dict[str, Any], name: str) -> None:
    makers: dict[str, Callable[..., Any]] = {"server": server, "checkpoint": checkpoint, "cell": Cell}
    facts = {key: makers[key](**value) if key in makers else value for key, value in changes.items()}
    assert summarise_run(HERE, made(**facts)).name == name


@pytest.mark.parametrize(
    ("url", "machine"), [("http://localhost:1/v1", "NVIDIA Thor"), ("http://elsewhere:1/v1", "")]
)
def test_the_machine_is_told_where_the_server_is_on_it(url: str, machine: str) -> None:
    environment = {"cpu": "C", "gpu": "NVIDIA Thor", "jetson_power_mode": "MAXN (0)"}
    known = summarise_run(HERE, made(server=server(url=url), environment=environment))
    assert (known.machine, known.power_mode) == (machine, "MAXN (0)" if machine else "")


LEVEL = MemoryUse(peak_bytes=9, steady_bytes=8, how="h")
SENSED: dict[str, Any] = {"duration_s": 1, "period_s": 1, "samples": 1, "cpu_ms_per_sample": 0}


@pytest.mark.parametrize(("sensed", "engine", "memory", "remark"), [
    ({"server": LEVEL}, "vLLM", 9, "memory is what vLLM reserved at its start, not what the model needs"),
    ({"server": LEVEL}, "llama.cpp server", 9, ""),
    ({"rss": LEVEL}, "vLLM", 9, "memory is the host's: no GPU memory was reported"),
    ({}, "vLLM", None, ""),
])  # fmt: skip
def test_memory_is_the_server_s_peak_and_says_whose(
    sensed: dict[str, Any], engine: str, memory: int | None, remark: str
) -> None:
    known = summarise_run(HERE, made(sensed=SensorSummary(**SENSED, **sensed), server=server(engine=engine)))
    assert (known.memory_bytes, known.remarks) == (memory, (remark,) * bool(remark))


def test_a_simulation_and_a_partial_run_say_so() -> None:
    told = summarise_run(HERE, made(server=server(simulated="instant"), cut_short="Ctrl-C")).remarks
    assert told == ("SIMULATED with the timing of instant: no model ran", "PARTIAL: Ctrl-C")

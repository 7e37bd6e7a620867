"""Where the evidence of a run that fails points to, by the figures of its server."""

from __future__ import annotations

from typing import Any

import pytest

from builders.loops import loop_over
from builders.made_runs import run
from loadgen.facts.run_facts import Client
from loadgen.figures.objectives import Objective
from loadgen.server.server_counters import ServerLatency, ServerSample, ServerWindow
from loadgen.study.series.limit.limit_answer import find_bottleneck, measure_headroom

TTFT, TPOT = Objective("ttft", 99, 500), Objective("tpot", 99, 50)
E2EL = Objective("e2el", 90, 1000)


def window(waiting: float | None = None, usage: float = 0.4, **changes: Any) -> ServerWindow:
    sample = ServerSample(at_s=1.0, running=3.0, waiting=waiting, kv_cache_usage=usage)
    return ServerWindow(names="vllm", samples=(sample, sample), **changes)


def queued(mean_ms: float) -> ServerWindow:
    """The server reports that requests waited so long; TTFT is about 80 ms, E2EL 380 ms."""
    return window(9.0, queue=ServerLatency(count=24, mean_ms=mean_ms, brackets_ms={}))


@loop_over(
    ("objective", "counters", "cause"),
    [
        pytest.param(TTFT, window(9.0, 0.99), "kv-cache", id="full cache"),
        pytest.param(TPOT, window(9.0, 0.99), "kv-cache", id="full cache, tokens late"),
        pytest.param(TTFT, window(0.0, preemptions=2), "kv-cache", id="preemptions"),
        pytest.param(TTFT, window(9.0), "queue", id="requests wait"),
        pytest.param(TTFT, window(0.0), "prefill", id="none waits"),
        pytest.param(TPOT, window(9.0), "decode", id="tokens late"),
        pytest.param(Objective("tps_user", 10, 30), window(9.0), "decode", id="users slow"),
        pytest.param(Objective("prefill_speed", 10, 30), window(0.0), "prefill", id="prompts slow"),
        pytest.param(TTFT, queued(60.0), "queue", id="TTFT is waiting"),
        pytest.param(TTFT, queued(10.0), "prefill", id="TTFT is prefill"),
        pytest.param(E2EL, queued(60.0), "decode", id="E2EL is decode, though TTFT is waiting"),
        pytest.param(TTFT, None, "unknown", id="no counters"),
        pytest.param(TTFT, ServerWindow(error="no answer"), "unknown", id="unreadable counters"),
        pytest.param(TTFT, window(9.0, reset=True), "unknown", id="counters that went backwards"),
    ],
)
def test_the_figures_of_the_server_name_the_cause(
    objective: Objective, counters: ServerWindow | None, cause: str
) -> None:
    assert find_bottleneck(run(window=counters), objective)[0] == cause


def test_the_evidence_has_every_part_of_the_latency() -> None:
    made = run(window=queued(60.0))
    ttft_ms, e2el_ms = made.metrics.ttft.mean_ms, made.metrics.e2el.mean_ms
    assert find_bottleneck(made, E2EL)[1] == (
        f"mean E2EL {e2el_ms:.4g} ms: 60 queue, {ttft_ms - 60:.4g} prefill, {e2el_ms - ttft_ms:.4g} decode"
    )


@loop_over("objective", [TTFT, TPOT, E2EL])
def test_a_run_without_an_answer_points_to_nothing(objective: Objective) -> None:
    assert find_bottleneck(run(failed=24, window=window(0.0)), objective) == (
        "unknown", "the server reports no queue time",
    )  # fmt: skip


def test_headroom_without_a_self_test_is_by_the_busiest_cpu() -> None:
    client = Client(
        transport="wire", cpu_s=1.0, wall_s=2.0, clock_step_ms=0.0, late_bodies=0, backlog_bytes=0,
        busiest_cpu_s=0.5,
    )  # fmt: skip
    assert measure_headroom(run(client=client)) == {"headroom": 4.0, "headroom_at_least": False}

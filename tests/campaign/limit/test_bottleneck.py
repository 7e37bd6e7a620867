"""Where the evidence of a run that fails points to, by the figures of its server."""

from __future__ import annotations

import pytest

from builders.made_runs import run
from loadgen.campaign.limit.bottleneck import pointed_to
from loadgen.endpoint.server_counters import ServerSample, ServerWindow
from loadgen.metrics.objectives import Objective

TTFT, TPOT = Objective("ttft", 99, 500), Objective("tpot", 99, 50)


@pytest.mark.parametrize(
    ("objective", "waiting", "usage", "cause"),
    [
        pytest.param(TTFT, 9.0, 0.99, "kv-cache", id="full cache"),
        pytest.param(TPOT, 9.0, 0.99, "kv-cache", id="full cache, tokens late"),
        pytest.param(TTFT, 9.0, 0.4, "queue", id="requests wait"),
        pytest.param(TTFT, 0.0, 0.4, "prefill", id="none waits"),
        pytest.param(TPOT, 9.0, 0.4, "decode", id="tokens late"),
    ],
)
def test_the_figures_of_the_server_name_the_cause(
    objective: Objective, waiting: float, usage: float, cause: str
) -> None:
    sample = ServerSample(at_s=1.0, running=3.0, waiting=waiting, kv_cache_usage=usage)
    failing = run(window=ServerWindow(names="vllm", samples=(sample, sample)))
    assert pointed_to(failing, objective)[0] == cause

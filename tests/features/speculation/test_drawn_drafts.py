"""The split against the embedded engine, whose chances of acceptance and step times are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from builders.required import require
from fakes.virtual_servers import EngineServer, engine_server
from fakes.virtual_serving import VirtualServing
from features.speculation.scheduled_runs import Load, make_scheduler, run
from loadgen import cli
from loadgen.features.speculation.speculation_figures import Speculation, measure_speculation, measure_split
from loadgen.report import run_directory

pytestmark = pytest.mark.long
CHANCES = (0.8, 0.7, 0.5, 0.4)
LENGTH = 1 + float(np.cumprod(CHANCES).sum())  # tokens a step: each draft token needs those before it
RUNS = 400


def measure(directory: Path, load: str, seed: int) -> tuple[Speculation, EngineServer]:
    """The split of a run of random ids, and the engine that it was measured on."""
    chances = ",".join(map(str, CHANCES))
    server = engine_server("--preset", "h20/qwen3-4b-bf16", "--acceptance", chances)
    ran = ["--run-dir", str(directory / str(seed)), "--seed", str(seed), *load.split()]
    with VirtualServing(server):
        assert cli.main(["bench", "--base-url", server.base_url, *ran]) == 0
    (run,) = (directory / str(seed)).iterdir()
    split = measure_speculation(run_directory.load(run))
    return require(split), server


def test_both_figures_are_within_1_percent_of_the_truth(tmp_path: Path) -> None:
    load = "--random-input-len 64 --random-output-len 512 --num-prompts 128 --max-concurrency 8"
    split, server = measure(tmp_path, f"{load} --continuous-usage", 0)
    steps = server.engine.metrics.histograms["inter_token_latency"]
    assert require(split.acceptance_length).mean == pytest.approx(LENGTH, rel=0.01)
    assert require(split.step_ms).mean == pytest.approx(1e3 * steps.sum_s / sum(steps.counts), rel=0.01)
    assert split.by_position == pytest.approx(tuple(np.cumprod(CHANCES)), rel=0.03)
    messages, counters = split.sources["messages"], split.sources["counters"]
    assert (messages.tokens, messages.steps) == (counters.tokens, counters.steps)
    past = counters.accepted - messages.accepted if counters.accepted and messages.accepted else -1
    assert 0 <= past <= 128 * len(CHANCES)  # of each answer's last draft


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(Load(40, concurrency=1), id="one at a time"),
        pytest.param(Load(128, concurrency=8, spread=0.8), id="eight"),
        pytest.param(Load(512, rate_per_s=20), id="open loop"),
    ],
)
def test_95_percent_intervals_cover_in_93_to_98_of_100_runs(load: Load) -> None:
    scheduler = make_scheduler(",".join(map(str, CHANCES)))
    splits = [measure_split(run(scheduler, load, seed)) for seed in range(RUNS)]
    covered = {}
    for name in ("acceptance_length", "step_ms", "tpot_ms"):
        estimates = [getattr(split, name) for split in splits]
        truth = LENGTH if name == "acceptance_length" else np.mean([each.mean for each in estimates])
        covered[name] = 100 * sum(each.low <= truth <= each.high for each in estimates) / RUNS
    print(covered)
    assert {name: share for name, share in covered.items() if not 93 <= share <= 98} == {}
